"""The models of ``fell_back.py``: classes of installed packages in a small configuration, and small
ones of plain torch modules where the package is not one of Python's index. Weights are random."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fell_back_own import FTTransformer, PiperLike, StyledVoice, Tagger, TextRecognizer

Axes = Mapping[str, Mapping[int, str]]
IMAGE = {0: "batch", 2: "height", 3: "width"}
TOKENS = {0: "batch", 1: "tokens"}
#: (batch, height, width): the example, and what no exporter sees
SIDES = ((2, 64, 64), (1, 64, 64), (3, 96, 64), (2, 128, 96))
#: (batch, tokens)
LENGTHS = ((2, 9), (1, 9), (3, 14), (2, 5))
VOCABULARY = 60


@dataclass(frozen=True, slots=True)
class Script:
    """What a script gives to ``torch.onnx.export``: ``calls[0]`` is the example, the others are not seen."""

    model: torch.nn.Module
    calls: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...]
    axes: Axes
    tolerance: float = 1e-3


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the table: the package it comes from, and what builds its script."""

    name: str
    package: str
    build: Callable[[], Script]


def entries() -> Iterator[Entry]:
    """All twenty, in the order of the table."""
    for name in ("yolov8n", "yolo11n", "yolo26n"):
        yield Entry(name, "ultralytics", functools.partial(_yolo, f"{name}.yaml"))
    yield Entry("VITS", "transformers", _vits)
    yield Entry("piper-like voice", "own", _piper)
    yield Entry("Kokoro-like voice", "own", _kokoro)
    yield Entry("DeBERTa v2", "transformers", _deberta)
    yield Entry("RT-DETR", "transformers", _rt_detr)
    yield Entry("Faster R-CNN", "torchvision", _faster_rcnn)
    yield Entry("Mask R-CNN", "torchvision", _mask_rcnn)
    yield Entry("PARSeq-like recognition", "own", _recognizer)
    yield Entry("Conformer", "torchaudio", _conformer)
    yield Entry("SegFormer", "transformers", _segformer)
    yield Entry("sentence embedding", "sentence_transformers", _sentences)
    yield Entry("FT-Transformer-like", "own", _tabular)
    yield Entry("Whisper encoder", "transformers", _whisper_encoder)
    yield Entry("T5 encoder", "transformers", _t5_encoder)
    yield Entry(
        "ViT", "timm", functools.partial(_of_timm, "vit_tiny_patch16_224", img_size=64, depth=2)
    )
    yield Entry("LSTM tagger", "own", _tagger)
    yield Entry(
        "ConvNeXt", "timm", functools.partial(_of_timm, "convnext_atto", depths=(1, 1, 2, 1))
    )


class _Outputs(torch.nn.Module):
    """The tensors that a script wants of a model that returns more."""

    def __init__(self, model: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, values: Any) -> Any:
        found = self.model(values)
        outputs = tuple(found[name] for name in self.names)
        return outputs[0] if len(outputs) == 1 else outputs


class _TextOutputs(_Outputs):
    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask)
        outputs = tuple(found[name] for name in self.names)
        return outputs[0] if len(outputs) == 1 else outputs


def _images(model: torch.nn.Module, sides: Any = SIDES, axes: Any = IMAGE, **named: Any) -> Script:
    calls = tuple((torch.randn(batch, 3, height, width),) for batch, height, width in sides)
    return Script(model.eval(), calls, ("images",), {"images": axes}, **named)


def _texts(model: torch.nn.Module) -> Script:
    calls = tuple((_ids(*size), _mask(*size)) for size in LENGTHS)
    names = ("input_ids", "attention_mask")
    return Script(model.eval(), calls, names, dict.fromkeys(names, TOKENS))


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (batch, tokens))


def _mask(batch: int, tokens: int) -> torch.Tensor:
    """The first row is whole, the others end two tokens earlier."""
    mask = torch.ones(batch, tokens, dtype=torch.long)
    mask[1:, -2:] = 0
    return mask


def _yolo(name: str) -> Script:
    """The network with its layers fused, and the switches that its own exporter sets."""
    from ultralytics import YOLO

    model = YOLO(name).model.float().eval().fuse()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    head = model.model[-1]
    head.export, head.dynamic, head.format = True, True, "onnx"
    return _images(model)


def _vits() -> Script:
    from transformers import VitsConfig, VitsModel

    config = VitsConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=16,
        depth_separable_num_layers=1,
        wavenet_dilation_rate=1,
        upsample_initial_channel=16,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        noise_scale=0.0,
        noise_scale_duration=0.0,
    )
    return _texts(_TextOutputs(VitsModel(config), "waveform"))


def _piper() -> Script:
    scales = torch.tensor([0.0, 1.0, 0.0])
    calls = tuple((_ids(1, n), torch.tensor([n]), scales) for n in (12, 9, 17, 5))
    axes = {"input": {0: "batch", 1: "phonemes"}, "input_lengths": {0: "batch"}}
    calls += ((_ids(3, 8), torch.tensor([8, 6, 4]), scales),)
    return Script(PiperLike(VOCABULARY).eval(), calls, ("input", "input_lengths", "scales"), axes)


def _kokoro() -> Script:
    speed = torch.tensor([1.0])
    calls = tuple((_ids(1, n), torch.randn(1, 32), speed) for n in (12, 9, 17, 5))
    axes = {"input_ids": {1: "tokens"}}
    return Script(StyledVoice(VOCABULARY).eval(), calls, ("input_ids", "style", "speed"), axes)


