"""A process that gets ready ahead of its turn: it imports what it needs, then waits until its standard input ends.

Imports take a contender 10 to 70 seconds of one core and need no GPU, so they run while another contender is measured.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# torchrun's workers are sessions of their own: it needs some time to end them.
END_SECONDS = 40


class Process:
    """`command` with `--result FILE` added, where it writes what it finds; its output goes to `log`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        self.log = log
        self._place = tempfile.TemporaryDirectory()
        self._result = Path(self._place.name) / "result.json"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--result", str(self._result)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self, seconds: float) -> tuple[dict[str, Any] | None, str]:
        """Let it go on; returns what it found, None when it failed or took longer, and how it ended."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(seconds)
            found = json.loads(self._result.read_text()) if code == 0 else None
            return found, f"exit code {code}"
        except subprocess.TimeoutExpired:
            return None, f"no end within {seconds:.0f} s"
        finally:
            self.end()

    def end(self) -> None:
        """Kill what is left of it."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._place.cleanup()
