"""The words of lt-preprocess and lt-convert in a job, checked by the tool itself where it is installed.

No tool imports another, so the tool is run here, as a dry run that writes nothing. Only "these words are no command of mine" (2)
counts: inputs may be on another machine, or come to be within the job. The dry run is asked for by the environment, since among
the words it could become the value of an option that lacks its own, and the tool would go to work.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lt_shared.console import ExitCode, UsageError

# A tool reads its words at once, and looks at data after that, which may take long and does not matter here.
SECONDS = 10


def check(stage: str, words: Sequence[str], operands: Sequence[str] = ()) -> None:
    """Raises UsageError with what the tool of `stage` says. `operands` are words that the job adds to those of the user."""
    tool = f"lt-{stage}"
    program = _program(tool)
    if program is None:
        return
    try:
        done = subprocess.run(
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
    if done.returncode == ExitCode.USAGE:
        error, hint = _said(tool, done.stderr.decode(errors="replace"))
        raise UsageError(f"--{stage}: {error}", hint)


def _program(tool: str) -> str | None:
    """Beside this interpreter, or on PATH."""
    return shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def _dry_run(tool: str, words: Sequence[str]) -> Mapping[str, str]:
    """Variables for --dry-run of the tool, and of its command where the first word names one."""
    prefix = tool.upper().replace("-", "_")
    command = {f"{prefix}_{words[0].upper()}_DRY_RUN": "1"} if words and words[0].isalpha() else {}
    return {f"{prefix}_DRY_RUN": "1", **command}


def _said(tool: str, text: str) -> tuple[str, str]:
    """The error and the hint of a tool."""
    lines = text.splitlines()
    errors = [line.partition(" error: ")[2] for line in lines if line.startswith(f"{tool}: error: ")]
    hints = [line.partition(" ")[2] for line in lines if line.startswith("hint: ")]
    return (errors or [f"{tool} does not take these words"])[-1], (hints or [f"see {tool} --help"])[-1]
