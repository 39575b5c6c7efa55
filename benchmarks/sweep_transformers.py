"""Every architecture of transformers by introspection: its class, a tiny configuration of it, and a
natural use.

Nothing here belongs to one architecture. A configuration is the default one of its class, reduced by
the rules of :mod:`onlooker_compat.untrained`. The first use of ``onlooker.zoo.uses`` that the model takes in
eager mode, in the watched and in at least one unseen size, is its use.
"""

from __future__ import annotations

import copy
import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from sweep_measure import NotBuilt, Use, recorded, text_of

from onlooker.zoo.uses import OTHER, PADDED, NaturalUse, Sizes, candidates
from onlooker_compat.untrained.build import prepared_configuration
from onlooker_compat.untrained.derived import without_stale
from onlooker_compat.untrained.reduce import VOCABULARY
from onlooker_compat.untrained.reduce_parts import HEADS as HEADS_OF_QUERIES
from onlooker_compat.untrained.reduce_parts import (
    KEY_VALUE_HEADS,
    LAYERS,
    chosen_layers,
    image_sides,
    reduced_experts,
    reduced_image,
    reduced_layers,
)

#: the heads that are swept, the most specific first
HEADS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForImageClassification",
    "ForCTC",
    "Model",
)
#: other batches, lengths and paddings than the watched ones, and media of another size
UNSEEN = (Sizes((2, 0, 1), 7, seed=1), OTHER, Sizes((0, 1), 12, scale=1.5, seed=3))
#: with media between those of the watched run and of the last unseen one
BETWEEN = Sizes((1, 0), 9, scale=1.25, seed=4)
#: a model of more weights is not tiny
MOST_WEIGHTS = 140_000_000
#: what widths are divided by where the rules do not fit
DIVISOR = 8
WIDTH = re.compile(
    r"(dim|dims|size|sizes|rank|channels|width|groups|section|d_model|d_ff|d_kv|n_embd|d_head)$"
)
NO_WIDTH = re.compile(
    r"vocab|image|img|patch|window|kernel|chunk|codebook|spatial|temporal|block|merge|crop|pool|sampl"
)
SEED = 1234
OF_ONE_HEAD = re.compile(r"head|section|rope|kv_rank|rotary")
#: how many experts are used at a time
USED_AT_ONCE = re.compile(r"per_tok|top_?k$")
COUNTS_OF_HEADS = (*HEADS_OF_QUERIES, *KEY_VALUE_HEADS)


def architectures() -> Iterator[tuple[str, str, Callable[[], Use]]]:
    """``(class, head, build)``: one class of each model type first, then the others."""
    of_type: dict[str, list[str]] = {}
    for model_type, name in _rows():
        names = of_type.setdefault(model_type, [])
        if name not in names:
            names.append(name)
    first, later = [], []
    for names in of_type.values():
        names.sort(key=lambda name: HEADS.index(head_of(name)))
        first += names[:1]
        later += names[1:]
    for name in dict.fromkeys(first + later):
        yield name, head_of(name), functools.partial(build, name)


def head_of(name: str) -> str:
    """The head that the name of a class ends with, or nothing."""
    return next((head for head in HEADS if name.endswith(head)), "")


