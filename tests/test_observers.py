"""Several modules and methods, watched at once: names, blocks, exports, refusals."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import onlooker
from onlooker import (
    ArgumentKindError,
    EntriesError,
    InputObserver,
    ObservationError,
    Observers,
    OnlookerError,
    Programs,
    UsageError,
)
from tiny_pipeline import Pipeline

LATENTS = torch.ones(2, 4, 3, 3)


@functools.cache
def watched() -> tuple[Pipeline, Observers, Programs]:
    pipe = Pipeline()
    with onlooker.observe(unet=pipe.unet, vae=(pipe.vae, "decode"), text=pipe.text_encoder) as observers:
        pipe.use()
    return pipe, observers, observers.export()


def test_every_entry_has_its_observer() -> None:
    _, observers, _ = watched()
    assert list(observers) == ["unet", "vae", "text"]
    assert all(isinstance(observer, InputObserver) for observer in observers.values())
    assert {name: sum(c.count for c in o.recording().calls) for name, o in observers.items()} == {
        "unet": 4,
        "vae": 2,
        "text": 2,
    }
    assert observers["vae"].recording().method == "decode"
    assert repr(observers) == "<onlooker.Observers of unet, vae, text>"


def test_two_entries_are_two_methods_of_one_object() -> None:
    vae = Pipeline().vae
    before = dict(vars(vae)), dict(vars(type(vae)))
    with onlooker.observe(encode=(vae, "encode"), decode=vae.decode) as observers:
        for size in (2, 3):
            vae.decode(vae.encode(torch.ones(size, 3, 4, 4)))
    assert (dict(vars(vae)), dict(vars(type(vae)))) == before
    programs = observers.export()
    image = torch.rand(4, 3, 6, 6)
    assert torch.equal(programs["encode"](image), vae.encode(image))
    with programs.installed() as served:
        vae.decode(vae.encode(image))
    assert {name: sum(each.calls.values()) for name, each in served.items()} == {"encode": 1, "decode": 1}


def hooked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides the name of the function, as those of some libraries do."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return wrapper


class Hooked(torch.nn.Linear):
    @hooked
    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


def test_a_method_is_found_under_the_name_that_its_object_has_for_it() -> None:
    model = Hooked(4, 4)
    assert model.decode.__name__ == "wrapper"
    with onlooker.observe(decode=model.decode, forward=model) as observers:
        model.decode(torch.ones(2, 4))
    assert observers["decode"].recording().method == "decode"
    assert {name: observer.num_obs() for name, observer in observers.items()} == {"decode": 1, "forward": 1}
    with pytest.raises(UsageError, match="base: The entry is a method that no call of its Lower reaches"):
        onlooker.observe(base=Lower(4, 4).upper())


class Lower(Hooked):
    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return -x

    def upper(self) -> Any:
        return super().decode


def test_an_object_that_is_called_is_an_entry() -> None:
    class Scale:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    scale = Scale()
    with onlooker.observe(scale=scale) as observers:
        scale(torch.ones(2, 3)), scale(torch.ones(4, 3))
    assert torch.equal(observers.export()["scale"](torch.ones(5, 3)), torch.full((5, 3), 2.0))


def test_blocks_add_up_and_keep_as_many_calls_as_asked() -> None:
    pipe = Pipeline()
    observers = onlooker.observe(store_n_calls=1, unet=pipe.unet, text=pipe.text_encoder)
    for _ in range(2):
        with observers:
            pipe(torch.arange(4).reshape(2, 2), steps=3)
    assert observers["unet"].num_obs() == 2
    assert sum(call.count for call in observers["unet"].recording().calls) == 6


def test_nothing_stays_where_an_entry_cannot_be_watched() -> None:
    """The first entry is watched already when the second one is refused."""
    pipe = Pipeline()
    observers = onlooker.observe(store_n_calls=-1, unet=pipe.unet, text=pipe.text_encoder)
    before = dict(vars(type(pipe.unet)))
    with pytest.raises(UsageError, match=r"^unet: store_n_calls is -1\."), observers:
        pass
    observers = onlooker.observe(unet=pipe.unet, text=pipe.text_encoder)
    observers["text"].value_if_missing = {"no_such": 1}
    with pytest.raises(UsageError, match=r"^text: .*no_such"), observers:
        pass
    assert dict(vars(type(pipe.unet))) == before


def test_an_exception_in_the_block_passes_and_leaves_nothing() -> None:
    pipe = Pipeline()
    before = dict(vars(type(pipe.unet)))
    with pytest.raises(ZeroDivisionError), onlooker.observe(unet=pipe.unet):
        raise ZeroDivisionError
    assert dict(vars(type(pipe.unet))) == before


def test_the_programs_stand_in_for_the_pipeline() -> None:
    pipe, _, programs = watched()
    ids = torch.arange(14).reshape(2, 7)
    expected = pipe(ids, size=5, steps=3)
    with programs.installed() as served:
        assert torch.equal(pipe(ids, size=5, steps=3), expected)
    assert {name: sum(each.calls.values()) for name, each in served.items()} == {"unet": 3, "vae": 1, "text": 1}


OPTIONS: dict[str, dict[str, Any]] = {
    "common": {"probe": False},
    "single": {"options": {"vae": {"probe": False}, "text": {"probe": False}}},
    "single before common": {"probe": True, "options": {"vae": {"probe": False}, "text": {"probe": False}}},
}


@pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)
def test_options_are_common_or_of_one_entry(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, observers, programs = watched()
    asked: list[dict[str, Any]] = []

    def export(self: InputObserver, **options: Any) -> Any:
        asked.append(options)
        return programs["vae"]

    monkeypatch.setattr(InputObserver, "export", functools.wraps(InputObserver.export)(export))
    assert list(observers.export(only=["text", "vae"], **given)) == ["vae", "text"]
    assert asked == [{"method_name": "decode", "probe": False}, {"method_name": "forward", "probe": False}]


def test_an_entry_that_was_never_called_is_found_before_anything_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline()
    with onlooker.observe(unet=pipe.unet, encode=pipe.vae.encode, text=pipe.text_encoder) as observers:
        pipe.unet(LATENTS, torch.tensor(1), torch.ones(2, 3, 8))
    with monkeypatch.context() as patch:
        patch.setattr(
            InputObserver, "export", functools.wraps(InputObserver.export)(lambda *_, **__: pytest.fail("an export"))
        )
        with pytest.raises(EntriesError, match="2 of 3 entries were never called") as caught:
            observers.export()
    assert list(caught.value.refusals) == ["encode", "text"]
    assert all(isinstance(error, ObservationError) for error in caught.value.refusals.values())
    assert len(caught.value.programs) == 0
    assert list(observers.export(only=["unet"], probe=False)) == ["unet"]


class Refusing(torch.nn.Module):
    """A module that torch.export refuses: it decides by the text of a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(str(float(x.sum())))


