"""Files of token ids that other tools wrote, with the ends of their documents, in blocks of bounded size.

datatrove: `.ds` holds tokens, `.ds.index` where each document ends. OLMo-core: `.npy` holds tokens alone; the ends are in the
`.csv.gz` beside it, or after each end-of-document token. mosaicml-streaming and litdata: a sample is a document.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers import litdata, mds
from lt_preprocess.readers.byte_stream import READ_BYTES, ByteStream
from lt_preprocess.readers.dataset_directories import in_described_order
from lt_preprocess.readers.decompression import RECOGNISED_BYTES, decompressed, decompressor_for
from lt_shared.console import BadData, NoInput, UsageError
from lt_shared.files import listing, storage

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int32", "int64")
INDEX_SUFFIX, METADATA_SUFFIX = ".index", ".csv.gz"
_BLOCK_BYTES = 16 << 20
_WIDTH_BYTES = 1 << 16
_TOKENS_TO_TELL_WIDTH = 32
_NUMPY_MAGIC = b"\x93NUMPY"
_TORCH_DTYPES = {11: "uint8", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 20: "uint16"}
_NUMPY_DTYPES = {2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32", 7: "uint64"}
_MDS_DTYPES = {8: "uint8", 16: "uint16", 32: "uint32", 33: "int32", 64: "uint64", 65: "int64"}
_TOKEN_COLUMNS = ("tokens", "input_ids")

Tokens = npt.NDArray[np.integer[Any]]
Ends = npt.NDArray[np.int64]


class TokenBlock(NamedTuple):
    """`tokens` [N] follow the tokens of the block before; `ends` int64: after how many of them a document ends, ascending."""

    tokens: Tokens
    ends: Ends


class TokenLayout(NamedTuple):
    """What files without a header do not say: the type of a token, and the token that ends a document.

    `is_guessed`: whether `dtype` follows from a vocabulary alone.
    """

    dtype: str | None
    eod: int | None
    is_guessed: bool = False


def list_files(sources: Sequence[str]) -> list[str]:
    """List the files of token ids. In a directory these are the files that an index lists, and all `.ds` and `.npy`, sorted."""
    paths: list[str] = []
    for source in storage.expand(sources):
        if not storage.is_directory(source):
            paths.append(source)
            continue
        described, others = in_described_order(listing.files_below(source))
        in_directory = described + [path for path in others if path.endswith((".ds", ".npy"))]
        if not in_directory:
            raise NoInput(f"{source}: no file of token ids below: .ds, .npy, or shards that an index.json lists")
        paths += in_directory
    return paths


def blocks(path: str, layout: TokenLayout) -> Iterator[TokenBlock]:
    """Yield the tokens of a file. Raises BadData for a file that is damaged or holds no tokens, UsageError if `layout` lacks
    something that the file does not say."""
    with storage.open_read(path) as file:
        start = file.read(512)
        file.seek(0)
        if storage.exists(path + INDEX_SUFFIX):
            yield from _datatrove(path, file)
        elif start.startswith(_NUMPY_MAGIC):
            yield from _numpy_array(path, file, layout)
        elif path.endswith(".npy"):
            if layout.dtype is None:
                raise UsageError(
                    f"{path}: nothing says of which type its tokens are", f"--dtype {'|'.join(DTYPES)}, or --tokenizer"
                )
            if layout.is_guessed:
                _check_width(path, file.read(_WIDTH_BYTES), np.dtype(layout.dtype))
                file.seek(0)
            yield from _olmo(path, file, np.dtype(layout.dtype), layout)
        else:
            yield from _samples(path, file, start, layout)


def _check_width(path: str, content: bytes, dtype: np.dtype[Any]) -> None:
    """Raise UsageError if tokens look like the halves of wider tokens: the upper half of a small number is 0."""
    tokens = np.frombuffer(content[: len(content) // dtype.itemsize * dtype.itemsize], dtype)
    if len(tokens) >= _TOKENS_TO_TELL_WIDTH and not tokens[1::2].any() and tokens[::2].any():
        raise UsageError(
            f"{path}: every second {dtype.name} is 0, so its tokens have a wider type than the vocabulary needs",
            f"--dtype uint{dtype.itemsize * 16}, or --dtype {dtype.name} if these are the tokens",
        )


def _datatrove(path: str, file: IO[bytes]) -> Iterator[TokenBlock]:
    index = storage.read_bytes(path + INDEX_SUFFIX)
    if len(index) % 8:
        raise BadData(f"{path}{INDEX_SUFFIX}: is cut off: {len(index)} bytes, no multiple of 8", "copy it again")
    ends = np.frombuffer(index, "<u8").astype(np.int64)
    size_bytes = storage.size_bytes(path)
    tokens = int(ends[-1]) if len(ends) else 0
    if bool(np.any(np.diff(ends, prepend=0) < 0)):
        raise BadData(f"{path}{INDEX_SUFFIX}: damaged: a document ends before it begins", "copy it again")
    width = size_bytes // tokens if tokens else 0
    if tokens * width != size_bytes or (tokens and width not in (2, 4)):
        raise BadData(f"{path}: {size_bytes:,} bytes are not the {tokens:,} tokens that its .index counts", "copy both again")
    yield from _with_ends(path, file, np.dtype(f"<u{width or 2}"), ends)


def _with_ends(path: str, file: IO[bytes], dtype: np.dtype[Any], ends: Ends) -> Iterator[TokenBlock]:
    """Divide the tokens of a file at known ends."""
    first = 0
    if len(ends) and int(ends[-1]) == 0:
        yield TokenBlock(np.zeros(0, dtype), ends)
    for tokens in _raw_tokens(path, file, dtype):
        last = first + len(tokens)
        begin, end = np.searchsorted(ends, [first, last], side="right")
        if first == 0:
            begin = 0
        yield TokenBlock(tokens, ends[begin:end] - first)
        first = last


def _raw_tokens(path: str, file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[Tokens]:
    remainder = b""
    while content := file.read(_BLOCK_BYTES):
        content = remainder + content
        size = len(content) // dtype.itemsize * dtype.itemsize
        remainder = content[size:]
        yield np.frombuffer(content[:size], dtype)
    if remainder:
        raise BadData(f"{path}: its size is no multiple of {dtype.itemsize} bytes, a token of {dtype.name}", "is --dtype right?")


def _numpy_array(path: str, file: IO[bytes], layout: TokenLayout) -> Iterator[TokenBlock]:
    """A file that numpy.save wrote."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except ValueError as error:
        raise BadData(f"{path}: damaged NumPy array: {error}", "copy it again") from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise BadData(f"{path}: an array of {dtype} and shape {shape}, expected one row of whole numbers")
    yield from _olmo(path, file, dtype, layout)


