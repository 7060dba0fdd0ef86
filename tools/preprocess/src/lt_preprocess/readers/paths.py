"""Expand the files, patterns, directories and lists of the command line into a list of inputs."""

import os
from collections.abc import Iterator, Sequence

from lt_shared import storage
from lt_shared.console import BadData, NoInput, note, warn

STDIN = "-"
LIST_MARK = "@"

TEXT_SUFFIX = ".txt"
COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", TEXT_SUFFIX)


def display_name(path: str) -> str:
    """The input as messages name it."""
    return "standard input" if path == STDIN else path


def is_text(path: str) -> bool:
    """Whether a file is one plain text, by its name."""
    return _without_compression(path.lower()).endswith(TEXT_SUFFIX)


def is_never_empty(path: str) -> bool:
    """Whether, by its name, an empty file can only be a failed copy: these formats have a header even without content."""
    return path.lower().endswith((*COMPRESSION_SUFFIXES, ".parquet"))


def _without_compression(path: str) -> str:
    for suffix in COMPRESSION_SUFFIXES:
        path = path.removesuffix(suffix)
    return path


def expand_patterns(patterns: Sequence[str]) -> list[str]:
    """The inputs in the order given: files, URLs, glob patterns (matches sorted), directories (all files below with a known
    suffix, sorted), `@FILE` (a file with one of these on each line), `-` for standard input.

    Raises NoInput for a pattern that matches nothing and for a directory or list without inputs.
    """
    return [path for pattern in patterns for path in _expand(pattern, ())]


def _expand(pattern: str, lists: tuple[str, ...]) -> Iterator[str]:
    if pattern.startswith(LIST_MARK):
        yield from _listed(pattern.removeprefix(LIST_MARK), lists)
        return
    for path in storage.expand([pattern]):
        if path != STDIN and storage.is_directory(path):
            yield from _files_below(path)
        elif path != pattern and not storage.is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
            warn(f"{path}: not read: no file; name it to read it")
        else:
            yield path


def _listed(path: str, lists: tuple[str, ...]) -> Iterator[str]:
    """`lists` are those that name this one."""
    if path in lists:
        raise BadData(f"{path}: the list names itself")
    content = storage.read_bytes(path).decode(errors="surrogateescape")
    lines = [line for line in content.splitlines() if line.strip()]
    if not lines:
        raise NoInput(f"{path}: the list names no input")
    for line in lines:
        yield from _expand(line, (*lists, path))


def _files_below(directory: str) -> Iterator[str]:
    files = storage.files_below(directory)
    known = [path for path in files if _without_compression(path.lower()).endswith(_SUFFIXES)]
    if not known:
        raise NoInput(f"{directory}: no file below ends in {', '.join(_SUFFIXES)}, compressed or not")
    reading = set(known)
    if others := [path for path in files if path not in reading]:
        note(f"{directory}: not read because of their names: {len(others):,} files, such as {others[0]}")
    yield from known
