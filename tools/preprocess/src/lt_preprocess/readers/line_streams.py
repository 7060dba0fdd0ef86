"""Inputs that can only be read from their beginning: compressed files, pipes. The thread that makes chunks reads them.

Memory is bounded by the chunk size and the longest line.
"""

from collections.abc import Iterator

from lt_preprocess.readers import chunks
from lt_preprocess.readers.byte_ranges import BYTE_ORDER_MARK
from lt_preprocess.readers.chunks import Position
from lt_preprocess.readers.jsonl import MemoryChunk


def skipped(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The parts without the first `size` bytes."""
    for part in parts:
        if size < len(part):
            yield part[size:] if size else part
        size = max(0, size - len(part))


def line_chunks(source: str, parts: Iterator[bytes], start: Position) -> Iterator[MemoryChunk]:
    """Chunks of whole lines, about CHUNK_BYTES each, or one longer line. The last line needs no line break.

    `parts` are the content from `start` on. Raises BadData for a line of more than LONGEST_LINE_BYTES.
    """
    waiting = bytearray()
    position = start
    searched = 0
    for part in parts:
        waiting += part
        if position.offset == 0:
            if BYTE_ORDER_MARK.startswith(waiting) and len(waiting) < len(BYTE_ORDER_MARK):
                continue
            if waiting.startswith(BYTE_ORDER_MARK):
                del waiting[: len(BYTE_ORDER_MARK)]
                position = position._replace(offset=len(BYTE_ORDER_MARK))
        while len(waiting) >= chunks.CHUNK_BYTES:
            end = waiting.rfind(b"\n", searched, chunks.CHUNK_BYTES) + 1
            if not end:
                end = waiting.find(b"\n", max(searched, chunks.CHUNK_BYTES)) + 1
            if not end:
                searched = len(waiting)
                break
            chunk = MemoryChunk.of(source, bytes(memoryview(waiting)[:end]), position)
            del waiting[:end]
            searched = 0
            position = chunk.end
            yield chunk
        if len(waiting) > chunks.LONGEST_LINE_BYTES:
            raise chunks.line_too_long(source, position.line, position.offset)
    if waiting and not (position.offset == 0 and waiting == BYTE_ORDER_MARK):
        yield MemoryChunk.of(source, bytes(waiting), position)