def _olmo(path: str, file: IO[bytes], dtype: np.dtype[Any], layout: TokenLayout) -> Iterator[TokenBlock]:
    """Tokens alone. Metadata beside them is authoritative: a document that was cut has no end-of-document token."""
    metadata = path.removesuffix(".npy") + METADATA_SUFFIX
    if storage.exists(metadata):
        ends = _metadata_ends(metadata)
        tokens = (storage.size_bytes(path) - file.tell()) // dtype.itemsize
        if len(ends) and int(ends[-1]) != tokens:
            raise BadData(f"{metadata}: its documents end at token {int(ends[-1]):,}, {path} has {tokens:,}", "copy both again")
        yield from _with_ends(path, file, dtype, ends)
        return
    if layout.eod is None:
        raise UsageError(
            f"{path}: nothing says where its documents end", "--eod-token, or --tokenizer, names the token that ends them"
        )
    for tokens_of_block in _raw_tokens(path, file, dtype):
        yield TokenBlock(tokens_of_block, np.flatnonzero(tokens_of_block == layout.eod) + 1)


def _metadata_ends(path: str) -> Ends:
    """Read the columns start and end of each document."""
    ends: list[int] = []
    with storage.open_read(path) as file:
        lines = ByteStream(decompressed(path, b"", lambda: file.read(READ_BYTES)))
        for number in itertools.count(1):
            line = lines.readline(READ_BYTES)
            if not line:
                return np.array(ends, np.int64)
            start, _, following = line.partition(b",")
            end = following.partition(b",")[0].strip()
            if not (start.isdigit() and end.isdigit()) or int(start) != (ends[-1] if ends else 0) or int(end) < int(start):
                raise BadData(f"{path}, line {number}: a document from {start[:20]!r} to {end[:20]!r}", "copy it again")
            ends.append(int(end))
    raise AssertionError("unreachable")


