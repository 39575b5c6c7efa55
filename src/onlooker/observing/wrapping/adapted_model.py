"""A model with adapters of PEFT as one module, whose adapter is an argument.

LoRA adds ``B(A(x)) * scaling`` to the result of a layer, with a pair of matrices for each adapter. Here
the pair is an argument: ``A`` has as many rows as the largest rank of the layer, and those that an adapter
lacks are zeros, as are the columns of ``B``, in which the scaling is. A layer without the adapter, and a
call without any, has zeros: adding 0 is what PEFT leaves out.
"""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...core.errors import RejectedCallError, UnsupportedError, UsageError
from ..reach import Snapshot
from ..wrapped_model import model_inside
from .lifted_weights import LiftedWeights, Weights, WithWeights, copying

__all__ = ["NO_ADAPTER", "AdaptedModel", "has_adapters", "with_adapters"]

#: what a call without adapters is called
NO_ADAPTER = "none"
#: the one adapter of the copy
_LIFTED = "lifted"


class AdaptedModel(LiftedWeights):
    """A model whose adapter is an argument: ``inner`` is a copy with one adapter, whose matrices are
    taken out.

    :raises UnsupportedError: ``adapters-not-lifted``
    :raises UsageError: ``no-adapters``
    """

    def __init__(self, wrapped: torch.nn.Module) -> None:
        model = model_inside(wrapped)
        _check(model)
        inner = _copy(model)
        names: dict[str, str] = {}
        for path, layer in _layers(inner):
            names |= _with_one_adapter(path, layer)
        super().__init__(inner, inspect.signature(model.forward), names)
        self._model: weakref.ref[torch.nn.Module] = weakref.ref(model)

    @property
    def model(self) -> torch.nn.Module:
        """The model of the user.

        :raises UsageError: ``no-model`` where it is gone
        """
        model = self._model()
        if model is None:
            raise UsageError(
                "The model that was watched is gone.",
                slug="no-model",
                hint="Keep the model, or give it: program.installed(model).",
            )
        return model

    def watched(self) -> list[WithWeights]:
        """The model, with the adapters that are active at a call."""
        return [WithWeights(self.model, lambda: _matrices(self.model, _active(self.model)))]

    def sets(self) -> dict[str, Weights]:
        """The matrices of each adapter, and those of a call without any."""
        names = dict.fromkeys(name for _, layer in _layers(self.model) for name in layer.lora_A)
        each: dict[str, Weights] = {name: _matrices(self.model, [name]) for name in names}
        return {**each, NO_ADAPTER: _matrices(self.model, [])}

    def served(self, sets: Mapping[str, Weights]) -> list[WithWeights]:
        """The model, with the matrices in ``sets`` of the adapter that is active at a call."""
        return [WithWeights(self.model, partial(_of_active, self.model, sets))]


def has_adapters(model: Any) -> bool:
    """True for a model with layers of LoRA."""
    return isinstance(model, torch.nn.Module) and any(True for _ in _layers(model_inside(model)))


def with_adapters(model: torch.nn.Module, active: Sequence[str]) -> torch.nn.Module:
    """A copy of a model, with its weights, in which these adapters are active."""
    found = _copy(model)
    for _, layer in _layers(found):
        layer._active_adapter, layer._disable_adapters = list(active), not active
    return found


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Classes of PEFT; none where it is not loaded, and no model has an adapter."""
    found = sys.modules.get(module)
    return tuple(vars(found)[name] for name in names if name in vars(found)) if found else ()


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers of LoRA, by path."""
    kinds = _classes("peft.tuners.lora.layer", "LoraLayer")
    return ((path, one) for path, one in model.named_modules() if isinstance(one, kinds))


