"""Random modules that decide by what is no size: options, masks, orders, identity, marks, and what they keep.

A module is made of one to three features, each a row of ``FEATURES``: parameters with what calls pass for them,
conditions, numbers, steps and returned values. Conditions of several features are joined, and stand between the arms of
``planted_modules``. Watched and later calls are Python text, so that a module is printed whole. The choices come from a
seed and a number (:func:`seeded`), or from Hypothesis (:func:`cases`).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import assume
from hypothesis import strategies as st

from planted_modules import ARMS, Chooser, Drawn, Replayed, Seeded, Unusable, in_brackets, indented

HEADER = """import collections
import enum
import functools
import itertools
import math
import random

import torch
from torch import nn
from torch.nn import functional as F


class Kind(enum.Enum):
    FIRST = 1
    SECOND = 2


MISSING = object()
"""
LENGTHS = (5, 8, 3, 6, 9, 12, 16, 20, 30, 40)
BATCHES = (2, 3, 4, 5)


@dataclass(frozen=True)
class Option:
    """A parameter: its defaults (empty: it has none), and the texts of what watched and later calls may pass.

    ``{b}`` and ``{n}`` are the sizes of ``x`` in the call.
    """

    name: str
    defaults: tuple[str, ...]
    watched: tuple[str, ...]
    later: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Feature:
    """What a module may have, as text.

    ``{p}`` and ``{q}`` are the names of the options, ``{a}`` is an attribute of the feature alone; ``{c}``, ``{e}`` and
    ``{k}`` are constants of the length, of the batch, and small ones.
    """

    options: tuple[Option, ...] = ()
    hosts: str = ""
    init: str = ""
    before: tuple[str, ...] = ("",)
    after: tuple[str, ...] = ("",)
    conditions: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def option(name: str, defaults: Sequence[str], watched: Sequence[str], later: Sequence[str] = ()) -> tuple[Option]:
    return (Option(name, tuple(defaults), tuple(watched), tuple(later)),)


NUMBER_STEPS = (
    "out = out * {p}",
    "out = out[:, :{p}]",
    "for _ in range({p}):\n    out = out * 1.25",
    "out = out.roll({p}, 1)",
    "out = F.pad(out, (0, max({p}, 0)))",
    "out = out * min({p}, x.shape[1])",
    "out = out.topk(min(max({p}, 1), out.shape[1]), 1).values",
    "out = out + out[:, min({p}, out.shape[1] - 1) :].sum()",
)
PARTS = ("dict(a=rand({b}, {n}, seed=1), b=rand({b}, {n}, seed=2))",)
OTHER_PARTS = (
    "dict(b=rand({b}, {n}, seed=2), a=rand({b}, {n}, seed=1))",
    "dict(a=rand({b}, {n}, seed=1), c=rand({b}, {n}, seed=2))",
    "dict(a=rand({b}, {n}, seed=1))",
    "dict(a=rand({b}, {n}, seed=1), b=rand({b}, {n}, seed=2), c=rand({b}, {n}))",
    "collections.OrderedDict(b=rand({b}, {n}, seed=2), a=rand({b}, {n}, seed=1))",
    "{}",
)
OTHERS = ("rand({b}, {n}, seed=1)",)
LATER_OTHERS = ("X", "X[:]", "X.detach()", "X.clone()", "rand({b}, {n}, seed=1).requires_grad_()", "X.t().clone().t()")
MASKS = ("holes({b}, {n})", "torch.ones({b}, {n})")
LATER_MASKS = (
    "holes({b}, {n})",
    "torch.zeros({b}, {n})",
    "holes({b}, {n}).bool()",
    "holes({b}, {n}).long()",
    "holes(1, {n})",
    "torch.ones({b}, {n}) * 2",
    "torch.full(({b}, {n}), float('nan'))",
)

#: By name, the features.
FEATURES: dict[str, Feature] = {
    "bool": Feature(
        option("flag", ("False", "True", "None"), ("True", "False"), ("True", "False", "None", "1", "0")),
        conditions=("{p}", "not {p}", "{p} is True", "{p} is None", "{p} is not False", "{p} == 1"),
        numbers=("(1 + {p})",),
        returned=("{p}",),
    ),
    "int": Feature(
        option("k", ("3", "0", "1", "None"), ("3", "5", "4", "{n}"), ("0", "1", "2", "-1", "7", "True", "3.0", "40")),
        conditions=("{p} > {k}", "{p}", "{p} == 3", "{p} < x.shape[1]", "x.shape[1] % max({p}, 1) == 0", "{p} is None"),
        numbers=("{p}", "min({p}, {c})", "{p} * x.shape[1]", "({p} or 2)", "max({p}, x.shape[0])"),
        steps=NUMBER_STEPS,
        returned=("{p}", "{p} + x.shape[1]", "{p} > {k}"),
    ),
    "float": Feature(
        option("scale", ("1.0", "0.5", "None"), ("0.5", "2.0"), ("0.0", "-1.0", "1.0", "2", "float('nan')", "1e-8")),
        conditions=("{p} > 0.75", "{p}", "{p} == 1.0", "{p} * x.shape[1] > {c}", "isinstance({p}, int)"),
        numbers=("{p}", "({p} or 3.0)", "math.sqrt(abs({p}))", "int({p} * 4)"),
        steps=(
            "out = out.clamp(max={p})",
            "out = out * {p}",
            "out = out + {p} * x.shape[1]",
            "out = F.dropout(out, 0)",
        ),
        returned=("{p}", "{p} * 2"),
    ),
    "text": Feature(
        option("mode", ("'sum'", "None"), ("'sum'", "'mean'"), ("'sum'", "'mean'", "'max'", "''", "None")),
        conditions=("{p} == 'sum'", "{p} in ('mean', 'max')", "{p}", "({p} or '').startswith('m')"),
        steps=(
            "out = out * {'sum': 2.0, 'mean': 3.0}.get({p}, 1.0)",
            "out = getattr(torch, 'abs' if {p} == 'sum' else 'relu')(out)",
        ),
        returned=("{p}",),
    ),
    "limit": Feature(
        option("limit", ("None",), ("{c}", "7"), ("None", "0", "2", "30", "{n}")),
        conditions=("{p} is None", "{p} is not None and x.shape[1] > {p}", "({p} or {c}) > x.shape[1]", "not {p}"),
        numbers=("({p} or {c})", "min(x.shape[1], {p} or {c})"),
        steps=("if {p} is not None:\n    out = out[:, :{p}]", "out = out * ({p} if {p} is not None else 2)"),
        returned=("{p}", "{p} is None"),
    ),
    "dtype": Feature(
        option("dtype", ("torch.float32", "None"), ("torch.float32", "torch.float64"), ("torch.float64", "None")),
        conditions=("{p} == torch.float64", "{p} is None", "{p} is torch.float32"),
        steps=("out = out.to({p} or torch.float32)", "out = out + torch.arange(out.shape[1], dtype={p})"),
        returned=("{p}", "out.dtype"),
    ),
    "enum": Feature(
        option("kind", ("Kind.FIRST",), ("Kind.FIRST", "Kind.SECOND"), ("Kind.SECOND", "Kind.FIRST")),
        conditions=("{p} is Kind.FIRST", "{p} == Kind.SECOND", "{p}.value > 1", "{p} in (Kind.SECOND,)"),
    ),
    "sizes": Feature(
        option("sizes", ("(2, 3)", "None", "()"), ("(2, 3)", "[2, 3]", "(4, 1)"), ("(3, 2)", "[2, 3]", "()", "(2,)")),
        conditions=(
            "{p} is None",
            "len({p}) > 1",
            "2 in {p}",
            "{p} == (2, 3)",
            "isinstance({p}, list)",
            "sum({p}) > {k}",
        ),
        numbers=("sum({p})", "len({p})", "max({p}, default=1)"),
        steps=("for size in {p}:\n    out = out * size", "out = out.repeat(1, len({p}) + 1)"),
        returned=("{p}", "len({p})"),
    ),
    "sentinel": Feature(
        option("value", ("MISSING",), ("None", "2.5"), ("None", "2.5", "0.0")),
        conditions=("{p} is MISSING", "{p} is None", "{p} is not MISSING and x.shape[1] > {c}"),
    ),
    "kwargs": Feature(
        (
            Option(
                "options",
                (),
                ("keep=True", "count=3", "keep=False, count=4"),
                ("", "keep=False", "count=1", "extra=2"),
                "**",
            ),
        ),
        conditions=(
            "{p}.get('keep', True)",
            "'count' in {p}",
            "len({p}) > 1",
            "{p}.pop('count', 3) > 3",
            "next(iter({p}), '') == 'count'",
        ),
        numbers=("{p}.get('count', 2)", "len({p})"),
        returned=("sorted({p})", "len({p})"),
    ),
    "named tensors": Feature(
        (
            Option(
                "parts",
                (),
                ("a=rand({b}, {n}, seed=1), b=rand({b}, {n}, seed=2)",),
                ("b=rand({b}, {n}, seed=2), a=rand({b}, {n}, seed=1)", "a=rand({b}, {n})", "", "a=X, b=X"),
                "**",
            ),
        ),
        conditions=("next(iter({p}), '') == 'a'", "len({p}) == 2", "'b' in {p}", "list({p}) == sorted({p})"),
        steps=("for i, part in enumerate({p}.values()):\n    out = out + part * i", "out = sum({p}.values(), out)"),
        returned=("dict({p})", "list({p})"),
    ),
    "rest": Feature(
        (Option("rest", (), ("rand({b}, {n})", "rand({b}, {n}), rand({b}, {n}, seed=3)"), ("", "X", "X, X"), "*"),),
        conditions=("{p}", "len({p}) > 1", "any(part is x for part in {p})"),
        steps=("for part in {p}:\n    out = out + part", "out = out + len({p})"),
        returned=("len({p})", "{p}"),
    ),
    "mask": Feature(
        option("mask", ("None",), MASKS, LATER_MASKS),
        conditions=("{p} is None", "{p} is not None and x.shape[1] > {c}", "{p} is None and x.shape[1] > {c}"),
        steps=(
            "if {p} is not None:\n    out = out * {p}",
            "if {p} is None:\n    {p} = torch.ones_like(x)\nout = (out * {p}).clamp(-50, 50)",
            "if {p} is None:\n    out = out * (torch.arange(out.shape[1]) < {c})\nelse:\n    out = out * {p}",
            "if {p} is not None and x.shape[1] > {c}:\n    out = out.masked_fill({p} == 0, 0.0)",
            "weights = torch.ones(x.shape[1]) if {p} is None else {p}.float().mean(0)\nout = out * weights",
            "if {p} is not None:\n    out = out.masked_fill(~{p}.bool(), -1.0)",
            "if {p} is not None and not {p}.bool().all():\n    out = out * {p}",
            "length = x.shape[1] if {p} is None else int({p}.sum(1).max())\nout = out * length",
            "out = out / ({p}.sum(1, keepdim=True) + 1 if {p} is not None else x.shape[1] + 1)",
        ),
        returned=("{p}", "{p} is None"),
    ),
    "table": Feature(
        init="self.{a} = nn.Embedding({rows}, 1)\nself.register_buffer('{a}_rows', torch.arange({rows}) * 0.5)",
        conditions=("x.shape[1] > self.{a}.num_embeddings // 2", "x.shape[1] <= len(self.{a}_rows) - 2"),
        numbers=("min(x.shape[1], len(self.{a}_rows))",),
        steps=(
            "out = out + self.{a}(torch.arange(out.shape[1]))[:, 0]",
            "out = out + self.{a}_rows[: out.shape[1]]",
            "out = out + self.{a}_rows.narrow(0, 0, out.shape[1])",
            "out = out[:, : len(self.{a}_rows)]",
            "out = out + self.{a}(torch.arange(out.shape[1]).clamp(max={rows} - 1))[:, 0]",
            "out = out * self.{a}_rows[min(out.shape[1], {rows} - 1)]",
            "out = out + self.{a}_rows[-out.shape[1] :]",
            "out = out + self.{a}_rows[torch.ones_like(out).cumsum(1).long() - 1]",
        ),
        returned=("len(self.{a}_rows)",),
    ),
    "numbers out": Feature(
        returned=(
            "x.shape[1] > {c}",
            "x.shape[1]",
            "x.shape",
            "out.shape[0] == out.shape[1]",
            "x.sum().item()",
            "int((x > 1).sum())",
            "bool((x > 2).any())",
            "x.argmax().item()",
            "f'{x.shape[1]} of {x.shape[0]}'",
            "[x.shape[1] // 2, x.shape[0] > {e}]",
            "{'long': x.shape[1] > {c}}",
            "x.tolist()",
            "x.dim()",
            "x.shape[1] / x.shape[0]",
            "slice(0, x.shape[1])",
            "None if x.shape[1] > {c} else out",
        ),
    ),
    "values": Feature(
        conditions=(
            "x.sum() > 0",
            "x.max().item() > 2",
            "bool((x > 2).any())",
            "int((x > 1).sum()) > {k}",
            "x[0, 0] > 0",
        ),
        numbers=("int((x > 1).sum())", "x.abs().max().item()", "int(x.argmax())"),
        returned=("(x > 1).sum().item()", "x.max().item()"),
    ),
    "dict": Feature(
        option("parts", ("None",), PARTS, OTHER_PARTS),
        conditions=("{p} is None", "next(iter({p} or {}), '') == 'a'", "'b' in ({p} or {})", "len({p} or ()) > 1"),
        steps=(
            "for i, part in enumerate(({p} or {}).values()):\n    out = out + part * i",
            "out = out + sum(({p} or {}).values())",
            "if {p} is not None:\n    out = out + {p}.get('b', 1.0)",
            "if {p}:\n    out = out - list({p}.items())[0][1]",
        ),
        returned=("{p}", "list({p} or ())", "{name: part + 1 for name, part in ({p} or {}).items()}"),
    ),
    "list": Feature(
        option(
            "parts", ("None", "()"), ("[rand({b}, {n}), rand({b}, {n}, seed=5)]",), ("[]", "[X]", "[X, X]", "(X, X)")
        ),
        conditions=("{p}", "len({p} or ()) > 1", "isinstance({p}, list)", "{p} and {p}[0] is {p}[-1]"),
        steps=("for part in {p} or ():\n    out = out + part", "out = out * len({p} or ())"),
        returned=("{p}", "len({p} or ())"),
    ),
    "other": Feature(
        option("other", ("", "None"), OTHERS, LATER_OTHERS),
        conditions=(
            "{p} is x",
            "{p} is not None and {p}.data_ptr() == x.data_ptr()",
            "{p} is None",
            "{p} is not None and {p}.shape == x.shape",
            "id({p}) == id(x)",
            "{p} is not None and {p}._base is x",
        ),
        steps=(
            "if {p} is not None:\n    out = out + {p}",
            "if {p} is not None:\n    out.add_(0)\n    x.mul_(2)\n    out = out + {p}",
            "if {p} is not None:\n    {p}.add_(1)\n    out = out * x",
        ),
        returned=("{p}", "{p} is x"),
    ),
    "in place": Feature(
        steps=("x.mul_(2)\nout = out + x", "x[:, 0] = 1.0\nout = out + x", "if x.shape[1] > {c}:\n    x.add_(1)"),
        returned=("x", "x.add_(1)"),
    ),
    "marks": Feature(
        conditions=(
            "x.requires_grad",
            "x.is_contiguous()",
            "x.stride(0) == x.shape[1]",
            "x.storage_offset() > 0",
            "x.is_leaf",
            "x._base is not None",
            "isinstance(x, nn.Parameter)",
            "x.grad_fn is None",
            "torch.is_grad_enabled()",
            "self.training",
            "x.dtype == torch.float32",
            "out.requires_grad",
            "x.is_inference()",
            "hasattr(x, 'note')",
            "torch.get_default_dtype() == torch.float64",
            "torch.is_autocast_enabled('cpu')",
            "x.untyped_storage().nbytes() > 4 * x.numel()",
            "x.t().is_contiguous()",
            "x.grad is None",
        ),
        steps=("out = out + x.view(-1)[0]", "out = out + x.detach().requires_grad_().sum().detach()"),
        returned=("x.requires_grad", "x.is_contiguous()", "x.stride()", "torch.is_grad_enabled()"),
    ),
    "counter": Feature(
        init="self.{a} = 0",
        before=("self.{a} += 1", "self.{a} = self.{a} + x.shape[1]", "if x.shape[1] > {c}:\n    self.{a} += 1"),
        conditions=("self.{a} > {k}", "self.{a} % 3 == 0", "self.{a} == 5", "self.{a}", "self.{a} > x.shape[1]"),
        numbers=("self.{a}", "min(self.{a}, 4)"),
        returned=("self.{a}", "self.{a} > {k}"),
    ),
    "unread counter": Feature(
        init="self.{a} = 0\nself.{a}_most = 0\nself.{a}_log = []",
        before=(
            "self.{a} += 1",
            "self.{a}_log.append(1)",
            "self.{a}_log.append(x.shape[1])",
            "self.{a}_most = max(self.{a}_most, x.shape[1])",
            "if x.shape[1] > {c}:\n    self.{a} += 1",
        ),
        conditions=("x.shape[1] > {c}",),
    ),
    "list kept": Feature(
        init="self.{a} = []",
        before=("self.{a}.append(x.shape[1])", "self.{a}.append(1)", "if x.shape[1] > {c}:\n    self.{a}.append(0)"),
        conditions=("len(self.{a}) > {k}", "self.{a}", "sum(self.{a}) > {c}", "x.shape[1] in self.{a}[:-1]"),
        numbers=("len(self.{a})", "sum(self.{a})"),
        returned=("len(self.{a})", "list(self.{a})"),
    ),
    "set kept": Feature(
        init="self.{a} = {kept}",
        before=(
            "self.{a}.add(x.shape[1]) if isinstance(self.{a}, set) else self.{a}.append(x.shape[1])",
            "if isinstance(self.{a}, set):\n    self.{a}.add(len(self.{a}))\nelse:\n    self.{a}.append(1)",
        ),
        conditions=("len(self.{a}) > {k}", "x.shape[1] + 1 in self.{a}"),
        returned=("len(self.{a})",),
    ),
    "dict kept": Feature(
        init="self.{a} = {}",
        before=(
            "self.{a}['n'] = self.{a}.get('n', 0) + 1",
            "self.{a}.setdefault(x.shape[1], len(self.{a}))",
            "if x.shape[1] not in self.{a}:\n    self.{a}[x.shape[1]] = torch.arange(x.shape[1]) * 1.0",
        ),
        conditions=("len(self.{a}) > {k}", "self.{a}.get('n', 0) > {k}", "x.shape[1] in self.{a}"),
        steps=(
            "if x.shape[1] not in self.{a}:\n    self.{a}[x.shape[1]] = torch.full((x.shape[1],), len(self.{a}) + 1.0)"
            "\n"
            "out = out + F.pad(torch.as_tensor(self.{a}[x.shape[1]]) * 1.0, (0, 0)).sum()",
        ),
        returned=("len(self.{a})",),
    ),
    "last": Feature(
        init="self.{a} = None",
        before=("",),
        after=(
            "self.{a} = out",
            "self.{a} = x.shape[1]",
            "if x.shape[1] > {c}:\n    self.{a} = x.shape[1]",
            "self.{a} = True",
        ),
        conditions=("self.{a} is None", "self.{a} is not None", "self.{a} is not None and x.shape[1] > {c}"),
        returned=("self.{a} is None",),
    ),
    "buffer": Feature(
        init="self.register_buffer('{a}', torch.zeros(()))",
        before=(
            "self.{a}.add_(1)",
            "if x.shape[1] > {c}:\n    self.{a}.add_(1)",
            "self.{a}.copy_(x.mean())",
            "self.{a} = self.{a} + x.shape[1]",
            "if x.shape[1] > {c}:\n    self.{a} = x.mean().detach()",
            "",
        ),
        conditions=("self.{a} > {k}", "self.{a}.item() == 0", "x.shape[1] > {c}"),
        steps=("out = out + self.{a}", "out = out * (self.{a} + 1)", "if x.shape[1] > {c}:\n    out = out + self.{a}"),
        returned=("self.{a}", "self.{a}.item()"),
    ),
    "grown": Feature(
        init="self.register_buffer('{a}', torch.arange({rows}) * 1.0, persistent=False)\nself.{a}_size = {rows}",
        before=(
            "if x.shape[1] > self.{a}_size:\n    self.{a} = torch.arange(x.shape[1]) * 1.0\n"
            "    self.{a}_size = x.shape[1]",
            "if len(self.{a}) < x.shape[1]:\n    self.{a} = torch.arange(2 * x.shape[1]) * 1.0",
        ),
        conditions=("len(self.{a}) > {c}", "self.{a}_size > {rows}"),
        numbers=("len(self.{a})",),
        steps=("out = out + self.{a}[: out.shape[1]].sum()", "out = out + self.{a}[: x.shape[1]].mean()"),
        returned=("len(self.{a})",),
    ),
    "closure": Feature(
        hosts="def counting():\n    calls = {first}\n    def count(n):\n        calls{change}\n        return {told}\n"
        "    return count\n",
        init="self.{a} = counting()",
        before=("{a} = self.{a}(x.shape[1])", "{a} = self.{a}(1)"),
        conditions=("{a} > {k}", "{a} % 3 == 0", "x.shape[1] > {c}"),
        numbers=("{a}",),
        returned=("{a}",),
    ),
    "global": Feature(
        hosts="SEEN = []\nTABLE = {'n': 0}\n\n\ndef seen(n):\n    global COUNT\n    COUNT += 1\n    SEEN.append(n)\n"
        "    return COUNT\n\n\nCOUNT = 0\n",
        before=("seen(x.shape[1])", "SEEN.append(x.shape[1])", "TABLE['n'] += 1"),
        conditions=("COUNT > {k}", "len(SEEN) > {k}", "TABLE['n'] > {k}", "x.shape[1] > {c}"),
        returned=("len(SEEN)", "COUNT"),
    ),
    "iterator": Feature(
        init="self.{a} = {iterator}",
        before=("{a} = next(self.{a})", "{a} = next(self.{a}) if x.shape[1] > {c} else 0"),
        conditions=("{a} > {k}", "{a} % 2", "x.shape[1] > {c}"),
        numbers=("{a}",),
        returned=("{a}",),
    ),
    "cached function": Feature(
        hosts="@functools.lru_cache\ndef cached(n, k=1):\n    return {cached}\n",
        conditions=("cached(int(x.shape[0])) is not None", "cached.cache_info().currsize > {k}"),
        steps=("out = out + cached(x.shape[1]).sum()", "out = out + cached({k}).mean()"),
    ),
    "object kept": Feature(
        hosts="class Meter:\n    def __init__(self):\n        self.n = 0\n        self.mean = 0.0\n\n"
        "    def update(self, n):\n        self.n += 1\n        self.mean += (n - self.mean) / self.n\n",
        init="self.{a} = Meter()",
        before=("self.{a}.update(x.shape[1])", "self.{a}.n += 1", "if x.shape[1] > {c}:\n    self.{a}.update(1)"),
        conditions=("self.{a}.n > {k}", "self.{a}.mean > {c}", "x.shape[1] > {c}"),
        returned=("self.{a}.n",),
    ),
    "class attribute": Feature(
        hosts="class Shared:\n    n = 0\n    names = []\n",
        before=("Shared.n += 1", "Shared.names.append('x')", "type(self).calls = getattr(type(self), 'calls', 0) + 1"),
        conditions=(
            "Shared.n > {k}",
            "len(Shared.names) > {k}",
            "getattr(type(self), 'calls', 0) > {k}",
            "x.shape[1] > {c}",
        ),
    ),
    "default list": Feature(
        (Option("log", ("[]", "{}"), (), ()),),
        before=(
            "if isinstance({p}, list):\n    {p}.append(x.shape[1])\nelse:\n    {p}[len({p})] = x.shape[1]",
            "if isinstance({p}, list):\n    {p}.append(1)",
        ),
        conditions=("len({p}) > {k}", "x.shape[1] > {c}"),
        returned=("len({p})",),
    ),
    "list written": Feature(
        option("log", ("None",), ("[]", "[1]", "[1, 2, 3]"), ("[]", "[5]", "[1, 2, 3, 4]", "None")),
        before=("if {p} is not None:\n    {p}.append(x.shape[1])", "if {p}:\n    {p}[0] = x.shape[1] > {c}", ""),
        conditions=("{p} and {p}[0] > 2", "len({p} or ()) > {k}"),
        returned=("{p}",),
    ),
    "random": Feature(
        init="self.{a} = random.Random(3)\nself.{a}_torch = torch.Generator().manual_seed(3)",
        conditions=("random.random() < 0.5", "self.{a}.random() < 0.5", "torch.rand(()) < 0.5", "x.shape[1] > {c}"),
        steps=(
            "out = out + torch.rand(out.shape[1])",
            "out = out * self.{a}.random()",
            "out = out + torch.rand(3, generator=self.{a}_torch).sum()",
            "out = F.dropout(out, 0.5, training=self.training)",
            "out = out * random.choice((1.0, 2.0))",
        ),
    ),
    "hook": Feature(
        hosts="def noted(module, args, result):\n    module.calls += 1\n"
        "    return result * 2 if module.calls > {k} else None\n",
        init="self.{a} = nn.Identity()\nself.{a}.calls = 0\nself.{a}.register_forward_hook(noted)",
        steps=("out = self.{a}(out)",),
        conditions=("x.shape[1] > {c}",),
        returned=("self.{a}.calls",),
    ),
    "size": Feature(
        conditions=(
            "x.shape[1] > {c}",
            "x.shape[1] % 2",
            "x.shape[0] > {e}",
            "x.shape[0] == x.shape[1]",
            "x.numel() < {c}",
        ),
        numbers=("x.shape[1]", "min(x.shape[1], {c})", "x.shape[0]", "x.shape[1] // 2"),
        steps=("if x.shape[1] > {far}:\n    raise ValueError(f'at most {far}, not {x.shape[1]}')",),
    ),
}
#: What a template of a feature may have beside names and constants.
VARIANTS = {
    "kept": ("set()", "collections.deque(maxlen=5)", "collections.deque()", "[]"),
    "iterator": (
        "itertools.count()",
        "itertools.cycle((0, 1, 2))",
        "iter(range(1000))",
        "(n * n for n in range(1000))",
    ),
    "cached": ("torch.arange(n) * 1.0", "torch.ones(n, k)", "torch.tensor([float(n)])"),
    "first": ("[0]",),
    "change": ("[0] += n", ".append(n)"),
    "told": ("calls[0]", "len(calls)", "sum(calls)"),
}
#: Features that keep something from call to call.
KEEPING = (
    *(
        "counter",
        "unread counter",
        "list kept",
        "set kept",
        "dict kept",
        "last",
        "buffer",
        "grown",
        "closure",
        "global",
    ),
    *("iterator", "cached function", "object kept", "class attribute", "default list", "random", "hook"),
)
ASKING = tuple(name for name in FEATURES if name not in KEEPING)


@dataclass(frozen=True)
class Call:
    """The texts of the arguments of a call, in order; without a name they are given by position."""

    x: str
    given: tuple[tuple[str, str], ...] = ()
    is_grad: bool = False

    @property
    def text(self) -> str:
        parts = [f"{name}={text}" if name else text for name, text in self.given if text]
        return ", ".join([self.x, *parts])

    def __str__(self) -> str:
        return f"{self.text}{'  # with gradients' if self.is_grad else ''}"


@dataclass(frozen=True)
class Case:
    """A module, its watched calls, and the calls that are made of its program."""

    source: str
    watched: tuple[Call, ...]
    later: tuple[Call, ...]
    state: bool = False
    features: frozenset[str] = frozenset()


@dataclass
class Writer:
    """Writes one module and its calls."""

    chooser: Chooser
    sizes: list[tuple[int, int]] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    attributes: dict[str, str] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)

    def chance(self, percent: int) -> bool:
        return self.chooser.pick(range(100)) >= 100 - percent

    def length(self) -> int:
        """A constant on, beside, between, below or above the watched lengths."""
        known = sorted({length for _, length in self.sizes})
        between = [(a + b) // 2 for a, b in itertools.pairwise(known)]
        far = [known[-1] * 2, known[-1] + 1, max(known[0] // 2, 1), known[-1] + 7]
        chosen = self.chooser.pick(self.chooser.pick((far, between or far, known)))
        self.constants.append(chosen)
        return chosen

    def filled(self, template: str, name: str) -> str:
        """A template of a feature with names and constants."""
        texts = self.texts.setdefault(name, {})

        def text_of(match: re.Match[str]) -> str:
            key = match[1]
            if key in ("p", "a"):
                return self.attributes[name] if key == "a" else FEATURES[name].options[0].name
            if key in VARIANTS:
                return texts.setdefault(key, self.chooser.pick(VARIANTS[key]))
            if key in ("rows", "far"):
                least = max(length for _, length in self.sizes)
                rows = texts.setdefault(key, str(least + self.chooser.pick((3, 0, 1, 20))))
                self.constants.append(int(rows))
                return rows
            if key == "c":
                return str(self.length())
            if key == "e":
                return str(self.chooser.pick((3, 2, 6)))
            if key == "k":
                return str(self.chooser.pick((4, 5, 3, 2, 7)))
            return match[0]

        return re.sub(r"\{(p|a|c|e|k|rows|far|kept|iterator|cached|first|change|told)\}", text_of, template)

    def arms(self, number: str) -> tuple[str, str]:
        family = self.chooser.pick(("scale", "clamp", "window", "same", "cut", "sign", "order", "number"))
        first, second = self.chooser.pick(ARMS[family])
        length = self.length()
        known = {"n": number, "c": length, "b": 3, "e": 3, "d": 2, "one": max(length, 1), "wide": max(length, 6)}
        first, second = first.format(**known), second.format(**known)
        return (second, first) if self.chance(50) else (first, second)

    def one_of(self, names: Sequence[str], kind: str) -> str:
        """A condition, number, step or returned value of one of the features; empty where none has such."""
        having = [name for name in names if getattr(FEATURES[name], kind)]
        if not having:
            return ""
        name = self.chooser.pick(having)
        return self.filled(self.chooser.pick(getattr(FEATURES[name], kind)), name)

    def condition(self, names: Sequence[str]) -> str:
        first = self.one_of(names, "conditions") or f"x.shape[1] > {self.length()}"
        if self.chance(40):
            other = self.one_of((*names, "size"), "conditions")
            return f"({first}) {self.chooser.pick(('and', 'or'))} ({other})"
        return f"not ({first})" if self.chance(15) else first

    def step(self, names: Sequence[str]) -> str:
        if self.chance(40) and (step := self.one_of(names, "steps")):
            return step
        number = in_brackets(self.one_of(names, "numbers") or "x.shape[1]")
        condition = self.condition(names)
        first, second = self.arms(number)
        if self.chance(15):
            return f"out = out * {number}"
        return self.chooser.pick(
            (
                f"if {condition}:\n    out = {first}\nelse:\n    out = {second}",
                f"out = {first} if {condition} else {second}",
                f"if {condition}:\n    out = {first}",
                f"if {condition}:\n    return {first}",
                f"if {condition}:\n    out = {first}\n    if {self.condition(names)}:\n        out = out * 2",
            )
        )

    def forward(self, names: Sequence[str]) -> list[str]:
        """The lines of the forward, in the order in which they run."""
        lines = ["out = x * 1.0"]
        after = []
        for name in names:
            lines.append(self.filled(self.chooser.pick(FEATURES[name].before), name))
            after.append(self.filled(self.chooser.pick(FEATURES[name].after), name))
        lines += [self.step(names) for _ in range(self.chooser.pick((1, 1, 2)))]
        lines += after
        returned = self.one_of(names, "returned") if self.chance(35) else ""
        lines.append(f"return out, {returned}" if returned else "return out")
        return [line for line in lines if line]

    def source(self, names: Sequence[str], parameters: str) -> str:
        init, hosts = ["super().__init__()"], []
        for name in names:
            hosts.append(self.filled(FEATURES[name].hosts, name))
            init += [self.filled(FEATURES[name].init, name)]
        body = "\n".join(self.forward(names))
        if self.chance(20):
            inner = f"def inner(self, {parameters}):\n{indented(body)}\n\n"
            passed = re.sub(r"(\w+)=[^,]*(\([^)]*\))?", r"\1", parameters)
            body = f"return self.inner({passed})"
        else:
            inner = ""
        methods = (
            f"def __init__(self):\n{indented(chr(10).join(line for line in init if line))}\n\n"
            f"{inner}def forward(self, {parameters}):\n{indented(body)}"
        )
        parts = [HEADER, *(host for host in hosts if host), f"class Planted(nn.Module):\n{indented(methods)}\n"]
        return "\n\n".join(parts)


def parameters_of(options: Sequence[tuple[Option, str]]) -> str:
    """The signature: what has no default first, then ``*`` and ``**``."""
    ranks = {"": 1, "*": 2, "**": 3}
    ordered = sorted(
        options,
        key=lambda pair: (bool(pair[1]), ranks[pair[0].kind]) if not pair[0].kind else (True, ranks[pair[0].kind]),
    )
    texts = ["x"]
    for one, default in ordered:
        texts.append(f"{one.kind}{one.name}" + (f"={default}" if default else ""))
    return ", ".join(texts)


def call_of(x: str, given: Mapping[Option, str], sizes: tuple[int, int], *, is_grad: bool = False) -> Call:
    """A call; what is given is a text for each option, empty where it is left out."""
    texts: list[tuple[str, str]] = []
    for one, text in sorted(given.items(), key=lambda pair: pair[0].kind != "*"):
        filled = text.replace("{b}", str(sizes[0])).replace("{n}", str(sizes[1])).replace("{c}", str(sizes[1] - 1))
        if filled:
            texts.append(("", filled) if one.kind else (one.name, filled))
    return Call(x, tuple(texts), is_grad)


#: The watched tensor, and other ways to make one of its sizes.
X = "(X := rand({b}, {n}, seed={s}))"
MARKED = (
    "(X := rand({b}, {n}, seed={s}))",
    "(X := rand({b}, {n}, seed={s}).t().contiguous().t())",
    "(X := rand({b} + 1, {n}, seed={s})[1:])",
    "(X := rand({b}, {n} + 2, seed={s})[:, 1:-1])",
    "(X := rand({b}, {n}, seed={s}).requires_grad_())",
    "(X := nn.Parameter(rand({b}, {n}, seed={s})))",
    "(X := rand(1, {n}, seed={s}).expand({b}, {n}))",
    "(X := rand({b}, {n}, seed={s}).double())",
    "(X := rand({b}, {n}, seed={s}) * 100)",
    "(X := -rand({b}, {n}, seed={s}).abs())",
    "(X := torch.zeros({b}, {n}))",
    "(X := noted(rand({b}, {n}, seed={s})))",
    "(X := torch.full(({b}, {n}), float('nan')))",
)


def tensor_text(template: str, sizes: tuple[int, int], number: int) -> str:
    return template.replace("{b}", str(sizes[0])).replace("{n}", str(sizes[1])).replace("{s}", str(number))


def watched_values(chooser: Chooser, one: Option, default: str, n_calls: int) -> list[str]:
    """What the watched calls pass for an option: the same, left out, sometimes, or other values."""
    if not one.watched:
        return [""] * n_calls
    may_lack = bool(default) or bool(one.kind)
    how = chooser.pick(("same", "left out", "sometimes", "varied", "the default") if may_lack else ("same", "varied"))
    value = chooser.pick(one.watched)
    if how == "left out":
        return [""] * n_calls
    if how == "sometimes":
        return [value if number % 2 == 0 else "" for number in range(n_calls)]
    if how == "varied":
        return [chooser.pick(one.watched) for _ in range(n_calls)]
    return [default if how == "the default" and default != "MISSING" else value] * n_calls


def build(chooser: Chooser, is_usable: Callable[[Case], bool]) -> Case:
    """A random module with its calls.

    :raises Unusable: when it is not usable: it refuses a call that is to be watched
    """
    n_calls = chooser.pick((3, 2, 3))
    sizes = [(chooser.pick(BATCHES), chooser.pick(LENGTHS)) for _ in range(n_calls)]
    writer = Writer(chooser, sizes)
    n_features = chooser.pick((1, 2, 2, 3))
    names = []
    for _ in range(n_features):
        names.append(chooser.pick(tuple(FEATURES) if chooser.pick((0, 1, 1)) == 0 else ASKING))
    names = list(dict.fromkeys(names))
    taken: set[str] = set()
    for name in list(names):
        own = {one.name for one in FEATURES[name].options} | {one.kind for one in FEATURES[name].options if one.kind}
        if own & taken:
            names.remove(name)
        taken |= own
    for number, name in enumerate(names):
        writer.attributes[name] = f"kept_{number}"
    options = [
        (one, chooser.pick(one.defaults) if one.defaults else "") for name in names for one in FEATURES[name].options
    ]
    source = writer.source(names, parameters_of(options))
    passed = {one: watched_values(chooser, one, default, n_calls) for one, default in options}
    passed = {one: [writer.filled(text, "size") for text in texts] for one, texts in passed.items()}
    watched = tuple(
        call_of(tensor_text(X, size, number), {one: texts[number] for one, texts in passed.items()}, size)
        for number, size in enumerate(sizes)
    )
    state = any(name in KEEPING for name in names) and writer.chance(35)
    case = Case(source, watched, (), state, frozenset(names))
    if not is_usable(case):
        raise Unusable(source)
    return replace(case, later=tuple(later_calls(case, writer, options, passed)))


def later_calls(
    case: Case,
    writer: Writer,
    options: Sequence[tuple[Option, str]],
    passed: Mapping[Option, list[str]],
    most: int = 56,
) -> Iterator[Call]:
    """Other sizes around each number of the module, other options and marks, in all orders, and both together."""
    chooser = random.Random(case.source)
    numbers = sorted({n for n in (*writer.constants, *(length for _, length in writer.sizes)) if 0 < n < 200})
    lengths = sorted({max(n + step, 0) for n in numbers for step in (-1, 0, 1)} | {1, 2, 3 * numbers[-1]})
    bases = [{one: texts[number] for one, texts in passed.items()} for number in range(len(writer.sizes))]
    found: list[Call] = []
    seeds = itertools.count(100)

    def add(given: Mapping[Option, str], size: tuple[int, int], x: str = X, *, is_grad: bool = False) -> None:
        found.append(call_of(tensor_text(x, size, next(seeds)), given, size, is_grad=is_grad))

    for base, size in zip(bases, writer.sizes, strict=True):
        add(base, size)
    for one, default in options:
        values = [*one.later, *one.watched, *(("",) if default or one.kind else ())]
        for value in dict.fromkeys(values):
            number = chooser.randrange(len(bases))
            add({**bases[number], one: value}, writer.sizes[number])
            add({**chooser.choice(bases), one: value}, (chooser.choice(BATCHES), chooser.choice(lengths)))
    if options:
        add(dict.fromkeys(bases[0], ""), writer.sizes[0])
    sized = [(batch, length) for length in lengths for batch in (chooser.choice((1, 2, 3, 6, 7)),)]
    chooser.shuffle(sized)
    for size in sized[:14]:
        add(chooser.choice(bases), size)
    for x in MARKED[1:]:
        number = chooser.randrange(len(bases))
        add(bases[number], writer.sizes[number], x, is_grad=chooser.random() < 0.3)
    add(bases[0], writer.sizes[0], is_grad=True)
    while len(found) < most:
        given = dict(chooser.choice(bases))
        for one, default in options:
            if chooser.random() < 0.5:
                given[one] = chooser.choice([*one.later, *one.watched, *(("",) if default or one.kind else ())])
        size = (chooser.choice((1, 2, 3, 6)), chooser.choice(lengths))
        add(given, size, chooser.choice(MARKED) if chooser.random() < 0.3 else X, is_grad=chooser.random() < 0.1)
    kept, extra = found[:most], found[most:]
    chooser.shuffle(extra)
    kept += extra[:14]
    chooser.shuffle(kept)
    yield from kept


@st.composite
def cases(draw: st.DrawFn, is_usable: Callable[[Case], bool]) -> Case:
    """The strategy of Hypothesis."""
    try:
        return build(Drawn(draw), is_usable)
    except Unusable:
        assume(False)
        raise


def seeded(seed: int, number: int, is_usable: Callable[[Case], bool]) -> Replayed:
    """The choices of module ``number`` of a seed."""
    for attempt in itertools.count():
        chooser = Seeded(seed, number + attempt * 10**6)
        try:
            build(chooser, is_usable)
        except Unusable:
            continue
        return Replayed(chooser.taken)
    raise AssertionError