def _samples(path: str, file: IO[bytes], start: bytes, layout: TokenLayout) -> Iterator[TokenBlock]:
    pieces = iter(lambda: file.read(READ_BYTES), b"")
    if decompressor_for(start[:RECOGNISED_BYTES]):
        pieces = decompressed(path, b"", lambda: file.read(READ_BYTES))
    content = ByteStream(pieces)
    start = content.read(512)
    content = content.preceded_by(start)
    if litdata.is_chunk(start) and (described := litdata.layout_beside(path)):
        documents = _litdata_documents(path, content, described, start)
    elif mds.is_shard(start):
        documents = _mds_documents(path, content, layout)
    else:
        raise BadData(f"{path}: no file of token ids: neither .ds with .ds.index, .npy, MDS nor litdata", "name the files")
    yield from _joined(documents)


def _litdata_documents(path: str, content: ByteStream, described: litdata.Layout, start: bytes) -> Iterator[Tokens]:
    formats = dict(zip(described.names, described.formats, strict=True))
    name = next((name for name in (None, *_TOKEN_COLUMNS) if name in formats), described.names[0])
    kind, _, code = formats[name].partition(":")
    dtypes = {"no_header_tensor": _TORCH_DTYPES, "no_header_numpy": _NUMPY_DTYPES}.get(kind, {})
    dtype = dtypes.get(int(code)) if code.isdigit() else None
    if dtype is None:
        raise BadData(f"{path}: the items hold {formats[name]}, expected rows of whole numbers")
    if start.startswith(litdata.FRAMED_MAGIC):
        content = litdata.unframed(path, content)
    column = described.names.index(name)
    for values in litdata.items(path, content, described):
        yield _array(path, values[column], dtype)


def _mds_documents(path: str, content: ByteStream, layout: TokenLayout) -> Iterator[Tokens]:
    shard = mds.open_shard(path, content)
    encodings = {column.name: column.encoding for column in shard.columns}
    name = next((name for name in _TOKEN_COLUMNS if name in encodings), next(iter(encodings)))
    kind, _, parameters = encodings[name].partition(":")
    dtype, _, shape = parameters.partition(":")
    if kind not in ("ndarray", "bytes") or (dtype and dtype not in DTYPES):
        raise BadData(f"{path}: column {name!r} is of type {encodings[name]}, expected whole numbers", "is it a shard of tokens?")
    if kind == "bytes" and layout.dtype is None:
        raise UsageError(
            f"{path}: column {name!r} is of bytes: nothing says of which type", "--dtype int64, as llm-foundry writes"
        )
    for values in mds.samples(path, content, shard, [name]):
        value = values[name]
        if kind == "bytes":
            yield _array(path, value, layout.dtype or "")
            continue
        document_dtype = dtype or _MDS_DTYPES.get(value[0] if value else 0, "")
        at = 0 if dtype else 1
        if not shape and at < len(value):
            # A byte with the number of dimensions and the width of each.
            at += 1 + (value[at] >> 2) * (1 << (value[at] & 3))
        if not document_dtype:
            raise BadData(f"{path}: column {name!r} has other values than whole numbers")
        yield _array(path, value[at:], document_dtype)


def _array(path: str, content: bytes, dtype: str) -> Tokens:
    if len(content) % np.dtype(dtype).itemsize:
        raise BadData(f"{path}: a document of {len(content)} bytes, no multiple of a token of {dtype}", "is --dtype right?")
    return np.frombuffer(content, dtype)


def _joined(documents: Iterator[Tokens]) -> Iterator[TokenBlock]:
    waiting: list[Tokens] = []
    size_bytes = 0
    for document in documents:
        waiting.append(document)
        size_bytes += document.nbytes
        if size_bytes >= _BLOCK_BYTES:
            yield _block(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield _block(waiting)


def _block(documents: list[Tokens]) -> TokenBlock:
    return TokenBlock(np.concatenate(documents), np.cumsum([len(document) for document in documents], dtype=np.int64))
