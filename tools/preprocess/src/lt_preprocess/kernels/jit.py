"""Compiled functions that are kept on disk between runs.

numba compiles the encoder in about ten seconds and keeps the machine code, but it notices a changed source only in the file of
the outermost function. The directory here is named by a hash of the whole package's source, so that neither an upgrade nor a
changed intrinsic ever runs old code; what else depends on the source is kept there too (vocabularies, self-checks).
`NUMBA_CACHE_DIR` moves it; without a writable place every run compiles again.
"""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

from lt_shared.console import note, warn

_NO_REFERENCES: Any = {"_nrt": False}  # numba's own tests use it; its type stubs do not list it

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def cache_directory() -> Path | None:
    """Where compiled code is kept, or None when no place is writable."""
    digest = source_digest()
    bases = [os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), os.path.expanduser("~/.cache")]
    for base in filter(None, bases):
        directory = Path(base) / "lt-preprocess" / digest[:16]
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None


def source_digest() -> str:
    """A hash of every source file of this package and of its name; 80 files take two milliseconds."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def kernel(function: Function) -> Function:
    """Compile on first call, run without the GIL, keep the machine code in `cache_directory()`."""
    return _kept(function)


def bare_kernel(function: Function) -> Function:
    """A kernel that counts no references, and so may create no array: its callers bring room for what it writes.

    numba counts references to each array at each call of a function that takes it, with atomic instructions, and hands over seven
    words for each; with a dozen tables that took nine tenths of an encoder's time. Use it with `bare_inner`.
    """
    return _kept(function, **_NO_REFERENCES)


def _kept(function: Function, **options: Any) -> Function:
    directory = cache_directory()
    config: Any = numba.config
    previous = config.CACHE_DIR
    config.CACHE_DIR = str(directory or "")
    try:
        dispatcher = numba.njit(nogil=True, cache=directory is not None, **options)(function)
    finally:
        config.CACHE_DIR = previous
    if directory is not None:
        _continue_when_not_kept(dispatcher, directory)
    return cast(Function, dispatcher)


def _continue_when_not_kept(dispatcher: Any, directory: Path) -> None:
    """A full disk keeps compiled code from being kept, not from being used."""
    keep = dispatcher._cache.save_overload

    def try_to_keep(*arguments: Any) -> None:
        try:
            keep(*arguments)
        except OSError as error:
            _warn_that_nothing_is_kept(directory, error.strerror or str(error))

    dispatcher._cache.save_overload = try_to_keep


@functools.cache
def _warn_that_nothing_is_kept(directory: Path, reason: str) -> None:
    warn(f"{directory}: {reason.lower()}: the compiled encoder is used but not kept; NUMBA_CACHE_DIR names another place")


def inner(function: Function) -> Function:
    """Compile as a part of the kernels that call it."""
    return cast(Function, numba.njit(nogil=True)(function))


def bare_inner(function: Function) -> Function:
    """A part of bare kernels, always put in line (by LLVM, which compiles faster than calls with so many arguments)."""
    return cast(Function, numba.njit(nogil=True, forceinline=True, **_NO_REFERENCES)(function))


class AnnounceCompilation(event.Listener):
    """While in use as a context manager, tells the user when numba starts to compile, once a process."""

    _announced = False

    def __init__(self) -> None:
        self._recorder = event.install_listener("numba:compile", self)

    def __enter__(self) -> None:
        self._recorder.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._recorder.__exit__(*error)

    def on_start(self, started: event.Event) -> None:
        if self._announced:
            return
        AnnounceCompilation._announced = True
        directory = cache_directory()
        if directory is None:
            warn("compiling the encoder: no directory is writable to keep it; set NUMBA_CACHE_DIR")
        else:
            note(f"compiling the encoder, once: the result is kept in {directory}")

    def on_end(self, ended: event.Event) -> None:
        """Nothing to say."""
