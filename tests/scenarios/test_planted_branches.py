"""A program that is verified never serves a call with wrong numbers: modules with planted branches try to make it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from planted import (
    Finding,
    compare,
    described,
    difference,
    examine,
    examined,
    grid,
    outcome,
    read_case,
    tensor_difference,
)
from planted_modules import VALUES, Case, arguments, axes_of, case_of, cases, evaluated, load_model, source_of

# modules written by hand


def written(
    inputs: str,
    body: str,
    watched: Sequence[tuple[int, ...]],
    constants: tuple[int, ...] = (),
    conditions: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    members: tuple[str, ...] = (),
) -> Case:
    """A module with a body; each watched call is its sizes, in the order of the axes."""
    calls = tuple(dict(zip(axes_of(inputs), call, strict=True)) for call in watched)
    return Case(source_of(inputs, body, hosts, members), inputs, calls, conditions, constants)


#: Watched calls (batch, length) on one side of most branches below.
LONG = ((2, 64), (3, 96), (4, 48))
SHORT = ((2, 5), (3, 9), (4, 7))
CLAMPED = "x.clamp(-50, 50)"

#: The branches named in the plan of the project: each of them was verified and wrong.
KNOWN = {
    "a window for long inputs": written(
        "x", "return x * (torch.arange(x.shape[1]) < 12) if x.shape[1] > 24 else x * 1", LONG, (12, 24)
    ),
    "a window for multiples of 4": written(
        "x",
        "return x * (torch.arange(x.shape[1]) < 20) if x.shape[1] % 4 == 0 else x * 1",
        ((2, 4), (3, 12), (4, 8)),
        (20,),
    ),
    "a clamp for small batches": written(
        "x", f"return x * 2 if x.shape[0] > 2 else {CLAMPED} * 2", ((3, 5), (4, 9), (5, 7)), (2,)
    ),
    "an int that is limited when it is large": written(
        "x, k", "return x * (min(k, 12) if k > 20 else k)", ((2, 5, 30), (3, 9, 40), (4, 7, 50)), (12, 20)
    ),
    "a clamp unless the batch is 1": written(
        "x", f"return x * 2 if x.shape[0] == 1 else {CLAMPED} * 2", ((3, 5), (4, 9), (5, 7)), (1,)
    ),
}

SIZES = {
    "a clamp only at batch 1": written("x", f"return {CLAMPED} if x.shape[0] == 1 else x", SHORT),
    "a clamp only at length 1": written("x", f"return {CLAMPED} if x.shape[1] == 1 else x", SHORT),
    "a clamp unless the length is 1": written("x", f"return x if x.shape[1] == 1 else {CLAMPED}", SHORT),
    "one number for what is empty": written("x", "return x.sum(1) + 1 if x.numel() == 0 else x.sum(1)", SHORT),
    "one number for no rows": written("x", "return x.sum(0) + (1 if not len(x) else 0)", SHORT),
    "no length": written("x", "return x.sum(1) + 5 if not x.shape[1] else x.sum(1)", SHORT),
    "two symbols, one longer": written(
        "x, y", f"return {CLAMPED} + y.sum() if x.shape[1] > y.shape[1] else x + y.sum()", ((2, 5, 8), (3, 9, 12))
    ),
    "two symbols, equal": written(
        "x, y", "return x * (2 if x.shape[1] == y.shape[1] else 3) + y.sum()", ((2, 5, 8), (3, 9, 4), (3, 7, 4))
    ),
    "two symbols, far apart": written(
        "x, y",
        "return (x if abs(x.shape[1] - y.shape[1]) < 30 else x * 0) + y.sum()",
        ((2, 5, 8), (3, 9, 12)),
        (30,),
        ("abs(x.shape[1] - y.shape[1]) < 30",),
    ),
    "a product of two sizes": written(
        "x",
        f"return x if x.shape[0] * x.shape[1] <= 60 else {CLAMPED}",
        SHORT,
        (60,),
        ("x.shape[0] * x.shape[1] <= 60",),
    ),
    "a product by numel": written(
        "x", f"return x if x.numel() <= 60 else {CLAMPED}", SHORT, (60,), ("x.numel() <= 60",)
    ),
    "bytes": written("x", f"return x if x.nbytes <= 240 else {CLAMPED}", SHORT, (60,), ("x.numel() <= 60",)),
    "a product of two dimensions": written(
        "z",
        "return z if z.flatten(1).shape[1] <= 60 else z.clamp(-50, 50)",
        ((2, 5, 3), (3, 4, 6), (2, 7, 2)),
        (60,),
        ("z.shape[1] * z.shape[2] <= 60",),
    ),
    "a square": written("x", "return x.t() if x.shape[0] == x.shape[1] else x", SHORT, (), ("len(x) == x.shape[1]",)),
    "a side that divides the other": written(
        "x", "return x * (2 if x.shape[1] % max(x.shape[0], 1) == 0 else 3)", ((2, 5), (3, 10), (4, 7))
    ),
    "a size in a range": written("x", f"return {CLAMPED} if x.shape[1] in range(12, 20) else x", SHORT, (12, 20)),
    "a size among some": written("x", f"return {CLAMPED} if x.shape[1] in (11, 14) else x", SHORT, (11, 14)),
    "a whole shape": written("x", f"return {CLAMPED} if x.shape == (3, 12) else x", SHORT, (3, 12)),
    "a pattern of sizes": written(
        "x",
        "match x.shape:\n"
        "    case (1, _):\n        return x * 2\n"
        "    case (_, 12):\n        return x.clamp(-50, 50)\n"
        "    case _:\n        return x",
        SHORT,
        (12,),
    ),
    "the larger side": written("x", "return x.sum(0) if max(x.shape) < 12 else x.sum(0) * 2", SHORT, (12,)),
    "the sorted sides": written("x", "return x * sorted(x.shape)[0]", SHORT, ()),
    "any side": written("x", f"return {CLAMPED} if any(size > 20 for size in x.shape) else x", SHORT, (20,)),
    "a power of two": written("x", f"return {CLAMPED} if x.shape[1] & (x.shape[1] - 1) == 0 else x", SHORT, (16, 32)),
    "an even size, by its last bit": written("x", "return x.flip(1) if x.shape[1] & 1 else x", ((2, 5), (3, 9)), ()),
    "the rest of a negative size": written("x", "return F.pad(x, (0, -x.shape[1] % 8))[:, ::2]", SHORT, (8, 16)),
    "nested, behind a flip": written(
        "x",
        "if x.shape[1] == 1:\n    return x\n"
        "out = x.flip(1)\n"
        "if x.shape[1] > 24:\n    out = out.clamp(-50, 50)\nreturn out",
        SHORT,
        (24,),
    ),
    "nested, at length 1 alone": written(
        "x",
        "if x.shape[1] == 1:\n    return x.clamp(-50, 50) if x.shape[0] > 3 else x\nreturn x.flip(1)",
        SHORT,
        (3,),
    ),
    "nested, three deep": written(
        "x",
        "out = x\n"
        "if x.shape[1] > 4:\n"
        "    if x.shape[0] > 1:\n"
        "        if x.shape[1] % 2:\n            out = out.relu()\n"
        "        else:\n            out = out.clamp(min=-900)\n"
        "return out",
        SHORT,
        (4,),
    ),
    "two branches that look like one": written(
        "x",
        "out = x if x.shape[1] > 24 else x.clamp(-50, 50)\nreturn out if x.shape[1] > 30 else out.clamp(-50, 50)",
        LONG,
        (24, 30),
    ),
}

NUMBERS = {
    "the smaller of a size and 12": written("x", "return x * min(x.shape[1], 12)", LONG, (12,)),
    "the number of sliced columns": written("x", "return x * x[:, :12].shape[1]", LONG, (12,)),
    "the columns that a slice leaves": written(
        "x", "return x.sum(1) * 2 if x[:, 12:].shape[1] == 0 else x.sum(1)", LONG, (12,)
    ),
    "the last columns by a difference": written("x", "return x[:, x.shape[1] - 12 :]", LONG, (12,)),
    "a pad that may cut": written("x", "return F.pad(x, (0, 24 - x.shape[1]))", LONG, (24,)),
    "a pad that may be nothing": written("x", "return F.pad(x, (0, max(24 - x.shape[1], 0)))", SHORT, (24,)),
    "a square root": written("x", "return x * int(x.shape[1] ** 0.5)", SHORT, (9, 16, 25)),
    "a logarithm": written("x", f"return {CLAMPED} if math.log2(max(x.shape[1], 1)) > 4 else x", SHORT, (16,)),
    "a rounded quotient": written("x", "return x * round(x.shape[1] / 4)", SHORT, (6, 10, 14)),
    "a ratio of floats": written("x", f"return {CLAMPED} if x.shape[1] / 5 > 2.5 else x", SHORT, (12, 13)),
    "the greatest common divisor": written("x", "return x * math.gcd(int(x.shape[1]), 12)", SHORT, (12, 24)),
    "a flag that is a number": written("x", "return x * (1 + (x.shape[1] > 24))", LONG, (24,)),
    "a flag that is an index": written("x", "return x * (2, 3)[x.shape[1] > 24]", LONG, (24,)),
    "a size as a tensor": written(
        "x", "return torch.where(torch.tensor(x.shape[1]) > 24, x, x.clamp(-50, 50))", LONG, (24,)
    ),
    "a comparison as a tensor": written(
        "x", "return torch.where(torch.tensor(x.shape[1] > 24), x, x.clamp(-50, 50))", LONG, (24,)
    ),
    "a size by an item": written("x", "return x * min(torch.tensor(x.shape[1]).item(), 12)", LONG, (12,)),
    "a list of positions": written("x", "return x * torch.tensor(list(range(x.shape[1])))", SHORT, ()),
    "a size that is returned": written("x", "return x * 2, x.shape[1]", SHORT, ()),
    "a limited size that is returned": written("x", "return x * 2, min(x.shape[1], 12)", LONG, (12,)),
    "a comparison that is returned": written("x", "return x * 2, x.shape[1] > 24", LONG, (24,)),
}

RESULTS = {
    "squeezed rows": written("x", "return x.squeeze(0).sum(0)", SHORT),
    "squeezed columns": written("x", "return x.squeeze(1)", SHORT),
    "squeezed everywhere": written("x", "return x.squeeze() * 2", SHORT),
    "the rank after a squeeze": written("x", f"return {CLAMPED} if x.squeeze(0).dim() == 1 else x", SHORT),
    "another dtype": written("x", "return x.double() if x.shape[1] > 24 else x", LONG, (24,)),
    "another number of results": written("x", "return (x, x) if x.shape[1] > 24 else (x,)", LONG, (24,)),
    "another structure": written("x", "return {'a': x} if x.shape[1] > 24 else x", LONG, (24,)),
    "another key": written("x", "return {('a' if x.shape[1] > 24 else 'b'): x}", LONG, (24,)),
    "None as a result": written("x", "return x, (x.sum() if x.shape[1] > 24 else None)", LONG, (24,)),
    "an input as it is": written("x", "return x if x.shape[1] > 24 else x + 0", LONG, (24,)),
}

INT = {
    "an int that is positive": written("x, k", "return x * 2 if k > 0 else x", ((2, 5, 3), (3, 9, 4)), ()),
    "an int as a flag": written("x, k", "return x * 2 if k else x", ((2, 5, 3), (3, 9, 4)), ()),
    "an int that never changed": written("x, k", "return x * min(k, 12)", ((2, 5, 3), (3, 9, 3)), (12,)),
    "the first columns": written("x, k", "return x[:, :k]", ((2, 5, 3), (3, 9, 4), (3, 8, 2)), ()),
    "the last columns": written("x, k", "return x[:, -k:]", ((2, 5, 3), (3, 9, 4), (3, 8, 2)), ()),
    "one column": written("x, k", "return x[:, k]", ((2, 5, 3), (3, 9, 4), (3, 8, 2)), ()),
    "rolled": written("x, k", "return x.roll(k, 1)", ((2, 5, 3), (3, 9, 4), (3, 8, 2)), ()),
    "repeated": written("x, k", "return x.repeat(1, k)", ((2, 5, 3), (3, 9, 4), (3, 8, 2)), ()),
    "an int beside a size": written("x, k", "return x * (2 if k < x.shape[1] else 3)", ((2, 5, 3), (3, 9, 4)), ()),
    "an int that is a size": written("x, k", "return x * (2 if k == x.shape[0] else 3)", ((2, 5, 7), (3, 9, 4)), ()),
    "as many rounds as an int": written(
        "x, k", "for _ in range(k):\n    x = x * 1.5\nreturn x", ((2, 5, 3), (3, 9, 4)), ()
    ),
    "a float": written("x, scale", f"return x * scale if scale > 2 else {CLAMPED}", ((2, 5, 6), (3, 9, 8)), (4,)),
    "a flag": written("x, flag", f"return x if flag else {CLAMPED}", ((2, 5, 1), (3, 9, 1)), ()),
    "a flag and a size": written(
        "x, flag", f"return x if flag and x.shape[1] > 24 else {CLAMPED}", ((2, 48, 1), (3, 64, 0)), (24,)
    ),
    "an absent tensor": written(
        "x, y=None",
        f"return {CLAMPED} if y is None or y.shape[1] > 12 else x + y.sum()",
        ((2, 5, 4), (3, 9, -1)),
        (12,),
    ),
}

OPERATORS = {
    "as many chunks as fit": written("x", "return torch.cat(x.chunk(4, 1)[::-1], 1)", SHORT, (4, 8, 12)),
    "parts of a split": written("x", "return torch.cat(x.split(8, 1)[::-1], 1)", SHORT, (8, 16)),
    "parts that are zipped": written(
        "x, y",
        "return sum(a.sum() * b.sum() for a, b in zip(x.split(8, 1), y.split(8, 1))) + x",
        ((2, 5, 3), (3, 7, 4)),
        (8, 16),
    ),
    "rows one by one": written("x", "return sum(row * i for i, row in enumerate(x))", ((2, 5), (2, 9), (2, 7)), ()),
    "a row that is repeated": written("x, y", "return x + y", ((2, 5, 5), (3, 9, 9), (4, 7, 7)), ()),
    "a row of ones": written("x", "return x + torch.ones(7)", ((2, 7), (3, 7), (4, 7)), (7,)),
    "the deviation of one": written("x", "return x - x.std(1, keepdim=True)", SHORT, ()),
    "a line of points": written("x", "return x * torch.linspace(0, 1, x.shape[1])", SHORT, ()),
    "the largest five": written("x", "return x.topk(min(5, x.shape[1]), 1).values", ((2, 5), (3, 9), (4, 7)), (5,)),
    "causal attention": written(
        "x",
        "q = x[:, None, :, None]\nreturn F.scaled_dot_product_attention(q, q, q, is_causal=x.shape[1] > 1).flatten(1)",
        SHORT,
        (),
    ),
    "half as many points": written(
        "x", "return F.interpolate(x[:, None], size=x.shape[1] // 2)[:, 0]", ((2, 6), (3, 10), (4, 8)), ()
    ),
    "a pool that rounds up": written("x", "return F.avg_pool1d(x, 3, ceil_mode=True)", SHORT, (3, 6)),
    "windows with a step": written("x", "return x.unfold(1, 3, 2).sum(2)", SHORT, (3,)),
    "groups of four": written("x", "return x.reshape(x.shape[0], -1, 4).sum(2)", ((2, 4), (3, 12), (4, 8)), (4, 16)),
    "rows into rows": written("x", "return x.reshape(-1, 2, x.shape[1]).sum(1)", ((2, 4), (4, 12), (6, 8)), ()),
    "a triangle": written("x", "return x.tril(x.shape[1] - 12)", LONG, (12,)),
    "the length of what lost an axis, beside another condition": written(
        "x",
        "x = -x.abs() if x.squeeze(0).shape[0] % 8 else x.clamp(-1, 1)\nreturn x.relu() if x.numel() % 3 else x - 1",
        ((3, 24), (5, 16), (3, 9)),
        (8,),
    ),
    "the length of what lost an axis": written(
        "x", f"return -x.abs() if x.squeeze(0).shape[0] != 3 else {CLAMPED}", SHORT, (3,)
    ),
    "the rank of what lost axes": written("x", f"return x[:, :4] if x.squeeze().dim() < 2 else {CLAMPED}", SHORT, (4,)),
    "the number of rows of what lost an axis": written(
        "x", f"return x * 2 if len(x.squeeze(0)) == 6 else {CLAMPED}", SHORT, (6,)
    ),
    "the order in memory of what lost an axis": written(
        "x", f"return x if x.T.squeeze(1).is_contiguous() else {CLAMPED}", SHORT, ()
    ),
    "the order in memory": written("x", f"return x if x.is_contiguous() else {CLAMPED}", SHORT, ()),
    "the stride in memory": written("x", f"return x if x.stride(1) == 1 else {CLAMPED} * 2", SHORT, ()),
}

PYTHON = {
    "a helper function": written(
        "x",
        "return helper(x)",
        LONG,
        (24,),
        hosts=("def helper(x):\n    return x.clamp(-50, 50) if x.shape[1] > 24 else x\n",),
    ),
    "a module inside": written(
        "x",
        "return self.inner(x)",
        LONG,
        (24,),
        hosts=(
            "class Inner(nn.Module):\n"
            "    def forward(self, x):\n        return x.clamp(-50, 50) if x.shape[1] > 24 else x\n",
        ),
        members=("self.inner = Inner()",),
    ),
    "a hook of a module inside": written(
        "x",
        "return self.inner(x)",
        LONG,
        (24,),
        hosts=("def limited(module, args):\n    (x,) = args\n    return (x[:, :30] if x.shape[1] > 24 else x,)\n",),
        members=("self.inner = nn.Identity()", "self.inner.register_forward_pre_hook(limited)"),
    ),
    "a property": written(
        "x",
        "return x * Sizes(x).factor",
        LONG,
        (24,),
        hosts=(
            "class Sizes:\n"
            "    def __init__(self, x):\n        self.length = x.shape[1]\n\n"
            "    @property\n    def factor(self):\n        return 2 if self.length > 24 else 3\n",
        ),
    ),
    "a generator": written(
        "x",
        "return sum(rounds(x))",
        LONG,
        (24,),
        hosts=("def rounds(x):\n    yield x\n    if x.shape[1] > 24:\n        yield x.clamp(-50, 50)\n",),
    ),
    "a remembered result": written(
        "x",
        "return x * factor(x.shape[1])",
        LONG,
        (24,),
        hosts=(
            "import functools\n\n\n@functools.lru_cache\ndef factor(size):\n    return 2.0 if size > 24 else 3.0\n",
        ),
    ),
    "a table by size": written("x", "return x * {8: 2.0, 16: 3.0}.get(int(x.shape[1]), 1.0)", SHORT, (8, 16)),
    "a quotient and a rest": written("x", "return x * divmod(x.shape[1], 4)[0]", SHORT, (8, 16)),
    "a list by size": written("x", "return x * [1.0, 2.0, 3.0][min(x.shape[1] // 8, 2)]", SHORT, (8, 16)),
    "a place in a sorted list": written(
        "x", "return x * bisect.bisect([8, 16, 24], x.shape[1])", SHORT, (8, 16, 24), hosts=("import bisect\n",)
    ),
    "rounds by size": written("x", "for _ in range(x.shape[1] // 4):\n    x = x * 1.5\nreturn x", SHORT, (4, 8, 12)),
    "rounds until it is small": written(
        "x", "size = x.shape[1]\nwhile size > 4:\n    size //= 2\n    x = x * 1.5\nreturn x", SHORT, (5, 10, 20)
    ),
    "rounds that two ranges limit": written(
        "x", "for _, i in zip(range(12), range(x.shape[1])):\n    x = x + i\nreturn x", ((2, 15), (3, 20)), (12,)
    ),
    "halves of halves": written(
        "x",
        "return halved(x)",
        SHORT,
        (4, 8, 16),
        hosts=("def halved(x):\n    return x if x.shape[1] <= 4 else halved(x[:, ::2]) * 2\n",),
    ),
    "a refused view": written(
        "x",
        "try:\n    return x.view(x.shape[0], -1, 4).flip(2).flatten(1)\nexcept RuntimeError:\n    return x.relu()",
        ((2, 4), (3, 12), (4, 8)),
        (4, 16),
    ),
    "a refused sum": written(
        "x, y",
        "try:\n    return x + y\nexcept RuntimeError:\n    return x",
        ((2, 5, 5), (3, 9, 9), (4, 7, 7)),
    ),
    "a refused index": written(
        "x",
        "try:\n    return x * [1.0, 2.0, 3.0][x.shape[1] // 8]\nexcept IndexError:\n    return x.clamp(-50, 50)",
        SHORT,
        (8, 16, 24),
    ),
    "a value": written("x", f"return {CLAMPED} if x.abs().max() > 900 else x * 2", SHORT),
    "a value that is not a number": written("x", "return x * 0 if x.isnan().any() else x * 2", SHORT),
    "a value that is taken out": written("x", "return x * min(int(x.abs().amax()), 12)", SHORT),
    "a refusal of long inputs": written(
        "x", "if x.shape[1] > 24:\n    raise ValueError('too long')\nreturn x * 2", SHORT, (24,)
    ),
    "an assertion": written("x", "assert x.shape[1] <= 24\nreturn x * 2", SHORT, (24,)),
    "a check of torch": written("x", "torch._check(x.shape[1] <= 24)\nreturn x * 2", SHORT, (24,)),
}

#: A trace takes another way than any call does, and no comparison of sizes says so: only values show the difference.
TRACES = {
    "the kind of a size": written("x", f"return x if isinstance(x.shape[1], int) else {CLAMPED}", SHORT),
    "the class of a size": written("x", f"return x if type(x.shape[1]) is int else {CLAMPED}", SHORT),
    "the kind of an int": written(
        "x, k", f"return x if isinstance(k, int) else {CLAMPED}", ((2, 5, 3), (3, 9, 4), (3, 8, 2))
    ),
    "the kind of a tensor": written("x", f"return x if type(x) is torch.Tensor else {CLAMPED}", SHORT),
    "while it is compiled": written("x", f"return {CLAMPED} if torch.compiler.is_compiling() else x", SHORT),
    "while it is exported": written("x", f"return {CLAMPED} if torch.compiler.is_exporting() else x", SHORT),
    "digits of a size": written("x", "return x * len(str(x.shape[1]))", SHORT, (10,)),
    "a name made of a size": written("x", "return x * {'size 12': 2.0}.get(f'size {x.shape[1]}', 1.0)", SHORT, (12,)),
    "a text with a size": written("x", f"return {CLAMPED} if '12' in 'size %s' % x.shape[1] else x", SHORT, (12,)),
    "the text of a shape": written("x", f"return {CLAMPED} if str(x.shape).endswith(' 12])') else x", SHORT, (12,)),
    "the text of an int of a size": written("x", "return x * len(str(int(x.shape[1])))", SHORT, (10,)),
    "the text of a float of a size": written("x", "return x * len(str(float(x.shape[1])))", SHORT, (10,)),
    "digits of a size, filled": written(
        "x", f"return {CLAMPED} if f'{{x.shape[1]:03d}}' == '012' else x", SHORT, (12,)
    ),
    "the text of a value": written("x", "return x * len(str(float(x.abs().amax().floor())))", SHORT),
    "the text of an int of a value": written("x", "return x * len(str(int(x.abs().amax())))", SHORT),
}

CACHES = {
    "no past": written(
        "x, past, mask",
        "out = torch.cat([past, x], 1) * mask\nreturn out.clamp(-50, 50) if past.shape[1] == 0 else out",
        ((2, 5, 3), (2, 1, 6), (3, 1, 9)),
    ),
    "one token after a past": written(
        "x, past, mask",
        "out = torch.cat([past, x], 1) * mask\n"
        "return out.clamp(-50, 50) if x.shape[1] == 1 and past.shape[1] > 0 else out",
        ((2, 5, 3), (2, 4, 6), (3, 7, 9)),
    ),
    "a window over the past": written(
        "x, past, mask",
        "out = torch.cat([past, x], 1) * mask\nreturn out[:, -24:] if past.shape[1] + x.shape[1] > 24 else out",
        ((2, 5, 3), (2, 4, 6), (3, 7, 9)),
        (24,),
        ("past.shape[1] + x.shape[1] > 24",),
    ),
    "a table of positions": written(
        "x",
        "table = self.table if x.shape[1] <= 32 else torch.arange(x.shape[1]) * 2.0\nreturn x + table[: x.shape[1]]",
        SHORT,
        (32,),
        members=("self.register_buffer('table', torch.arange(32) * 1.0)",),
    ),
    "a table that is too short": written(
        "x",
        "return x + self.table[: x.shape[1]]",
        SHORT,
        (32,),
        members=("self.register_buffer('table', torch.arange(32) * 1.0)",),
    ),
}

NAMED = {
    name: case
    for table in (KNOWN, SIZES, NUMBERS, RESULTS, INT, OPERATORS, PYTHON, TRACES, CACHES)
    for name, case in table.items()
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.one_in(24)
def test_a_verified_program_is_right_on_a_named_branch(name: str) -> None:
    finding = examine(NAMED[name])
    assert not finding.is_wrong, described(finding)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.one_in(2)
def test_the_watched_calls_of_a_known_branch_are_served(name: str) -> None:
    finding = examine(NAMED[name])
    assert finding.watched_served, described(finding)


# random modules


def check(n_modules: int, seed: int) -> None:
    """No verified program is wrong, and nearly all serve what was watched."""
    summary = examined(n_modules, seed)
    report = "\n".join(summary.lines())
    sources = "\n\n".join(described(finding) for finding in summary.wrong[:3])
    again = f"python tests/planted.py --examples {n_modules} --seed {seed}"
    assert not summary.wrong, f"{again}\n{report}\n\n{sources}"
    # 0.95 is the aim over many modules; 50 of them scatter by some percent
    assert summary.watched_share >= (0.95 if n_modules >= 100 else 0.9), f"{again}\n{report}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_verified_programs_of_random_modules_are_right(seed: int) -> None:
    check(20, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_verified_programs_of_many_random_modules_are_right(seed: int) -> None:
    check(100, seed)


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_verified_program_is_right(case: Case) -> None:
    """Not shrunk, which takes minutes: ``python tests/planted.py --file`` examines what is printed here."""
    finding = examine(case)
    assert not finding.is_wrong, described(finding)


# the oracle itself


def trusting(case: Case) -> Case:
    """The module with every condition decided as in its first watched call, as a program that trusts one trace."""
    source = case.source
    longest_first = sorted(case.conditions, key=len, reverse=True)
    for condition in longest_first:
        if condition == "k":
            continue
        decided = bool(evaluated(condition, case.inputs, case.watched[0]))
        source = source.replace(condition, str(decided))
    return Case(source, case.inputs, case.watched, case.conditions, case.constants)


def is_found_by_the_grid(case: Case) -> bool:
    finding = Finding(case)
    compare(finding, load_model(case), load_model(trusting(case)))
    return bool(finding.wrong)


def is_found_by_a_search(case: Case) -> bool:
    """True where one of many random calls differs: sizes up to 120, and any kind of values."""
    model, other = load_model(case), load_model(trusting(case))
    chooser = random.Random(0)
    for _ in range(400):
        sizes = {axis: chooser.randrange(13 if axis == "batch" else 120) for axis in case.axes}
        call = arguments(case, sizes, chooser.choice(VALUES))
        if outcome(model, other, call)[0] == "differs":
            return True
    return False


@pytest.mark.slow
def test_the_grid_finds_what_a_search_finds() -> None:
    found, missed = 0, []
    for number in range(40):
        case = case_of(7, number)
        if trusting(case).source != case.source and is_found_by_a_search(case):
            found += 1
            if not is_found_by_the_grid(case):
                missed.append(case.source)
    assert found >= 12
    assert not missed, "\n\n".join(missed)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "differs"),
    [
        ([1.0, NAN, INFINITE], [1.0, NAN, INFINITE], False),
        ([1.0, NAN], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, NAN], True),
        ([1.0, INFINITE], [1.0, -INFINITE], True),
        ([1.0, NAN], [1.0, INFINITE], True),
        ([1000.0, 0.0], [1000.0, 0.009], False),
        ([1000.0, 0.0], [1000.0, 0.011], True),
        ([INFINITE, 0.0], [INFINITE, 0.011], True),
        ([1.0], [1.0, 1.0], True),
        ([], [], False),
    ],
)
def test_two_tensors_are_compared(expected: list[float], got: list[float], differs: bool) -> None:
    assert bool(tensor_difference(torch.tensor(expected), torch.tensor(got))) is differs


@pytest.mark.parametrize(
    ("expected", "got", "differs"),
    [
        ((1, 2), (1, 2), False),
        ((1, 2), (1, 2, 3), True),
        ({"a": 1}, {"b": 1}, True),
        (None, None, False),
        (1, True, True),
        (1, 1.0, True),
    ],
)
def test_two_structures_are_compared(expected: object, got: object, differs: bool) -> None:
    assert bool(difference(expected, got)) is differs


@pytest.mark.slow
def test_a_printed_module_is_read_again() -> None:
    finding = Finding(case_of(7, 3))
    again = read_case(described(finding))
    assert again.watched == finding.case.watched
    assert grid(again)
    assert examine(again).watched_served


def test_the_same_seed_gives_the_same_module() -> None:
    assert case_of(7, 3) == case_of(7, 3)
    assert case_of(7, 3) != case_of(7, 4)
    assert arguments(case_of(7, 3), case_of(7, 3).watched[0])[0].sum() != 0
