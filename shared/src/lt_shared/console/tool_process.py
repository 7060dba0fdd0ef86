"""Run a tool as a process of its own for a Python function that returns the lines of its manifest.

A tool that tokenizes or trains forks, starts ranks, sets signal handlers and ends its process: a notebook must not. The start
costs 0.1 s for lt-preprocess and the import of torch for lt-train. Notebooks show what Python writes to `sys.stderr`, and nothing
that a child writes to descriptor 2, so the tool's lines are passed on.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from lt_shared.console import errors
from lt_shared.console.errors import ExitCode, ToolError

_ERRORS: dict[int, type[ToolError]] = {
    error.exit_code: error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, ToolError)
}


class _Messages:
    """Passes the lines of a stream on to `sys.stderr` in a thread, and keeps the last error and its hint."""

    def __init__(self, tool: str, stream: IO[str]):
        self.error: str | None = None
        self.hint: str | None = None
        self._begin, self._stream = f"{tool}: error: ", stream
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        for line in self._stream:
            if line.startswith(self._begin):
                self.error, self.hint = line.removeprefix(self._begin).rstrip("\n"), None
            elif self.error is not None and line.startswith("hint: "):
                self.hint = line.removeprefix("hint: ").rstrip("\n")
            sys.stderr.write(line)
        sys.stderr.flush()

    def wait(self) -> None:
        self._thread.join()


def run(tool: str, words: Sequence[str]) -> list[str]:
    """Run `tool` with the command-line `words`, without options from the environment. Return the lines of its standard output.

    Raises the ToolError of the exit code with the tool's message and hint. Ctrl-C is passed on to the tool, which saves and ends;
    then KeyboardInterrupt is raised.
    """
    module = tool.replace("-", "_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(f"{module.upper()}_")}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=environment | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    with process:
        messages = _Messages(tool, process.stderr)
        try:
            lines = process.stdout.read().splitlines()
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        except BaseException:
            process.terminate()
            raise
        finally:
            messages.wait()
    if code != ExitCode.OK:
        kind = _ERRORS.get(code, ToolError)
        raise kind(messages.error or f"{tool} ended with exit code {code}", messages.hint)
    return lines
