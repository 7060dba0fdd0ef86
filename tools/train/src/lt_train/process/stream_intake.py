"""Copy the lines of a pipe, the list of a stream's shards, to a file that the ranks follow while the run trains.

A pipe has a single reader, and the reader must not stop, because lt-preprocess would stop with it. The file is in the run's
directory, so that ranks on other nodes see it, too. Another file says whether the pipe ended before its last line. Only this
node's ranks read it: in the run's directory it could belong to an earlier attempt. Lines are read with os.read, because a thread
that waits inside of sys.stdin would keep the interpreter from ending.
"""

import io
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from lt_shared.console import NoInput, ToolError
from lt_shared.contracts import manifest
from lt_shared.data.sample_order import shard_list
from lt_shared.files import storage

STANDARD_INPUT = "-"
# The launcher sets this for its ranks: the directory of its pipes' files that are not in the run's directory.
DIRECTORY_VARIABLE = "LT_STREAMS_DIRECTORY"
READ_BYTES = 1 << 16


class Intake:
    """A pipe. `lines` yields all lines from the first on, including lines that `first_line` has read."""

    def __init__(self, name: str, lines: Iterator[str]):
        self.name = name
        self._lines = lines
        self._seen: list[str] = []

    def first_line(self) -> str:
        """Wait for the first line; empty if the pipe has none."""
        while not self._seen or not self._seen[-1].strip():
            line = next(self._lines, None)
            if line is None:
                return ""
            self._seen.append(line)
        return self._seen[-1]

    def lines(self) -> Iterator[str]:
        yield from self._seen
        yield from self._lines

    def hand_on(self, target: Path, broken: Path) -> None:
        """Write whole lines to `target` from now on. If the pipe ends before the stream, write the reason to `broken`."""
        target.parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(target, "".join(self._seen).encode("utf-8", "surrogateescape"))
        threading.Thread(target=self._copy, args=(target, broken), name="stream-intake", daemon=True).start()

    def _copy(self, target: Path, broken: Path) -> None:
        text = "".join(self._seen)
        with target.open("a", encoding="utf-8", errors="surrogateescape") as file:
            for line in self._lines:
                text += line
                if line.endswith("\n"):
                    file.write(line)
                    file.flush()
        if reason := _reason_for_end(self.name, text):
            storage.write_bytes(broken, reason.encode())

    def discard(self) -> None:
        """Read the pipe to its end and drop the lines, because another node writes the same lines."""
        threading.Thread(target=lambda: [None for _ in self._lines], name="stream-intake", daemon=True).start()


def _reason_for_end(name: str, text: str) -> str:
    """Return why the stream ended early; empty if it is finished."""
    try:
        shards = shard_list.parse(text, name)
    except ToolError as error:
        return str(error)
    if shards.is_finished:
        return ""
    return f"{name}: the stream ended after {len(shards.shards)} shard(s), without its end line: its producer failed or was ended"


_opened: dict[str, Intake] = {}


def open_intake(word: str) -> Intake:
    """Open `-` or a named pipe once, and return its intake. Raise UsageError in a rank: no pipe reaches it."""
    if word not in _opened:
        if word == STANDARD_INPUT:
            lines = manifest.standard_input(_lines_of(sys.stdin.fileno()) if _has_descriptor(sys.stdin) else sys.stdin)
            _opened[word] = Intake("standard input", lines)
        else:
            _opened[word] = Intake(word, manifest.standard_input(_lines_of(os.open(word, os.O_RDONLY))))
    return _opened[word]


def open_output(name: str, descriptor: int) -> str:
    """Take the output of a child program as a pipe. Return the word for `open_intake`."""
    _opened[name] = Intake(name, _lines_of(descriptor))
    return name


def streams() -> list[Intake]:
    """Return the opened pipes that carry streams, in command line order."""
    return [intake for intake in _opened.values() if shard_list.begins(intake.first_line())]


def is_pipe(word: str) -> bool:
    """Whether `word` is `-`, or names a pipe, such as the shell makes for <(command)."""
    if word == STANDARD_INPUT or word in _opened:
        return True
    try:
        return stat.S_ISFIFO(os.stat(word).st_mode)
    except (OSError, ValueError):
        return False


def _has_descriptor(file: io.TextIOBase | object) -> bool:
    try:
        file.fileno()  # type: ignore[union-attr]
    except (AttributeError, OSError):
        return False
    return True


def _lines_of(descriptor: int) -> Iterator[str]:
    """Yield lines with their line breaks. The last line may have none."""
    remainder = b""
    while content := os.read(descriptor, READ_BYTES):
        *lines, remainder = (remainder + content).split(b"\n")
        yield from (line.decode("utf-8", "surrogateescape") + "\n" for line in lines)
    if remainder:
        yield remainder.decode("utf-8", "surrogateescape")


def empty(name: str) -> NoInput:
    return NoInput(f"{name}: the manifest is empty", "the command before the pipe failed, or wrote nothing")
