"""watch in a real terminal: keys are pressed, screens are read, and the terminal is afterwards as it was."""

import contextlib
import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pseudo_terminal
import pytest

from lt_monitor.views.live import terminal
from lt_shared.contracts import run_log

SECONDS = 30
LEAVES = "\x1b[?1049l"


class Terminal:
    """A process with a terminal of its own. `screen` is what it drew last, without colours."""

    def __init__(self, arguments: list[str], rows: int = 30, columns: int = 100, has_keys: bool = True):
        command = [sys.executable, *arguments]
        settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            # Nothing is drawn before the size is known.
            os.read(0, 1)
            if not has_keys:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execve(sys.executable, command, settings | {"TERM": "xterm-256color"})
        self.resize(rows, columns, tell=False)
        self.before = termios.tcgetattr(self.descriptor)
        os.write(self.descriptor, b"\n")
        self.shown = ""

    def resize(self, rows: int, columns: int, tell: bool = True) -> None:
        pseudo_terminal.resize(self.descriptor, rows, columns)
        if tell:
            os.kill(self.process, signal.SIGWINCH)

    @property
    def screen(self) -> str:
        last = self.shown.rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last).replace("\r", "")

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self.descriptor, key.encode())

    def wait_for(self, *texts: str, without: str | None = None, size: tuple[int, int] = (1000, 1000)) -> str:
        """Until a screen has all the texts, not the text `without`, and at most `size` rows and columns; fails after SECONDS."""
        end = time.monotonic() + SECONDS
        while not self._has(texts, without, size):
            assert time.monotonic() < end, self.screen
            self._read(end)
        return self.screen

    def _has(self, texts: tuple[str, ...], without: str | None, size: tuple[int, int]) -> bool:
        lines = self.screen.splitlines()
        fits = len(lines) <= size[0] and max(map(len, lines), default=0) <= size[1]
        is_without = without is None or without not in self.screen
        return all(text in self.screen for text in texts) and is_without and fits

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self.descriptor], [], [], max(0.0, end - time.monotonic()))
        try:
            text = os.read(self.descriptor, 1 << 16) if ready else b""
        except OSError:
            text = b""
        self.shown += text.decode(errors="replace")
        return bool(text)

    def end(self) -> int:
        """The exit code, negative for a signal. The terminal has to be as it was found."""
        end = time.monotonic() + SECONDS
        while self._read(end):
            pass
        _, status = os.waitpid(self.process, 0)
        assert self.shown.count(LEAVES) == self.shown.count("\x1b[?1049h") > 0
        assert self.shown.rindex("\x1b[?25h") > self.shown.rindex("\x1b[?25l")
        self.process = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.descriptor)


@contextlib.contextmanager
def watching(*logs: Path, rows: int = 30, columns: int = 100, has_keys: bool = True) -> Iterator[Terminal]:
    arguments = ["-m", "lt_monitor", "watch", *map(str, logs), "--interval", "0.1"]
    one = Terminal(arguments, rows, columns, has_keys)
    try:
        yield one
    finally:
        one.close()


def log_of(path: Path, loss: float) -> Path:
    lines = (run_log.Step(step, 100, loss=loss + 1 / step, step_seconds=1.0).format() for step in range(1, 42))
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [log_of(tmp_path / f"run{number}.log", number) for number in range(1, 6)]


UP, DOWN, RIGHT, LEFT, ESCAPE = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b"


def test_keys_choose_a_run_and_open_its_page(logs: list[Path]) -> None:
    with watching(*logs) as one:
        one.wait_for("run1", "run5", "↑↓ choose")
        one.press(DOWN, DOWN, "\r")
        page = one.wait_for("run2", "last line", "Esc all runs")
        assert "run3" not in page
        one.press(RIGHT)
        one.wait_for("run3", "Esc all runs", without="run2")
        one.press(LEFT, LEFT, LEFT, LEFT)
        one.wait_for("run1", "Esc all runs", without="run2")
        one.press(ESCAPE)
        one.wait_for("run1", "run5", "↑↓ choose")
        one.press(UP, "\x1bOB", "\n")
        one.wait_for("run2", "Esc all runs")
        one.press("\x7f")
        one.wait_for("run5", "↑↓ choose")
        one.press("x", "\x1b[5~", "q")
        assert one.end() == 0
        assert termios_of(one) == one.before


def termios_of(one: Terminal) -> list[object]:
    return termios.tcgetattr(one.descriptor)


def test_a_page_follows_its_log(logs: list[Path]) -> None:
    with watching(*logs) as one:
        one.wait_for("run5")
        one.press("\r")
        one.wait_for("41 / 100", "Esc all runs")
        with logs[0].open("a") as file:
            file.write(run_log.Step(42, 100, loss=2.4, step_seconds=1.0).format() + "\n")
        one.wait_for("42 / 100", "Esc all runs")
        one.press("q")
        assert one.end() == 0


def test_without_keys_it_follows_the_log_until_ctrl_c(tmp_path: Path) -> None:
    log = log_of(tmp_path / "train.log", 2.5)
    with watching(log, has_keys=False) as one:
        one.wait_for("41 / 100", "Ctrl-C ends")
        with log.open("a") as file:
            file.write(run_log.Step(42, 100, loss=2.4, step_seconds=1.0).format() + "\n")
        one.wait_for("42 / 100")
        os.kill(one.process, signal.SIGINT)
        assert one.end() == 0
        assert re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", one.shown.rpartition(LEAVES)[2]).strip() == ""


