"""Describe a checkpoint: format, architecture, size and training."""

import math
import os
from typing import IO, Any

from lt_convert.commands import plan_table
from lt_convert.engine import ledger
from lt_convert.engine.receipt import MERGED, ConversionRecord
from lt_convert.formats import location
from lt_convert.formats.checkpoint import Source
from lt_convert.tensors.blocks import TensorReader, flat
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor
from lt_convert.weights.mapping import PADDING
from lt_shared.console import NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import absolute
from lt_shared.files import storage

SAMPLE_ROWS = 256


def inspect(argument: str) -> dict[str, Any]:
    """A record of the checkpoint. Raises as the format's `open_source`, and NoInput while some parts are not converted."""
    unfinished = ledger.pending(argument) if not storage.is_remote(argument) and not os.path.lexists(argument) else []
    if unfinished:
        raise NoInput(
            f"{argument}: not finished: {ledger.abbreviated(unfinished)}", "run these parts: lt-convert ... --shard I/N"
        )
    with Files() as files:
        source = location.open_source(argument, files)
        tensors = {key: tensor for key, tensor in source.tensors.items() if not key.startswith(PADDING)}
        deviations = _deviations(source, files)
        record = _record(source.directory)
    architecture = source.model.architecture
    dtypes: dict[str, int] = {}
    for tensor in tensors.values():
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + math.prod(tensor.shape)
    return {
        "path": absolute(source.directory),
        "format": source.format,
        "architecture": architecture.to_record(),
        "parameters": architecture.parameters(),
        "padded_vocab_size": source.model.padded_vocab_size,
        "dtypes": dtypes,
        "bytes": sum(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in tensors.values()),
        "tensors": len(tensors),
        "iteration": record.iteration if source.iteration is None and record else source.iteration,
        "loss": source.loss,
        "trained": _trained(deviations, architecture.init_std),
        "standard_deviations": deviations,
        "quantization": source.quantization or None,
        "optimizer": sorted(source.optimizer.tensors) if source.optimizer else None,
        "averages": source.averages is not None,
        "training_state_keys": len(source.left_out),
        "tokenizer": (
            {"name": source.tokenizer.name, "kind": source.tokenizer.kind, "sha256": source.tokenizer.sha256()}
            if source.tokenizer
            else None
        ),
        **({MERGED: record.merged} if record and record.merged else {}),
        **source.details,
    }


def _record(directory: str) -> ConversionRecord | None:
    """Read the record that a conversion or a merge left beside its result, or in the directory of the run."""
    run, _, name = directory.rpartition("/")
    return ConversionRecord.read(run if name == checkpoint_layout.RELEASE else directory)


def _deviations(source: Source, files: Files) -> dict[str, float]:
    """Standard deviations of the first rows of the embedding, and of the final norm."""
    blocks = TensorReader(files)
    names = list(source.tensors)
    norm = next((name for name in reversed(names) if len(source.tensors[name].shape) == 1), names[-1])
    return {name: _deviation(source.tensors[name], blocks) for name in (names[0], norm)}


def _deviation(tensor: Tensor, blocks: TensorReader) -> float:
    import numpy

    rows = flat(tensor.cast("float32"))
    values = blocks.rows(rows, 0, min(SAMPLE_ROWS, rows.shape[0])).view(numpy.float32)
    return float(values.astype(numpy.float64).std())


def _trained(deviations: dict[str, float], init_std: float) -> bool:
    """Whether the model was trained: initial norms are all ones, and the embedding's standard deviation is `init_std`."""
    embedding, norm = deviations.values()
    return norm > 1e-6 or abs(embedding / init_std - 1) > 0.1


def write_table(record: dict[str, Any], output: IO[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    architecture = record["architecture"]
    scaling = architecture["rope_scaling"]
    tokenizer = record["tokenizer"]
    attention = f"{architecture['num_attention_heads']} heads of {architecture['kv_channels']}"
    if architecture["num_query_groups"] != architecture["num_attention_heads"]:
        attention += f", {architecture['num_query_groups']} for keys and values"
    rows = {
        "path": record["path"],
        "format": record["format"],
        "parameters": f"{record['parameters']:,}",
        "tensors": f"{record['tensors']:,}, {record['bytes'] / 1e9:,.3f} GB",
        "dtype": ", ".join(
            f"{dtype} ({count:,})" if len(record["dtypes"]) > 1 else dtype for dtype, count in record["dtypes"].items()
        ),
        "stored as": record["quantization"],
        "layers": str(architecture["num_layers"]),
        "hidden size": f"{architecture['hidden_size']:,}, feed-forward {architecture['ffn_hidden_size']:,}",
        "attention": attention,
        "experts": architecture["num_experts"]
        and f"{architecture['num_experts']}, {architecture['moe_router_topk']} for a token",
        "vocabulary": f"{architecture['vocab_size']:,}, padded to {record['padded_vocab_size']:,}",
        "positions": f"{architecture['max_position_embeddings']:,}",
        "rope": architecture["family"] == "llama"
        and f"base {architecture['rotary_base']:,.0f}" + (f", scaled by {scaling['factor']:g}" if scaling else ""),
        "tied embeddings": "yes" if architecture["tie_embeddings"] else "no",
        "iteration": record["iteration"] is not None and f"{record['iteration']:,}",
        "loss": record["loss"] is not None and f"{record['loss']:.4f}",
        "merged from": "\n".join(
            (f"{one['weight']:.4g} of " if "weight" in one else "") + one["path"] for one in record.get(MERGED, ())
        ),
        "ever trained": "yes" if record["trained"] else "no: the weights are as initialized",
        "parallel": ", ".join(f"{name.replace('_', ' ')} {size}" for name, size in record.get("parallel", {}).items()),
        "consumed samples": record.get("consumed_samples") and f"{record['consumed_samples']:,}",
        "optimizer": record["optimizer"] and ", ".join(record["optimizer"]),
        "averaged weights": "yes: --ema converts and merges them" if record["averages"] else None,
        "tokenizer": f"{tokenizer['name']} ({tokenizer['kind']}, {tokenizer['sha256'][:12]})" if tokenizer else "none",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        if value:
            # Text, because rich would take brackets in a name for its mark-up.
            table.add_row(name, Text(value))
    plan_table.print_to(output, table)
