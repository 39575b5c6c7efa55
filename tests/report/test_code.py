"""The script of a program: it runs without onlooker, and exports what onlooker exported."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_leaves

from onlooker import InputObserver, Program, UnsupportedError, UsageError, load
from onlooker.contract.checker import Checker
from onlooker.core.path import Name
from onlooker.core.path import Path as Place
from onlooker.core.plan import LeafPlan
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure
from onlooker.report.code import value_code
from onlooker.report.code_classes import Imports, attributes_of
from onlooker.report.code_layout import laid_out
from onlooker.zoo import tiny_model

Use = tuple[torch.nn.Module, Callable[[], object]]


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Nested(torch.nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], table: dict[str, Any]) -> dict[str, Any]:
        return {"a": pair[0] + pair[1], "b": [table["k"] * 2, table["rows"][0]]}


class Ints(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


class Keywords(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: float = 1.0, **kwargs: torch.Tensor) -> torch.Tensor:
        return x * scale + kwargs["bias"]


class Spread(torch.nn.Module):
    def forward(self, first: torch.Tensor, *others: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return first + others[0] - others[1] if flag else first


class OnlyByPosition(torch.nn.Module):
    def forward(self, x: torch.Tensor, /, y: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x - y, None


@dataclasses.dataclass
class Couple:
    left: torch.Tensor
    right: torch.Tensor


class Row(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Bag:
    """A plain object with a flag."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left, self.right, self.is_open = left, right, True


class Sums(torch.nn.Module):
    def forward(self, pair: Any, many: list[Any]) -> dict[str, Any]:
        return {"sum": Couple(pair.left + pair.right, pair.left), "last": many[1].right}


class Encoder(torch.nn.Module):
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)


def mlp() -> Use:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    return model, lambda: [model(torch.randn(size, 4)) for size in (2, 5)]


def conv() -> Use:
    model = torch.nn.Conv2d(3, 4, 3, padding=1).eval()
    return model, lambda: [model(torch.randn(b, 3, h, w)) for b, h, w in ((2, 8, 9), (3, 10, 12))]


def nested() -> Use:
    model = Nested()
    calls = [
        ((torch.randn(b, n), torch.randn(b, n)), {"k": torch.randn(n), "rows": [torch.ones(b, dtype=torch.bool)]})
        for b, n in ((2, 5), (3, 7))
    ]
    return model, lambda: [model(*call) for call in calls]


def ints() -> Use:
    model = Ints()
    return model, lambda: [model(torch.randn(b, 3), n) for b, n in ((2, 4), (3, 9))]


def keywords() -> Use:
    model = Keywords()
    return model, lambda: [model(torch.randn(b, 3), scale=2.0, bias=torch.randn(b, 1)) for b in (2, 3)]


def spread() -> Use:
    model = Spread()
    return model, lambda: [model(*(torch.randn(b, 3) for _ in range(3)), flag=True) for b in (2, 3)]


def by_position() -> Use:
    model = OnlyByPosition()
    return model, lambda: [model(torch.randn(b, 3), torch.randn(b, 3)) for b in (2, 3)]


def zoo(name: str) -> Callable[[], Use]:
    def build() -> Use:
        tiny = tiny_model(name)
        return tiny.model, tiny.watch

    return build


def t5() -> Use:
    import transformers

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, pad_token_id=0, decoder_start_token_id=0, eos_token_id=None)
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = torch.randint(3, 60, (2, 5))
    return model, lambda: model.generate(ids, max_new_tokens=3, do_sample=False)


def whisper() -> Use:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=20,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()

    def use() -> None:
        for batch in (2, 3):
            audio = torch.randn(batch, 8, 40)
            model.generate(audio, max_new_tokens=5, do_sample=False, eos_token_id=None)

    return model, use


def gemma3() -> Use:
    import transformers

    config = transformers.Gemma3TextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0,
        eos_token_id=None,
    )
    model = transformers.Gemma3ForCausalLM(config).eval()
    ids = torch.randint(3, 60, (2, 6))
    return model, lambda: model.generate(ids, max_new_tokens=4, do_sample=False)


