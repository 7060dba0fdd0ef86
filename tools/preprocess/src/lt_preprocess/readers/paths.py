"""Expand the files, patterns, directories and lists of the command line into a list of inputs."""

import glob
import os
from collections.abc import Iterator, Sequence

from lt_preprocess.readers import dataset_directories
from lt_shared.console import BadData, NoInput, note, warn
from lt_shared.contracts import manifest
from lt_shared.data.indexed_dataset import idx_path
from lt_shared.data.indexed_dataset.layout import MAGIC
from lt_shared.files import listing, storage

STDIN = "-"
LIST_MARK = "@"

TEXT_SUFFIX = ".txt"
COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4")
# Of archives and compressions that are not read.
_OTHER_SUFFIXES = (".br", ".lzma", ".lz", ".lzo", ".sz", ".z", ".zip", ".7z", ".rar")
_OUTPUT_HEAD_BYTES = 1 << 12
_QUARANTINE = "_quarantine.jsonl"
_WITH_HEADER = (".parquet", ".tar", ".tgz", ".warc", ".wet", ".arrow", ".feather", ".mds")
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".psv", *_WITH_HEADER, TEXT_SUFFIX)


def display_name(path: str) -> str:
    """The input as messages name it."""
    return "standard input" if path == STDIN else path


def is_text(path: str) -> bool:
    """Whether a file is one plain text, by its name."""
    return without_compression(path.lower()).endswith(TEXT_SUFFIX)


def is_never_empty(path: str) -> bool:
    """Whether, by its name, an empty file can only be a failed copy: these formats have a header even without content."""
    return path.lower().endswith((*COMPRESSION_SUFFIXES, *_WITH_HEADER))


def without_compression(path: str) -> str:
    """The name without the suffix of a compression; in lower case it must be."""
    for suffix in COMPRESSION_SUFFIXES:
        path = path.removesuffix(suffix)
    return path


def expand_patterns(patterns: Sequence[str]) -> list[str]:
    """The inputs in the order given: files, URLs, glob patterns (matches sorted), directories (all files below with a known
    suffix, sorted), `@FILE` (a file that lists such inputs, one per line), `-` for standard input.

    Raises NoInput for a pattern that matches nothing and for a directory or list without inputs, BadData for a directory with
    documents that are not read: in an archive, or behind a link that leads upwards to a directory that is not named, too.
    """
    named = frozenset(os.path.realpath(pattern) for pattern in patterns if pattern != STDIN and not storage.is_remote(pattern))
    paths = [path for pattern in patterns for path in _read_once(pattern, _expand(pattern, (), named))]
    # A shell that expands d/* names the outputs one by one. Only a quarantine file can be meant when it is named.
    outputs = {path for path in paths if is_output(path) and not (path in patterns and path.endswith(_QUARANTINE))}
    if not outputs or outputs == set(paths) <= set(patterns):
        return paths
    if len(outputs) == len(set(paths)):
        raise NoInput(f"{min(outputs)}: an output of lt-preprocess, and there is no other input", "name the files of documents")
    note(f"not read because lt-preprocess wrote them: {len(outputs):,} files, such as {min(outputs)}")
    return [path for path in paths if path not in outputs]


def _read_once(pattern: str, paths: Iterator[str]) -> Iterator[str]:
    """Leave out files that one directory or glob pattern reaches again through a link to a directory; `**` follows loops."""
    if pattern.startswith(LIST_MARK) or storage.is_remote(pattern):
        yield from paths
        return
    places: set[str] = set()
    repeated: list[str] = []
    directories: dict[str, str] = {}
    for path in paths:
        parent, name = os.path.split(path)
        if parent not in directories:
            directories[parent] = os.path.realpath(parent)
        place = os.path.join(directories[parent], name)
        if place in places:
            repeated.append(path)
        else:
            places.add(place)
            yield path
    if repeated:
        note(f"not read again behind links to directories: {len(repeated):,} files, such as {repeated[0]}")


def is_output(path: str) -> bool:
    """Whether this tool writes files with such a name: a dataset, its sidecar, or quarantined lines."""
    if path.endswith(_QUARANTINE):
        return all(b'"%s"' % key in _head(path) for key in (b"source", b"line", b"offset", b"reason"))
    if path.endswith((".bin", ".idx")):
        return _head(idx_path(path[: -len(".idx")])).startswith(MAGIC)
    prefix = path.removesuffix(".json")
    if manifest.sidecar_path(prefix) != path or not (prefix.endswith("_document") or storage.exists(idx_path(prefix))):
        return False
    return all(key in _head(path) for key in (b'"v"', b'"dataset"', b'"prefix"'))


