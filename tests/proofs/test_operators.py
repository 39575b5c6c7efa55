"""Graphs that give the same, and do something else beside it, are not equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, RejectedCallError
from onlooker.proofs.numbering import content_of
from onlooker.proofs.operators import asserts, draws, facts_of, written_by
from onlooker.proofs.same_graph import Comparison
from onlooker.proofs.size_proofs import SizeProofs


def exported(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    shapes = (tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in inputs),)
    return torch.export.export(Model(), inputs, dynamic_shapes=shapes, strict=False)


def difference(first: Any, second: Any) -> str:
    x = torch.rand(4, 6)
    return Comparison(exported(second, x), {}, SizeProofs({})).difference_of(exported(first, x))


def checked(limit: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check((x > 3).sum().item() < limit)
        return x * 2

    return function


def branching(operand: float, *, names: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    def yes(value: torch.Tensor) -> torch.Tensor:
        other = value * operand
        return other + 1

    def renamed(given: torch.Tensor) -> torch.Tensor:
        product = given * operand
        return product + 1

    def no(value: torch.Tensor) -> torch.Tensor:
        return value - 1

    def outer(value: torch.Tensor) -> torch.Tensor:
        return torch.cond(value.sum() > 1, renamed if names else yes, no, [value])

    return lambda x: torch.cond(x.sum() > 0, outer, no, [x])


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def asserting(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "negative")
    return x * 2


def asserting_another_message(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "not positive")
    return x * 2


def drawing(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return x * 2


def writing_to_what_dropout_gave(x: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    torch.dropout(doubled, 0.5, False).add_(1)
    return doubled


def dropout_that_drops_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.dropout(x, 0.5, False) * 2


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (twice, twice, True),
        (twice, asserting, False),
        (asserting, twice, False),
        (asserting, asserting_another_message, True),
        (checked(5), checked(5), True),
        (checked(5), checked(6), False),
        (checked(5), twice, False),
        (twice, drawing, False),
        (drawing, twice, False),
        (drawing, drawing, True),
        (twice, dropout_that_drops_nothing, True),
        (twice, writing_to_what_dropout_gave, False),
        (writing_to_what_dropout_gave, twice, False),
        (branching(2.0), branching(2.0), True),
        (branching(2.0), branching(2.0, names=True), True),
        (branching(2.0), branching(3.0), False),
    ],
)
@pytest.mark.one_in(2)
def test_graphs_are_equal_only_where_they_do_the_same(first: Any, second: Any, same: bool) -> None:
    assert (difference(first, second) == "") is same


def test_effects_of_nodes_are_read() -> None:
    nodes = list(exported(asserting, torch.rand(4, 6)).graph.nodes)
    assert sum(map(asserts, nodes)) == 1
    assert not any(map(draws, nodes))
    assert sum(map(draws, exported(drawing, torch.rand(4, 6)).graph.nodes)) == 1
    assert not any(map(draws, exported(dropout_that_drops_nothing, torch.rand(4, 6)).graph.nodes))
    written = [node for node in exported(lambda x: x.add_(1), torch.rand(4)).graph.nodes if written_by(node)]
    assert [[other.name for other in written_by(node)] for node in written] == [["args_0"]]


_aten = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (_aten.add_.Tensor, (torch.ones(3), torch.ones(3))),
        (_aten.view.default, (torch.ones(4), [2, 2])),
        (_aten.type_as.default, (torch.ones(3), torch.ones(3))),
        (_aten.dropout.default, (torch.ones(3), 0.5, False)),
        (_aten.feature_dropout.default, (torch.ones(3, 2), 0.5, False)),
        (_aten.sum_to_size.default, (torch.ones(3), [3])),
        (_aten.atleast_1d.default, (torch.ones(3),)),
        (_aten.broadcast_tensors.default, ([torch.ones(3), torch.ones(3)],)),
        (_aten.einsum.default, ("ij->ji", [torch.ones(3, 2)])),
        (_aten.unsafe_chunk.default, (torch.ones(4), 2)),
        (_aten.add.Tensor, (torch.ones(3), torch.ones(3))),
        (_aten._to_copy.default, (torch.ones(3),)),
    ],
    ids=str,
)
def test_the_table_says_whose_memory_a_result_has(target: Any, args: tuple[Any, ...]) -> None:
    result = target(*args)
    first = result[0] if isinstance(result, (list, tuple)) else result
    facts = facts_of(target)
    shared = [one.untyped_storage().data_ptr() for one in facts.at(facts.shared, args, {})]
    given = [one for one in facts.at(range(len(args)), args, {}) if isinstance(one, torch.Tensor)]
    is_shared = first.untyped_storage().data_ptr() in [one.untyped_storage().data_ptr() for one in given]
    assert (first.untyped_storage().data_ptr() in shared) is is_shared


def test_attributes_of_graphs_are_told_by_their_content() -> None:
    large = torch.zeros(5000)
    changed = large.clone()
    changed[2500] = 1  # a text of the tensor leaves it out
    assert content_of(large) == content_of(large.clone())
    assert content_of(large) != content_of(changed)
    assert content_of((1, 2)) != content_of((1, 3))


def test_an_index_that_vmap_runs_writes_nothing() -> None:
    """The masks of vision models are made by ``vmap``, and an index in it runs a function of torch by its name."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    class Blocks(torch.nn.Module):
        def forward(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
            places = torch.arange(x.shape[1])
            with TransformGetItemToIndex():
                allowed = torch.vmap(lambda i: torch.vmap(lambda j: group[i] == group[j])(places))(places)
            return (x @ x.transpose(1, 2)).masked_fill(~allowed, -1e9).softmax(-1) @ x

    model, observer = Blocks(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(1, 7, 4), torch.arange(7) // 3)
    program = observer.export()
    assert len(program.graphs) == 1
    for batch, length in ((1, 7), (3, 5), (2, 30)):
        given = torch.randn(batch, length, 4), torch.arange(length) // 3
        torch.testing.assert_close(program(*given), model(*given))


# -- sizes that are compared inside of inner graphs


class SizesInABranch(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def yes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y if x.shape[0] > 4 else x * y

        def no(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

        return torch.cond(x.sum() > 0, yes, no, [x, y])


@pytest.mark.filterwarnings("ignore")
def test_sizes_that_a_branch_of_cond_compares_are_those_of_the_inputs() -> None:
    model, observer = SizesInABranch(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((3, 2), (6, 7)):
            model(torch.rand(batch, length), torch.rand(length))
    program = observer.export()
    served = 0
    for batch, length in ((2, 3), (5, 3), (9, 1)):
        x, y = torch.rand(batch, length), torch.rand(length)
        with contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x, y), model(x, y))
            served += 1
    assert served >= 2


def test_an_operator_of_torchscript_is_known_though_the_dispatcher_does_not_know_it() -> None:
    """OpenVINO's decompositions read the device of a tensor by prim::device."""
    facts = facts_of(torch.ops.prim.device.default)
    assert (facts.written, facts.shared, facts.is_pure) == ((), (), False)
