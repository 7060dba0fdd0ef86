"""Check the arguments of lt-preprocess and lt-convert in a job by a dry run of the tool, if it is installed.

No tool imports another, so the tool runs as a process. Only a usage error (exit code 2) counts, because inputs may be on another
machine or may not exist before the job runs.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lt_shared.console import ExitCode, UsageError

# A tool parses its arguments first. Reading data may take longer and does not matter here, so a timeout is no error.
SECONDS = 10


def check(stage: str, words: Sequence[str], operands: Sequence[str] = ()) -> None:
    """Raise UsageError with the tool's own message if the tool of `stage` refuses `words` followed by the job's `operands`."""
    tool = f"lt-{stage}"
    program = _program(tool)
    if program is None:
        return
    try:
        process = subprocess.run(
            [program, *words, *operands],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | _dry_run(tool, words),
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if process.returncode == ExitCode.USAGE:
        error, hint = _error_and_hint(tool, process.stderr.decode(errors="replace"))
        raise UsageError(f"--{stage}: {error}", hint)


def _program(tool: str) -> str | None:
    """Find the tool next to this interpreter, or on PATH."""
    return shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def _dry_run(tool: str, words: Sequence[str]) -> Mapping[str, str]:
    """Return the environment variables that set --dry-run of the tool, and of its command if the first word names one.

    A --dry-run among the words could become the value of an option that lacks one, and the tool would do its work.
    """
    prefix = tool.upper().replace("-", "_")
    command = {f"{prefix}_{words[0].upper()}_DRY_RUN": "1"} if words and words[0].isalpha() else {}
    return {f"{prefix}_DRY_RUN": "1", **command}


def _error_and_hint(tool: str, text: str) -> tuple[str, str]:
    """Extract the last error and the last hint from a tool's messages."""
    lines = text.splitlines()
    errors = [line.partition(" error: ")[2] for line in lines if line.startswith(f"{tool}: error: ")]
    hints = [line.partition(" ")[2] for line in lines if line.startswith("hint: ")]
    return (errors or [f"{tool} does not take these words"])[-1], (hints or [f"see {tool} --help"])[-1]
