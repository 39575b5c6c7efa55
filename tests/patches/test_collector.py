"""What an export costs besides its work: counting frozen objects visits each of a million."""

from __future__ import annotations

import gc

import pytest
import torch

from onlooker import InputObserver
from onlooker.patches.collector import collecting_new_objects


def test_an_export_counts_frozen_objects_before_it_freezes_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    model = torch.nn.Linear(3, 2)
    watch = InputObserver()
    with watch(model):
        model(torch.rand(2, 3))
        model(torch.rand(5, 3))
    watch.export()
    assert set(counts) == {0}
    assert count() == 0


def test_a_program_that_froze_its_objects_has_them_frozen_still() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collecting_new_objects():
            pass
        assert frozen > 1000
        assert gc.get_freeze_count() > 0.9 * frozen  # other threads may let go of a few
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_blocks_within_each_other_thaw_once_at_the_end() -> None:
    with collecting_new_objects():
        with pytest.raises(ValueError), collecting_new_objects():
            raise ValueError
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    with collecting_new_objects():
        assert gc.get_freeze_count() > 0
