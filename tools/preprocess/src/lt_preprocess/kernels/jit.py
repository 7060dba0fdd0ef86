"""Compiled functions that are kept on disk between runs.

numba compiles the encoder in about ten seconds and keeps the machine code, but it notices a changed source only in the file of
the outermost function; hence `cache_directory`. `NUMBA_CACHE_DIR` moves it; without a writable directory that is this user's
alone every run compiles again.
"""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

from lt_preprocess.kernels import checked_cache
from lt_preprocess.kernels.cache_directory import cache_directory as cache_directory
from lt_preprocess.kernels.cache_directory import source_digest as source_digest
from lt_shared.console import Stopwatch, note, warn

_NO_REFERENCES: Any = {"_nrt": False}  # numba's own tests use it; its type stubs do not list it

# 10 s on a free core of 2023; 37 s were seen on a busy machine.
COMPILE_SECONDS = "10 to 40 s"

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile on first call, run without the GIL, cache the machine code in `cache_directory()`."""
    return _cached(function)


def bare_kernel(function: Function) -> Function:
    """A kernel without reference counts, which must not create an array: its callers pass the arrays that it writes to.

    numba counts references to each array at each call of a function that takes it, with atomic instructions, and passes seven
    words for each; with a dozen tables that took nine tenths of an encoder's time. Use it with `bare_inner`.
    """
    return _cached(function, **_NO_REFERENCES)


def _cached(function: Function, **options: Any) -> Function:
    directory = cache_directory()
    config: Any = numba.config
    previous = config.CACHE_DIR, getattr(config, "CACHE_LOCATOR_CLASSES", "")
    # A .numba_config.yaml in the current directory sets these, too.
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = str(directory or ""), ""
    try:
        dispatcher = numba.njit(nogil=True, cache=directory is not None, **options)(function)
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = previous
    if directory is not None:
        checked_cache.check(dispatcher)
        _survive_a_full_disk(dispatcher, directory)
    return cast(Function, dispatcher)


def _survive_a_full_disk(dispatcher: Any, directory: Path) -> None:
    """Without space on disk, compiled code is used but not cached."""
    save = dispatcher._cache.save_overload

    def try_to_save(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            _warn_that_nothing_is_cached(directory, error.strerror or str(error))

    dispatcher._cache.save_overload = try_to_save


@functools.cache
def _warn_that_nothing_is_cached(directory: Path, reason: str) -> None:
    warn(f"{directory}: {reason.lower()}: the compiled encoder is used but not cached; NUMBA_CACHE_DIR names another directory")


def inner(function: Function) -> Function:
    """A function that is compiled as part of the kernels that call it."""
    return cast(Function, numba.njit(nogil=True)(function))


def bare_inner(function: Function) -> Function:
    """A function for bare kernels, always inlined (by LLVM, which compiles faster than calls with so many arguments)."""
    return cast(Function, numba.njit(nogil=True, forceinline=True, **_NO_REFERENCES)(function))


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


class AnnounceCompilation(event.Listener):
    """A context manager that tells the user, once a process, when numba starts to compile; a terminal shows for how long."""

    _announced = False

    def __init__(self) -> None:
        self._recorder = event.install_listener("numba:compile", self)
        self._stopwatch: Stopwatch | None = None

    def __enter__(self) -> None:
        self._recorder.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._recorder.__exit__(*error)
        if self._stopwatch is not None:
            self._stopwatch.__exit__(*error)
            self._stopwatch = None

    def on_start(self, started: event.Event) -> None:
        if self._announced:
            return
        AnnounceCompilation._announced = True
        directory = cache_directory()
        if directory is None:
            warn("compiling the encoder at every start: no cache directory is writable and yours alone; set NUMBA_CACHE_DIR")
        else:
            note(f"compiling the encoder for this processor, once, {COMPILE_SECONDS}: cached in {directory}")
        self._stopwatch = Stopwatch(f"compiling, {COMPILE_SECONDS}").__enter__()

    def on_end(self, ended: event.Event) -> None:
        """Nothing to say."""
