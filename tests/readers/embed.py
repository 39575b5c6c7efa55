"""Run by the Python of sentence-transformers: the embeddings of texts, by a folder and its ONNX backend.

python embed.py FOLDER FILE: FILE has the texts and the batch sizes as JSON, and gets the embeddings.
"""

import json
import sys
from pathlib import Path


def main(folder: str, file: Path) -> None:
    # optimum imports a diffusers that it finds, and the one beside it is of another version
    sys.modules["diffusers"] = None
    from sentence_transformers import SentenceTransformer

    asked = json.loads(file.read_text())
    model = SentenceTransformer(folder, backend="onnx")
    assert type(model[0].auto_model).__name__ == "ORTModelForFeatureExtraction"
    rows = [model.encode(asked["texts"], batch_size=size).tolist() for size in asked["batch_sizes"]]
    found = {"rows": rows, "longest": model.max_seq_length, "prompts": model.prompts}
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
