"""Safetensors files, and the slices of tensors that the ranks of a run wrote.

A safetensors file is eight bytes of header length, a JSON header, then the values of every tensor. The safetensors library is not
used: it reads whole tensors, and to write a file it needs all of its tensors in memory.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence

from lt_convert.formats.huggingface.weight_quantization import Written
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor, assemble, tensor_in_files
from lt_shared.console import BadData
from lt_shared.files import strict_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5_000_000_000
MAXIMUM_HEADER_BYTES = 100_000_000

# The causal masks in GPT-2 files are booleans or bytes.
_CODES = {
    "BOOL": "uint8",
    "U8": "uint8",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
}
SLICE = re.compile(r"shard-(?P<rank>\d{5})-model-\d{5}-of-(?P<count>\d{5})\.safetensors")
# Of the metadata in the header of a slice.
_SLICES_FIELD, _OFFSETS_FIELD = "DCP_SHARDING_INFO", "saved_offsets"
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}


def joined_slices(directory: str, stored: Sequence[str], files: Files) -> dict[str, Tensor]:
    """Join tensors whose slices lie in several files: torch's HuggingFaceStorageWriter writes one file for each rank of a run.

    Raises BadData if the slices do not cover a tensor exactly once.
    """
    counts = {match["count"] for name in stored if (match := SLICE.fullmatch(name))}
    pieces: dict[str, list[tuple[tuple[int, ...], Tensor]]] = {}
    for name in stored:
        path = f"{directory}/{name}"
        tensors, described = read_described(path, files)
        try:
            info = dict(strict_json.loads(described.get(_SLICES_FIELD, "{}")))
            origins = {key: [0] * len(tensor.shape) for key, tensor in tensors.items()}
            offsets = {key: tuple(info[key][_OFFSETS_FIELD] if key in info else origin) for key, origin in origins.items()}
            if not all(type(offset) is int and offset >= 0 for numbers in offsets.values() for offset in numbers):
                raise ValueError("an offset is no natural number")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadData(f"{path}: its {_SLICES_FIELD} is malformed: {error}") from None
        for key, tensor in tensors.items():
            if len(offsets[key]) != len(tensor.shape):
                raise BadData(f"{path}: {key} has {len(tensor.shape)} axes, and {len(offsets[key])} offsets")
            pieces.setdefault(key, []).append((offsets[key], tensor))
    ranks = sorted({match["rank"] for name in stored if (match := SLICE.fullmatch(name))})
    if len(counts) > 1 or [int(rank) for rank in ranks] != list(range(1, len(ranks) + 1)):
        raise BadData(f"{directory}: slices of ranks {', '.join(ranks)}: one is missing, or they are of two models", INCOMPLETE)
    return {key: _whole(directory, key, slices) for key, slices in pieces.items()}


def _whole(directory: str, name: str, slices: Sequence[tuple[tuple[int, ...], Tensor]]) -> Tensor:
    axes = len(slices[0][0])
    if any(len(offsets) != axes or tensor.dtype != slices[0][1].dtype for offsets, tensor in slices):
        raise BadData(f"{directory}: the slices of {name} differ in dtype or number of axes")
    shape = tuple(max(offsets[axis] + tensor.shape[axis] for offsets, tensor in slices) for axis in range(axes))
    # Several ranks may have saved the same slice.
    distinct = {(offsets, tensor.shape): (offsets, tensor) for offsets, tensor in slices}
    filled = [
        (tuple(range(first, first + size) for first, size in zip(offsets, tensor.shape, strict=True)), tensor)
        for offsets, tensor in distinct.values()
    ]
    tensor = assemble(name, shape, filled).named(name)
    try:
        tensor.check_cover()
    except BadData as error:
        raise BadData(f"{directory}: {error}", INCOMPLETE) from None
    return tensor


def read_file(path: str, files: Files) -> dict[str, Tensor]:
    """Locate the tensors of a file. Raises BadData if the header is malformed or does not describe the whole file."""
    return read_described(path, files)[0]


def read_described(path: str, files: Files) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Locate the tensors of a file, and read the metadata in its header. Raises as `read_file`."""
    file_bytes = files.size_bytes(path)
    if file_bytes < 8:
        raise BadData(f"{path}: not a safetensors file, or cut off inside its header")
    length = int.from_bytes(files.read(path, 0, 8), "little")
    if length > min(MAXIMUM_HEADER_BYTES, file_bytes - 8):
        raise BadData(f"{path}: not a safetensors file, or cut off inside its header")
    tensors: dict[str, Tensor] = {}
    ends = []
    try:
        encoded = files.read(path, 8, length)
        header = strict_json.loads(encoded)
        described = header.pop("__metadata__", {})
        is_text = type(described) is dict and all(type(text) is str for pair in described.items() for text in pair)
        if encoded[:1] != b"{" or not is_text:
            raise ValueError("it does not begin with {, or its metadata are not text")
        for name, entry in header.items():
            if set(entry) != {"dtype", "shape", "data_offsets"}:
                raise ValueError(f"{name} has other fields than dtype, shape and data_offsets")
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if not all(type(size) is int and size >= 0 for size in (start, stop, *shape)):
                raise BadData(f"{path}: {name} has a size or offset that is not a natural number")
            if entry["dtype"] not in _CODES:
                raise BadData(f"{path}: {name} is stored as {entry['dtype']}, known here are {', '.join(_CODES)}")
            dtype = _CODES[entry["dtype"]]
            if stop - start != math.prod(shape) * ITEM_BYTES[dtype]:
                raise BadData(f"{path}: {name} has {stop - start} bytes, which do not fit its shape {list(shape)}")
            tensors[name] = tensor_in_files(name, dtype, shape, [((0,) * len(shape), shape, path, 8 + length + start)])
            ends.append((start, stop, name))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: malformed safetensors header: {error}") from None
    end = 0
    for start, stop, name in sorted(ends):
        if start != end:
            raise BadData(f"{path}: {name} overlaps another tensor, or there is a gap before it")
        end = stop
    if file_bytes != 8 + length + end:
        raise BadData(f"{path}: {file_bytes} bytes, its header says {8 + length + end}", INCOMPLETE)
    return tensors, described


def model_files(tensors: Mapping[str, Written]) -> list[OutputFile]:
    """`tensors` in their order as one file, or as shards of about `SHARD_BYTES` with an index after them."""
    shards: list[dict[str, Written]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.size_bytes > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.size_bytes
    if len(shards) == 1:
        return [file(SINGLE, shards[0])]
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
    total = sum(tensor.size_bytes for tensor in tensors.values())
    index = (json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2) + "\n").encode()
    return [*(file(name, shard) for name, shard in zip(names, shards, strict=True)), OutputFile(INDEX, (index,))]


def file(name: str, tensors: Mapping[str, Written]) -> OutputFile:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor_name, tensor in tensors.items():
        end = offset + tensor.size_bytes
        header[tensor_name] = {"dtype": _CODE_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    payloads = (Payload(tensor_name, tensor) for tensor_name, tensor in tensors.items())
    return OutputFile(name, (len(encoded).to_bytes(8, "little") + encoded, *payloads))
