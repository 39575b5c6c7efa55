"""``python -m onlooker`` and the console script ``onlooker``."""

from __future__ import annotations

import os
import sys

from . import cli

__all__ = ["main"]

#: what a shell gives for a program that Ctrl-C ended
INTERRUPTED = 130


def main() -> int:
    """Runs the command line of this process; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how a word goes on
        cli.complete()
        return 0
    try:
        code = cli.main(sys.argv[1:], sys.stdout, sys.stderr)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        kept = getattr(interrupt, "__notes__", ["Files and folders are as they were."])
        sys.stderr.write(f"onlooker: interrupted. {kept[-1]}\n")  # the last is the command's own
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone, as `head` does; what it has read it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
