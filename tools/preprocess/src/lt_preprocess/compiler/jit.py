"""Compiled functions, whose machine code is kept on disk between runs.

Compiling takes 4 to 8 seconds in all. `cache_directory` keeps the machine code, one file for each kernel, and a later run loads
it in milliseconds without the compiler. `NUMBA_CACHE_DIR` moves the cache; without a private writable directory every run
compiles again.
"""

import ctypes
import functools
import hashlib
import marshal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args

from lt_preprocess.compiler.arguments import Kind, flatten
from lt_preprocess.compiler.cache_directory import cache_directory as cache_directory
from lt_preprocess.compiler.cache_directory import source_digest as source_digest
from lt_preprocess.compiler.declarations import Inner
from lt_shared import memory
from lt_shared.console import Stopwatch, note, warn

# 5 s on a free core of 2023; more on a busy machine.
COMPILE_SECONDS = "5 to 20 s"

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

_COMPILING = threading.RLock()


class Kernel:
    """A function that Python calls and that runs as machine code, without the GIL.

    It takes integers, contiguous arrays and named tuples with such fields, and returns integers or nothing. It must not create
    an array.
    """

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._function = function
        self._results = _number_of_results(function)
        self._entries: dict[tuple[Kind, ...], Callable[[Any, Any], int]] = {}

    def __call__(self, *arguments: Any) -> Any:
        words: list[int] = []
        kinds = tuple([flatten(argument, words) for argument in arguments])
        entry = self._entries.get(kinds) or self._loaded(kinds)
        results = (ctypes.c_int64 * self._results)()
        if entry((ctypes.c_int64 * len(words))(*words), results):
            raise RuntimeError(f"{self._function.__qualname__} failed")
        return tuple(results) if self._results > 1 else results[0] if self._results else None

    def _loaded(self, kinds: tuple[Kind, ...]) -> Callable[[Any, Any], int]:
        """Load the machine code for these argument kinds from the cache, or compile it."""
        from lt_preprocess.compiler import machine_code

        with _COMPILING:
            if kinds not in self._entries:
                entry, path = self._entry(kinds)
                code = None if path is None else machine_code.read(path)
                if code is None:
                    code = self._compiled(kinds, entry, path)
                self._entries[kinds] = machine_code.load(code, entry)
            return self._entries[kinds]

    def interpreted(self, *arguments: Any) -> Any:
        """Call the function as Python, which is slow, and possible for one that has no intrinsics."""
        return self._function(*arguments)

    def is_cached(self, *arguments: Any) -> bool:
        """Whether a call with such arguments compiles nothing."""
        words: list[int] = []
        kinds = tuple([flatten(argument, words) for argument in arguments])
        path = self._entry(kinds)[1]
        return kinds in self._entries or (path is not None and path.exists())

    def _entry(self, kinds: tuple[Kind, ...]) -> tuple[str, Path | None]:
        """Return the name of the machine code for these argument kinds, and where it is cached."""
        from lt_preprocess.compiler import machine_code

        name = f"{self._function.__module__.rpartition('.')[2]}.{self._function.__qualname__}"
        digest = hashlib.sha256(marshal.dumps(self._function.__code__))
        digest.update(f"{self._function.__module__} {kinds} {machine_code.processor()}".encode())
        entry = f"{name}-{digest.hexdigest()[:16]}"
        directory = cache_directory()
        return entry, None if directory is None else directory / f"{entry}.o"

    def _compiled(self, kinds: tuple[Kind, ...], entry: str, path: Path | None) -> bytes:
        from lt_preprocess.compiler import machine_code

        AnnounceCompilation.announce()
        with memory.garbage_collection_paused():
            from lt_preprocess.compiler import compilation

            code = compilation.object_code(self._function, kinds, entry, self._results)
        if path is not None:
            try:
                machine_code.write(path, code)
            except OSError as error:
                # Without space on disk, compiled code is used but not cached.
                _warn_that_nothing_is_cached(path.parent, error.strerror or str(error))
        return code


_avoids_compiling = False


def avoid_compiling(is_short: bool) -> None:
    """Let `is_ready` refuse kernels whose machine code is not cached, because a short run ends sooner without them."""
    global _avoids_compiling
    _avoids_compiling = is_short


def is_ready(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether to call a kernel with such arguments. A caller with another way asks; see `avoid_compiling`."""
    return not _avoids_compiling or cast(Kernel, function).is_cached(*arguments)


def _number_of_results(function: Callable[..., Any]) -> int:
    returned = function.__annotations__["return"]
    return 0 if returned is None else len(get_args(returned)) or 1


@functools.cache
def _warn_that_nothing_is_cached(directory: Path, reason: str) -> None:
    warn(f"{directory}: {reason.lower()}: the compiled encoder is used but not cached; NUMBA_CACHE_DIR names another directory")


def kernel(function: Function) -> Function:
    """Compile on first call, run without the GIL, cache the machine code in `cache_directory()`."""
    return cast(Function, Kernel(function))


class _CallableInner(Inner):
    """For tests: compiled by itself when Python calls it."""

    @functools.cached_property
    def _kernel(self) -> Kernel:
        return Kernel(self.function)

    def __call__(self, *arguments: Any) -> Any:
        return self._kernel(*arguments)


def inner(function: Function) -> Function:
    """Mark a function to be compiled as part of the kernels that call it."""
    return cast(Function, _CallableInner(function, is_inlined=False))


def inlined(function: Function) -> Function:
    """As `inner`, but always inlined: LLVM compiles calls slowly if they pass many arrays."""
    return cast(Function, _CallableInner(function, is_inlined=True))


def apart(work: Callable[[], Result]) -> Result:
    """Call `work`, which compiles, in a thread: LLVM calls back into Python, and a signal's exception would be lost there.

    The thread does not outlive the process, and an interrupt does not wait for it.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            # numba and LLVM raise anything; the caller gets it from `result`.
            future.set_exception(error)

    with AnnounceCompilation():
        threading.Thread(target=run, daemon=True).start()
        return future.result()


class AnnounceCompilation:
    """A context manager that tells the user, once a process, when something is compiled; a terminal shows for how long."""

    _active: "list[AnnounceCompilation]" = []
    _announced = False

    def __init__(self) -> None:
        self._stopwatch: Stopwatch | None = None

    def __enter__(self) -> Self:
        self._active.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._active.remove(self)
        if self._stopwatch is not None:
            self._stopwatch.__exit__(*error)
            self._stopwatch = None

    @classmethod
    def announce(cls) -> None:
        if cls._announced or not cls._active:
            return
        cls._announced = True
        directory = cache_directory()
        if directory is None:
            warn("compiling the encoder at every start: no cache directory is writable and yours alone; set NUMBA_CACHE_DIR")
        else:
            note(f"compiling the encoder for this processor, once, {COMPILE_SECONDS}: cached in {directory}")
        # Known before it starts: an interrupt meanwhile has to give the terminal its cursor back.
        stopwatch = cls._active[0]._stopwatch = Stopwatch(f"compiling, {COMPILE_SECONDS}")
        stopwatch.__enter__()
