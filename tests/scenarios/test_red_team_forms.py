"""Attacks by the form of a call: marks of tensors, identity of arguments, orders of dicts, empty containers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import ones, rand, zeros

import onlooker
from red_team import Attack, Named, attack

LIMIT = 40
SIZES = ((2, 5), (3, 9), (4, 7))


def of(function: Callable[..., Any]) -> Callable[[], torch.nn.Module]:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, other: Any = None) -> Any:
            return function(x, other)

    return Model


def images() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4),) for size in SIZES]


def pairs() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), rand(*size, 4)) for size in SIZES]


def twice() -> Sequence[tuple[Any, ...]]:
    return [(x, x) for x in (rand(2, 6, 4), rand(5, 5, 4))]


def marked() -> Sequence[tuple[Any, ...]]:
    return [
        (rand(3, 6, 4)[1:],),
        (rand(3, 6, 4)[:2],),
        (rand(2, 6, 4).requires_grad_(),),
        (rand(2, 4, 6).mT,),
        (rand(2, 6, 8)[..., :4],),
    ]


def of_dict(**items: Any) -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), dict(items)) for size in SIZES]


def dicts() -> Sequence[tuple[Any, ...]]:
    return of_dict(a=ones(4), b=zeros(4))


def other_dicts() -> Sequence[tuple[Any, ...]]:
    return of_dict(b=zeros(4), a=ones(4))


def first_value(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + next(iter(parts.values())) * 2


def stacked(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + torch.stack(list(parts.values()))[0]


def unpacked(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + next(iter({**parts}.values()))


def last_item(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + dict(parts).popitem()[1]


def first_of_long(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + (next(iter(parts.values())) if x.shape[1] > 8 else parts["a"])


def given_back(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x + part for name, part in parts.items()}


def by_name(x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    return x + parts["a"] * 2 - parts.get("b", 0)


def appends(x: torch.Tensor, log: Any) -> torch.Tensor:
    if log is not None:
        log.append(x.shape[1])
    return x * 2


def fills(x: torch.Tensor, log: Any) -> torch.Tensor:
    if log is not None:
        log["sizes"] = x.shape[1]
    return x * 2


def same(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * 2 if x is other else x + 3 * other


def not_same(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    is_other = x is not other
    return x + 3 * other if is_other else x * 2


def same_id(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * 2 if id(x) == id(other) else x + 3 * other


def writes(x: torch.Tensor, _: Any) -> torch.Tensor:
    return x.add_(1) * 2


def unwritable() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 1, 4).expand(2, 6, 4),), (rand(1, 3, 4).expand(5, 3, 4),)]


def sizes() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), (2, 3)) for size in SIZES]


def other_sizes() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), ()), (rand(2, 6, 4), [2, 3]), (rand(2, 6, 4), [])]


def times_sum(x: torch.Tensor, sizes: Any) -> torch.Tensor:
    return x * sum(sizes) + (1 if isinstance(sizes, tuple) else 0)


def given_back_or_not(x: torch.Tensor, parts: Any) -> Any:
    return x * 2, parts


def logs() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), [1]) for size in SIZES]


def later_logs() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), [1]), (rand(2, 6, 4), []), (rand(2, 6, 4), None)]


def appends_and_returns(x: torch.Tensor, log: Any) -> Any:
    return appends(x, log), log


def lists() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 3), [rand(2, 3), rand(2, 3)]), (rand(4, 30),), (rand(3, 5), [rand(3, 5), rand(3, 5)])]


def other_lists() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 18), [rand(2, 18), rand(2, 18)]), (rand(2, 4),), (rand(2, 18), []), (rand(1, 7),)]


def counts_items(x: torch.Tensor, parts: Any) -> torch.Tensor:
    return x * 2 if len(parts or ()) > 1 or x.shape[1] % 2 else x * 3


def wide_with_a_list(x: torch.Tensor, parts: Any) -> torch.Tensor:
    return x * max(x.shape[1], 30) if isinstance(parts, list) else x * x.shape[1]


def dtypes() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 5), torch.float32), (rand(3, 9),), (rand(4, 7), torch.float32)]


def large() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6) * 1000,), (rand(2, 6) * 1000, torch.float32), (rand(2, 6) * 1000, None)]


def clamps_without_a_dtype(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    return x.clamp(-50, 50) if dtype is None else x


def flags() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 5, 4), [1]), (rand(3, 9, 4),), (rand(2, 7, 4), [1])]


def later_flags() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), [1]), (rand(2, 6, 4), []), (rand(2, 6, 4), [1, 2])]


def puts_a_flag(x: torch.Tensor, log: Any) -> torch.Tensor:
    if log:
        log[0] = x.shape[1] > 2
    return x * 2 + len(log or (1,))


def dicts_or_none() -> Sequence[tuple[Any, ...]]:
    return [*dicts(), (rand(2, 6, 4),)]


def parts_of_dicts() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), {"a": ones(4)}), (rand(2, 6, 4), {}), (rand(2, 6, 4), None)]


def gets(x: torch.Tensor, parts: Any) -> torch.Tensor:
    return x if parts is None else x + parts.get("b", 1.0)


def with_images_or_not() -> Sequence[tuple[Any, ...]]:
    with_images = [(rand(2, rows, 4), {"image": rand(rows, 5)}) for rows in (3, 6)]
    return [*images(), *with_images]


def without_pixels() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), {"image": zeros(0, 5)}), (rand(2, 6, 4), {"other": None})]


def gives_images_back(x: torch.Tensor, parts: Any) -> Any:
    if parts is None:
        return {"y": x * 2}
    scale = 3 if parts["image"].shape[0] == 0 else 1
    return {"y": x * scale + parts["image"].sum(), "image": parts["image"] + 1}


def is_limit(x: torch.Tensor, _: Any) -> torch.Tensor:
    return x * 2 if x.shape[1] is LIMIT else x


MARKS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "storage_offset": lambda x, _: x * 2 if x.storage_offset() == 0 else x * 3,
    "_base": lambda x, _: x * 2 if x._base is None else x * 3,
    "requires_grad": lambda x, _: x * 3 if x.requires_grad else x * 2,
    "requires_grad of a result": lambda x, _: x * 3 if (x * 2).requires_grad else x * 2,
    "is_leaf": lambda x, _: x * 2 if x.is_leaf else x * 3,
    "grad_fn": lambda x, _: x * 2 if x.grad_fn is None else x * 3,
    "is_contiguous": lambda x, _: x * 2 if x.is_contiguous() else x * 3,
    "stride": lambda x, _: x * 2 if x.stride(-1) == 1 else x * 3,
    "stride of a view": lambda x, _: x * 2 if x.flatten(0, 0).stride(1) == 4 else x * 3,
    "as_strided": lambda x, _: x.as_strided((2, 2), (1, 2)) + x.sum(),
    "as_strided_copy": lambda x, _: torch.as_strided_copy(x, (2, 2), (1, 2)) + x.sum(),
    "as_strided_scatter": lambda x, _: torch.as_strided_scatter(x, ones(2, 2), (2, 2), (1, 2)),
    "as_strided of a view": lambda x, _: torch.as_strided(x[:, 1:], (2, 2), (1, 2)) + x.sum(),
}


def empty_lists() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), [])]


def empty_dicts() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 6, 4), {})]


def ordered() -> Sequence[tuple[Any, ...]]:
    return [(rand(2, 5, 4), OrderedDict(a=ones(4), b=zeros(4))), (rand(3, 9, 4), OrderedDict(a=ones(4), b=zeros(4)))]


def other_ordered() -> Sequence[tuple[Any, ...]]:
    return [(rand(3, 6, 4), OrderedDict(b=zeros(4), a=ones(4)))]


ATTACKS = [
    *(Attack(name, of(function), images, marked) for name, function in MARKS.items()),
    *(Attack(f.__name__, of(f), pairs, twice) for f in (same, not_same, same_id)),
    Attack("writes", of(writes), images, unwritable),
    Attack("times_sum", of(times_sum), sizes, other_sizes),
    Attack("given_back_or_not", of(given_back_or_not), lambda: [*dicts(), (rand(2, 6, 4),)], other_dicts),
    Attack("appends_and_returns", of(appends_and_returns), logs, later_logs),
    Attack("puts_a_flag", of(puts_a_flag), flags, later_flags),
    Attack("gets", of(gets), dicts_or_none, parts_of_dicts),
    Attack("gives images back", of(gives_images_back), with_images_or_not, without_pixels),
    Attack("counts_items", of(counts_items), lists, other_lists),
    Attack("wide_with_a_list", of(wide_with_a_list), lists, other_lists),
    Attack("clamps_without_a_dtype", of(clamps_without_a_dtype), dtypes, large),
    Attack("is_limit", of(is_limit), images, lambda: [(rand(2, LIMIT, 4),), (rand(3, 41, 4),)]),
    *(
        Attack(f.__name__, of(f), dicts, other_dicts)
        for f in (first_value, stacked, unpacked, last_item, first_of_long, given_back, by_name)
    ),
    Attack("ordered dict", of(first_value), ordered, other_ordered),
    Attack("appends", of(appends), images, empty_lists),
    Attack("fills", of(fills), images, empty_dicts),
]


class Gathers(torch.nn.Module):
    def forward(self, x: torch.Tensor, **parts: torch.Tensor) -> torch.Tensor:
        return x + next(iter(parts.values()))


class Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(rest) > 1 or any(part is x for part in rest) else x * 3


def with_rest() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), rand(*size, 4)) for size in SIZES]


def with_other_rests() -> Sequence[tuple[Any, ...]]:
    return [(x, x, x) for x in (rand(2, 6, 4), rand(5, 5, 4))] + [(rand(2, 6, 4), rand(2, 6, 4), rand(2, 6, 4))]


class LooksUp(torch.nn.Module):
    def forward(self, x: torch.Tensor, **parts: torch.Tensor) -> torch.Tensor:
        return x + parts["a"] * 2 + parts.get("b", 0)


def named() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), Named(a=ones(4), b=zeros(4))) for size in SIZES]


def other_named() -> Sequence[tuple[Any, ...]]:
    return [(rand(*size, 4), Named(b=zeros(4), a=ones(4))) for size in SIZES]


ATTACKS += [Attack("counts", Counts, with_rest, with_other_rests)]
ATTACKS += [Attack("gathered", Gathers, named, other_named), Attack("looked up", LooksUp, named, other_named)]


@pytest.mark.one_in(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("one", ATTACKS, ids=str)
def test_no_verified_program_is_fooled(one: Attack) -> None:
    assert attack(one).lies == []


@pytest.mark.parametrize("call", without_pixels(), ids=["without rows", "another key"])
def test_a_part_without_numbers_is_no_absent_argument(call: tuple[Any, ...]) -> None:
    model = of(gives_images_back)()
    observer = onlooker.InputObserver()
    with observer(model):
        for watched in with_images_or_not():
            model(*watched)
    program = observer.export()
    assert program(rand(3, 5, 4)).keys() == {"y"}
    with pytest.raises(onlooker.RejectedCallError, match=r"other\['\w+'\] is not an input"):
        program(*call)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in MARKS if name.startswith("as_strided")])
@pytest.mark.one_in(2)
def test_a_graph_that_reads_memory_is_verified_for_contiguous_tensors(name: str) -> None:
    model = of(MARKS[name])()
    observer = onlooker.InputObserver()
    with observer(model):
        for watched in images():
            model(*watched)
    program = observer.export()
    assert program.verify().verified
    whole = rand(3, 6, 4)
    torch.testing.assert_close(program(whole), model(whole), rtol=0, atol=0)
    with pytest.raises(onlooker.RejectedCallError, match="contiguous"):
        program(whole.transpose(0, 1))
