"""Is a converted checkpoint as it was written? Every byte is read again and compared with the conversion's checksums."""

from collections.abc import Iterator
from typing import Any

from lt_convert.engine.receipt import ConversionRecord
from lt_convert.tensors.checksums import Checksums, new_hash
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput, Progress
from lt_shared.contracts.manifest import absolute

READ_BYTES = 16 << 20


def verify(directory: str) -> dict[str, Any]:
    """Read a converted checkpoint again. `problems` in the result names every missing or changed file.

    Raises NoInput if the checkpoint has no checksums.
    """
    directory = directory.rstrip("/")
    record = ConversionRecord.read(directory)
    if record is None:
        raise NoInput(
            f"{directory}/{Checksums.RECORD}: no such file",
            "only conversions have checksums; compare two checkpoints with lt-convert verify A B",
        )
    checksums = record.files
    problems = []
    with Files() as files, Progress("verify", sum(checksums.sizes.values()), "B") as progress:
        for name, size in checksums.sizes.items():
            path = f"{directory}/{name}"
            try:
                size_bytes = files.size_bytes(path)
            except (BadData, NoInput):
                problems.append(f"{path}: missing")
                continue
            if size_bytes != size:
                problems.append(f"{path}: {size_bytes} bytes, expected {size}")
                continue
            for piece in checksums.pieces.get(name, ()):
                hasher = new_hash(piece.digest)
                for start in range(piece.offset, piece.offset + piece.length, READ_BYTES):
                    length = min(READ_BYTES, piece.offset + piece.length - start)
                    hasher.update(files.read(path, start, length))
                    progress.advance(length)
                if hasher.hexdigest() != piece.digest:
                    what = piece.tensor or f"bytes {piece.offset} to {piece.offset + piece.length}"
                    problems.append(f"{path}: {what} changed since it was written")
    return {
        "path": absolute(directory),
        "files": len(checksums.sizes),
        "bytes": sum(checksums.sizes.values()),
        "problems": problems,
    }


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The result of `verify` as text."""
    yield from record["problems"]
    state = f"{len(record['problems'])} problems" if record["problems"] else "as written"
    yield f"{record['path']}: {record['files']} files, {record['bytes'] / 1e9:,.3f} GB: {state}"
