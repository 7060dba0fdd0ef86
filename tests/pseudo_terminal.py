"""Run a command that has a terminal as its stdout or stderr, as people do; to `subprocess.run` it writes to pipes."""

import dataclasses
import fcntl
import os
import pty
import struct
import subprocess
import tempfile
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SECONDS = 240
ROWS = 30

Process = subprocess.Popen[bytes]


@dataclasses.dataclass(frozen=True)
class Result:
    """`shown` is what the terminal was sent, `other` what went to the stream that is none."""

    code: int
    shown: str
    other: str


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def run(
    command: Sequence[str | Path],
    stream: str = "stderr",
    columns: int = 100,
    environment: Mapping[str, str] = os.environ,
    input: str = "",
    on_output: Callable[[Process, bytes], None] = lambda process, shown: None,
) -> Result:
    """Run `command` until everything that has the terminal has ended; `stream` is "stdout" or "stderr".

    `on_output` gets the process and all that the terminal was sent, whenever that is more. After SECONDS the process is killed.
    """
    variables = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    main, terminal = pty.openpty()
    resize(terminal, ROWS, columns)
    with os.fdopen(main, "rb", buffering=0) as shown_file, tempfile.TemporaryFile() as other:
        streams = {"stdout": other, "stderr": other} | {stream: terminal}
        with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, **streams) as process:
            os.close(terminal)
            limit = threading.Timer(SECONDS, process.kill)
            limit.start()
            assert process.stdin is not None
            process.stdin.write(input.encode())
            process.stdin.close()
            shown = b""
            while part := _read(shown_file.fileno()):
                shown += part
                on_output(process, shown)
        limit.cancel()
        other.seek(0)
        return Result(process.returncode, shown.decode(), other.read().decode())


def _read(terminal: int) -> bytes:
    """Nothing at the end, which Linux reports as an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
