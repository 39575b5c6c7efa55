"""A mask that may be left out: both ways are traced, and graphs that are no identity stay two."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onlooker import InputObserver, RejectedCallError


def attention(x, allowed):
    return (x @ x.transpose(1, 2)).masked_fill(~allowed, -1e9).softmax(-1) @ x


def ones(batch, length):
    return torch.ones(batch, length, dtype=torch.int64)


def causal(x):
    places = torch.arange(x.shape[1])
    return (places[None] <= places[:, None])[None]


class Plain(nn.Module):
    """The same with and without a mask of ones."""

    def forward(self, x, mask: torch.Tensor | None = None):
        return attention(x, causal(x) if mask is None else causal(x) & mask[:, None, :].bool())


class Flag(nn.Module):
    """A flag of the operator without a mask: another graph, and an identity."""

    def forward(self, x, mask: torch.Tensor | None = None):
        heads = x[:, None]
        if mask is None:
            return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        allowed = causal(x) & mask[:, None, :].bool()
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=allowed[:, None])


class Window(nn.Module):
    """With a mask there is a window of 48 as well."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            return attention(x, causal(x))
        places = torch.arange(x.shape[1])
        near = (places[:, None] - places[None] < 48)[None]
        return attention(x, causal(x) & near & mask[:, None, :].bool())


class Clamp(nn.Module):
    """With a mask large values are cut."""

    def forward(self, x, mask: torch.Tensor | None = None):
        return x * 1 if mask is None else (x * mask[..., None]).clamp(-50, 50)


class At40(nn.Module):
    """Without a mask one length is another matter."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            return x.cumsum(1) if x.shape[1] == 40 else x.softmax(1)
        return x.softmax(1) * mask[..., None]


class Beyond(nn.Module):
    """With a mask long inputs take another path."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None or x.shape[1] <= 64:
            return x.sum(1, keepdim=True) + x
        return (x * mask[..., None]).cumsum(1)


class Longer(nn.Module):
    """Without a mask long inputs take another path."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            return x.cumsum(1) if x.shape[1] > 64 else x.softmax(1)
        return (x * mask[..., None]).softmax(1)


@pytest.mark.parametrize("watched", ["all", "some", "none"])
@pytest.mark.parametrize("kind", [Plain, Flag, Window, Clamp, At40, Beyond, Longer])
@pytest.mark.one_in(8)
def test_a_mask_is_left_out_as_the_model_has_it(kind, watched):
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for number, (batch, length) in enumerate(((2, 5), (3, 9), (4, 7), (3, 6))):
            is_given = watched == "all" or (watched == "some" and number % 2 == 1)
            model(torch.randn(batch, length, 4), *([ones(batch, length)] if is_given else []))
    program = observer.export()
    served = {"with": 0, "without": 0}
    for length in (5, 6, 40, 48, 60, 65, 100):
        for scale in (1, 100):
            x = torch.randn(3, length, 4) * scale
            for name, given in (("with", [ones(3, length)]), ("without", [])):
                try:
                    got = program(x, *given)
                except RejectedCallError:
                    assert length > 9 or (watched == "none" and given)
                    continue
                torch.testing.assert_close(got, model(x, *given), rtol=1e-4, atol=1e-4 * scale)
                served[name] += 1
    assert watched == "none" or served["with"] > 4
    assert served["without"] > 4
    assert program.verify().verified
    assert kind not in (Plain, Flag) or len(program.graphs) == 1


class Sided(nn.Module):
    """Long inputs take another path, with and without a mask."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            mask = ones(*x.shape[:2])
        x = x * mask[..., None]
        return x.cumsum(1).tanh() if x.shape[1] > 64 else x.cumsum(1)


class SidedEarlier(nn.Module):
    """As above, but without a mask another length is long."""

    def forward(self, x, mask: torch.Tensor | None = None):
        is_long = x.shape[1] > (32 if mask is None else 64)
        if mask is not None:
            x = x * mask[..., None]
        return x.cumsum(1).tanh() if is_long else x.cumsum(1)


class OneToken(nn.Module):
    """Without a mask one token is another matter."""

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            return x.sin() if x.shape[1] == 1 else x.cumsum(1)
        return (x * mask[..., None]).cumsum(1)


class Both(nn.Module):
    """Long inputs take another path where both masks are left out."""

    def forward(self, x, mask: torch.Tensor | None = None, other_mask: torch.Tensor | None = None):
        is_long = x.shape[1] > 64
        if mask is None and other_mask is None and is_long:
            return x.sin()
        for one in (mask, other_mask):
            x = x if one is None else x * one[..., None]
        return x.tanh() if is_long else x.cumsum(1)


@pytest.mark.parametrize("watched", ["some", "none"])
@pytest.mark.parametrize("kind", [Sided, SidedEarlier, OneToken, Both])
@pytest.mark.one_in(4)
def test_each_of_several_graphs_takes_calls_without_a_mask(kind, watched):
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 9), (2, 100), (4, 80)):
            model(torch.randn(batch, length, 4))
        if watched == "some":
            model(torch.randn(3, 7, 4), torch.tensor([[0] * 2 + [1] * 5] * 3))
            model(torch.randn(2, 90, 4), ones(2, 90))
    program = observer.export()
    assert kind is not Sided or len(program.graphs) == 2
    assert program.verify().verified
    for length in (1, 5, 6, 31, 33, 48, 64, 65, 120):
        x = torch.randn(3, length, 4)
        for given in ([], [ones(3, length)], [ones(3, length).tril()]):
            try:
                got = program(x, *given)
            except RejectedCallError:
                assert kind is SidedEarlier
                assert watched == "none"
                continue
            torch.testing.assert_close(got, model(x, *given), rtol=1e-4, atol=1e-4)