class Changes(torch.nn.Module):
    """Changes a tensor, a dict and a cache of its caller, and returns none of them."""

    def forward(self, x: torch.Tensor, total: torch.Tensor, table: dict[str, torch.Tensor], past: Any) -> torch.Tensor:
        total.copy_(x.sum((1, 2)))
        table["rows"] = torch.cat([table["rows"], x], 1)
        keys, values = past.update(x[:, None], 2 * x[:, None], 0)
        return (keys + values).sum((1, 2)) + table["rows"].sum(1)


def changes() -> Use:
    import transformers

    def call(batch: int, length: int) -> tuple[Any, ...]:
        past = transformers.DynamicCache()
        past.update(torch.randn(batch, 1, length + 3, 4), torch.randn(batch, 1, length + 3, 4), 0)
        return torch.randn(batch, length, 4), torch.zeros(batch), {"rows": torch.randn(batch, length + 1, 4)}, past

    model = Changes()
    return model, lambda: [model(*call(2, 5)), model(*call(3, 8))]


MODELS: dict[str, Callable[[], Use]] = {
    "mlp": mlp,
    "conv": conv,
    "nested": nested,
    "ints": ints,
    "keywords": keywords,
    "spread": spread,
    "by_position": by_position,
    "changes": changes,
    "t5": t5,
    "llama": zoo("llama"),
    "gpt2": zoo("gpt2"),
    "bert": zoo("bert"),
    "whisper": whisper,
    "gemma3": gemma3,
}
SLOW = {"gpt2", "whisper", "gemma3"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS]


@functools.cache
def exported(name: str) -> tuple[torch.nn.Module, Program]:
    model, use = MODELS[name]()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        use()
    # The regimes of an encoder-decoder are many: without probes they are the two that were observed.
    return model, observer.export(probe=name != "t5")


def run_script(text: str) -> dict[str, Any]:
    """What the script defines; it must not know onlooker."""
    imported = {node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.partition(".")[0] not in ("torch", "transformers")]
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, "script.py", "exec"), names)
    return names


def fresh(graph: Any) -> list[dict[str, int]]:
    """The least sizes that the graph takes, and sizes that the export did not have."""
    symbols = graph.plan.symbols
    lows = {s.name: s.low for s in symbols}
    others = {s.name: lows[s.name] + 2 * s.step for s in symbols}
    mixed = {name: max(size, 1) for name, size in lows.items()}
    larger = {s.name: graph.sizes[s.name] + s.step for s in symbols}
    return [lows, others, mixed, larger, *({**graph.sizes, s.name: larger[s.name]} for s in symbols)]


def served(graph: Any, arguments: dict[str, Any]) -> list[torch.Tensor] | None:
    """What our graph gives; None for sizes that its contract excludes."""
    known = [leaf for leaf in graph.plan.leaves if leaf.path.root in arguments]
    pairs = zip(known, tree_leaves(arguments), strict=True)
    inputs = [value for leaf, value in pairs if not leaf.is_constant]
    if not Checker(graph.plan, graph.contract)(inputs):
        return None
    leaves = graph(inputs)
    return [torch.as_tensor(leaf) for leaf, flag in zip(leaves, graph.outputs.dynamic, strict=True) if flag]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(4)
def test_the_script_exports_what_onlooker_exports(name: str) -> None:
    model, program = exported(name)
    script = run_script(program.code())
    for graph in program.graphs:
        again = script[f"export_{graph.name}"](model).module()
        compared = 0
        for sizes in fresh(graph):
            arguments = script[f"{graph.name}_arguments"](**sizes)
            ours = served(graph, arguments)
            if ours is not None:
                theirs = [torch.as_tensor(leaf) for leaf in tree_leaves(again(**arguments))]
                torch.testing.assert_close(theirs, ours, equal_nan=True)
                compared += 1
        assert compared >= min(2, len(graph.plan.symbols)), graph.name


