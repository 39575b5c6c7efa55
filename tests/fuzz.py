"""``make fuzz``: every law again and again, with other random examples each time, until the time is over.

Prints what was found with the command that finds it again, and exits with 1 then.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent


def command(seed: int, jobs: int) -> list[str]:
    """One round: all tests that Hypothesis feeds, spread over some processes."""
    options = ["-m", "hypothesis and not slow", "-q", "--no-header", "-p", "no:cacheprovider", "--exitfirst"]
    return [sys.executable, "-m", "pytest", str(TESTS), *options, f"-n{jobs}", f"--hypothesis-seed={seed}"]


def run(arguments: list[str], seconds: float) -> tuple[int, str]:
    """The exit code and the output of a round; 0 for one that the clock ended, which had found nothing so far."""
    env = {**os.environ, "HYPOTHESIS_PROFILE": "fuzz"}
    process = subprocess.Popen(
        arguments,
        env=env,
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return ended(process)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ends a round in the middle, so that it still says what it found."""
    os.kill(process.pid, signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return int("\nFAILED " in output or "\nERROR " in output), output


def main() -> int:
    """Rounds until the time is over, or until one finds something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="of the first round, to repeat it")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    rounds = 0
    while (left := end - time.monotonic()) > 1:
        code, output = run(command(seed, options.jobs), left)
        rounds += 1
        if code:
            print(output[-20_000:])
            print(f"Found with seed {seed}. Again: HYPOTHESIS_PROFILE=fuzz pytest --hypothesis-seed={seed} TEST")
            return 1
        print(f"seed {seed}: {output.strip().splitlines()[-1] if output.strip() else 'ended by the clock'}", flush=True)
        seed += 1
    print(f"Nothing was found in {rounds} rounds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