def test_positions_that_some_calls_leave_out_are_not_made_up():
    class Placed(nn.Module):
        def forward(self, x, places: torch.Tensor | None = None):
            return x + (torch.arange(x.shape[1])[None] if places is None else places)[..., None]

    model, observer = Placed(), InputObserver()
    with observer(model):
        for number, (batch, length) in enumerate(((2, 5), (3, 9), (4, 7), (3, 6))):
            places = [torch.arange(length).expand(batch, length)] if number % 2 else []
            model(torch.randn(batch, length, 4), *places)
    program, x = observer.export(), torch.randn(2, 8, 4)
    torch.testing.assert_close(program(x), model(x))
    places = torch.randint(0, 99, (2, 8))
    torch.testing.assert_close(program(x, places), model(x, places))


class Positions(nn.Module):
    """A table of positions bounds the sizes, and one token takes another path to the same numbers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, x, mask: torch.Tensor | None = None):
        if mask is None:
            mask = ones(*x.shape[:2])
        x = x + self.table(torch.arange(x.shape[1]))
        return attention(x, mask[:, None, :].bool())


def test_a_bound_on_sizes_does_not_keep_graphs_apart():
    torch.manual_seed(0)
    model, observer = Positions().eval(), InputObserver()
    with observer(model), torch.no_grad():
        for length in (7, 11):
            model(torch.randn(2, length, 8), ones(2, length))
    program = observer.export()
    assert len(program.graphs) == 1
    for length in (1, 5, 64):
        x = torch.randn(3, length, 8)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError, match="64"):
        program(torch.randn(2, 65, 8))


class Several(nn.Module):
    """Each tensor is a step of its own, and zeros or ones stand for none of them."""

    def forward(self, x, add=None, times=None, minus=None):
        x = x if add is None else x + add
        x = x if times is None else x * times
        return x if minus is None else x - 2 * minus


class Sums(nn.Module):
    def forward(self, **parts):
        return sum(parts.values())


@pytest.mark.parametrize(
    ("model", "names"), [(Several(), ["x", "add", "times", "minus"]), (Sums(), ["a", "b", "c"])], ids=["steps", "sum"]
)
def test_sets_of_tensors_that_watched_calls_left_out_are_served(model, names):
    torch.manual_seed(0)
    observer = InputObserver()
    counts = range(2, len(names) + 1)
    with observer(model):
        for batch, count in enumerate(counts, 2):
            model(**{name: torch.randn(batch, 3) for name in names[:count]})
    program = observer.export()
    assert program.verify().verified
    for count in counts:
        given = {name: torch.randn(7, 3) for name in names[:count]}
        torch.testing.assert_close(program(**given), model(**given))


class OneOrBoth(nn.Module):
    """Something else beyond 16 columns without ``a``, or without both."""

    def __init__(self, both):
        super().__init__()
        self.both = both

    def forward(self, x, a: torch.Tensor | None = None, b: torch.Tensor | None = None):
        is_other = a is None and (b is None or not self.both)
        return x * (torch.arange(x.shape[1]) < 16) if is_other else x * 1.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "watched", [pytest.param(("", "a", "ab"), marks=pytest.mark.slow), ("a", "b", "ab"), ("", "ab")]
)
@pytest.mark.parametrize("both", [False, True])
def test_a_set_that_differs_takes_no_smaller_set_from_the_graph(both, watched):
    model, observer = OneOrBoth(both).eval(), InputObserver()

    def call(function, names, length):
        return function(torch.ones(3, length), **{name: torch.ones(3, length) for name in names})

    with torch.no_grad(), observer(model):
        for number, names in enumerate(watched):
            call(model, names, 5 + number)
            call(model, names, 9 + number)
    program = observer.export()
    assert program.verify().verified
    for names in watched:
        for length in (6, 40):
            assert torch.equal(call(program, names, length), call(model, names, length))


class Returned(nn.Module):
    """Gives its mask beside the result: without one the results have another form."""

    def forward(self, x, mask: torch.Tensor | None = None):
        hidden = attention(x, causal(x) if mask is None else causal(x) & mask[:, None, :].bool())
        return {"hidden": hidden, "mask": mask}


def test_a_mask_that_the_model_returns_is_left_out_in_a_graph_of_its_own():
    model, observer = Returned(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 9)):
            padded = ones(batch, length)
            padded[0, :2] = 0
            model(torch.randn(batch, length, 4), padded)
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify().verified
    for batch, length in ((1, 4), (4, 11)):
        x = torch.randn(batch, length, 4)
        got, expected = program(x), model(x)
        torch.testing.assert_close(got["hidden"], expected["hidden"])
        assert got["mask"] is None
