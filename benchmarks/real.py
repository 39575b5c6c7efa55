"""Models of published sizes with random weights: seconds of the processor beside a bare export, and
memory beside the weights.

    python benchmarks/real.py [--quick] [--json FILE]

The bare export is one that a user would write by hand who knew the cache and the shapes. Every
model has a process of its own, so that its memory is its own. Nothing is read from the network:
the models are built from hyper-parameters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from frame import Figure, main, seconds_of
from memory import peak_above, resident
from torch import nn

import onlooker
from onlooker import InputObserver

MIB = 2**20
#: MiB; the memory of smaller models is that of their graphs
LEAST_WEIGHTS = 100
#: MiB; beside smaller results the memory of a verification is that of its trials
LEAST_RESULT = 1


@dataclass(frozen=True, slots=True)
class Use:
    """A model and how it is used: a prompt of ``rows`` x ``length`` tokens and ``new`` ones, or
    images of ``length`` pixels a side.

    ``stages`` are what is measured of it beside its export: ``bare``, ``verify``, ``load``.
    """

    model: str
    rows: int
    length: int
    new: int = 0
    stages: tuple[str, ...] = ("bare", "verify")

    @property
    def name(self) -> str:
        """For the table: ``Qwen2.5-0.5B 2x500``."""
        return f"{self.model} {self.rows}x{self.length}"


def decoder(kind: str, **sizes: Any) -> Any:
    """An untrained decoder of transformers with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()


def qwen() -> Any:
    """The hyper-parameters of Qwen2.5-0.5B."""
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    sizes = {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864}
    return decoder("qwen2", num_hidden_layers=24, tie_word_embeddings=True, **sizes, **heads)


def smol() -> Any:
    """The hyper-parameters of SmolLM2-135M."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
    return decoder("llama", num_hidden_layers=30, tie_word_embeddings=True, **sizes, **heads)


def thin(layers: int, vocabulary: int = 256) -> Any:
    """A Llama of hidden size 64."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 128}
    return decoder("llama", num_hidden_layers=layers, **sizes, **heads)