def test_a_resized_terminal_is_drawn_anew(logs: list[Path]) -> None:
    with watching(*logs, columns=60) as one:
        assert max(map(len, one.wait_for("run1", "↑↓ choose").splitlines())) <= 60
        one.resize(60, 140)
        one.wait_for("checkpoint", "validation")
        one.resize(8, 20)
        # Frames that were begun before may still come, some cut to the rows or the columns alone.
        one.wait_for("run1", size=(8, 20))
        one.press("q")
        assert one.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_terminal_as_it_was(number: signal.Signals, code: int, logs: list[Path]) -> None:
    with watching(*logs) as one:
        one.wait_for("run5")
        os.kill(one.process, number)
        assert one.end() == code
        assert termios_of(one) == one.before


def test_ctrl_c_is_a_signal_still(logs: list[Path]) -> None:
    with watching(*logs) as one:
        one.wait_for("run5")
        one.press("\x03")
        assert one.end() == 0
        assert termios_of(one) == one.before


def test_ctrl_z_gives_the_terminal_back_until_the_job_goes_on(logs: list[Path]) -> None:
    with watching(*logs) as one:
        one.wait_for("run5")
        one.press("\x1a")
        os.waitpid(one.process, os.WUNTRACED)
        while LEAVES not in one.shown:
            assert one._read(time.monotonic() + SECONDS)
        assert termios_of(one) == one.before
        one.shown = ""
        os.kill(one.process, signal.SIGCONT)
        one.wait_for("run5")
        one.press("q")
        _, status = os.waitpid(one.process, 0)
        one.process = 0
        assert os.waitstatus_to_exitcode(status) == 0
        assert termios_of(one) == one.before


FAILING = """
import sys
from lt_monitor import cli
from lt_monitor.views.live import reader, watch
if sys.argv.pop(1) == "thread":
    def fail(self):
        raise RuntimeError("broken")
    reader.Logs.look_again = fail
else:
    drawn = []
    def fail(*arguments):
        drawn.append(1)
        if len(drawn) > 1:
            raise RuntimeError("broken")
        return "drawn once"
    watch.render = fail
cli.main()
"""


@pytest.mark.parametrize("where", ["thread", "screen"])
def test_an_exception_leaves_the_terminal_as_it_was(where: str, logs: list[Path]) -> None:
    one = Terminal(["-c", FAILING, where, "watch", *map(str, logs), "--interval", "0.1"])
    try:
        assert one.end() == 70
        assert "internal error: RuntimeError: broken" in one.shown.rpartition(LEAVES)[2]
        assert termios_of(one) == one.before
    finally:
        one.close()


def test_many_runs_scroll_with_the_choice(tmp_path: Path) -> None:
    logs = [log_of(tmp_path / f"run{number:02}.log", 2.0 + number / 100) for number in range(40)]
    with watching(*logs, rows=12) as one:
        first = one.wait_for("run00", " of 40")
        assert "run30" not in first
        one.press(*[DOWN] * 31)
        one.wait_for("run30", without="run00")
        one.press("\r")
        one.wait_for("run30", "Esc all runs")
        one.press("q")
        assert one.end() == 0


def test_a_long_page_scrolls(tmp_path: Path) -> None:
    """A log of 60 jobs, each with a fault: their lines do not fit the screen."""
    log = tmp_path / "run.log"
    parts = []
    for job in range(1, 61):
        parts += [run_log.Step(step, 1000, loss=2.0, step_seconds=1.0).format() for step in (job, job + 1, job + 2)]
        parts.append(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {job}.00 GiB")
    log.write_text("".join(part + "\n" for part in parts))
    with watching(log, rows=24) as one:
        one.wait_for("run")
        one.press("\r")
        one.wait_for("Attempts, the newest first", "lines 1-", without="allocate 1.00 GiB")
        one.press("\x1b[6~")
        one.wait_for("PgDn scroll", without="Attempts, the newest first")
        one.press("\x1b[F")
        one.wait_for("allocate 1.00 GiB", without="Attempts, the newest first")
        one.press(UP)
        one.wait_for("allocate 2.00 GiB", without="allocate 1.00 GiB")
        one.press("\x1b[H")
        one.wait_for("Attempts, the newest first", "lines 1-")
        one.press("q")
        assert one.end() == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"\x1b[A\x1bOB\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        (b"\r\n\x1b\x7f\x08q", ["enter", "enter", "escape", "backspace", "backspace", "q"]),
        (b"\x1b[5~\x1b[6~\x1b[1;5Aq", ["page up", "page down", "", "q"]),
        (b"\x1b[H\x1b[F\x1bOH\x1bOF\x1b[1~\x1b[4~", ["home", "end"] * 3),
        (b"jk gG", ["down", "up", "page down", "home", "end"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1b[", [""]),
        (b"\x1bO", [""]),
        (b"\xff\x00", ["�", "\x00"]),
        (b"", []),
    ],
)
def test_bytes_are_keys(text: bytes, found: list[str]) -> None:
    assert terminal.names(text) == found