def _head(path: str) -> bytes:
    try:
        with storage.open_read(path) as file:
            return file.read(_OUTPUT_HEAD_BYTES)
    except NoInput:
        return b""


def _expand(pattern: str, lists: tuple[str, ...], named: frozenset[str]) -> Iterator[str]:
    """`lists` are those that name this pattern; `named` are the resolved paths of all inputs that the command names."""
    if pattern.startswith(LIST_MARK):
        yield from _listed(pattern.removeprefix(LIST_MARK), lists, named)
        return
    if pattern != STDIN and glob.has_magic(pattern) and not storage.is_remote(pattern) and not os.path.exists(pattern):
        _check_directories(pattern)
    for path in storage.expand([pattern]):
        if path != STDIN and storage.is_directory(path):
            yield from _files_below(path, named)
        elif path != pattern and not storage.is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
            warn(f"{path}: not read: no file; name it to read it")
        else:
            yield path


def _check_directories(pattern: str) -> None:
    """Raise NoInput for a directory that a glob pattern looks into and that cannot be read: `glob` passes over it."""
    while glob.has_magic(pattern):
        parent, name = os.path.split(pattern)
        if glob.has_magic(name):
            directories = glob.glob(parent, recursive=True) if glob.has_magic(parent) else [parent or "."]
            for directory in directories:
                if os.path.isdir(directory) and not os.access(directory, os.R_OK | os.X_OK):
                    raise NoInput(f"{directory}: permission denied", "chmod it, or leave it out of the pattern")
        if parent == pattern:
            return
        pattern = parent


def _listed(path: str, lists: tuple[str, ...], named: frozenset[str]) -> Iterator[str]:
    if path in lists:
        raise BadData(f"{path}: the list names itself")
    content = storage.read_bytes(path).decode(errors="surrogateescape")
    lines = [line for line in content.splitlines() if line.strip()]
    if not lines:
        raise NoInput(f"{path}: the list names no input")
    for line in lines:
        yield from _expand(line, (*lists, path), named)


def _files_below(directory: str, named: frozenset[str]) -> Iterator[str]:
    files, special, upward_links, hidden = listing.list_below(directory)
    if unasked := [link for link in upward_links if os.path.realpath(link) not in named]:
        raise BadData(
            f"{unasked[0]}: leads upwards, to {os.path.realpath(unasked[0])}: documents behind it are not read",
            "remove the link, or name the directory that it leads to as another FILE",
        )
    if special:
        more = f" and {len(special) - 1:,} more" if len(special) > 1 else ""
        warn(f"{special[0]}{more}: not read: no file; name it to read it")
    if hidden:
        note(f"{directory}: not read because a dot begins their names: {len(hidden):,}, such as {hidden[0]}")
    described, files = dataset_directories.in_described_order(files)
    readable = described + [path for path in files if without_compression(path.lower()).endswith(_SUFFIXES)]
    if gone := [path for path in files if _is_gone(path)]:
        raise NoInput(f"{gone[0]}: a link to nothing", "remove the link, or name the files to read")
    unread = [path for path in files if _is_of_documents(path)]
    if unread:
        more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
        raise BadData(
            f"{unread[0]}{more}: cannot be read: {_other_suffix(unread[0])}", "decompress it, or name the files to read"
        )
    if not readable:
        raise NoInput(f"{directory}: no file below ends in {', '.join(_SUFFIXES)}, compressed or not")
    reading = set(readable)
    if skipped := [path for path in files if path not in reading]:
        note(f"{directory}: not read because of their names: {len(skipped):,} files, such as {skipped[0]}")
    yield from readable


def _is_gone(path: str) -> bool:
    """Whether a link that may have led to a directory of documents leads nowhere: its name has no suffix, or one like `.v1`."""
    if storage.is_remote(path) or os.path.splitext(path)[1][1:].isalpha():
        return False
    return os.path.islink(path) and not os.path.exists(path)


def _other_suffix(path: str) -> str | None:
    return next((suffix for suffix in _OTHER_SUFFIXES if path.lower().endswith(suffix)), None)


def _is_of_documents(path: str) -> bool:
    """Whether a file has documents by its name, in an archive or a compression that is not read."""
    suffix = _other_suffix(path)
    return suffix is not None and without_compression(path.lower().removesuffix(suffix)).endswith(_SUFFIXES)
