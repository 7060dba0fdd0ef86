"""safetensors, read and written in blocks: eight bytes of header length, a JSON header, then the values of every tensor.

The library reads the same files; it is not used because it takes whole tensors, and for writing all tensors of a
file at once.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy

from lt_convert.tensors import DTYPES, Chunk, OpenFiles, StoredTensor, Tensor, row_blocks, size_bytes
from lt_shared import storage
from lt_shared.console import BadData

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5_000_000_000
MAXIMUM_HEADER_BYTES = 100_000_000
INCOMPLETE = "the checkpoint is incomplete: copy it again"

_CODES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}


def read_model(directory: Path, files: OpenFiles) -> dict[str, StoredTensor]:
    """All tensors of a model in one file or in shards with an index. Raises BadData for a missing or damaged file."""
    if not (directory / INDEX).is_file():
        if not (directory / SINGLE).is_file():
            raise BadData(f"{directory}: has neither {SINGLE} nor {INDEX}", "older .bin files must become safetensors first")
        return read_file(directory / SINGLE, files)
    try:
        weight_map = dict(json.loads((directory / INDEX).read_bytes())["weight_map"])
        shards = sorted(set(weight_map.values()))
        outside = [name for name in shards if Path(name).name != name]
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{directory / INDEX}: not an index of safetensors: {error}") from None
    if outside:
        raise BadData(f"{directory / INDEX}: names a file outside the directory: {outside[0]!r}")
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        found = read_file(directory / shard, files)
        repeated = sorted(set(found) & set(tensors))
        if repeated:
            raise BadData(f"{directory / shard}: {repeated[0]} is in another shard too")
        tensors |= found
    missing = sorted(set(weight_map) - set(tensors))
    if missing:
        raise BadData(f"{directory / weight_map[missing[0]]}: has no {missing[0]}, which the index promises")
    return tensors


def read_file(path: Path, files: OpenFiles) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises BadData when the header is malformed or the file has another size than it says."""
    if not path.is_file():
        raise BadData(f"{path}: missing", INCOMPLETE)
    file_bytes = path.stat().st_size
    length = int.from_bytes(files.read(path, 0, 8), "little")
    if length > min(MAXIMUM_HEADER_BYTES, file_bytes - 8):
        raise BadData(f"{path}: not a safetensors file, or cut off inside its header")
    tensors: dict[str, StoredTensor] = {}
    end = 0
    try:
        header = dict(json.loads(files.read(path, 8, length)))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            shape = tuple(int(size) for size in entry["shape"])
            if entry["dtype"] not in _CODES:
                raise BadData(f"{path}: {name} is stored as {entry['dtype']}, only {', '.join(_CODES)} are known here")
            dtype = _CODES[entry["dtype"]]
            if stop - start != math.prod(shape) * numpy.dtype(DTYPES[dtype]).itemsize or start < 0:
                raise BadData(f"{path}: {name} has {stop - start} bytes, which its shape {list(shape)} does not need")
            tensors[name] = StoredTensor(name, dtype, shape, [Chunk(path, 8 + length + start, (0,) * len(shape), shape)], files)
            end = max(end, stop)
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: malformed safetensors header: {error}") from None
    if file_bytes != 8 + length + end:
        raise BadData(f"{path}: {file_bytes} bytes, its header says {8 + length + end}", INCOMPLETE)
    return tensors


def write_model(directory: Path, tensors: Mapping[str, Tensor], advance: Callable[[int], None], shard_bytes: int) -> None:
    """Write `tensors` in their order as one file, or as shards of about `shard_bytes` with an index."""
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + size_bytes(tensor) > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += size_bytes(tensor)
    if len(shards) == 1:
        write_file(directory / SINGLE, shards[0], advance)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_file(directory / file_name, shard, advance)
        weight_map |= dict.fromkeys(shard, file_name)
    total = sum(size_bytes(tensor) for tensor in tensors.values())
    storage.write_bytes(
        directory / INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode()
    )


def write_file(path: Path, tensors: Mapping[str, Tensor], advance: Callable[[int], None]) -> None:
    """Write one file, calling `advance` with the bytes of every block."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + size_bytes(tensor)
        header[name] = {"dtype": _CODE_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with storage.publish(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            for start, stop in row_blocks(tensor):
                block = numpy.ascontiguousarray(tensor.read_rows(start, stop))
                file.write(block.data)
                advance(block.nbytes)
