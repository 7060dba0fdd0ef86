"""Vocabularies kept on disk between runs, beside the compiled code.

Python takes half a second to read Llama 3's 128,000 tokens and to find the 280,000 pairs that merge; two cores encode 80 MB of
text in that time. The resulting arrays are read back in a tenth of it. A cache file is named by a hash of the tokenizer's files
and of those beside them, its directory by a hash of this package's source, so a file that can be read is never out of date.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.tokenizers.vocabulary import AddedToken, Vocabulary
from lt_shared.tokenizer_files import TokenizerFiles

_PLAIN_FIELDS = ("pattern", "vocab_size", "eod", "regex", "is_nfc")


def read(files: TokenizerFiles, reader: Callable[[TokenizerFiles], Vocabulary]) -> Vocabulary:
    """What `reader` makes of the files, from the cache when it is there. Raises what the reader raises."""
    from lt_preprocess.kernels import jit

    directory = jit.cache_directory()
    if directory is None:
        return reader(files)
    path = directory / f"vocabulary-{_key(files)}.npz"
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return _unpacked(path)
    vocabulary = reader(files)
    with contextlib.suppress(OSError):
        _publish(path, _packed(vocabulary))
    return vocabulary


def _key(files: TokenizerFiles) -> str:
    digest = hashlib.sha256(files.sha256().encode())
    for path in files.companions:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _publish(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}", delete=False) as file:
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
    file = io.BytesIO()
    np.savez(
        file,
        plain=np.frombuffer(json.dumps(plain).encode(), np.uint8),
        byte_ids=vocabulary.byte_ids,
        merges=vocabulary.merges.astype(np.int32),
        **_table("token", vocabulary.tokens.values(), vocabulary.tokens.keys()),
        **_table("whole", vocabulary.whole_pieces.keys(), vocabulary.whole_pieces.values()),
    )
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
        tokens = _contents("token", arrays)
        return Vocabulary(
            byte_ids=arrays["byte_ids"],
            merges=arrays["merges"].astype(np.int64),
            whole_pieces=dict(zip(_contents("whole", arrays), arrays["whole_ids"].tolist(), strict=True)),
            tokens=dict(zip(arrays["token_ids"].tolist(), tokens, strict=True)),
            added_tokens=added,
            **plain,
        )


def _contents(name: str, arrays: Any) -> list[bytes]:
    joined = arrays[f"{name}_bytes"].tobytes()
    ends = arrays[f"{name}_ends"].tolist()
    return [joined[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=False)]
