"""Fake inputs: symbols for names, and models that run on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor

from onlooker import UsageError, make_dynamic_cache, make_encoder_decoder_cache
from onlooker.compat import FakeTensorContext, make_fake, make_fake_with_dynamic_dimensions

B = {0: "batch"}


def cache(tokens: int = 5, batch: int = 2, layers: int = 2) -> Any:
    pairs = [(torch.rand(batch, 2, tokens, 4), torch.rand(batch, 2, tokens, 4)) for _ in range(layers)]
    return make_dynamic_cache(pairs)


def test_nothing_is_faked_to_nothing() -> None:
    context = FakeTensorContext()
    assert make_fake(None) == make_fake_with_dynamic_dimensions(None, None) == (None, None)
    assert make_fake(None, context) == (None, context)


def test_sizes_that_are_equal_have_one_symbol_in_a_context() -> None:
    (x, rest), context = make_fake((torch.zeros(3, 1), {"y": torch.zeros(4, 3), "flag": True}))
    z, same = make_fake(torch.zeros(3), context)
    assert same is context
    assert all(isinstance(t, FakeTensor) and t.fake_mode is context.fake_mode for t in (x, rest["y"], z))
    assert (str(x.shape[0]), x.shape[1]) == (str(rest["y"].shape[1]), 1)
    assert str(z.shape[0]) == str(x.shape[0]) != str(rest["y"].shape[0])
    assert rest["flag"] is True


def test_a_cache_is_made_anew() -> None:
    real = make_encoder_decoder_cache(cache(), cache(9))
    fake, _ = make_fake(real)
    assert isinstance(fake.cross_attention_cache.layers[1].values, FakeTensor)
    assert type(real.cross_attention_cache.layers[1].values) is torch.Tensor


def test_dtypes_and_devices_stay() -> None:
    fake, _ = make_fake_with_dynamic_dimensions(torch.zeros(2, 3, dtype=torch.float16, device="meta"), B)
    assert (fake.dtype, fake.device.type, fake.shape[1]) == (torch.float16, "meta", 3)


def test_names_are_symbols_whatever_the_sizes_are() -> None:
    x, y = torch.zeros(1, 4), torch.zeros(1, 4)
    (fake_x, fake_y), context = make_fake_with_dynamic_dimensions((x, y), (B, {0: "rows", 1: "batch"}))
    assert str(fake_x.shape[0]) == str(fake_y.shape[1]) != str(fake_y.shape[0])
    assert fake_x.shape[1] == 4
    again, _ = make_fake_with_dynamic_dimensions(torch.zeros(7), {0: "batch"}, context)
    assert str(again.shape[0]) == str(fake_x.shape[0])


def test_hints_go_by_their_sizes_and_dims_by_their_names() -> None:
    dim = torch.export.Dim
    values = [torch.zeros(3, 4), torch.zeros(3), torch.zeros(2)]
    (a, b, c), _ = make_fake_with_dynamic_dimensions(values, [{0: dim.DYNAMIC, 1: dim("n")}, {0: dim.AUTO}, [dim("n")]])
    assert str(a.shape[0]) == str(b.shape[0])
    assert str(a.shape[1]) == str(c.shape[0]) != str(a.shape[0])
    static, _ = make_fake_with_dynamic_dimensions(torch.zeros(3), {0: dim.STATIC})
    assert static.shape == (3,)


@pytest.mark.parametrize("nested", [False, True])
def test_a_decoder_runs_on_symbols(nested: bool) -> None:
    """The length of the mask is the sum of two symbols, so that the model can add its scores and its mask."""
    from onlooker.zoo import tiny_model

    model = tiny_model("llama").model
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    heads = config.num_key_value_heads
    pairs = [(torch.rand(2, heads, 5, head), torch.rand(2, heads, 5, head)) for _ in range(config.num_hidden_layers)]
    inputs = {
        "input_ids": torch.zeros(2, 3, dtype=torch.int64),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        "past_key_values": make_dynamic_cache(pairs),
    }
    one = {0: "batch", 2: "past"}
    n = len(pairs)
    shapes = {
        "input_ids": {0: "batch", 1: "seq"},
        "attention_mask": {0: "batch", 1: "past+seq"},
        "past_key_values": [[one] * n, [one] * n] if nested else [one] * (2 * n),
    }
    fake, context = make_fake_with_dynamic_dimensions(inputs, shapes)
    assert context is not None
    batch, length = fake["input_ids"].shape
    weights = {name: context.from_tensor(t, static_shapes=True) for name, t in model.state_dict().items()}
    buffers = {name: context.from_tensor(t, static_shapes=True) for name, t in model.named_buffers()}
    with torch.no_grad(), context.fake_mode:
        logits = torch.func.functional_call(model, {**weights, **buffers}, (), fake).logits
    assert (str(logits.shape[0]), str(logits.shape[1])) == (str(batch), str(length))


def test_shapes_that_do_not_fit_are_refused_at_their_path() -> None:
    with pytest.raises(UsageError, match=r"part from the inputs at \['x'\]\[0\]: a tensor of rank 1") as raised:
        make_fake_with_dynamic_dimensions({"x": [torch.zeros(3)]}, {"x": [{1: "n"}]})
    assert raised.value.slug == "shapes-do-not-fit"


NAMES = ["a", "b", "c"]
one_tensor = st.lists(st.tuples(st.sampled_from([*NAMES, None]), st.integers(1, 4)), max_size=3)


@given(st.lists(one_tensor, max_size=3))
@settings(max_examples=40, deadline=None)
def test_one_symbol_per_name_and_a_number_for_anything_else(dims: Any) -> None:
    inputs = [torch.zeros([size for _, size in one]) for one in dims]
    shapes = [{i: name for i, (name, _) in enumerate(one) if name} for one in dims]
    fakes, _ = make_fake_with_dynamic_dimensions(inputs, shapes)
    seen: dict[str, str] = {}
    for one, fake in zip(dims, fakes, strict=True):
        for (name, size), got in zip(one, fake.shape, strict=True):
            if name is None:
                assert got == size
            else:
                assert isinstance(got, torch.SymInt)
                assert seen.setdefault(name, str(got)) == str(got)
    assert len(set(seen.values())) == len(seen)
