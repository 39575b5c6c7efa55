"""``python -m onlooker`` and the console script ``onlooker``."""

from __future__ import annotations

import sys

from .cli import main as run

__all__ = ["main"]


def main() -> int:
    """Runs the command line of this process; returns the exit code."""
    return run(sys.argv[1:], sys.stdout, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
