"""Divide the planned files among several processes: each part writes a contiguous range of every kind of tensors.

The planned tensors stand in a row for each kind (copied, cast, dequantized, quantized, transposed), in the order of the files. A
row is cut where each part reads the same number of bytes from the source, so that the parts take the same processor time, too. A
cut lies between two tensors if one is near enough, and between two rows of a tensor otherwise. Every process computes the same
division from the same plan.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from lt_convert.tensors.block_fp8 import BLOCK, BlockFp8
from lt_convert.tensors.blocks import is_read_at_once, is_transposed
from lt_convert.tensors.output_files import OutputFile, Payload, Segment, size_of, views_of_segments
from lt_convert.tensors.tensor import Tensor

# A cut may be this share of a part away from the exact place.
TOLERANCE = 0.01
# Zeros and the like, which are written and not read, count as this many bytes fewer.
UNREAD = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A segment, or some rows of a tensor, at `offset` of the file `name`."""

    name: str
    offset: int
    segment: Segment


def divide(outputs: Sequence[OutputFile], count: int) -> list[list[Entry]]:
    """Divide the files with tensors into `count` parts; a part may be empty."""
    rows: dict[tuple[bool, ...], list[Entry]] = {}
    order: dict[str, int] = {}
    for output in (output for output in outputs if output.has_tensors):
        order[output.name] = len(order)
        # A header goes with the tensor before it.
        row = next(_kind(segment) for segment in output.segments if isinstance(segment, Payload))
        for offset, segment in output.segments_at():
            row = _kind(segment) if isinstance(segment, Payload) else row
            rows.setdefault(row, []).append(Entry(output.name, offset, segment))
    divided = [_divide_row(entries, count) for entries in rows.values()]
    return [
        sorted((entry for parts in divided for entry in parts[number]), key=lambda entry: (order[entry.name], entry.offset))
        for number in range(count)
    ]


def _kind(payload: Payload) -> tuple[bool, ...]:
    """Tell how a tensor is computed: a byte that is quantized takes three times the processor time of a byte that is copied."""
    tensor = payload.tensor
    if isinstance(tensor, BlockFp8):
        return (True,)
    is_matrix = any(chunk.view and is_transposed(chunk.view) for chunk in tensor.chunks)
    return bool(tensor.encodings), tensor.dtype != tensor.stored_dtype, is_matrix


def _divide_row(entries: Sequence[Entry], count: int) -> list[list[Entry]]:
    """Cut a row of entries into consecutive parts."""
    share = sum(map(_weight, entries)) / count
    parts: list[list[Entry]] = [[] for _ in range(count)]
    waiting, number, position = [*entries][::-1], 0, 0.0
    while waiting:
        entry = waiting.pop()
        weight = _weight(entry)
        room = share * (number + 1) - position
        if number == count - 1 or weight <= room + share * TOLERANCE:
            parts[number].append(entry)
            position += weight
            continue
        if room <= share * TOLERANCE:
            waiting.append(entry)
            number += 1
            continue
        before, after = _cut(entry, room / weight, share * TOLERANCE / weight)
        if after:
            parts[number] += before
            waiting += after[::-1]
            position += sum(map(_weight, before))
            number += 1
        elif room < weight / 2 and parts[number]:
            waiting.append(entry)
            number += 1
        else:
            parts[number].append(entry)
            position += weight
    return parts


def views(outputs: Sequence[OutputFile], count: int) -> list[list[tuple[str, int, int]]]:
    """Return the source ranges that each part reads."""
    return [list(views_of_segments(entry.segment for entry in entries)) for entries in divide(outputs, count)]


def to_record(entries: Sequence[Entry]) -> dict[str, Any]:
    """Describe a part: how many bytes the part reads and writes, and its ranges in every file."""
    ranges: list[dict[str, Any]] = []
    for entry in entries:
        if not ranges or (ranges[-1]["name"], ranges[-1]["end"]) != (entry.name, entry.offset):
            ranges.append({"name": entry.name, "begin": entry.offset, "end": entry.offset})
        ranges[-1]["end"] += size_of(entry.segment)
    return {
        "read_bytes": sum(_read_bytes(entry.segment) for entry in entries),
        "bytes": sum(size_of(entry.segment) for entry in entries),
        "files": ranges,
    }


def _weight(entry: Entry) -> float:
    if not isinstance(entry.segment, Payload):
        return 0.0
    return _read_bytes(entry.segment) + entry.segment.size_bytes / UNREAD


def _read_bytes(segment: Segment) -> int:
    return sum(map(_stored_bytes, segment.read)) if isinstance(segment, Payload) else 0


def _stored_bytes(tensor: Tensor) -> int:
    return sum(math.prod(chunk.view.shape) * chunk.view.item_bytes(tensor.stored_dtype) for chunk in tensor.chunks if chunk.view)


def _cut(entry: Entry, fraction: float, grain: float) -> tuple[list[Entry], list[Entry]]:
    """Cut an entry at about `fraction` of its bytes, at most `grain` off; the second list is empty if it cannot be cut."""
    payload = entry.segment
    if not isinstance(payload, Payload):
        return [entry], []
    before: Sequence[Tensor | BlockFp8]
    after: Sequence[Tensor | BlockFp8]
    if isinstance(payload.tensor, BlockFp8):
        before, after = _cut_blocks(payload.tensor, fraction)
    elif is_read_at_once(payload.tensor):
        return [entry], []
    else:
        before, after = _cut_rows(payload.tensor, fraction, grain)
    if not before or not after:
        return [entry], []
    pieces = list(_placed(entry, [*before, *after]))
    return pieces[: len(before)], pieces[len(before) :]


def _placed(entry: Entry, tensors: Sequence[Tensor | BlockFp8]) -> Iterator[Entry]:
    assert isinstance(entry.segment, Payload)
    offset = entry.offset
    for tensor in tensors:
        yield Entry(entry.name, offset, Payload(entry.segment.name, tensor))
        offset += tensor.size_bytes


def _cut_rows(tensor: Tensor, fraction: float, grain: float) -> tuple[list[Tensor], list[Tensor]]:
    axis = next((number for number, size in enumerate(tensor.shape) if size > 1), None)
    if axis is None:
        return [tensor], []
    rows = tensor.shape[axis]
    is_last = math.prod(tensor.shape[axis + 1 :]) == 1
    if rows * grain >= 1 or is_last:
        row = round(fraction * rows)
        return _nonempty(tensor, axis, range(row)), _nonempty(tensor, axis, range(row, rows))
    row = min(int(fraction * rows), rows - 1)
    before, after = _cut_rows(tensor.take(axis, range(row, row + 1)), fraction * rows - row, grain * rows)
    return [*_nonempty(tensor, axis, range(row)), *before], [*after, *_nonempty(tensor, axis, range(row + 1, rows))]


def _nonempty(tensor: Tensor, axis: int, indices: range) -> list[Tensor]:
    return [tensor.take(axis, indices)] if indices else []


def _cut_blocks(tensor: BlockFp8, fraction: float) -> tuple[list[BlockFp8], list[BlockFp8]]:
    """Cut between two rows of blocks: a block has one scale."""
    rows = tensor.source.shape[0]
    row = round(fraction * rows / BLOCK) * BLOCK
    before, after = (
        [dataclasses.replace(tensor, source=source) for source in _nonempty(tensor.source, 0, indices)]
        for indices in (range(row), range(row, rows))
    )
    return before, after