def _check(model: torch.nn.Module) -> None:
    """Passes for a model all of whose adapters are pairs of matrices.

    :raises UnsupportedError: ``adapters-not-lifted``
    :raises UsageError: ``no-adapters``
    """
    layers = dict(_layers(model))
    if not layers:
        raise UsageError(
            f"A {type(model).__name__} was to be watched with its adapters, and has none of LoRA.",
            slug="no-adapters",
            hint="Add the adapters with PEFT before watching, or leave out adapters=True.",
        )
    others = (
        *_classes("peft.tuners.tuners_utils", "BaseTunerLayer"),
        *_classes("peft.utils.other", "AuxiliaryTrainingWrapper"),
    )
    for path, one in model.named_modules():
        if isinstance(one, others) and path not in layers:
            raise _not_lifted(path, f"it is a {type(one).__name__}, and no layer of LoRA")
    for path, layer in layers.items():
        if layer.lora_variant or layer.lora_magnitude_vector or any(layer.lora_bias.values()):
            raise _not_lifted(path, "its adapter has more than two matrices")
        if layer.lora_embedding_A or not layer.lora_A:
            raise _not_lifted(path, "its adapter belongs to an embedding")
        for name, one in layer.lora_A.items():
            if layer.lora_B[name].weight.shape[1] != one.weight.shape[0]:
                raise _not_lifted(path, "it is a convolution of groups")
        if layer.merged:
            raise _not_lifted(path, "an adapter is merged into its weights")
        if NO_ADAPTER in layer.lora_A:
            raise _not_lifted(path, f"{NO_ADAPTER!r} stands for no adapter, and is one")


def _not_lifted(path: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"The adapters of {path} cannot be an argument: {why}.",
        slug="adapters-not-lifted",
        hint="Export the model with one adapter, merged perhaps, or train adapters of plain LoRA.",
    )


def _copy(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares all tensors."""
    with copying(model):
        memo: dict[int, Any] = dict(Snapshot.of(model, copies=False).tensors)
        return copy.deepcopy(model, memo)


def _with_one_adapter(path: str, layer: Any) -> dict[str, str]:
    """Leaves a layer of a copy with one adapter, and gives the names of its matrices."""
    names: dict[str, str] = {}
    for table in ("lora_A", "lora_B", "lora_dropout"):
        first = next(iter(getattr(layer, table).values()))
        setattr(layer, table, torch.nn.ModuleDict({_LIFTED: first}))
        if table != "lora_dropout":
            names[f"{path}.{table}"] = f"{path}.{table}.{_LIFTED}.weight"
    layer.scaling = {_LIFTED: 1.0}
    layer._active_adapter, layer._disable_adapters = [_LIFTED], False
    return names


def _active(model: torch.nn.Module) -> list[str]:
    """The adapters that are active; none where they are disabled.

    :raises UnsupportedError: ``adapters-not-lifted``
    """
    first: list[str] | None = None
    for path, layer in _layers(model):
        if layer.merged:
            raise _not_lifted(path, "an adapter is merged into its weights")
        here = [] if layer.disable_adapters else list(layer.active_adapters)
        if first is not None and here != first:
            raise _not_lifted(path, "other adapters are active than in the layers before")
        first = here
    return first or []


def _of_active(model: torch.nn.Module, sets: Mapping[str, Weights]) -> Weights:
    """The matrices of the active adapter.

    :raises RejectedCallError: ``no-such-adapter``
    """
    active = _active(model) or [NO_ADAPTER]
    if len(active) == 1 and active[0] in sets:
        return sets[active[0]]
    raise RejectedCallError(
        f"The program has no adapter {' + '.join(active)}.",
        slug="no-such-adapter",
        hint=f"It has {', '.join(sets)}: one at a time.",
    )


def _matrices(model: torch.nn.Module, active: Sequence[str]) -> dict[str, torch.Tensor]:
    """The matrices of the active adapters in each layer, together and of the largest rank of the
    layer.

    :raises UnsupportedError: ``adapters-not-lifted`` for more rows than the largest rank
    """
    found: dict[str, torch.Tensor] = {}
    for path, layer in _layers(model):
        one_a, one_b = (next(iter(table.values())).weight for table in (layer.lora_A, layer.lora_B))
        rank = max(each.weight.shape[0] for each in layer.lora_A.values())
        a = one_a.new_zeros((rank, *one_a.shape[1:])).detach()
        b = one_b.new_zeros((one_b.shape[0], rank, *one_b.shape[2:])).detach()
        row = 0
        for name in active:
            if name not in layer.lora_A:
                continue
            own_a, own_b = layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach()
            end = row + own_a.shape[0]
            if end > rank:
                raise _not_lifted(path, f"{' + '.join(active)} have more rows than one adapter has")
            a[row:end] = own_a
            b[:, row:end] = own_b * layer.scaling[name]
            row = end
        found[f"{path}.lora_A"], found[f"{path}.lora_B"] = a, b
    return found