def vit() -> Any:
    """ViT-base for images of 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig()).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "Qwen2.5-0.5B": qwen,
    "SmolLM2-135M": smol,
    "80 thin layers": lambda: thin(80),
    "40 thin layers": lambda: thin(40),
    "20 thin layers": lambda: thin(20),
    "12 thin layers": lambda: thin(12),
    "vocabulary 151,936": lambda: thin(2, 151936),
    "ViT-base": vit,
}


class ByHand(nn.Module):
    """A decoder with the cache as lists of tensors: what can be exported without registering a
    class.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any, mask: Any, keys: list[Any], values: list[Any]) -> Any:
        """Logits, and the keys and values of the cache."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.update(*pair, layer)
        result = self.model(ids, attention_mask=mask, past_key_values=cache)
        layers = result.past_key_values.layers
        return result.logits, [one.keys for one in layers], [one.values for one in layers]


def bare(model: Any, use: Use) -> None:
    """``torch.export.export`` with the right arguments and shapes, written by hand."""
    dynamic = torch.export.Dim.DYNAMIC
    if not use.new:
        images = torch.randn(3, 3, use.length, use.length)
        call: Any = ({0: dynamic},)
        with torch.no_grad():
            torch.export.export(model, (images,), dynamic_shapes=call, strict=False)
        return
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    shape = (3, config.num_key_value_heads, 5, width)
    keys, values = ([torch.randn(shape) for _ in range(config.num_hidden_layers)] for _ in range(2))
    ids, mask = torch.randint(3, 200, (3, 7)), torch.ones(3, 12, dtype=torch.long)
    axes, grows = {0: dynamic, 1: dynamic}, [{0: dynamic, 2: dynamic}] * config.num_hidden_layers
    with torch.no_grad():
        torch.export.export(
            ByHand(model),
            (ids, mask, keys, values),
            dynamic_shapes=(axes, axes, grows, grows),
            strict=False,
        )


def used(model: Any, use: Use) -> Callable[[], Any]:
    """One run of the model as its user makes it."""
    if not use.new:
        images = torch.randn(use.rows, 3, use.length, use.length)
        return torch.no_grad()(lambda: model(pixel_values=images))
    ids = torch.randint(3, 200, (use.rows, use.length))
    options = {"max_new_tokens": use.new, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    return lambda: model.generate(ids, attention_mask=mask, eos_token_id=None, **options)


def largest_call(model: Any, use: Use) -> int:
    """Bytes of the largest result of a watched call: its logits."""
    if not use.new:
        return use.rows * 4 * int(model.config.num_labels)
    return use.rows * use.length * 4 * int(model.config.vocab_size)


def measured(use: Use) -> dict[str, float]:
    """Seconds and MiB of every stage; runs in a process of its own."""
    model = MODELS[use.model]()
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    found: dict[str, float] = {
        "weights": weights / MIB,
        "result": largest_call(model, use) / MIB,
    }
    run = used(model, use)
    if "bare" in use.stages:
        bare(model, use)  # what torch loads and keeps of a model
        found["bare"] = seconds_of(lambda: bare(model, use))
    run()
    eager = [seconds_of(run) for _ in range(2)]
    observer = InputObserver()

    def watched() -> None:
        with observer(model):
            run()

    base = resident()
    watching = [seconds_of(watched)]
    found["kept"] = (resident() - base) / MIB
    watching.append(seconds_of(watched))
    found["watching"] = min(watching) / min(eager)
    programs: list[Any] = []
    with peak_above() as peak:
        found["export"] = seconds_of(lambda: programs.append(observer.export()))
    found["export peak"] = peak.bytes / MIB
    (program,) = programs
    found["graphs"] = len(program.graphs)
    if "verify" in use.stages:
        with peak_above() as peak:
            found["verify"] = seconds_of(program.verify)
        found["verify peak"] = peak.bytes / MIB
        found["verified"] = float(program.tally.verified)
    if "load" in use.stages:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "program"
            program.save(place)
            found["load"] = seconds_of(lambda: onlooker.load(place))
    return found


def in_own_process(use: Use) -> Mapping[str, float]:
    """What :func:`measured` finds there."""
    command = [sys.executable, __file__, "--use", json.dumps(asdict(use))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def of_use(
    use: Use, found: Mapping[str, float], most: Mapping[str, float | None]
) -> Iterator[Figure]:
    """The figures of one model; ``most`` has their targets."""
    note = f"{found['weights']:.0f} MiB of weights, {found['graphs']:.0f} graphs"
    if "bare" in found:
        times = found["export"] / found["bare"]
        note = f"{note}; {found['export']:.0f} s, bare {found['bare']:.0f} s"
        yield Figure(f"{use.name}: export / bare", times, "x", most.get("export"), note)
        if "verify" in found:
            verified = "verified" if found["verified"] else "NOT VERIFIED"
            yield Figure(
                f"{use.name}: verify / bare",
                found["verify"] / found["bare"],
                "x",
                most.get("verify"),
                verified,
            )
            whole = (found["export"] + found["verify"]) / found["bare"]
            yield Figure(f"{use.name}: export and verify / bare", whole, "x", most.get("whole"))
        if "load" in found:
            ratio = found["load"] / found["bare"]
            yield Figure(f"{use.name}: load / bare", ratio, "x", most.get("load"))
    is_real = found["weights"] > LEAST_WEIGHTS
    allowed = 0.3 * found["weights"] + 3 * found["result"]
    yield Figure(
        f"{use.name}: peak of the export / (0.3 x weights + 3 x results)",
        found["export peak"] / allowed,
        "x",
        1.0 if is_real else None,
        f"{found['export peak']:.0f} MiB",
    )
    if "verify" in found and found["result"] >= LEAST_RESULT:
        ratio = found["verify peak"] / found["result"]
        yield Figure(
            f"{use.name}: peak of verify / largest result",
            ratio,
            "x",
            most.get("verify peak"),
            f"{found['verify peak']:.0f} MiB",
        )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures; a quick run has smaller models only."""
    if quick:
        use = Use("12 thin layers", 2, 32, 4, ("bare", "verify", "load"))
        yield from of_use(use, in_own_process(use), {})
        return
    long, short = (Use("Qwen2.5-0.5B", 2, length, 4) for length in (500, 32))
    found = {use.name: in_own_process(use) for use in (long, short)}
    yield from of_use(long, found[long.name], {"export": 2.5, "verify": 2.0})
    yield from of_use(short, found[short.name], {})
    ratio = found[long.name]["verify"] / found[short.name]["verify"]
    yield Figure("Qwen2.5-0.5B: verify of 2x500 / of 2x32", ratio, "x", 1.3)
    yield Figure("Qwen2.5-0.5B 2x500: watching / eager", found[long.name]["watching"], "x", 1.02)
    share = found[long.name]["kept"] / found[long.name]["weights"]
    yield Figure("Qwen2.5-0.5B 2x500: kept while watching / weights", share, "x", 0.3)
    use = Use("SmolLM2-135M", 2, 500, 32, ("bare", "verify", "load"))
    yield from of_use(use, in_own_process(use), {"whole": 4.0, "load": 0.4})
    use = Use("80 thin layers", 2, 32, 4)
    yield from of_use(use, in_own_process(use), {"export": 2.2})
    use = Use("ViT-base", 2, 224)
    yield from of_use(use, in_own_process(use), {"export": 5.0, "verify": 6.0})
    use = Use("vocabulary 151,936", 2, 100, 4, ("verify",))
    yield from of_use(use, in_own_process(use), {"verify peak": 4.0})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--use"]:
        asked = json.loads(sys.argv[2])
        print(json.dumps(measured(Use(**{**asked, "stages": tuple(asked["stages"])}))))
        sys.exit()
    sys.exit(main(__doc__ or "", figures))