def _rows() -> Iterator[tuple[str, str]]:
    """``(model type, class)`` of all tables of transformers."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    for table in sorted(name for name in vars(auto) if name.endswith("MAPPING_NAMES")):
        for model_type, names in getattr(auto, table).items():
            for name in (names,) if isinstance(names, str) else names:
                if head_of(name):
                    yield model_type, name


def build(name: str) -> Use:
    """A tiny model of a class, and the first natural use that it takes.

    :raises NotBuilt: with the reason
    """
    import transformers

    errors: list[str] = []
    reason = why_none(getattr(transformers, name))
    for model in tiny(getattr(transformers, name), errors):
        reason = "no-use"
        for use in natural_uses(model):
            try:
                trial = copy.deepcopy(model)
                if not recorded(trial, use.watch):
                    raise NotBuilt("forward is not called")
                _some_unseen(use, trial)
                return replace(use, passed_over=tuple(dict.fromkeys(errors)))
            except Exception as error:
                errors.append(f"{use.story}: {text_of(error)[:160]}")
    raise NotBuilt(" | ".join(dict.fromkeys(errors))[:900], reason)


def natural_uses(model: Any) -> Iterator[Use]:
    """Uses of a model, the most natural one first; which of them it takes is not known."""
    return (_use(model, one) for one in candidates(model))


def _use(model: Any, use: NaturalUse) -> Use:
    """The run of a use at the watched size and at the unseen ones."""

    def of(sizes: Sizes) -> Callable[[Any], object]:
        return lambda module: use.run(module, sizes)

    return Use(use.story, model, of(PADDED), tuple(map(of, UNSEEN)), between=of(BETWEEN))


def why_none(cls: Any) -> str:
    """Why there may be no tiny model: transformers itself makes none of the default configuration,
    or the rules make none that is small.
    """
    try:
        config = cls.config_class()
        with torch.device("meta"):
            cls(config)
    except ImportError:
        return "missing-library"
    except Exception:
        return "no-default-model"
    return "no-tiny-model"


def _some_unseen(use: Use, model: Any) -> None:
    """Raises unless the model takes an unseen run, too."""
    error: Exception | None = None
    for run in use.unseen:
        try:
            recorded(model, run)
            return
        except Exception as caught:
            error = caught
    raise error or NotBuilt("nothing is unseen")


# ------------------------------------------------------------------------ configurations


def tiny(cls: Any, errors: list[str]) -> Iterator[Any]:
    """Models of few weights, drawn anew, in eval mode: one for each way to reduce the configuration.

    The next one is for where nothing uses the one before: widths that do not fit one another may
    show in the first call only. What cannot be built is appended to ``errors``.
    """
    for reduce in WAYS:
        try:
            config = _as_decoder(cls, reduce(cls.config_class()))
            with torch.device("meta"):
                weights = sum(weight.numel() for weight in cls(copy.deepcopy(config)).parameters())
            if weights > MOST_WEIGHTS:
                raise NotBuilt(f"{weights / 1e6:.0f} million weights", "no-tiny-model")
            torch.manual_seed(SEED)
            model = drawn(cls(config).eval())
        except Exception as error:
            errors.append(text_of(error)[:200])
        else:
            yield model


def _as_decoder(cls: Any, config: Any) -> Any:
    """A model that writes text without an encoder is a decoder, which some configurations have to say."""
    writes = cls.can_generate() and not config.is_encoder_decoder
    if writes and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    return config


def _by_rule(config: Any) -> Any:
    """All widths, depths, heads and vocabularies, and parts that fit together."""
    return prepared_configuration(config, "", {})


def _in_proportion(config: Any) -> Any:
    """Fewer layers, and all widths by one divisor: those that belong together still do."""
    return _made(config, _shrunk(config.to_dict(), DIVISOR))


def _in_large_proportion(config: Any) -> Any:
    """The same for the widest."""
    return _made(config, _shrunk(config.to_dict(), 4 * DIVISOR))


def _of_fewer_heads(config: Any) -> Any:
    """The same, but that heads keep their size, and are fewer."""
    return _made(config, _shrunk(config.to_dict(), DIVISOR, heads=True))


def _fewer_layers(config: Any) -> Any:
    """Fewer layers and experts, and a small vocabulary: widths stay."""
    return _made(config, _shrunk(config.to_dict(), 1))


def _as_it_is(config: Any) -> Any:
    return config


#: how a configuration is made tiny; the next one is for where nothing uses the one before
WAYS = (
    _by_rule,
    _in_proportion,
    _of_fewer_heads,
    _in_large_proportion,
    _fewer_layers,
    _as_it_is,
)


def _shrunk(values: Mapping[str, Any], divisor: int, heads: bool = False) -> dict[str, Any]:
    """One part of a configuration, and those inside it."""
    kept = chosen_layers(values)
    found = {**values, **reduced_layers(values, kept), **reduced_experts(values)}
    if image_sides(values) and "patch_size" not in values:
        found["image_size"] = reduced_image(values)  # nothing is learned of its places
    depth = max((values[key] for key in LAYERS if isinstance(values.get(key), int)), default=0)
    for key, value in values.items():
        if isinstance(value, Mapping) and value and all(str(inner).isdigit() for inner in value):
            found[key] = {}  # settings of single layers, by their number
        elif isinstance(value, Mapping):
            found[key] = _shrunk(value, divisor, heads)
        elif isinstance(value, list) and kept and depth > 2 and len(value) == depth:
            found[key] = [_divided(key, value[index], divisor, heads) for index in kept]
        elif key == "vocab_size" and isinstance(value, int):
            found[key] = min(value, VOCABULARY)
        elif key.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            # neighbours stay apart
            found[key] = value if value < VOCABULARY else VOCABULARY - 1 - value % 64
        elif USED_AT_ONCE.search(key) and isinstance(value, int):
            found[key] = min(value, 2)
        elif found[key] == value:
            found[key] = _divided(key, value, divisor, heads)
    return found


def _divided(key: str, value: Any, divisor: int, heads: bool) -> Any:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return [_divided(key, item, divisor, heads) for item in value]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if heads and key in COUNTS_OF_HEADS:
        return max(1, value // divisor)
    is_width = WIDTH.search(key) and not NO_WIDTH.search(key)
    if not is_width or value % divisor or (heads and OF_ONE_HEAD.search(key)):
        return value
    return value // divisor


def _made(config: Any, values: dict[str, Any]) -> Any:
    values = without_stale(config, values)
    values = {key: value for key, value in values.items() if key != "model_type"}
    return type(config)(**{**values, "dtype": "float32"})


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """Matrices and kernels are drawn so that values keep their size from layer to layer.

    The usual deviation of 0.02 makes a tiny model almost deaf to its mask and its cache: a wrong
    program would pass any tolerance.
    """
    generator = torch.Generator().manual_seed(SEED)
    done: set[int] = set()
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            weight.requires_grad_(False)
            if weight.ndim < 2 or id(weight) in done or not weight.is_floating_point():
                continue
            done.add(id(weight))
            weight.copy_(torch.randn(weight.shape, generator=generator) * deviation(module, weight))
    return model


def deviation(module: torch.nn.Module, weight: torch.Tensor) -> float:
    """One over the root of how many values a sum of the module has; 0.5 for a table."""
    if isinstance(module, torch.nn.Embedding):
        return 0.5
    if isinstance(module, torch.nn.Linear) or "Conv" in type(module).__name__:
        one_dimension = type(module).__name__ == "Conv1D"  # of transformers: (inputs, outputs)
        terms = weight.shape[0] if one_dimension else weight[0].numel()
        return 1 / math.sqrt(terms)
    return 1 / math.sqrt(max(weight.shape[-1], 1))
