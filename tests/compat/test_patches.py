"""Patches: swaps of every kind of attribute, the reasons why each repair is still needed, and no trace left."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from hypothesis import given
from hypothesis import strategies as st
from transformers import LongformerConfig, cache_utils
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import VisionAttention

from onlooker.core.errors import ExportError, OnlookerWarning, UnsupportedError, UsageError
from onlooker.patches.swap import swapped
from onlooker_compat.patches.from_transformers import (
    TransformersPatchEnum,
    enable_transformers_onnx_export_flags,
    patch_kinds,
    patches_of_transformers,
)
from onlooker_compat.patches.patch import PatchDetails, PatchInfo, applied
from onlooker_compat.patches.patched import (
    apply_patches_for_model,
    bypass_export_some_errors,
    torch_export_patches,
)
from onlooker_compat.patches.variadic_keywords import VARIADIC_KEYWORDS

DYNAMIC = torch.export.Dim.DYNAMIC
ROWS = {0: DYNAMIC}

# ------------------------------------------------------------------------------------------------- swaps


class Base:
    inherited = 1

    def method(self) -> str:
        return "base"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def given(self) -> str:
        return "given"

    @functools.cached_property
    def cached(self) -> list[int]:
        return [1]


class Derived(Base):
    own = 2

    @staticmethod
    def static() -> str:
        return "own static"


class Slotted:
    __slots__ = ("empty", "full")

    def __init__(self) -> None:
        self.full = 1


class WithSetter:
    def __init__(self) -> None:
        self._value = 1

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, value: int) -> None:
        self._value = value


class Renames:
    """Keeps what is set as ``new`` under another name, as configurations of transformers do."""

    def __init__(self) -> None:
        self.old = 1

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("old" if name == "new" else name, value)

    @property
    def _unused(self) -> None:
        return None


def own_of(owner: Any) -> Any:
    """Everything that an object holds itself, by identity and in its order."""
    if isinstance(owner, Slotted):
        return {name: getattr(owner, name, "missing") for name in Slotted.__slots__}
    held = [(name, id(value)) for name, value in vars(owner).items()]
    if isinstance(owner, torch.nn.Module):
        tables = (owner._parameters, owner._buffers, owner._modules)
        return held, [[(name, id(value)) for name, value in table.items()] for table in tables]
    return held


def lone_module() -> types.ModuleType:
    module = types.ModuleType("lone")
    module.function = len  # type: ignore[attr-defined]
    return module


OWNERS: dict[str, tuple[Any, list[str]]] = {
    "class": (Derived, ["own", "static", "inherited", "method", "of_class", "given", "cached", "missing"]),
    "base": (Base, ["inherited", "static", "method", "of_class", "given", "cached"]),
    "object": (Derived(), ["own", "static", "method", "inherited", "cached", "missing"]),
    "slots": (Slotted(), ["full", "empty"]),
    "setter": (WithSetter(), ["value", "_value"]),
    "renames": (Renames(), ["new", "old"]),
    "module": (lone_module(), ["function", "missing"]),
    "torch": (torch.nn.Linear(2, 2), ["weight", "bias", "training", "forward", "missing", "in_features"]),
    "submodules": (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)), ["0", "1"]),
}
CASES = [(owner, name) for owner, (_, names) in OWNERS.items() for name in names]


def value_for(owner: Any, name: str) -> Any:
    """Another value that the owner accepts."""
    if isinstance(owner, torch.nn.Module):
        return {
            "weight": torch.nn.Parameter(torch.ones(3)),
            "bias": None,
            "0": torch.nn.Tanh(),
            "1": None,
        }.get(name, lambda *_: 3)
    return lambda *_: 3


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("owner", "name"), CASES)
def test_every_kind_of_attribute_is_put_back(owner: str, name: str, fails: bool) -> None:
    target = OWNERS[owner][0]
    value = value_for(target, name)
    before = own_of(target)
    with contextlib.suppress(KeyError), swapped(target, name, value):
        if name != "new":
            assert getattr(target, name) is value or isinstance(target, type)
        assert own_of(target) != before
        if fails:
            raise KeyError(name)
    assert own_of(target) == before


@given(st.lists(st.sampled_from(CASES), max_size=6))
def test_nested_swaps_are_put_back(cases: list[tuple[str, str]]) -> None:
    before = {name: own_of(owner) for name, (owner, _) in OWNERS.items()}
    with contextlib.ExitStack() as stack:
        for owner, name in cases:
            target = OWNERS[owner][0]
            stack.enter_context(swapped(target, name, value_for(target, name)))
    assert {name: own_of(owner) for name, (owner, _) in OWNERS.items()} == before


@pytest.mark.parametrize(
    "spoil", [lambda owner: delattr(owner, "weight"), lambda owner: setattr(owner, "weight", None)]
)
def test_the_block_may_do_what_it_likes(spoil: Any) -> None:
    linear = torch.nn.Linear(2, 2)
    before = own_of(linear)
    with swapped(linear, "weight", torch.nn.Parameter(torch.ones(3))):
        spoil(linear)
    assert own_of(linear) == before
    assert [name for name, _ in linear.named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize(("owner", "name"), [(int, "real"), (Derived(), "given"), (object(), "x")])
def test_what_cannot_be_set_is_refused_at_once(owner: Any, name: str) -> None:
    with pytest.raises((AttributeError, TypeError)), swapped(owner, name, 1):
        pytest.fail("the block must not run")


def test_the_value_before_is_given() -> None:
    with swapped(Derived, "static", staticmethod(lambda: "new")) as before:
        assert (before(), Derived.static(), Derived().static()) == ("own static", "new", "new")


# ------------------------------------------------------------------------------------------- no trace left


def everything() -> dict[str, Any]:
    """All that a patch of this library touches."""
    owners = [(info.owner, info.name) for info in [*VARIADIC_KEYWORDS, *patches_of_transformers()]]
    owners.append(("torch.fx.experimental.symbolic_shapes.ShapeEnv", "_set_replacement"))
    found: dict[str, Any] = {}
    for path, _ in owners:
        parts = path.split(".")
        owner: Any = sys.modules.get(path) or getattr(sys.modules.get(".".join(parts[:-1])), parts[-1], None)
        if owner is not None:
            found[path] = own_of(owner)
    found["nodes"] = dict(torch_pytree.SUPPORTED_NODES)
    return found


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    with torch_export_patches(patch_transformers=True):  # imports what is patched
        pass
    before = everything()
    assert len(before) > 20
    yield
    assert everything() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_registers_and_patches_and_leaves_no_trace(fails: bool) -> None:
    details = PatchDetails()
    before = everything()
    block = torch_export_patches(patch_transformers=True, stop_if_static=1, patch_details=details)
    with contextlib.suppress(KeyError), block as unchanged:
        assert unchanged({"x": 1}) == {"x": 1}
        assert cache_utils.DynamicCache in torch_pytree.SUPPORTED_NODES
        during = everything()
        assert {name for name in before if before[name] != during[name]} >= {"torch.export._trace", "nodes"}
        if fails:
            raise KeyError
    assert everything() == before
    assert len(details) == details.n_patches == len(list(details)) == len(details.data()) > 30
    assert details[0].name == "torch.export._trace._get_range_constraints"
    assert details.find("make_sourced_prefixes") is details[1]
    assert details.find("nothing") is None


def test_every_entry_says_why_and_until_when() -> None:
    with torch_export_patches(patch_transformers=True, stop_if_static=1, patch_details=PatchDetails()) as _:
        pass
    with applied([*VARIADIC_KEYWORDS, *patches_of_transformers()]) as details:
        rows = details.data()
    for row in rows:
        assert row["link"].startswith("https://github.com/")
        assert row["versions"]
        assert row["test"] in globals()
    assert {row["family"] for row in rows} == {"torch", "transformers"}
    assert all(row["why"] for row in rows if row["family"] == "torch")


@pytest.mark.parametrize("patch", [False, 0])
def test_without_patches_only_the_caches_are_registered(patch: Any) -> None:
    details = PatchDetails()
    with torch_export_patches(
        patch=patch, patch_transformers=True, patch_details=details, custom_patches=[PatchedBase]
    ):
        assert cache_utils.DynamicCache in torch_pytree.SUPPORTED_NODES
        assert Base().method() == "base"
    assert len(details) == 0


def test_the_older_name() -> None:
    assert bypass_export_some_errors is torch_export_patches


# ----------------------------------------------------------------------------- **kwargs in dynamic_shapes


class Keywords(torch.nn.Module):
    def forward(self, x: Any, **kwargs: Any) -> Any:
        return x + kwargs["y"] * kwargs["z"]


class Positions(torch.nn.Module):
    def forward(self, x: Any, *args: Any) -> Any:
        return x + args[0] * args[1]


class Both(torch.nn.Module):
    def forward(self, x: Any, *args: Any, flag: Any = None, **others: Any) -> Any:
        return x + args[0] * args[1] + others["y"] + (0 if flag is None else flag.sum())


def rows(*names: str, n: int = 4) -> dict[str, Any]:
    return {name: torch.randn(n, 5) for name in names}


def tensors(count: int, n: int = 4) -> tuple[Any, ...]:
    return tuple(torch.randn(n, 5) for _ in range(count))


VARIADIC: dict[str, tuple[Any, int, list[str], Any]] = {
    "keywords": (Keywords, 1, ["y", "z"], {"x": ROWS, "kwargs": {"y": ROWS, "z": ROWS}}),
    "all by keyword": (Keywords, 0, ["x", "y", "z"], {"x": ROWS, "kwargs": {"y": ROWS, "z": ROWS}}),
    "another order": (Keywords, 0, ["z", "y", "x"], {"kwargs": {"y": ROWS, "z": ROWS}, "x": ROWS}),
    "a tuple": (Keywords, 1, ["z", "y"], (ROWS, {"y": ROWS, "z": ROWS})),
    "both": (Both, 3, ["y"], {"x": ROWS, "args": (ROWS, ROWS), "others": {"y": ROWS}}),
    "a name between": (Both, 3, ["y", "flag"], {"x": ROWS, "args": (ROWS, ROWS), "flag": ROWS, "others": {"y": ROWS}}),
}


@pytest.mark.parametrize("name", VARIADIC)
def test_variadic_keywords_fail_without_the_repair(name: str) -> None:
    model, count, names, shapes = VARIADIC[name]
    with pytest.raises(AssertionError, match="Must provide a tree_name"):
        torch.export.export(model(), tensors(count), rows(*names), dynamic_shapes=shapes)


def test_each_half_of_the_repair_is_needed() -> None:
    model, count, names, shapes = VARIADIC["keywords"]
    with applied(VARIADIC_KEYWORDS[:1]):
        program = torch.export.export(model(), tensors(count), rows(*names), dynamic_shapes=shapes)
    with pytest.raises(NameError, match="name 'L' is not defined"):
        program.module()(*tensors(count), **rows(*names))
    with applied(VARIADIC_KEYWORDS[1:]), pytest.raises(AssertionError, match="Must provide a tree_name"):
        torch.export.export(model(), tensors(count), rows(*names), dynamic_shapes=shapes)


@pytest.mark.parametrize("name", VARIADIC)
def test_variadic_keywords_are_exported_inside_the_block(name: str) -> None:
    model, count, names, shapes = VARIADIC[name]
    with torch_export_patches():
        program = torch.export.export(model(), tensors(count), rows(*names), dynamic_shapes=shapes)
    module = program.module()
    for n in (2, 7):
        args, kwargs = tensors(count, n), rows(*names, n=n)
        torch.testing.assert_close(module(*args, **kwargs), model()(*args, **kwargs))
    with pytest.raises(AssertionError, match="Guard failed"):
        module(*tensors(count, 7), **rows(*names[:1], n=6), **rows(*names[1:], n=7))


def test_variadic_keywords_are_exported_in_strict_mode_too() -> None:
    model, count, names, shapes = VARIADIC["a name between"]
    call = functools.partial(torch.export.export, model(), tensors(count), rows(*names), dynamic_shapes=shapes)
    with pytest.raises(AssertionError, match="Must provide a tree_name"):
        call(strict=True)
    with torch_export_patches():
        program = call(strict=True)
    args, kwargs = tensors(count, 7), rows(*names, n=7)
    torch.testing.assert_close(program.module()(*args, **kwargs), model()(*args, **kwargs))


def test_each_size_gets_the_range_of_its_own_entry() -> None:
    few, many = torch.export.Dim("few", min=2, max=8), torch.export.Dim("many", min=3, max=99)
    shapes = {"x": {}, "args": ({}, {}), "flag": {0: many}, "others": {"y": {1: few}}}
    kwargs = {"y": torch.randn(4, 5), "flag": torch.randn(6, 2)}
    model = Summed()
    with torch_export_patches():
        program = torch.export.export(model, tensors(3), kwargs, dynamic_shapes=shapes)
    given = {"y": torch.randn(4, 8), "flag": torch.randn(99, 2)}
    torch.testing.assert_close(program.module()(*(args := tensors(3)), **given), model(*args, **given))
    with pytest.raises(AssertionError, match=r"y\.size\(\)\[1\] <= 8"):
        program.module()(*args, y=torch.randn(4, 9), flag=given["flag"])


class Summed(torch.nn.Module):
    def forward(self, x: Any, *args: Any, flag: Any = None, **others: Any) -> Any:
        return x + args[0] * args[1] + others["y"].sum() + flag.sum()


@pytest.mark.parametrize("shapes", [{"x": ROWS, "args": (ROWS, ROWS)}, (ROWS, (ROWS, ROWS))])
@pytest.mark.parametrize("block", [contextlib.nullcontext, torch_export_patches])
def test_variadic_positions_need_no_repair(shapes: Any, block: Any) -> None:
    with block():
        program = torch.export.export(Positions(), tensors(3), dynamic_shapes=shapes)
    args = tensors(3, 7)
    torch.testing.assert_close(program.module()(*args), Positions()(*args))


@pytest.mark.parametrize("shapes", [None, {"x": ROWS, "kwargs": {"y": ROWS}}])
def test_what_torch_takes_or_refuses_stays_as_it_is(shapes: Any) -> None:
    call = functools.partial(torch.export.export, Keywords(), tensors(1), rows("y", "z"), dynamic_shapes=shapes)
    with torch_export_patches():
        if shapes is None:
            assert len(call().graph_signature.user_inputs) == 3
        else:
            with pytest.raises(Exception, match="has 2 elements"):
                call()


# ------------------------------------------------------------------------------------ sizes become static


class Compares(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        if x.shape[1] == 5:
            return x + 1
        return x


def test_the_line_that_makes_a_size_static() -> None:
    auto = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    assert torch.export.export(Compares(), tensors(1), dynamic_shapes=auto)
    with torch_export_patches(stop_if_static=1), pytest.raises(ExportError) as caught:
        torch.export.export(Compares(), tensors(1), dynamic_shapes=auto)
    assert str(caught.value) == (
        "The size L['x'].size()[1] becomes the constant 5. "
        "The line of the model that asks for it is in the traceback above. [size-became-static]"
    )
    assert "if x.shape[1] == 5" in str(caught.getrepr(style="long"))


# -------------------------------------------------------------------------------------- custom patches


class PatchedBase:
    """Says something else."""

    _PATCHED_CLASS_ = Base
    _PATCHES_ = ("method", "static", "of_class", "given")

    def method(self) -> str:
        return "patched"

    @staticmethod
    def static() -> str:
        return "patched static"

    @classmethod
    def of_class(cls) -> str:
        return f"patched {cls.__name__}"

    @property
    def given(self) -> str:
        return "patched given"


def said() -> list[str]:
    base = Base()
    return [base.method(), base.static(), Base.static(), Base.of_class(), base.given]


def test_custom_patches_keep_their_kind() -> None:
    before = own_of(Base), said()
    with torch_export_patches(custom_patches=[PatchedBase]):
        assert said() == ["patched", "patched static", "patched static", "patched Base", "patched given"]
    assert (own_of(Base), said()) == before


class Nameless:
    _PATCHED_CLASS_ = None
    _PATCHES_ = ("method",)

    def method(self) -> None:
        pass


class Gone(Nameless):
    _PATCHED_CLASS_ = Base
    _PATCHES_ = ("gone", "method")

    def gone(self) -> None:
        pass


@pytest.mark.parametrize(
    ("cls", "target"),
    [(Gone, f"{__name__}.Base.gone"), (Nameless, f"{__name__}.Nameless._PATCHED_CLASS_.method")],
)
def test_a_target_that_is_gone_is_a_warning_with_its_name(cls: Any, target: str) -> None:
    before = own_of(Base)
    with pytest.warns(OnlookerWarning) as caught, torch_export_patches(custom_patches=[cls]):
        assert (Base().method() is None) is (cls is Gone)
    assert own_of(Base) == before
    assert [str(w.message) for w in caught] == [
        f"The custom patch of {target} finds nothing of that name to replace. "
        "It may not be needed any more: look at its reason. [patch-target-gone]"
    ]
    assert caught[0].filename == __file__, "the line of the caller, outside of both packages"


@pytest.mark.parametrize(
    ("path", "link"),
    [("no.such.package", ""), ("torch.export.no_such_module", "https://x"), ("torch.nn.NoSuchClass", "")],
)
def test_a_path_that_is_gone_is_a_warning_too(path: str, link: str) -> None:
    patch = PatchInfo(path, "name", lambda original: original, family="torch", link=link)
    with pytest.warns(OnlookerWarning, match=f"The torch patch of {path}.name finds nothing.*{link}"), applied([patch]):
        pass
    with applied([PatchInfo(path, "name", lambda original: original, optional=True)]) as details:
        assert len(details) == 0


class Lists:
    _PATCHED_CLASS_ = Base
    _PATCHES_ = ("nothing",)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Base, "Base is no patch: it has no _PATCHED_CLASS_, or no _PATCHES_."),
        (Lists, "Lists is no patch: its _PATCHES_ lists 'nothing', which it does not have."),
    ],
)
def test_what_is_no_patch_is_refused(cls: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught, torch_export_patches(custom_patches=[cls]):
        pytest.fail("the block must not run")
    assert caught.value.slug == "bad-custom-patch"
    assert caught.value.message == why


@pytest.mark.parametrize("asked", [{"rewrite": ["forward"]}, {"dump_rewriting": "folder"}, {"profile": "file"}])
def test_what_is_not_offered_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=f"does not offer {next(iter(asked))}") as caught:
        torch_export_patches(**asked).__enter__()
    assert caught.value.slug == "not-offered"


# ------------------------------------------------------------------------------------- of transformers


class Vision(torch.nn.Module):
    """The attention of a vision tower over images of one size, packed into one sequence."""

    def __init__(self) -> None:
        super().__init__()
        config = Qwen2VLVisionConfig(embed_dim=16, num_heads=2, depth=1, hidden_size=16)
        config._attn_implementation = "sdpa"
        self.attention = VisionAttention(config).eval()

    def forward(self, x: Any, ends: Any, cos: Any, sin: Any) -> Any:
        return self.attention(x, cu_seqlens=ends, position_embeddings=(cos, sin))


def images(count: int, length: int) -> tuple[torch.Tensor, ...]:
    ends = torch.arange(count + 1, dtype=torch.int32) * length
    return torch.randn(count * length, 16), ends, torch.randn(count * length, 8), torch.randn(count * length, 8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_vision_attention_fails_without_the_list_of_transformers() -> None:
    model, shapes = Vision(), (ROWS, ROWS, ROWS, ROWS)
    with pytest.raises(Exception, match="data-dependent"), torch_export_patches():
        torch.export.export(model, images(3, 4), dynamic_shapes=shapes)
    with apply_patches_for_model(patch_transformers=True) as details:
        program = torch.export.export(model, images(3, 4), dynamic_shapes=shapes)
    for count, length in ((2, 6), (5, 3)):
        given = images(count, length)
        torch.testing.assert_close(program.module()(*given), model(*given))
    [(patch, nodes)] = details.patches_involved_in_graph(program.graph)
    assert patch.name == "transformers.models.qwen2_vl.modeling_qwen2_vl.VisionAttention.forward"
    assert 3 < len(nodes) < len(program.graph.nodes)


def test_a_graph_that_no_patch_touched() -> None:
    with apply_patches_for_model(patch_torch=True, patch_transformers=True) as details:
        program = torch.export.export(Positions(), tensors(3))
    assert details.patches_involved_in_graph(program.graph) == []


def test_extra_patches() -> None:
    patch = PatchInfo.make(lambda self: "extra", Base, "method")
    with apply_patches_for_model(extra_patches=[patch]) as details:
        assert Base().method() == "extra"
        assert [applied.name for applied in details] == [f"{__name__}.Base.method"]
        assert details[0].original(None) == "base"
        assert details
    assert Base().method() == "base"


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (True, TransformersPatchEnum.ALL),
        (False, TransformersPatchEnum.NONE),
        (None, TransformersPatchEnum.NONE),
        ("transformers_patch", TransformersPatchEnum.TRANSFORMERS_PATCH),
        (TransformersPatchEnum.YOBX_PATCH, TransformersPatchEnum.YOBX_PATCH),
    ],
)
def test_kinds_of_patches(value: Any, kinds: TransformersPatchEnum) -> None:
    assert patch_kinds(value) is kinds


class Switch:
    onnx_export = False


class Traced(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.onnx_trace = False

    def prepare_for_onnx_export_(self) -> None:
        self.onnx_trace = True


class Switched(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.inside = Traced()


@pytest.mark.parametrize("make", [Switch, lambda: LongformerConfig(attention_window=2)])
@pytest.mark.parametrize("fails", [False, True])
def test_switches_of_a_model_are_turned_on_and_off(make: Any, fails: bool) -> None:
    model = Switched(make())
    before = dict(vars(model.config))
    with contextlib.suppress(KeyError), apply_patches_for_model(patch_transformers=True, model=model):
        assert model.config.onnx_export is True
        assert model.inside.onnx_trace is True
        if fails:
            raise KeyError
    assert (model.config.onnx_export, model.inside.onnx_trace) == (False, False)
    assert vars(model.config) == before


def test_only_the_switches_that_were_asked_for() -> None:
    model = Switched(Switch())
    model.config.inside = Switch()
    with apply_patches_for_model(patch_transformers=TransformersPatchEnum.YOBX_PATCH, model=model):
        assert (model.config.onnx_export, model.inside.onnx_trace) == (False, False)
    with enable_transformers_onnx_export_flags(model) as found:
        assert found == {"configs": ["", "inside"], "modules": ["inside"]}
        assert model.config.inside.onnx_export is True
    with apply_patches_for_model(patch_transformers=TransformersPatchEnum.TRANSFORMERS_PATCH) as details:
        assert len(details) == 0
