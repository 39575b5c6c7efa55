"""The sizes that a program is made for."""

import pytest
import torch
from torch import nn

import onlooker
from onlooker import InputObserver, RejectedCallError
from onlooker.infer.interest import DomainOfInterest, SizesOfInterest, domain_of_interest


class Steps(nn.Module):
    """Reads rows of features, and a dict of what earlier calls left."""

    def forward(self, x, past):
        return x.cumsum(1) + past["states"]["first"].mean(1, keepdim=True)


def test_one_step_is_an_everyday_size_of_an_argument_and_not_of_what_stands_in_a_cache():
    observer, model = InputObserver(), Steps()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            past = {"states": {"first": torch.randn(batch, 2 * length + batch, 4)}}
            model(torch.randn(batch, length, 4), past)
    (plan,) = observer.plans()
    calls = [({symbol.name: 5 for symbol in plan.symbols}, 1)]
    symbols = domain_of_interest(plan, calls, {}).symbols
    everyday = {str(plan.axes_of(name)[0]): found.everyday for name, found in symbols.items()}
    assert everyday["x.shape[0]"] == everyday["x.shape[1]"] == (1,)
    assert everyday["past['states']['first'].shape[1]"] == ()


def test_a_batch_of_one_comes_with_states_of_one_row():
    """Symbols that were alike in each call are 1 at once, those for which 1 is an everyday size."""

    def domain(*calls):
        names = ("batch", "first_state", "second_state", "width")
        everyday = dict.fromkeys(names[:3], (1,))
        symbols = {
            name: SizesOfInterest(name, tuple(sorted(set(sizes))), everyday=everyday.get(name, ()))
            for name, sizes in zip(names, zip(*calls, strict=True), strict=True)
        }
        return DomainOfInterest(symbols, tuple((dict(zip(names, sizes, strict=True)), 1) for sizes in calls))

    alone = {"batch": 1, "first_state": 1, "second_state": 1, "width": 2}
    assert alone in list(domain((2, 2, 2, 2), (3, 3, 3, 3)).choices())
    assert alone not in list(domain((2, 2, 2, 2), (3, 2, 4, 3)).choices())


def test_one_token_beside_a_longer_mask_is_no_everyday_call():
    """Lengths that were alike in each call are 1 at once, rows of a batch also alone."""
    names = ("batch", "rows", "tokens", "mask")
    symbols = {
        name: SizesOfInterest(name, (size,), everyday=(1,), is_batch=size == 2)
        for name, size in zip(names, (2, 2, 7, 7), strict=True)
    }
    watched = dict(zip(names, (2, 2, 7, 7), strict=True))
    domain = DomainOfInterest(symbols, ((watched, 1),))
    choices = list(domain.choices())
    for changed, is_wanted in (({"tokens": 1, "mask": 1}, True), ({"mask": 1}, False), ({"rows": 1}, True)):
        assert ({**watched, **changed} in choices) == domain.wants({**watched, **changed}) == is_wanted


class Columns(nn.Module):
    """Does something else with an image of one column or one row."""

    def forward(self, image):
        if image.shape[2] == 1 or image.shape[3] == 1:
            return image * 3
        return image.flip(2).cumsum(3)


@pytest.mark.parametrize("ranges", [None, {"image_dim_2": (1, None), "image_dim_3": (1, None)}])
def test_an_axis_that_changes_does_not_ask_for_an_image_of_one_row(ranges):
    """A graph of its own for a size that nobody has is made where a range asks for it."""
    model = Columns()
    program = onlooker.export(model, torch.randn(1, 3, 6, 8), dynamic={"image": [2, 3]}, ranges=ranges)
    assert program.report.verified
    assert (len(program.graphs) > 1) is (ranges is not None)
    for size in ((1, 3, 2, 9), (1, 3, 5, 2)):
        torch.testing.assert_close(program(torch.ones(size)), model(torch.ones(size)))
    row = torch.randn(1, 3, 1, 8)
    if ranges is not None:
        torch.testing.assert_close(program(row), model(row))
        return
    with pytest.raises(RejectedCallError):
        program(row)