def test_an_entry_that_is_refused_does_not_cost_the_others() -> None:
    pipe, refusing, also = Pipeline(), Refusing(), Refusing()
    with onlooker.observe(bad=refusing, vae=pipe.vae.decode, worse=also) as observers:
        for size in (2, 3):
            refusing(torch.ones(size)), also(torch.ones(size)), pipe.vae.decode(torch.ones(size, 4, 3, 3))
    with pytest.raises(EntriesError) as caught:
        observers.export(probe=False)
    error = caught.value
    assert list(error.refusals) == ["bad", "worse"]
    assert str(error).startswith("2 of 3 entries have no program.\nbad: ")
    assert "\nworse: " in str(error)
    assert str(error).endswith("error.programs those of vae. [entries-refused]")
    assert isinstance(error, onlooker.ExportError)
    latents = torch.rand(5, 4, 3, 3)
    assert torch.equal(error.programs["vae"](latents), pipe.vae.decode(latents))


def test_a_bug_that_one_entry_meets_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    _, observers, programs = watched()

    def export(self: InputObserver, **options: Any) -> Any:
        if self is observers["unet"]:
            raise RuntimeError("a bug")
        return programs["vae"]

    monkeypatch.setattr(InputObserver, "export", functools.wraps(InputObserver.export)(export))
    with pytest.raises(EntriesError, match="unet: RuntimeError: a bug") as caught:
        observers.export()
    assert list(caught.value.programs) == ["vae", "text"]
    assert caught.value.__cause__ is not None
    assert "a bug" in "".join(traceback.format_exception(caught.value))