class Parts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for part in x.split(3, 0):
            out = out + part.sum()
        return out


def test_the_script_of_a_rolled_loop_takes_the_steps_that_it_was_traced_with() -> None:
    """torch alone writes the parts down: the rows of a further part would be missing from the sum."""
    model, observer = Parts().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (8, 5, 11):
            model(torch.randn(rows, 4))
    program = observer.export()
    assert any(graph.has_rolled_loops for graph in program.graphs)
    script = run_script(program.code())
    taken = set()
    for graph in program.graphs:
        again = script[f"export_{graph.name}"](model).module()
        for rows in range(1, 20):
            x = torch.randn(rows, 4)
            try:
                found = again(x=x)
            except AssertionError:
                continue
            taken.add(rows)
            torch.testing.assert_close(found, model(x))
    assert taken
    assert "other numbers of steps are refused" in program.code()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp", "nested", "keywords", "changes"])
@pytest.mark.one_in(2)
def test_the_script_for_onnx_has_the_names_of_the_axes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, program = exported(name)
    script = run_script(program.code(to="onnx"))
    converted = script["export_main"](model)
    capsys.readouterr()
    shapes = {str(size) for value in converted.model.graph.inputs for size in value.shape}
    assert shapes >= {"batch"}
    assert tuple(value.name for value in converted.model.graph.outputs) == program.graphs[0].outputs.names


def test_the_script_of_a_plain_model_is_short() -> None:
    _, program = exported("mlp")
    assert (
        program.code()
        == '''"""Exports Sequential.forward with torch.export.

Every function can be changed; nothing but what is imported here is needed.
"""

import torch
from torch.export import Dim
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges


def make_model():
    """The model to export, with its weights and in its mode (eval)."""
    raise NotImplementedError("Return your Sequential here.")


def guarded(program, *conditions):
    """Lets the program check these conditions on its inputs: it is proven where they hold.

    torch keeps every comparison that its trace met, and takes it for granted that no size is 0 or 1.
    It takes all parts of a split out of their list, used or not: another input may have fewer.
    """
    program.graph.eliminate_dead_code(lambda node: not node.name.startswith("getitem"))
    program.graph_module.recompile()
    for symbol in list(program.range_constraints):
        program.range_constraints[symbol] = ValueRanges(0, int_oo)
    program._guards_code = list(conditions)
    return program


def main_arguments(batch=3):
    """Random values. Of 0, of 1 and of equal sizes torch makes constants: no size here is one."""
    return {"input": torch.randn((batch, 4))}


def main_dynamic_shapes():
    """What may change: a Dim by its name, and Dim.AUTO where torch finds the relation by itself."""
    batch = Dim("batch")
    return {"input": {0: batch}}


def export_main(model):
    """The program of calls like the observed ones 0, 1."""
    with torch.no_grad():
        program = torch.export.export(
            model,
            (),
            kwargs=main_arguments(),
            dynamic_shapes=main_dynamic_shapes(),
            strict=False,
        )
    return guarded(program, "L['input'].size()[1] == 4", "L['input'].size()[0] >= 0")


if __name__ == "__main__":
    model = make_model()
    torch.export.save(export_main(model), "main.pt2")
'''
    )


@pytest.mark.parametrize("name", ["keywords", "spread", "llama"])
@pytest.mark.one_in(3)
def test_a_loaded_program_writes_the_same_script(name: str, tmp_path: Path) -> None:
    """But for the ids: their limits come from values, which are not saved."""
    _, program = exported(name)
    program.save(tmp_path / "program")
    texts = [re.sub(r"randint\(\d+, \d+", "randint(", p.code()) for p in (program, load(tmp_path / "program"))]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_deep_cache_does_not_make_the_script_longer() -> None:
    _, program = exported("llama")
    text = program.code()
    lines = [line for line in text.splitlines() if not line.startswith("        \"L['")]  # a condition has a line
    assert "for item in past_key_values" in text
    assert len(lines) < 140
    assert max(map(len, lines)) <= 120


