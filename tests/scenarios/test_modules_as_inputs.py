"""Objects that hold tensors, modules among them, as arguments of a watched model: real exports, unseen sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as torch_pytree

from onlooker import InputObserver, register_class_flattening, unregister_class_flattening
from onlooker.core.spec import OpaqueSpec
from onlooker.pytrees.open import close_tree, open_arguments, open_tree, spec_of


class Methods:
    def length(self) -> int:
        return self.keys[0].shape[-2]  # type: ignore[attr-defined]


@dataclasses.dataclass
class DataclassCache(Methods):
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenCache:
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def length(self) -> int:
        return self.keys[0].shape[-2]


class NamedTupleCache(NamedTuple):
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def length(self) -> int:
        return self.keys[0].shape[-2]


class PlainCache(Methods):
    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values
        self.names = {"keys", "values"}
        self.config = Config()


class Config:
    scale = 1


class Attribute:
    def __init__(self, name: str) -> None:
        self.name = name


class AttrsCache(Methods):
    """As the package attrs writes a class with slots: ``__attrs_attrs__``, and no ``__dict__``."""

    __slots__ = ("keys", "values")
    __attrs_attrs__ = (Attribute("keys"), Attribute("values"))

    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values


class SlottedCache(AttrsCache):
    """Slots of its own besides those of its base."""

    __slots__ = ("__private", "more")

    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__(keys, values)
        self.more, self.__private = 1, 2

    def length(self) -> int:
        return self.keys[0].shape[-2] + self.__private - 2


class ModuleCache(Methods, torch.nn.Module):
    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.seen = 0


class BufferCache(torch.nn.Module):
    """The tensors are buffers, one of each of them in a module inside."""

    def __init__(self, keys: Any, values: Any) -> None:
        super().__init__()
        self.inside = torch.nn.ModuleList([torch.nn.Module(), torch.nn.ReLU()])
        self.inside[0].register_buffer("keys", keys[0])
        self.register_buffer("_values", values[0])

    @property
    def keys(self) -> list[torch.Tensor]:
        return [self.inside[0].keys]

    @property
    def values(self) -> list[torch.Tensor]:
        return [self._values]

    def length(self) -> int:
        return self.keys[0].shape[-2]


class Model(torch.nn.Module):
    def forward(self, x: Any, cache: Any) -> Any:
        keys, values = torch.cat(list(cache.keys), dim=1), torch.cat(list(cache.values), dim=1)
        scale = cache.config.scale * len(cache.names) if isinstance(cache, PlainCache) else 2
        ones = torch.ones(keys.shape[0], keys.shape[1], cache.length(), keys.shape[3])
        return x + scale * (keys + values + ones).sum(dim=2, keepdim=True)


CLASSES = [
    DataclassCache,
    FrozenCache,
    NamedTupleCache,
    PlainCache,
    AttrsCache,
    SlottedCache,
    ModuleCache,
    BufferCache,
]


def make(cls: Any, batch: int, tokens: int) -> tuple[torch.Tensor, Any]:
    made = tuple if cls is FrozenCache else list
    keys, values = (made([torch.randn(batch, 3, tokens, 4)]) for _ in range(2))
    return torch.randn(batch, 3, 7, 1), cls(keys, values)


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    yield
    assert not [cls for cls in torch_pytree.SUPPORTED_NODES if cls.__module__ == __name__]


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[bool]:
    cls, wanted = request.param
    if wanted:
        keys = [torch_pytree.GetAttrKey("keys"), torch_pytree.GetAttrKey("values")]
        register_class_flattening(
            cls,
            lambda cache: ([cache.keys, cache.values], None),
            lambda children, context: cls(*children),
            lambda cache: (list(zip(keys, [cache.keys, cache.values], strict=True)), None),
        )
    yield cls
    if wanted:
        unregister_class_flattening(cls)


CASES = [(cls, wanted) for cls in CLASSES for wanted in (False, True) if (cls, wanted) != (NamedTupleCache, True)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("registered", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}", indirect=True)
def test_every_kind_of_object_is_exported(registered: Any) -> None:
    cls, model, observer = registered, Model(), InputObserver()
    with observer(model):
        for batch, tokens in ((3, 5), (2, 11)):
            model(*make(cls, batch, tokens))
    program = observer.export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for batch, tokens in ((4, 1), (1, 8), (5, 13)):
        x, cache = make(cls, batch, tokens)
        torch.testing.assert_close(program(x, cache), model(x, cache))


def test_by_keyword_and_from_one_call() -> None:
    model, observer = Model(), InputObserver()
    with observer(model):
        x, cache = make(ModuleCache, 3, 5)
        model(x=x, cache=cache)
    program = observer.export()
    x, cache = make(ModuleCache, 4, 9)
    torch.testing.assert_close(program(x=x, cache=cache), model(x, cache))


def test_the_program_follows_the_module_that_it_is_given() -> None:
    """torch.export by itself keeps the tensors of the module that it was shown."""
    model = Model()
    x, first = make(ModuleCache, 3, 5)
    with pytest.warns(FutureWarning, match="_register_pytree_node"):
        frozen = torch.export.export(model, (x, first))
    assert frozen.graph_signature.user_inputs == ("x",)
    observer = InputObserver()
    with observer(model):
        model(x, first)
    assert observer.export().graphs[0].labels == ("x", "cache.keys.0", "cache.values.0")


class CountingCache(ModuleCache):
    """The model changes it in place."""

    def grow(self, more: torch.Tensor) -> None:
        self.keys = [torch.cat([self.keys[0], more], dim=2)]
        self.values = [torch.cat([self.values[0], more], dim=2)]
        self.seen += more.shape[2]


class Growing(torch.nn.Module):
    def forward(self, x: Any, cache: Any) -> Any:
        cache.grow(x)
        return cache.keys[0].sum(dim=2), cache


def test_a_module_that_the_model_changes_and_returns() -> None:
    model, observer = Growing(), InputObserver()
    with observer(model):
        for batch, tokens, new in ((3, 5, 2), (2, 11, 3)):
            _, cache = make(CountingCache, batch, tokens)
            model(torch.randn(batch, 3, new, 4), cache)
            assert cache.length() == tokens + new
    program = observer.export()
    assert program.verify().verified
    _, cache = make(CountingCache, 4, 9)
    x = torch.randn(4, 3, 6, 4)
    total, given = program(x, cache)
    expected_total, expected = model(x, cache)
    assert isinstance(given, CountingCache)
    torch.testing.assert_close((total, given.keys, given.values), (expected_total, expected.keys, expected.values))
    assert given.seen == expected.seen == 6


class Applies(torch.nn.Module):
    def forward(self, x: Any, layer: Any, activation: Any) -> Any:
        return activation(layer(x))


def test_a_layer_as_an_argument_brings_its_own_weights() -> None:
    model, observer = Applies(), InputObserver()
    with observer(model):
        for rows in (3, 4):
            model(torch.randn(rows, 5), torch.nn.Linear(5, 6), torch.nn.ReLU())
    program = observer.export()
    assert program.graphs[0].labels == ("x", "layer.weight", "layer.bias")
    x, layer = torch.randn(9, 5), torch.nn.Linear(5, 6)
    torch.testing.assert_close(program(x, layer, torch.nn.ReLU()), model(x, layer, torch.nn.ReLU()))


@pytest.mark.parametrize("options", [{}, {"slots": False}, {"frozen": True}])
def test_a_class_of_attrs(options: dict[str, bool]) -> None:
    attrs = pytest.importorskip("attrs")

    class Defined:
        keys: list[torch.Tensor]
        values: list[torch.Tensor]

        def length(self) -> int:
            return self.keys[0].shape[-2]

    cls, model, observer = attrs.define(Defined, **options), Model(), InputObserver()
    with observer(model):
        model(*make(cls, 3, 5))
        model(*make(cls, 2, 11))
    program = observer.export()
    x, cache = make(cls, 4, 9)
    torch.testing.assert_close(program(x, cache), model(x, cache))


# -------------------------------------------------------------------------------------- opened and closed


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.idle = torch.nn.ReLU()
        self.register_buffer("kept", torch.zeros(1), persistent=False)
        self.register_parameter("missing", None)
        self.cache = {"a": [torch.ones(1)]}
        self.seen = 3
        self.eval()


def test_a_module_is_opened_to_its_tensors_and_numbers() -> None:
    tree = open_arguments({"m": Nested()})
    assert [path.code() for path in tree.structure.paths()] == [
        "m.kept",
        "m.linear.weight",
        "m.linear.bias",
        "m.linear.in_features",
        "m.linear.out_features",
        "m.norm.weight",
        "m.norm.bias",
        "m.norm.running_mean",
        "m.norm.running_var",
        "m.norm.num_batches_tracked",
        "m.norm.num_features",
        "m.norm.eps",
        "m.norm.momentum",
        "m.norm.affine",
        "m.norm.track_running_stats",
        "m.cache['a'][0]",
        "m.seen",
    ]
    module = close_tree(tree.structure, tree.leaves)
    for path, leaf in tree.items():
        assert path.follow(module) is leaf


def test_a_module_that_is_closed_is_another_one_with_the_same_state() -> None:
    module = Nested()
    tree = open_tree(module)
    again = close_tree(tree.structure, tree.leaves)
    assert type(again) is Nested
    assert again is not module
    assert again.linear is not module.linear
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert all(a is b for a, b in zip(again.parameters(), module.parameters(), strict=True))
    assert list(again.state_dict()) == list(module.state_dict())
    assert set(vars(again)) == set(vars(module))
    assert not again.training
    assert again.missing is None
    again.register_forward_hook(lambda *_: None)
    again.linear.register_buffer("more", torch.zeros(1))
    assert not module._forward_hooks
    assert "more" not in module.linear._buffers
    assert open_tree(module).structure == tree.structure
    assert open_tree(module.train()).structure != tree.structure


@pytest.mark.parametrize(
    "value", [torch.nn.ReLU(), torch.jit.ScriptModule.__new__(torch.jit.ScriptModule), torch.nn.ModuleList()]
)
def test_a_module_without_tensors_is_one_leaf(value: Any) -> None:
    tree = open_tree([value])
    assert tree.leaves == (value,)
    assert isinstance(spec_of(value), OpaqueSpec)


def test_a_module_that_an_object_holds_is_not_opened() -> None:
    """An object may hold the whole model: its weights are no arguments."""

    class Holder:
        def __init__(self) -> None:
            self.model, self.state = torch.nn.Linear(2, 2), torch.zeros(1)

    holder = Holder()
    tree = open_tree(holder)
    assert tree.leaves == (holder.state,)
    assert close_tree(tree.structure, tree.leaves).model is holder.model
