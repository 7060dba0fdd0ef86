"""Python imports this file at its start when its folder is in PYTHONPATH: so processes that tests start have the mutant as well.

LT_MUTANT_MODULE names the module and LT_MUTANT_FILE its file; LT_MUTANT_SOURCE holds the source that is compiled instead. With
LT_MUTANT_LINES, which names a directory, the lines of the module that each test executes are appended to a file in it.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles the mutant under the name of the file that it stands for; there is no cache of its bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        with open(os.environ["LT_MUTANT_SOURCE"], "rb") as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != os.environ.get("LT_MUTANT_MODULE"):
            return None
        file = os.environ["LT_MUTANT_FILE"]
        locations = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=Loader(fullname, file), submodule_search_locations=locations
        )


class LineRecorder:
    """Traces one file. What is written first is not lost when the process is killed."""

    def __init__(self, file: str, directory: str):
        self._file = file
        self._directory = directory
        self._seen: set[tuple[str, int]] = set()
        self._process = self._descriptor = -1

    def start(self) -> None:
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        self._take(frame.f_lineno)
        return self._lines

    def _lines(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._take(frame.f_lineno)
        return self._lines

    def _take(self, line: int) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        if (test, line) in self._seen:
            return
        self._seen.add((test, line))
        # An exception here would end the tracing. A process that has given up its rights keeps the file that it has open.
        with contextlib.suppress(OSError):
            if self._process != os.getpid():
                path = os.path.join(self._directory, str(os.getpid()))
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                self._process = os.getpid()
            os.write(self._descriptor, f"{line} {test!r}\n".encode())


if "LT_MUTANT_SOURCE" in os.environ:
    sys.meta_path.insert(0, Finder)
if "LT_MUTANT_LINES" in os.environ:
    LineRecorder(os.environ["LT_MUTANT_FILE"], os.environ["LT_MUTANT_LINES"]).start()
