"""Read single keys from the terminal, and restore its settings however the program ends.

Keys come from standard input if it is a terminal that this process may read. Signals about the terminal (its size, Ctrl-Z) only
write to a pipe. The program waits for this pipe and the keys together, so nothing interrupts drawing.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType

# How long the rest of an escape sequence may take: over a slow connection its bytes come apart.
ESCAPE_SECONDS = 0.05

KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b" ": "page down", b"k": "up", b"j": "down", b"g": "home", b"G": "end",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wakeup:
    """Ends the wait for a key when a signal arrives or another thread calls `notify`. The flags record the requests."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_suspended = False
        self.is_ended = False

    def fileno(self) -> int:
        return self._read

    def notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.is_suspended |= number == signal.SIGTSTP
            self.notify()

        before = {number: signal.signal(number, handle) for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Keyboard:
    """Keys by their names, others as their characters. Without a terminal to read from there are none."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._descriptor = _readable_terminal()

    @property
    def exists(self) -> bool:
        return self._descriptor is not None

    @contextlib.contextmanager
    def single_keys(self) -> Iterator[None]:
        """Within it a key is there when it is pressed, and is not echoed."""
        descriptor = self._descriptor
        if descriptor is None:
            yield
            return
        before = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor, termios.TCSANOW)
            yield
        finally:
            with undisturbed(), contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSANOW, before)

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed by then; none when something else ended the wait."""
        sources: list[int] = [self._wakeup.fileno(), *([] if self._descriptor is None else [self._descriptor])]
        ready, _, _ = select.select(sources, [], [], seconds)
        self._wakeup.clear()
        if self._descriptor is None or self._descriptor not in ready:
            return []
        text = self._read(self._descriptor)
        if not text:
            self._descriptor = None
        if text.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and self._descriptor is not None:
            more, _, _ = select.select([self._descriptor], [], [], ESCAPE_SECONDS)
            text += self._read(self._descriptor) if more else b""
        return names(text)

    def _read(self, descriptor: int) -> bytes:
        """Empty at the end of the terminal: it was closed."""
        try:
            return os.read(descriptor, 4096)
        except OSError:
            return b""


def names(text: bytes) -> list[str]:
    """The keys that a terminal says with these bytes. Sequences of other keys are one key without a name."""
    keys = []
    while text:
        length = _sequence_length(text)
        key, text = text[:length], text[length:]
        keys.append(KEYS.get(key) or (key.decode("ascii", "replace") if length == 1 else ""))
    return keys


def _sequence_length(text: bytes) -> int:
    if text[:2] == b"\x1b[":
        end = next((index for index in range(2, len(text)) if 0x40 <= text[index] <= 0x7E), len(text) - 1)
        return end + 1
    return min(3, len(text)) if text[:2] == b"\x1bO" else 1


def _readable_terminal() -> int | None:
    """A process in the background is stopped when it touches the terminal."""
    try:
        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor):
            return None
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except OSError:
        return descriptor


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within it the signals that end a program wait: a second Ctrl-C must not leave a terminal half restored."""
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for waited in waiting:
            os.kill(os.getpid(), waited)
