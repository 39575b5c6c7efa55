"""The facts about the targets that rooms without a converter need: the command line, reports, contracts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["RUNTIMES", "Runtime"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime of a target.

    ``opener`` opens a file of it without onlooker; a file of torch needs the weights beside it, and has
    none. ``seconds`` of a processor are those of each graph and of each operator of a call, in an export:
    measured with torch 2.13 on one core for seven models of 9 to 237 operators, of which an estimate is at
    most 3 times off; None where it was not measured.

    Four fields say where graphs compute otherwise than the model. With ``fixes_ranks`` a result has the
    rank of the trace, also where the model drops an axis of size 1. With ``leaves_out_nan`` the greatest of
    some numbers is no NaN where one of them is. With ``takes_other_ids`` an id that is no row of a table
    gives numbers, and no error. With ``narrows_numbers`` ints and floats
    of 64 bits are computed in 32, and some ints in floats, which have 24.

    Two more are about files. Loading ``is_machine_code`` runs it. A file that is ``written_by_weight`` needs
    one weight at a time in memory.
    """

    opener: str
    seconds: tuple[float, float] | None = None
    fixes_ranks: bool = False
    leaves_out_nan: bool = False
    takes_other_ids: bool = False
    narrows_numbers: bool = False
    is_machine_code: bool = False
    written_by_weight: bool = False


#: by the name of the target, in the order in which they are shown
RUNTIMES: Mapping[str, Runtime] = {
    "torch": Runtime("", (0.5, 0.012), written_by_weight=True),
    "onnx": Runtime(
        "onnxruntime.InferenceSession",
        (2.0, 0.03),
        leaves_out_nan=True,
        takes_other_ids=True,
        written_by_weight=True,
    ),
    "aoti": Runtime(
        "torch._inductor.aoti_load_package",
        (10.0, 0.025),
        fixes_ranks=True,
        takes_other_ids=True,
        is_machine_code=True,
    ),
    "openvino": Runtime(
        "openvino.Core().read_model",
        (0.8, 0.025),
        fixes_ranks=True,
        leaves_out_nan=True,
        takes_other_ids=True,
        narrows_numbers=True,
        written_by_weight=True,
    ),
    "executorch": Runtime(
        "executorch.runtime.Runtime.get().load_program", fixes_ranks=True, leaves_out_nan=True
    ),
}
