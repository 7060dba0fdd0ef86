"""Is a converted checkpoint as it was written, and do two checkpoints hold the same model?

The first reads every byte again and compares it with the checksums that the conversion left. The second compares configuration
first, because a wrong RoPE factor changes no tensor and shows in no greedy token, then every tensor bit by bit, in any two
formats.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Any

from lt_convert.commands import logit_comparison
from lt_convert.commands.conversion import check_copies
from lt_convert.commands.receipt import ConversionRecord
from lt_convert.formats import location
from lt_convert.formats.checkpoint import Source
from lt_convert.tensors.blocks import Blocks, flat, row_blocks
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.mapping import PADDING
from lt_shared.console import BadData, NoInput, Progress
from lt_shared.manifest import absolute

READ_BYTES = 16 << 20
# What may differ between two formats of one model: its name, and what matters for training alone.
IMMATERIAL = ("name", "init_std", "moe_aux_loss_coeff")


def verify(directory: str) -> dict[str, Any]:
    """Read a converted checkpoint again. `problems` names what is missing or has changed, and is empty if nothing has.

    Raises NoInput when there are no checksums.
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
                found = files.size_bytes(path)
            except (BadData, NoInput):
                problems.append(f"{path}: missing")
                continue
            if found != size:
                problems.append(f"{path}: {found} bytes, expected {size}")
                continue
            for piece in checksums.pieces.get(name, ()):
                digest = hashlib.sha256()
                for start in range(piece.offset, piece.offset + piece.length, READ_BYTES):
                    length = min(READ_BYTES, piece.offset + piece.length - start)
                    digest.update(files.read(path, start, length))
                    progress.advance(length)
                if digest.hexdigest() != piece.sha256:
                    what = piece.tensor or f"bytes {piece.offset} to {piece.offset + piece.length}"
                    problems.append(f"{path}: {what} changed since it was written")
    return {
        "path": absolute(directory),
        "files": len(checksums.sizes),
        "bytes": sum(checksums.sizes.values()),
        "problems": problems,
    }


def compare(one: str, other: str, logits: bool = False) -> dict[str, Any]:
    """Compare two checkpoints: `configuration` and `tensors` hold what differs, `same` says whether nothing does.

    With `logits`, what both compute is compared too (`logit_comparison`).
    """
    with Files() as files:
        first, second = _open(one, files), _open(other, files)
        configuration = _configuration(first, second)
        progress_bytes = sum(tensor.size_bytes for tensor in first.tensors.values())
        with Progress("compare", progress_bytes, "B") as progress:
            differing = list(_differing(first, second, files, progress))
    record = {
        "a": absolute(first.directory),
        "b": absolute(second.directory),
        "formats": [first.format, second.format],
        "configuration": configuration,
        "compared": len({name for name in (*first.tensors, *second.tensors) if not name.startswith(PADDING)}),
        "tensors": differing,
        "same": not configuration and not differing,
    }
    if logits:
        computed = logit_comparison.compare(first.directory, second.directory)
        record |= {"logits": computed, "same": record["same"] and computed["same"]}
    return record


def _open(argument: str, files: Files) -> Source:
    source = location.open_source(argument, files)
    check_copies(source, files)
    return source


def _configuration(one: Source, other: Source) -> list[dict[str, Any]]:
    first, second = (dataclasses.asdict(source.model.architecture) for source in (one, other))
    found = [
        {"field": field, "a": first[field], "b": second[field]}
        for field in first
        if field not in IMMATERIAL and first[field] != second[field]
    ]
    tokenizers = [source.tokenizer.sha256() if source.tokenizer else None for source in (one, other)]
    if None not in tokenizers and tokenizers[0] != tokenizers[1]:
        found.append({"field": "tokenizer", "a": tokenizers[0], "b": tokenizers[1]})
    return found


def _differing(one: Source, other: Source, files: Files, progress: Progress) -> Iterator[dict[str, Any]]:
    """A record for each tensor that is not the same; padding rows, which mean nothing, are not compared."""
    names = dict.fromkeys(name for source in (one, other) for name in source.tensors if not name.startswith(PADDING))
    for name in names:
        first, second = one.tensors.get(name), other.tensors.get(name)
        if first is None or second is None:
            yield {"name": name, "difference": f"only in {'b' if first is None else 'a'}"}
        elif first.shape != second.shape:
            yield {"name": name, "difference": f"{list(first.shape)} and {list(second.shape)}"}
        elif (found := _difference(first, second, files, progress)) is not None:
            yield {"name": name, **found}


def _difference(first: Tensor, second: Tensor, files: Files, progress: Progress) -> dict[str, Any] | None:
    """None when the bits are the same. Of different dtypes the values are compared, as float32."""
    import numpy

    same_dtype = first.dtype == second.dtype
    one, other = Blocks(files), Blocks(files)
    largest, unequal = 0.0, 0
    for start, stop in row_blocks(flat(first)):
        if same_dtype:
            left, right = one.rows(flat(first), start, stop), other.rows(flat(second), start, stop)
            progress.advance(left.nbytes)
            if (left == right).all():
                continue
            unequal += int((left != right).sum())
        casts = (flat(tensor.cast("float32")) for tensor in (first, second))
        values = [blocks.rows(cast, start, stop).view(numpy.float32) for blocks, cast in zip((one, other), casts, strict=True)]
        with numpy.errstate(invalid="ignore"):
            differences = numpy.abs(values[0].astype(numpy.float64) - values[1])
        unequal += 0 if same_dtype else int((differences != 0).sum())
        largest = max(largest, float(numpy.nan_to_num(differences, nan=math.inf).max(initial=0.0)))
    if same_dtype and not unequal:
        return None
    return {
        "difference": "values" if same_dtype else f"{first.dtype} and {second.dtype}",
        "unequal": unequal,
        "of": math.prod(first.shape),
        "largest": largest,
    }


def lines(record: dict[str, Any]) -> Iterator[str]:
    """A record of `verify` or `compare` for people."""
    if "problems" in record:
        yield from record["problems"]
        state = f"{len(record['problems'])} problems" if record["problems"] else "as written"
        yield f"{record['path']}: {record['files']} files, {record['bytes'] / 1e9:,.3f} GB: {state}"
        return
    for entry in record["configuration"]:
        yield f"configuration: {entry['field']} is {entry['a']} in a, {entry['b']} in b"
    for entry in record["tensors"]:
        share = (
            f": {entry['unequal']:,} of {entry['of']:,} differ, by {entry['largest']:.3g} at most" if "unequal" in entry else ""
        )
        yield f"{entry['name']}: {entry['difference']}{share}"
    if "logits" in record:
        found = record["logits"]
        yield f"logits at {found['positions']:,} positions: largest difference {found['largest']:.3g} of {found['scale']:.3g}"
    differ = f"{len(record['tensors'])} of {record['compared']} tensors differ"
    if not record["tensors"]:
        differ = "the configurations differ" if record["configuration"] else "the logits differ"
    state = "the same model" if record["same"] else differ
    yield f"a {record['a']} ({record['formats'][0]}), b {record['b']} ({record['formats'][1]}): {state}"
