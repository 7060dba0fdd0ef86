"""Vocabularies kept on disk between runs, beside the compiled code.

Python takes half a second to read Llama 3's 128,000 tokens and to find the 280,000 pairs that merge; two cores encode 80 MB of
text in that time. The resulting arrays are read back in a twentieth of that time; parts that encoding does not need are
unpacked on demand. A cache file is named by a hash of the tokenizer's files and of the files beside them, its directory by a
hash of this package's source, so a readable file is never out of date. It is an .npz, which has checksums.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lt_preprocess.tokenizers.vocabulary import AddedToken, ListedMerges, MergeRows, Vocabulary
from lt_shared import memory
from lt_shared.tokenizers.tokenizer_files import MODEL_CONFIGURATION, TokenizerFiles

Key = TypeVar("Key")
Value = TypeVar("Value")

DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
_PLAIN_FIELDS = ("pattern", "vocab_size", "eod", "regex", "is_nfc", "space_prefix", "strips_prefix")


def read(files: TokenizerFiles, reader: Callable[[TokenizerFiles], Vocabulary]) -> Vocabulary:
    """Return the vocabulary that `reader` reads from the files, or its cached copy. Raises as the reader."""
    key = _key(files)
    path = place("vocabulary", key)
    if path is None:
        return reader(files)
    with contextlib.suppress(*DAMAGED):
        return dataclasses.replace(_unpacked(path), cache_key=key)
    vocabulary = dataclasses.replace(reader(files), cache_key=key)
    if isinstance(vocabulary.merges, ListedMerges):
        return dataclasses.replace(vocabulary, merges=ListedMerges(functools.partial(_publish_with_merges, path, vocabulary)))
    publish(path, _packed(vocabulary))
    return vocabulary


def _publish_with_merges(path: Path, vocabulary: Vocabulary) -> MergeRows:
    """Look up the merges, and keep the vocabulary for later runs."""
    with memory.garbage_collection_paused():
        publish(path, _packed(vocabulary))
    return vocabulary.merge_rows


def pieces_without_merges(vocabulary: Vocabulary, find: Callable[[Mapping[bytes, int]], dict[bytes, int]]) -> dict[bytes, int]:
    """What `find` makes of the whole pieces: those that merging their bytes does not give. From the cache when it is there."""
    path = place("pieces", vocabulary.cache_key) if vocabulary.cache_key and vocabulary.whole_pieces else None
    if path is None:
        return find(vocabulary.whole_pieces)
    with contextlib.suppress(*DAMAGED), np.load(path, allow_pickle=False) as arrays:
        return dict(_pairs(*_columns("piece", arrays)))
    ids_by_piece = find(vocabulary.whole_pieces)
    publish(path, npz(_table("piece", ids_by_piece.keys(), ids_by_piece.values())))
    return ids_by_piece


def place(kind: str, key: str) -> Path | None:
    from lt_preprocess.compiler import jit

    directory = jit.cache_directory()
    return None if directory is None else directory / f"{kind}-{key}.npz"


def _key(files: TokenizerFiles) -> str:
    digest = hashlib.sha256(files.sha256().encode())
    model = files.directory / MODEL_CONFIGURATION
    for path in (*files.companions, *([model] if model.is_file() else [])):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def publish(path: Path, content: bytes) -> None:
    """Write `content` to `path` by rename. If the directory is not writable, nothing is cached."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}", delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _packed(vocabulary: Vocabulary) -> bytes:
    plain = {name: getattr(vocabulary, name) for name in _PLAIN_FIELDS}
    plain["added_tokens"] = vocabulary.added_tokens
    arrays = {
        "plain": np.frombuffer(json.dumps(plain).encode(), np.uint8),
        "byte_ids": vocabulary.byte_ids,
        "merges": vocabulary.merge_rows.astype(np.int32),
    }
    arrays |= _table("token", vocabulary.tokens.values(), vocabulary.tokens.keys())
    return npz(arrays | _table("whole", vocabulary.whole_pieces.keys(), vocabulary.whole_pieces.values()))


def npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _table(name: str, tokens: Iterable[bytes], ids: Iterable[int]) -> dict[str, Any]:
    contents = list(tokens)
    return {
        f"{name}_bytes": np.frombuffer(b"".join(contents), np.uint8),
        f"{name}_ends": np.cumsum(list(map(len, contents)), dtype=np.int64),
        f"{name}_ids": np.array(list(ids), np.int64),
    }


def _unpacked(path: Path) -> Vocabulary:
    with np.load(path, allow_pickle=False) as arrays:
        plain = json.loads(arrays["plain"].tobytes())
        added = tuple(AddedToken(*token) for token in plain.pop("added_tokens"))
        return Vocabulary(
            byte_ids=arrays["byte_ids"],
            merges=arrays["merges"].astype(np.int64),
            whole_pieces=_Unpacked(_pairs, _columns("whole", arrays)),
            tokens=_Unpacked(_swapped_pairs, _columns("token", arrays)),
            added_tokens=added,
            **plain,
        )


_Columns = tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _columns(name: str, arrays: Any) -> _Columns:
    return arrays[f"{name}_bytes"].tobytes(), arrays[f"{name}_ends"], arrays[f"{name}_ids"]


def _pairs(joined: bytes, ends: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> Iterator[tuple[bytes, int]]:
    starts = [0, *ends[:-1].tolist()]
    tokens = [joined[start:end] for start, end in zip(starts, ends.tolist(), strict=False)]
    return zip(tokens, ids.tolist(), strict=True)


def _swapped_pairs(joined: bytes, ends: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    return ((number, token) for token, number in _pairs(joined, ends, ids))


class _Unpacked(Mapping[Key, Value]):
    """A dictionary that is built at the first look-up: building one for 200,000 tokens takes 0.1 s."""

    def __init__(self, pairs: Callable[..., Iterable[tuple[Key, Value]]], columns: _Columns):
        self._pairs = pairs
        self._columns = columns

    @functools.cached_property
    def _all(self) -> dict[Key, Value]:
        return dict(self._pairs(*self._columns))

    def __getitem__(self, key: Key) -> Value:
        return self._all[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._columns[2])