def test_no_value_of_a_call_is_in_the_script() -> None:
    model = torch.nn.Embedding(1000, 4)
    observer = InputObserver()
    with observer(model):
        model(torch.tensor([[17, 523], [611, 902]])), model(torch.tensor([[333, 444, 555]]))
    text = observer.export().code()
    assert "torch.randint(17, 903, " in text
    assert not [number for number in ("523", "611", "333", "444", "555") if number in text]


def test_another_method_is_called_by_its_name() -> None:
    model = Encoder()
    observer = InputObserver()
    with observer(model, method_name="encode"):
        model(torch.randn(2, 3)), model(torch.randn(4, 3))
    text = observer.export().code()
    assert "self.model.encode(x=x)" in text
    program = run_script(text)["export_main"](model).module()
    x = torch.randn(7, 3)
    assert torch.equal(program(x=x), x.relu())


def test_the_ranges_that_were_given_are_in_the_script() -> None:
    model = Add()
    observer = InputObserver()
    with observer(model):
        for batch, length in ((4, 3), (6, 5)):
            model(torch.randn(batch, length), torch.randn(batch, length))
    text = observer.export(ranges={"batch": (4, 8)}).code()
    assert 'batch = Dim("batch", min=4, max=8)' in text
    program = run_script(text)["export_main"](model).module()
    fits, exceeds = torch.randn(8, 2), torch.randn(9, 2)
    assert torch.equal(program(x=fits, y=fits), 2 * fits)
    with pytest.raises((AssertionError, RuntimeError)):
        program(x=exceeds, y=exceeds)


@pytest.mark.parametrize("cls", [Couple, Row, Bag])
def test_the_classes_of_the_user_are_built_again(cls: Any) -> None:
    model = Sums().eval()
    observer = InputObserver()

    def call(size: int) -> tuple[Any, list[Any]]:
        return cls(torch.ones(size), torch.ones(size)), [cls(torch.ones(size), torch.ones(size)) for _ in range(3)]

    with observer(model):
        for size in (2, 5):
            model(*call(size))
    text = observer.export().code()
    assert f"import {cls.__name__}\n" in text
    assert "for item in many]" in text
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, "script.py", "exec"), names)
    arguments = names["main_arguments"](**dict.fromkeys(inspect.signature(names["main_arguments"]).parameters, 7))
    result = names["export_main"](model).module()(**arguments)
    assert torch.equal(result["sum"]["left"], arguments["pair"]["left"] + arguments["pair"]["right"])
    assert torch.equal(result["last"], arguments["many"][1]["right"])


def test_an_object_that_is_no_tensor_is_refused() -> None:
    class Cast(torch.nn.Module):
        def forward(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            return x.to(dtype)

    model = Cast()
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 3), torch.float64), model(torch.randn(4, 3), torch.float64)
    with pytest.raises(
        UnsupportedError, match="dtype is an object: no script can build it, since only its class is known"
    ):
        observer.code()


def test_the_observer_writes_it_as_well() -> None:
    model = Add()
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 3), torch.randn(2, 3)), model(torch.randn(4, 3), torch.randn(4, 3))
    assert observer.code() == observer.export().code()
    assert "torch.onnx.export(" in observer.code(to="onnx")


