"""A call without an option is the call with its default: a trace without it gives its graph, or it is refused."""

import enum

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError, load


def watched(model, *calls, sizes=((2, 5), (3, 9), (4, 7))):
    """The program of calls with these options, one after the other, at several sizes."""
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for number, (batch, length) in enumerate(sizes):
            model(torch.randn(batch, length, 4), **calls[number % len(calls)])
    return observer.export()


def check(model, program, *calls, lengths=(5, 6, 9, 30, 70)):
    """Every call gives what the model gives, or is refused; the first of the calls is never refused at
    watched lengths.
    """
    for number, options in enumerate(calls):
        for length in lengths:
            for scale in (1, 100):
                x = torch.randn(2, length, 4) * scale
                try:
                    got = program(x, **options)
                except RejectedCallError:
                    assert number > 0 or length > 9
                    continue
                torch.testing.assert_close(got, model(x, **options), equal_nan=True)


class Window(nn.Module):
    """The default computes something else beyond 64 rows."""

    def forward(self, x, last=0):
        return x[:, -last:] if last and x.shape[1] > last else x


class Limit(nn.Module):
    """The option computes something else for large values alone."""

    def forward(self, x, limit=None):
        return x if limit is None else x.clamp(-limit, limit)


class DefaultBeyond(nn.Module):
    """The default is what matters at large sizes."""

    def forward(self, x, plain=False):
        return x if plain or x.shape[1] <= 24 else x.cumsum(1)


class Chunks(nn.Module):
    """The option decides beyond its own value."""

    def forward(self, x, chunk=0):
        if chunk and x.shape[1] > chunk:
            return torch.cat([part.softmax(1) for part in x.split(chunk, 1)], 1)
        return x.softmax(1)


class Either(nn.Module):
    """Both options left out are like both given, and one of them is not."""

    def forward(self, x, one=False, two=False):
        return x.cumsum(1) if one != two and x.shape[1] > 3 else x * 2


class Named(nn.Module):
    """Options without defaults of their own, in ``**kwargs``."""

    def forward(self, x, **options):
        scale = 2.0 if options.get("scaled") else 1.0
        return x * scale if "limit" not in options else (x * scale).clamp(-options["limit"], options["limit"])


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Window(), {"last": 64}),
        (Limit(), {"limit": 50.0}),
        (DefaultBeyond(), {"plain": True}),
        (Chunks(), {"chunk": 64}),
        (Either(), {"one": True, "two": True}),
        (Named(), {"limit": 50.0}),
        (Named(), {"scaled": True}),
        (Named(), {"other": True}),
    ],
)
@pytest.mark.one_in(2)
def test_an_option_of_all_calls_is_left_out_only_where_a_trace_says_so(model, options):
    program = watched(model, options)
    fewer = [{name: value} for name, value in options.items()] if len(options) > 1 else []
    check(model, program, options, {}, *fewer)
    assert program.verify().verified


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Window(), {"last": 64}),
        (Limit(), {"limit": 50.0}),
        (DefaultBeyond(), {"plain": True}),
        (Chunks(), {"chunk": 64}),
        (Named(), {"limit": 50.0}),
        (Named(), {"other": True}),
    ],
)
@pytest.mark.one_in(2)
def test_calls_with_and_without_an_option_are_all_served(model, options):
    program = watched(model, options, {}, sizes=((2, 5), (3, 9), (4, 7), (5, 6)))
    for given in (options, {}):
        for batch, length in ((2, 5), (3, 9), (6, 8)):
            x = torch.randn(batch, length, 4) * 100
            torch.testing.assert_close(program(x, **given), model(x, **given))
    check(model, program, options, {})
    assert program.verify().verified


class Cached(nn.Module):
    def forward(self, x, use_cache=True):
        return (x * 2, x * 3) if use_cache else x * 2


