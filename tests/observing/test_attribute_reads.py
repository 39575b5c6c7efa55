"""Readings of an attribute before it is set are told, whoever reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from onlooker.observing.attribute_reads import class_of, reads_are_told

#: how torch.export makes an object that stands for a submodule with two names
_PROXY = """
class Proxy:
    def __init__(self, base):
        self.__class__ = type(base.__class__.__name__, (self.__class__, base.__class__), {})
        self.__dict__ = base.__dict__
"""


class Owner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows: Any = None


def proxy_of(owner: Owner) -> Any:
    space: dict[str, Any] = {"__name__": "torch.fx.experimental.proxy_tensor"}
    exec(_PROXY, space)
    return space["Proxy"](owner)


BY_NAME = (
    lambda owner: owner.rows,
    lambda owner: hasattr(owner, "rows"),
    lambda owner: object.__getattribute__(owner, "rows"),
    lambda owner: copy.copy(owner),
)
#: the proxy of torch has a namespace of its own class, which asks nobody
READINGS = [*((read, False) for read in (*BY_NAME, vars)), *((read, True) for read in BY_NAME)]


@pytest.mark.parametrize(("read", "is_proxy"), READINGS)
def test_a_reading_before_the_attribute_is_set_is_told(read: Any, is_proxy: bool) -> None:
    owner, told = Owner(), list[str]()
    with reads_are_told(owner, "rows", lambda: told.append("rows")) as is_told:
        one = proxy_of(owner) if is_proxy else owner
        assert not told
        read(one)
        assert told
    assert is_told
    assert type(owner) is Owner


@pytest.mark.parametrize("is_proxy", [False, True])
def test_a_reading_after_the_attribute_is_set_is_not_told(is_proxy: bool) -> None:
    owner, told = Owner(), list[str]()
    with reads_are_told(owner, "rows", lambda: told.append("rows")):
        one = proxy_of(owner) if is_proxy else owner
        one.rows = 3
        assert owner.rows == one.rows == vars(owner)["rows"] == 3
    assert not told
    assert owner.rows == 3


def test_the_class_is_the_one_of_before_for_those_who_ask() -> None:
    owner = Owner()
    with (
        reads_are_told(owner, "rows", lambda: None),
        reads_are_told(owner, "training", lambda: None),
    ):
        assert type(owner) is not Owner
        assert owner.__class__ is class_of(type(owner)) is Owner
        assert isinstance(owner, Owner)
    assert type(owner) is owner.__class__ is Owner
