"""Do two checkpoints, of any formats, hold the same model?

The configuration is compared first, because a wrong RoPE scaling changes no tensor and no greedy token at short positions; then
every tensor bit by bit.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from lt_convert.commands import logit_comparison
from lt_convert.commands.conversion import check_aliases
from lt_convert.formats import location
from lt_convert.formats.checkpoint import Source
from lt_convert.tensors.blocks import TensorReader, parts, row_blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.mapping import PADDING
from lt_shared.console import Progress
from lt_shared.contracts.manifest import absolute

# Fields that may differ between formats: the name, and fields that only training uses.
NOT_COMPARED = ("name", "init_std", "moe_aux_loss_coeff")


def compare(one: str, other: str, logits: bool = False) -> dict[str, Any]:
    """Compare two checkpoints: `configuration` and `tensors` have the differences, `same` is true if there are none.

    With `logits`, their logits are compared, too (`logit_comparison`).
    """
    with Files() as files:
        first, second = _open(one, files), _open(other, files)
        configuration = configuration_differences(first, second)
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
    check_aliases(source, files)
    return source


def configuration_differences(one: Source, other: Source) -> list[dict[str, Any]]:
    first, second = (dataclasses.asdict(source.model.architecture) for source in (one, other))
    differences = [
        {"field": field, "a": first[field], "b": second[field]}
        for field in first
        if field not in NOT_COMPARED and first[field] != second[field]
    ]
    tokenizers = [source.tokenizer.sha256() if source.tokenizer else None for source in (one, other)]
    if None not in tokenizers and tokenizers[0] != tokenizers[1]:
        differences.append({"field": "tokenizer", "a": tokenizers[0], "b": tokenizers[1]})
    return differences


def _differing(one: Source, other: Source, files: Files, progress: Progress) -> Iterator[dict[str, Any]]:
    """A record for each tensor that differs; padding rows, which no token uses, are not compared."""
    names = dict.fromkeys(name for source in (one, other) for name in source.tensors if not name.startswith(PADDING))
    for name in names:
        first, second = one.tensors.get(name), other.tensors.get(name)
        if first is None or second is None:
            yield {"name": name, "difference": f"only in {'b' if first is None else 'a'}"}
        elif first.shape != second.shape:
            yield {"name": name, "difference": f"{list(first.shape)} and {list(second.shape)}"}
        elif (difference := _difference(first, second, files, progress)) is not None:
            yield {"name": name, **difference}


def _difference(first: Tensor, second: Tensor, files: Files, progress: Progress) -> dict[str, Any] | None:
    """None when the bits are equal. Tensors of different dtypes are compared by value, as float32."""
    import numpy

    same_dtype = first.dtype == second.dtype
    one, other = TensorReader(files), TensorReader(files)
    max_difference, unequal = 0.0, 0
    for part, its in parts(first, second):
        for start, stop in row_blocks(part):
            if same_dtype:
                first_rows, second_rows = one.rows(part, start, stop), other.rows(its, start, stop)
                progress.advance(first_rows.nbytes)
                if (first_rows == second_rows).all():
                    continue
                unequal += int((first_rows != second_rows).sum())
            casts = (tensor.cast("float32") for tensor in (part, its))
            values = [
                blocks.rows(cast, start, stop).view(numpy.float32) for blocks, cast in zip((one, other), casts, strict=True)
            ]
            with numpy.errstate(invalid="ignore"):
                differences = numpy.abs(values[0].astype(numpy.float64) - values[1])
            unequal += 0 if same_dtype else int((differences != 0).sum())
            max_difference = max(max_difference, float(numpy.nan_to_num(differences, nan=math.inf).max(initial=0.0)))
    if same_dtype and not unequal:
        return None
    return {
        "difference": "values" if same_dtype else f"{first.dtype} and {second.dtype}",
        "unequal": unequal,
        "of": math.prod(first.shape),
        "largest": max_difference,
    }


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The result of `compare` as text."""
    for entry in record["configuration"]:
        yield f"configuration: {entry['field']} is {entry['a']} in a, {entry['b']} in b"
    for entry in record["tensors"]:
        share = (
            f": {entry['unequal']:,} of {entry['of']:,} differ, by {entry['largest']:.3g} at most" if "unequal" in entry else ""
        )
        yield f"{entry['name']}: {entry['difference']}{share}"
    if "logits" in record:
        logits = record["logits"]
        yield f"logits at {logits['positions']:,} positions: largest difference {logits['largest']:.3g} of {logits['scale']:.3g}"
    differ = f"{len(record['tensors'])} of {record['compared']} tensors differ"
    if not record["tensors"]:
        differ = "the configurations differ" if record["configuration"] else "the logits differ"
    state = "the same model" if record["same"] else differ
    yield f"a {record['a']} ({record['formats'][0]}), b {record['b']} ({record['formats'][1]}): {state}"