def _deberta() -> Script:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
    )
    return _texts(_TextOutputs(DebertaV2Model(config), "last_hidden_state"))


def _rt_detr() -> Script:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[16, 16, 32],
        encoder_hidden_dim=32,
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        d_model=32,
        num_queries=8,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=32,
        decoder_attention_heads=2,
        decoder_layers=2,
        num_denoising=0,
        hidden_expansion=0.5,
        feat_strides=[8, 16, 32],
        num_labels=4,
    )
    model = RTDetrForObjectDetection(config)
    _let_images_matter(model)
    return _images(_Outputs(model, "logits", "pred_boxes"))


def _let_images_matter(model: torch.nn.Module) -> None:
    """Gives batch norms the statistics of random images: without them every place has nearly the same
    score, and which of them are the best is chance.
    """
    for module in model.modules():
        if hasattr(module, "running_var") and hasattr(module, "weight"):
            seen = functools.partial(_normalize, module)
            module.register_forward_pre_hook(seen)
    with torch.no_grad():
        model.eval()(torch.randn(4, 3, 64, 64))
    for module in model.modules():
        module._forward_pre_hooks.clear()


def _normalize(norm: Any, of_module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Sets the statistics to those of the input."""
    norm.running_mean.copy_(inputs[0].mean((0, 2, 3)))
    norm.running_var.copy_(inputs[0].var((0, 2, 3)))


def _detector(cls: Any, **heads: Any) -> Script:
    """A detector over a list of one image. It has no threshold for scores, so that it finds boxes."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 4, 1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, 4, 1),
        torch.nn.ReLU(),
    )
    backbone.out_channels = 16
    model = cls(
        backbone,
        num_classes=3,
        min_size=64,
        max_size=128,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=10,
        box_score_thresh=0.0,
        box_detections_per_img=5,
        **heads,
    )
    calls = tuple(([torch.rand(3, height, width)],) for _, height, width in SIDES)
    calls += (([torch.rand(3, 80, 112)],),)
    return Script(model.eval(), calls, ("image",), {"image": {1: "height", 2: "width"}})


def _faster_rcnn() -> Script:
    from torchvision.models.detection import FasterRCNN

    return _detector(FasterRCNN)


def _mask_rcnn() -> Script:
    from torchvision.models.detection import MaskRCNN
    from torchvision.ops import MultiScaleRoIAlign

    return _detector(MaskRCNN, mask_roi_pool=MultiScaleRoIAlign(["0"], 6, 2))


def _recognizer() -> Script:
    sides = ((2, 16, 32), (1, 16, 32), (4, 16, 32), (7, 16, 32))
    return _images(TextRecognizer(VOCABULARY), sides, {0: "batch"})


def _conformer() -> Script:
    from torchaudio.models import Conformer

    model = Conformer(
        input_dim=16, num_heads=2, ffn_dim=24, num_layers=2, depthwise_conv_kernel_size=5
    )
    sizes = ((2, 20), (1, 20), (3, 31), (2, 9))
    calls = tuple((torch.randn(batch, n, 16), _mask(batch, n).sum(1)) for batch, n in sizes)
    axes = {"frames": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
    return Script(model.eval(), calls, ("frames", "lengths"), axes)


def _segformer() -> Script:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
        num_labels=4,
    )
    return _images(_Outputs(SegformerForSemanticSegmentation(config), "logits"))


class _Embedder(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self.encoder(features)["sentence_embedding"]


def _sentences() -> Script:
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
    )
    with tempfile.TemporaryDirectory() as folder:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words += [f"word{n}" for n in range(VOCABULARY - len(words))]
        vocabulary = Path(folder, "vocab.txt")
        vocabulary.write_text("\n".join(words))
        BertTokenizer(str(vocabulary)).save_pretrained(folder)
        BertModel(config).save_pretrained(folder)
        encoder = models.Transformer(folder)
    parts = [encoder, models.Pooling(32, "mean"), models.Normalize()]
    return _texts(_Embedder(SentenceTransformer(modules=parts, device="cpu")))


def _tabular() -> Script:
    model = FTTransformer(numbers=5, categories=(4, 7, 3))
    calls = tuple(
        (torch.randn(rows, 5), torch.stack([torch.randint(0, n, (rows,)) for n in (4, 7, 3)], 1))
        for rows in (2, 1, 9, 33)
    )
    axes = {"numbers": {0: "rows"}, "categories": {0: "rows"}}
    return Script(model.eval(), calls, ("numbers", "categories"), axes)


def _whisper_encoder() -> Script:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=48,
        num_mel_bins=16,
        max_source_positions=30,
    )
    calls = tuple((torch.randn(batch, 16, 60),) for batch in (2, 1, 3, 8))
    model = _Outputs(WhisperEncoder(config), "last_hidden_state")
    return Script(model.eval(), calls, ("mel",), {"mel": {0: "batch"}})


def _t5_encoder() -> Script:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2
    )
    return _texts(_TextOutputs(T5EncoderModel(config), "last_hidden_state"))


def _of_timm(name: str, **options: Any) -> Script:
    import timm

    changes = IMAGE if "convnext" in name else {0: "batch"}
    sides = SIDES if "convnext" in name else ((2, 64, 64), (1, 64, 64), (3, 64, 64), (8, 64, 64))
    return _images(timm.create_model(name, num_classes=5, **options), sides, changes)


def _tagger() -> Script:
    calls = tuple((_ids(*size),) for size in LENGTHS)
    return Script(Tagger(VOCABULARY).eval(), calls, ("words",), {"words": TOKENS})
