"""The command line: ``onlooker COMMAND ...``.

Exit codes: 0 done, and verified where a program was verified; 1 an error; 2 a program that is not
verified.
"""

from __future__ import annotations

from .command_line import COMMANDS as COMMANDS
from .command_line import complete as complete
from .command_line import main as main

__all__ = ["COMMANDS", "complete", "main"]
