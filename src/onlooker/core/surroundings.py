"""The surroundings of a call, which decide what it computes: autocast, and whether gradients are
recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from .support.enums import StrEnum

__all__ = ["Autocast", "Gradients", "Surroundings"]


class Gradients(StrEnum):
    """The ways in which torch records operators for a later ``backward()``."""

    RECORDED = "recorded"
    NO_GRAD = "no_grad"
    INFERENCE = "inference_mode"


@dataclass(frozen=True, slots=True)
class Autocast:
    """Autocast that is on for a kind of devices: ``"cpu"``, and its dtype as torch prints it.

    ``cache`` is True where the weights that it casts are kept for the rest of the block: that
    changes no result.

    >>> str(Autocast("cpu", "torch.bfloat16"))
    "torch.autocast('cpu', dtype=torch.bfloat16)"
    """

    device: str
    dtype: str
    cache: bool = True

    def __post_init__(self) -> None:
        # a saved recording may hold any text, and scripts are written of these
        if not (self.device.isidentifier() and self.dtype.removeprefix("torch.").isidentifier()):
            raise ValueError(f"{self.device!r} and {self.dtype!r} are no device and dtype")

    def __str__(self) -> str:
        return f"torch.autocast({self.device!r}, dtype={self.dtype})"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The state of torch in which a method was called.

    ``autocast`` has the kinds of devices for which autocast was on, by name; for all others it was
    off.

    >>> print(Surroundings((Autocast("cpu", "torch.bfloat16"),), Gradients.NO_GRAD))
    inside torch.autocast('cpu', dtype=torch.bfloat16) and torch.no_grad()
    >>> print(Surroundings())
    with gradients recorded
    """

    autocast: tuple[Autocast, ...] = ()
    gradients: Gradients = Gradients.RECORDED

    @property
    def casts(self) -> frozenset[tuple[str, str]]:
        """The kinds of devices with autocast, each with its dtype: they decide the dtypes of
        results.
        """
        return frozenset((one.device, one.dtype) for one in self.autocast)

    def __str__(self) -> str:
        blocks = [str(one) for one in self.autocast]
        if self.gradients is Gradients.RECORDED:
            inside = f"inside {' and '.join(blocks)}, " if blocks else ""
            return f"{inside}with gradients recorded"
        return f"inside {' and '.join([*blocks, f'torch.{self.gradients.value}()'])}"
