"""The sizes that a program is made for."""

import torch
from torch import nn

from onlooker import InputObserver
from onlooker.infer.interest import domain_of_interest


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