def test_none_is_not_the_default_where_the_default_is_another():
    model = Cached()
    program = watched(model, {"use_cache": None})
    x = torch.randn(2, 6, 4)
    with pytest.raises(RejectedCallError, match="use_cache is always None, the call has its default, True"):
        program(x)
    torch.testing.assert_close(program(x, use_cache=None), x * 2)
    program = watched(model, {})
    with pytest.raises(RejectedCallError, match="use_cache is not an input, the call has None"):
        program(x, use_cache=None)
    assert len(program(x)) == len(program(x, use_cache=True)) == 2


def test_a_default_that_some_calls_pass_is_no_further_graph():
    program = watched(Cached(), {"use_cache": True}, {})
    assert len(program.graphs) == 1
    assert len(program(torch.randn(2, 6, 4))) == 2


class Kind(enum.Enum):
    MEAN = 1
    SUM = 2


def pooled(x, kind):
    return x.mean(1) if kind is Kind.MEAN else x.sum(1)


class Pools(nn.Module):
    def forward(self, x, kind=Kind.MEAN):
        return pooled(x, kind)


class PoolsOrSums(nn.Module):
    def forward(self, x, kind=Kind.SUM):
        return pooled(x, kind)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", [Pools(), PoolsOrSums()], ids=["mean", "sum"])
@pytest.mark.parametrize("options", [[{"kind": Kind.MEAN}, {"kind": Kind.SUM}], [{}], [{}, {"kind": Kind.SUM}]])
def test_an_enum_is_a_default_too(model, options):
    program = watched(model, *options)
    default = model.forward.__defaults__[0]
    for given in [*options, {}, {"kind": default}]:
        x = torch.randn(2, 9, 4)
        torch.testing.assert_close(program(x, **given), model(x, **given))
    assert program.verify().verified


def test_a_dtype_is_a_default_too(tmp_path):
    class Casts(nn.Module):
        def forward(self, x, dtype=torch.float64):
            return x.to(dtype)

    watched(Casts(), {"dtype": torch.float64}).save(tmp_path / "program")
    program = load(tmp_path / "program")
    x = torch.randn(2, 9, 4)
    assert program(x).dtype == program(x, dtype=torch.float64).dtype == torch.float64
    with pytest.raises(RejectedCallError, match="dtype is always"):
        program(x, dtype=torch.float32)


def test_a_free_option_is_left_out_by_a_trace():
    class Free(nn.Module):
        def forward(self, x, named=None, **extra):
            return x.softmax(1) if named or named is None else (x,)

    model = Free()
    program = watched(model, {"named": True, "unread": "text"})
    assert [way.left_out for way in program.graphs[0].contract.ways] == [("named", "unread")]
    x = torch.randn(2, 6, 4)
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(program(x, named=None), model(x))
    with pytest.raises(RejectedCallError, match="unread is always 'text'"):
        program(x, named=True)
    assert program.verify().verified


class Scales(nn.Module):
    """With the option, images of one column are something else."""

    def forward(self, x, column=0):
        return x * 3 if column and x.shape[1] == 1 else x * 2


@pytest.mark.parametrize(
    ("model", "options", "lengths"),
    [
        (Window(), {"last": 64}, (1, 64, 65, 200)),
        (Chunks(), {"chunk": 64}, (1, 64, 65, 200)),
        (Scales(), {"column": 1}, (2, 100)),
    ],
)
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.one_in(2)
def test_calls_without_an_option_have_the_sizes_of_the_trace_without_it(model, options, lengths, target):
    program = watched(model, options)
    program = program if target == "torch" else program.to(target)
    assert program.verify().verified
    for length in lengths:
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(program(x), model(x))


def test_an_int_that_some_calls_leave_out_is_its_default():
    class Keeps(nn.Module):
        def forward(self, x, count=2):
            return x[:, -count:] * 2

    model, x = Keeps(), torch.randn(2, 9, 4)
    program = watched(model, {"count": 3}, {}, {"count": 4})
    for options in ({}, {"count": 2}, {"count": 3}, {"count": 5}):
        torch.testing.assert_close(program(x, **options), model(x, **options))
