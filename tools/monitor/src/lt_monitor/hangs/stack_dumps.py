"""Read stacks of threads from dumps of py-spy (text, --json, --native, --locals) and of Python's faulthandler.

lt-train's watchdog writes faulthandler's dumps to SAVE/stacks, below a line with the rank. A frame of --native has no line
number, and its file is a shared library. Only the thread that runs the program matters, not the threads of libraries.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from lt_monitor.events.escaping import printable

TEXT_CHARACTERS = 200
MAX_FRAMES = 128
MAX_THREADS = 1000
MAX_LINE = 10_000_000

_SPY_PROCESS = re.compile(r"Process \d{1,10}: ")
_SPY_THREAD = re.compile(r'Thread (?:0x)?[0-9A-Fa-f]{1,16} \(([a-z+ ]{1,40})\)(?:: "([^"]{0,200})")?')
_SPY_FRAME = re.compile(r" {4}(\S[^\n(]{0,400}) \(([^\n()]{1,1000})\)")
_FAULT_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9A-Fa-f]{1,16}(?: \[([^\]]{0,200})\])? \(most recent call first\):")
_FAULT_FRAME = re.compile(r'  File "([^"]{1,2000})", line (\d{1,8}|\?\?\?) in (\S[^\n]{0,400})')
_FAULT_RANK = re.compile(r"rank (\d{1,7}) on \S{1,255}, after step \d{1,18}$")
_FILE_LINE = re.compile(r"(.{1,990}):(\d{1,8})")
_PACKAGES = re.compile(r".{0,2000}/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"(?:.{0,2000}/)?lib/python3\.\d{1,2}/(?!site-packages|dist-packages)")
# py-spy omits these files' directory.
_STANDARD_FILES = frozenset(
    ("contextlib.py", "queue.py", "selectors.py", "socket.py", "subprocess.py", "threading.py", "multiprocessing/connection.py",
     "multiprocessing/queues.py", "multiprocessing/popen_fork.py", "concurrent/futures/_base.py", "ssl.py", "runpy.py")
)  # fmt: skip
_OUTERMOST = ("<module>", "_run_module_as_main")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """`line` is None where the dump has none."""

    file: str
    line: int | None
    function: str

    @classmethod
    def of(cls, file: Any, line: Any, function: Any) -> "Frame":
        number = line if isinstance(line, int) and 0 < line < MAX_LINE else None
        return cls(_short_path(str(file)[:2000]), number, printable(str(function)[:TEXT_CHARACTERS], TEXT_CHARACTERS))

    @property
    def is_library(self) -> bool:
        """Whether it belongs to torch, Python or a shared library, and so says less than the one that called it."""
        return (
            self.line is None
            or self.file.startswith(("torch/", "<frozen "))
            or self.file in _STANDARD_FILES
            or _STANDARD_LIBRARY.match(self.file) is not None
        )

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'} {self.function}"


@dataclasses.dataclass(frozen=True, slots=True)
class Thread:
    """Its frames are the innermost first; `name` is empty where the dump has none."""

    name: str
    frames: tuple[Frame, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StackDump:
    """`source` is the program that wrote it; `rank` is None unless the dump itself says it."""

    source: str
    threads: tuple[Thread, ...]
    rank: int | None = None

    @property
    def main(self) -> Thread | None:
        """The one called so, else the one that began a module, else the last, as Python lists the main thread."""
        named = next((thread for thread in self.threads if thread.name == "MainThread"), None)
        outermost = next((thread for thread in self.threads if thread.frames and thread.frames[-1].function in _OUTERMOST), None)
        return named or outermost or (self.threads[-1] if self.threads else None)


def place(frames: tuple[Frame, ...]) -> Frame | None:
    """The frame that says most: the innermost outside of the libraries, else the innermost."""
    return next((frame for frame in frames if not frame.is_library), frames[0] if frames else None)


def parse(text: str) -> StackDump | None:
    """Parse a text dump of py-spy or faulthandler; None if the text is neither."""
    if _SPY_PROCESS.match(text):
        threads = _threads(text, _SPY_THREAD, _spy_name, _spy_frame)
        return StackDump("py-spy", threads) if threads else None
    threads = _threads(text, _FAULT_THREAD, _fault_name, _fault_frame)
    rank = _FAULT_RANK.match(text.partition("\n")[0])
    return StackDump("stacks", threads, int(rank[1]) if rank else None) if threads else None


def of_py_spy(threads: Any) -> StackDump | None:
    """What `py-spy dump --json` says; None when the value is something else."""
    if not isinstance(threads, list) or not threads or not all(_is_thread(thread) for thread in threads[:MAX_THREADS]):
        return None
    first_threads = threads[:MAX_THREADS]
    named = [Thread(_name(thread.get("thread_name")), tuple(_json_frames(thread["frames"]))) for thread in first_threads]
    return StackDump("py-spy", tuple(named))


def _is_thread(thread: Any) -> bool:
    return isinstance(thread, dict) and "thread_id" in thread and isinstance(thread.get("frames"), list)


def _json_frames(frames: list[Any]) -> Iterator[Frame]:
    for frame in frames[:MAX_FRAMES]:
        if isinstance(frame, dict):
            yield Frame.of(frame.get("short_filename") or frame.get("filename"), frame.get("line"), frame.get("name"))


def _threads(text: str, header: re.Pattern[str], name: Any, frame: Any) -> tuple[Thread, ...]:
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        match = header.match(line)
        if match and len(threads) < MAX_THREADS:
            threads.append((name(match), []))
        elif threads and len(threads[-1][1]) < MAX_FRAMES:
            threads[-1][1].extend(frame(line))
    return tuple(Thread(title, tuple(frames)) for title, frames in threads)


def _spy_name(header: re.Match[str]) -> str:
    return _name(header[2])


def _spy_frame(line: str) -> list[Frame]:
    match = _SPY_FRAME.fullmatch(line) if len(line) < 2000 else None
    if match is None:
        return []
    numbered = _FILE_LINE.fullmatch(match[2])
    return [Frame.of(numbered[1], int(numbered[2]), match[1]) if numbered else Frame.of(match[2], None, match[1])]


def _fault_name(header: re.Match[str]) -> str:
    return _name(header[1])


def _fault_frame(line: str) -> list[Frame]:
    match = _FAULT_FRAME.fullmatch(line) if len(line) < 3000 else None
    return [Frame.of(match[1], int(match[2]) if match[2].isdigit() else None, match[3])] if match else []


def _name(name: Any) -> str:
    return printable(name[:TEXT_CHARACTERS], TEXT_CHARACTERS) if isinstance(name, str) else ""


def _short_path(path: str) -> str:
    """Without the directories that all ranks share: from the package on, else the last three names."""
    if _STANDARD_LIBRARY.match(path):
        return printable("lib/python3" + path.rpartition("lib/python3")[2], TEXT_CHARACTERS)
    short = _PACKAGES.sub("", path, count=1)
    if short.startswith("/"):
        short = "/".join(short.split("/")[-3:])
    return printable(short, TEXT_CHARACTERS)
