"""TorchTitan: steps, validation, checkpoints and the lines around training, 2024 to 2026.

The logger's name is not matched, because it changed from `root` to the module. A staged checkpoint is still in memory; only
`Finished saving` means that it is on disk. These lines have no step: `LogParser` adds the last step.
"""

import ast

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import Field, Value, decimal
from lt_monitor.logs.line_parsers import StepLine, last_match, note, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import GIB, NUMBER

_STEP = regex(
    rb"(?P<validate>validate )?step: {0,8}(?P<step>\d{1,15}) {1,8}loss: {0,8}(?P<loss>" + NUMBER + rb")"
    rb"(?: {1,8}grad_norm: {0,8}(?P<grad_norm>" + NUMBER + rb"))?"
    rb" {1,8}memory: {0,8}(?P<memory>" + NUMBER + rb")GiB\( {0,8}(?P<share>" + NUMBER + rb")%\)"
    rb" {1,8}tps: {0,8}(?P<tps>" + NUMBER + rb")"
    rb"(?: {1,8}tflops: {0,8}(?P<tflops>" + NUMBER + rb"))?"
    rb"(?: {1,8}mfu: {0,8}(?P<mfu>" + NUMBER + rb")%?)?"
)
_SAVING = regex(rb"(?P<what>Saving|Staging) the checkpoint\b")
_SAVED = regex(rb"Finished (?P<what>saving|staging|loading) the checkpoint in (?P<seconds>[\d.]{1,20}) seconds")
_LOADING = regex(rb"Loading the checkpoint (?:from|at) (?P<path>\S{1,4096}?)\.?$")
_LAST_SAVED = regex(rb"Last step checkpoint completed in (?P<seconds>[\d.]{1,20})")
_STEP_IN_PATH = regex(rb"step-(\d{1,15})/?$")
_BEGINS = regex(rb"Training starts at step (?P<step>\d{1,15})")
_COMPLETED = regex(rb"- Training completed")
_RETRIES = regex(rb"(?P<count>\d{1,15}) CUDA memory allocation retries")
_ARGUMENTS = regex(rb"\b(?P<key>local batch size|global batch size|sequence length|total steps) (?P<value>\d{1,15})")
_CONFIGURATION = regex(rb"Running with (?:args|configs?): (?P<literal>\{.{1,60000}\})$")
_WORLD = regex(rb"Building \d-D device mesh with \[.{1,200}?\], \[(?P<sizes>[\d, ]{1,80})\]")
_PARAMETERS = regex(rb"size: (?P<parameters>[\d,]{1,20}) total parameters")

_FIELDS = {
    "step": Field("step", is_count=True),
    "loss": Field("loss"),
    "grad_norm": Field("grad_norm"),
    "memory": Field("memory_bytes", is_count=True, factor=float(GIB)),
    "share": None,
    "tps": Field("tokens_per_second_per_gpu"),
    "tflops": Field("tflops_per_gpu"),
    "mfu": Field("mfu", divisor=100.0),
}
_MEGATRON_NAMES = {
    b"local batch size": "micro_batch_size",
    b"global batch size": "global_batch_size",
    b"sequence length": "seq_length",
    b"total steps": "train_iters",
}
_CONFIGURED = {
    ("training", "local_batch_size"): "micro_batch_size",
    ("training", "batch_size"): "micro_batch_size",
    ("training", "global_batch_size"): "global_batch_size",
    ("training", "seq_len"): "seq_length",
    ("training", "steps"): "train_iters",
    ("parallelism", "tensor_parallel_degree"): "tensor_model_parallel_size",
    ("parallelism", "pipeline_parallel_degree"): "pipeline_model_parallel_size",
    ("parallelism", "context_parallel_degree"): "context_parallel_size",
    ("metrics", "log_freq"): "log_interval",
    ("checkpoint", "interval"): "save_interval",
    ("checkpoint", "folder"): "save",
    ("optimizer", "lr"): "lr",
}


def step(line: Line) -> StepLine | Record | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    values: list[Value] = [(field, *match.span(name)) for name, field in _FIELDS.items() if match[name] is not None]
    if match["validate"] is None:
        return StepLine([*values, *line.labels], match.start(), match.end())
    loss = _FIELDS["loss"]
    assert loss is not None
    record = {"kind": "eval", "step": int(match["step"]), "loss": loss.read(match["loss"]), "split": "validation"}
    for field, begin, end in values:
        if field is not None and field.name not in record:
            record[field.name] = field.read(line.text[begin:end])
    return record


def checkpoint(line: Line) -> Record | None:
    text = line.text
    if (match := _SAVED.search(text)) is not None:
        kind = "load" if match["what"] == b"loading" else "checkpoint"
        record = {"kind": kind, "seconds": decimal(match["seconds"])}
        return {**record, "asynchronous": True, "begun": True} if match["what"] == b"staging" else record
    if (match := _SAVING.search(text)) is not None:
        record = {"kind": "checkpoint", "begun": True}
        return {**record, "asynchronous": True} if match["what"] == b"Staging" else record
    if (match := _LOADING.search(text)) is not None:
        record = {"kind": "load", "begun": True, "path": match["path"].decode(errors="replace")}
        in_path = _STEP_IN_PATH.search(match["path"])
        return {**record, "step": int(in_path[1])} if in_path else record
    if (match := _LAST_SAVED.search(text)) is not None:
        return {"kind": "checkpoint", "seconds": decimal(match["seconds"])}
    return None


def lifecycle(line: Line) -> Record | None:
    text = line.text
    if (match := _BEGINS.search(text)) is not None:
        return {"kind": "start", "arguments": _sizes(text), "first_step": int(match["step"])}
    if b"Trainer is initialized with" in text:
        return {"kind": "start", "arguments": _sizes(text)}
    if _COMPLETED.search(text) is not None:
        return {"kind": "end", "reason": "completed"}
    if (match := _CONFIGURATION.search(text)) is not None:
        return _configuration(match["literal"])
    if (match := _WORLD.search(text)) is not None:
        world_size = 1
        for size in match["sizes"].split(b","):
            world_size *= int(size) if size.strip().isdigit() else 1
        return {"kind": "start", "arguments": {"world_size": world_size}} if world_size < 10**9 else None
    if (match := _RETRIES.search(text)) is not None:
        return note(line, "allocation-retries", {"count": int(match["count"])})
    if (match := _PARAMETERS.search(text)) is not None:
        return note(line, "parameters", {"parameters": int(match["parameters"].replace(b",", b""))})
    return None


def _sizes(text: bytes) -> Record:
    return {_MEGATRON_NAMES[match["key"]]: int(match["value"]) for match in _ARGUMENTS.finditer(text)}


def _configuration(literal: bytes) -> Record | None:
    """Parse the dump of the settings: a Python literal of nested dicts in one line."""
    try:
        settings = ast.literal_eval(literal.decode(errors="replace"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(settings, dict):
        return None
    arguments: Record = {}
    for (section, name), argument in _CONFIGURED.items():
        values = settings.get(section)
        value = values.get(name) if isinstance(values, dict) else None
        if isinstance(value, (int, float, str)) and not isinstance(value, bool) and value != -1:
            arguments[argument] = value
    return {"kind": "start", "arguments": arguments}