def test_the_script_runs_as_a_program(tmp_path: Path) -> None:
    _, program = exported("mlp")
    source = "return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))"
    (tmp_path / "script.py").write_text(program.code(source=source), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    loaded = torch.export.load(tmp_path / "main.pt2").module()
    assert loaded(input=torch.randn(9, 4)).shape == (9, 3)


def test_no_script_is_written_for_an_unknown_target() -> None:
    _, program = exported("mlp")
    with pytest.raises(UsageError, match="No script is written for 'tflite'") as caught:
        program.code(to="tflite")
    assert caught.value.slug == "unknown-target"


PLACE = Place((Name("cache"),))


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("", None),
        ("named tuple", None),
        ("{}", {}),
        ("{'on': True, 'size': -3}", {"on": "True", "size": "-3"}),
        ("{'dtype': torch.float32, 'device': device(type='cuda', index=1)}",
         {"dtype": "torch.float32", "device": 'torch.device("cuda:1")'}),
        ("{'cls': a.b.C, 'flags': {0: False}}", {"cls": "C", "flags": "{0: False}"}),
        ("{'many': list(1, 'x'), 'few': tuple(2)}", {"many": '[1, "x"]', "few": "(2, )"}),
    ],
)  # fmt: skip
def test_the_flags_of_an_object_are_written_as_python(context: str, expected: dict[str, str] | None) -> None:
    assert attributes_of(Structure("a.b.D", context=context), PLACE, Imports()) == expected


@pytest.mark.parametrize(
    "context",
    [
        "{'config': <a.Config>}",
        "{'run': system('rm')}",
        "{'x': [i for i in y]}",
        "{'x': (lambda: 1)()}",
        "{'a b': 1}",
        "3",
        "(",
    ],
)
def test_what_is_no_constant_is_not_written(context: str) -> None:
    with pytest.raises(UnsupportedError, match=r"cache is a a\.b\.D: no script can build it") as caught:
        attributes_of(Structure("a.b.D", context=context), PLACE, Imports())
    assert caught.value.slug == "no-code-for-class"


@pytest.mark.parametrize("kind", ["__main__.f.<locals>.C", "os.system('x').C", "C", "a.import.C"])
def test_a_class_without_an_importable_name_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="cannot be imported by name"):
        Imports().name(kind, PLACE)


def test_two_classes_of_one_name_stay_two() -> None:
    imports = Imports()
    assert [imports.name("a.C", PLACE), imports.name("b.C", PLACE), imports.name("a.C", PLACE)] == ["C", "b_C", "C"]
    assert imports.lines() == ["from a import C", "from b import C as b_C"]


@pytest.mark.parametrize(
    ("root", "dtype", "limits", "expected"),
    [
        ("x", "torch.float32", None, "torch.randn((n, 3))"),
        ("x", "torch.bfloat16", None, "torch.randn((n, 3), dtype=torch.bfloat16)"),
        ("x", "torch.float8_e4m3fn", None, "torch.zeros((n, 3), dtype=torch.float8_e4m3fn)"),
        ("ids", "torch.int64", (2, 9), "torch.randint(2, 10, (n, 3))"),
        ("ids", "torch.int32", None, "torch.randint(0, 2, (n, 3), dtype=torch.int32)"),
        ("mask", "torch.int64", (0, 1), "torch.ones((n, 3), dtype=torch.int64)"),
        ("mask", "torch.bool", None, "torch.ones((n, 3), dtype=torch.bool)"),
        ("mask", "torch.float32", (-1e9, 0), "torch.zeros((n, 3), dtype=torch.float32)"),
        ("mask", "torch.float32", (0, 1), "torch.ones((n, 3), dtype=torch.float32)"),
    ],
)
def test_values_are_random_and_masks_hide_nothing(
    root: str, dtype: str, limits: tuple[float, float] | None, expected: str
) -> None:
    leaf = LeafPlan(Place((Name(root),)), dtype, "cpu", (Expression.symbol("n"), Expression.constant(3)))
    assert value_code(leaf, limits) == expected


def test_a_value_stands_on_its_device() -> None:
    leaf = LeafPlan(Place((Name("x"),)), "torch.float32", "cuda:0", (Expression.constant(3),))
    assert value_code(leaf, None) == 'torch.randn((3,), device="cuda:0")'


def test_what_is_too_long_for_a_line_has_an_item_a_line() -> None:
    assert laid_out(f"f(a={'1' * 60}, b=[{'2' * 60}])") == f"f(\n    a={'1' * 60},\n    b=[{'2' * 60}],\n)"