WRONG: dict[str, tuple[Callable[[Pipeline], Any], str, str]] = {
    "nothing": (lambda p: onlooker.observe(), "no-entries", "There is nothing to watch"),
    "not callable": (lambda p: onlooker.observe(unet=3), "bad-entry", "unet: The entry is a int"),
    "none": (lambda p: onlooker.observe(safety_checker=None), "bad-entry", "safety_checker: .* NoneType"),
    "a function": (lambda p: onlooker.observe(f=torch.nn.functional.relu), "bad-entry", "f: The entry is a function"),
    "a class": (lambda p: onlooker.observe(unet=type(p.unet)), "bad-entry", "unet: The entry is a function or a class"),
    "no such method": (lambda p: onlooker.observe(vae=(p.vae, "decod")), "no-such-method", "vae: Autoencoder .*decod"),
    "no pair": (lambda p: onlooker.observe(vae=(p.vae, 3)), "bad-entry", "vae: The entry is a tuple"),
    "three": (lambda p: onlooker.observe(vae=(p.vae, "decode", 3)), "bad-entry", "vae: The entry is a tuple"),
    "twice": (lambda p: onlooker.observe(a=p.unet, b=(p.unet, "forward")), "bad-entry", "b: The entry a is forward"),
    "same folder": (lambda p: onlooker.observe(vae=p.vae.encode, VAE=p.vae.decode), "bad-entry", "VAE: .* case"),
    "no name": (lambda p: onlooker.observe(**{"vae.decode": p.vae.decode}), "bad-entry", "'vae.decode' is no name"),
    "a folder": (lambda p: onlooker.observe(**{"../vae": p.vae.decode}), "bad-entry", "is no name"),
    "max_bytes": (lambda p: onlooker.observe(max_bytes=-1, unet=p.unet), "bad-max-bytes", "max_bytes is -1"),
}


@pytest.mark.parametrize(("act", "slug", "text"), WRONG.values(), ids=WRONG)
def test_an_entry_that_cannot_be_watched_is_named(act: Callable[[Pipeline], Any], slug: str, text: str) -> None:
    with pytest.raises(OnlookerError, match=text) as caught:
        act(Pipeline())
    assert caught.value.slug == slug


WRONG_EXPORTS: dict[str, tuple[dict[str, Any], type[OnlookerError], str]] = {
    "only": ({"only": ["vea"]}, UsageError, "only names 'vea', which is no entry. The entries are unet, vae, text."),
    "only a text": ({"only": "vae"}, ArgumentKindError, "only is "),
    "options": ({"options": {"vea": {}}}, UsageError, "options names 'vea'"),
    "options of one": ({"options": {"vae": 3}}, ArgumentKindError, "options of vae is 3"),
    "no option": ({"too": "onnx"}, UsageError, "unet: The target 'torch' has no option too. Did you mean to?"),
    "the method": ({"method_name": "encode"}, UsageError, "unet: An entry has its method, and takes no method_name."),
    "target": ({"options": {"vae": {"to": "tensorrt"}}}, UsageError, "vae: There is no target 'tensorrt'"),
}


@pytest.mark.parametrize(("options", "kind", "text"), WRONG_EXPORTS.values(), ids=WRONG_EXPORTS)
def test_a_wrong_export_is_refused_at_once(options: dict[str, Any], kind: type[OnlookerError], text: str) -> None:
    with pytest.raises(kind, match=text):
        watched()[1].export(**options)


def test_a_pin_of_one_entry_is_obeyed() -> None:
    _, observers, _ = watched()
    programs = observers.export(only=["vae"], options={"vae": {"ranges": {"batch": (2, 8)}}}, probe=False)
    (symbol,) = (s for s in programs["vae"].plans[0].symbols if s.name == "batch")
    assert symbol.range == "2 to 8"
