"""Megatron-LM and what prints like it: lt-train, Megatron-Bridge, Primus, Megatron-DeepSpeed, GPT-NeoX, and other forks.

A step line is a list of `key: value |` pairs and is read by key, because releases and forks add, drop and respell keys. The loss
is absent if an iteration was skipped or its loss is not a number. `lt_shared.contracts.run_log` has the patterns of lines that
lt-train prints, too.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import TIME, Field, Value, decimal
from lt_monitor.logs.line_parsers import StepLine, fault, note, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts import recovery_notes, run_log
from lt_shared.data.sample_order import log_notes

_SAVING = regex(run_log.TIMESTAMP + rb"saving checkpoint at iteration {1,16}(?P<step>\d{1,15}) to (?P<path>.{1,4096})")
_SAVE_FORMAT = regex(rb" in (?P<format>\S{1,40}) format$")
_DOCUMENTS = regex(
    rb"Processed (?P<documents>\d{1,15}) documents \((?P<rate>[\d.e+]{1,40}) docs/s, (?P<megabytes>[\d.e+]{1,40}) MB/s\)"
)
_EXITING = regex(
    rb"exiting program (?:after receiving (?P<signal>SIG[A-Z0-9]{1,10})|at iteration (?P<step>\d{1,15})|after [\d.]{1,20} min)"
)
_DATETIME = regex(rb"\] datetime: (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_STARTED = regex(rb"\[after megatron is initialized\] datetime|time to initialize megatron \(seconds\): (?P<seconds>[\d.]{1,20})")
_TRAINING_STARTS = regex(rb"\[before the start of training step\] datetime")
_DONE = regex(rb"\[after training is done\] datetime")
_PARAMETERS = regex(
    rb"number of parameters on \(tensor, pipeline\) model parallel rank \((?P<tensor>\d{1,6}), (?P<pipeline>\d{1,6})\): "
    rb"(?P<parameters>\d{1,15})"
)
_MEMORY = regex(rb"\[Rank (?P<rank>\d{1,6})\] \(after (?P<step>\d{1,15}) iterations\) memory \(MB\) (?P<pairs>.{1,1000})")
_MEMORY_PAIR = regex(rb"\| {0,4}(?P<key>[a-z][a-z -]{1,40}): (?P<value>[\d.]{1,20})")
_STRAGGLER_PAIR = regex(rb"(?P<key>M[nx][A-Z][a-z]{2,4})/Rnk: (?P<value>[\d.]{1,20})[A-Za-z]{0,5}/(?P<rank>\d{1,6})")
_SLOWEST = regex(rb"Bottom (?P<count>\d{1,6}) Ranks with lowest Etpt\(TF\): (?P<ranks>.{1,1000})")
_BRIDGE = regex(rb"Step Time : (?P<seconds>[\d.]{1,20})s GPU utilization: (?P<tflops>[\d.]{1,20})(?:MODEL_)?TFLOP/s/GPU")
_NAN = regex(rb"found NaN in|Unexpected result nan|gradients were not finite in \d{1,9} steps in a row")
_RANK = regex(rb"\bRank (?P<rank>\d{1,6})\b")
_JOB_ID = regex(
    rb"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\tJob ID: (?P<job>[^\t]{0,40})\t# GPUs: (?P<gpus>\d{1,9})\t(?P<what>[^\t]{1,80})"
)
_PROGRESS_PAIR = regex(rb"\t(?P<key>[A-Z][^:\t]{1,60}): (?P<value>[\d.e+-]{1,40})")

_CHECKPOINTS = (
    (run_log.CHECKPOINT_SAVED, "checkpoint", False),
    (_SAVING, "checkpoint", True),
    (run_log.CHECKPOINT_LOADED, "load", False),
)
_RECOVERY = (
    (recovery_notes.LOCAL_CHECKPOINT, recovery_notes.LocalCheckpoint.NOTE),
    (recovery_notes.RECOVERED, recovery_notes.Recovery.NOTE),
    (recovery_notes.STARTED, recovery_notes.Started.NOTE),
    (recovery_notes.STARTING, recovery_notes.Starting.NOTE),
    (recovery_notes.NODES, recovery_notes.Nodes.NOTE),
)
_TEXTS = ("time", "phases", "phase")
_CHECKPOINT_WORDS = (b"Saved checkpoint", b"Saved async checkpoint", b"Saving async checkpoint")

_STEP_NUMBER = Field("step", is_count=True)
_TOTAL = Field("total_steps", is_count=True)
_TFLOPS = Field("tflops_per_gpu")
_TOKENS = Field("tokens_per_second_per_gpu")
_SAMPLES = Field("samples_per_second")
# GPT-NeoX prints its speed before the iteration.
_BEFORE_HEAD = regex(rb"samples/sec: {0,8}(?P<value>" + run_log.NUMBER + rb") \| {0,4}$")
_BEFORE_HEAD_BYTES = 80
# GPT-NeoX chooses the unit by the size of the number: `approx flops per GPU: 112.9TFLOPS`.
_FLOPS = {
    b"GFLOPS": Field("tflops_per_gpu", divisor=1000.0),
    b"TFLOPS": _TFLOPS,
    b"PFLOPS": Field("tflops_per_gpu", factor=1000.0),
}
_FLOPS_KEY = b"approx flops per gpu"
# A line's first key in this order is the language model's loss. Any other loss is a metric.
_LOSSES = (b"lm loss", b"loss")


def _plain(key: bytes) -> bytes:
    """Normalise a key across forks: `lm_loss`, `lm-loss` and `LM loss` become one."""
    return key.strip().lower().replace(b"_", b" ").replace(b"-", b" ")


# Fields that lt-train prints, then fields of Megatron-LM and its forks only.
_FIELDS: dict[bytes, Field | None] = {
    **{
        _plain(key.encode()): Field(pair.field, pair.is_count, pair.divisor, pair.factor)
        for key, pair in run_log.STEP_PAIRS.items()
    },
    b"energy per gpu (j/iter/gpu)": Field("energy_joules"),
    b"power per gpu (w/gpu)": Field("power_watts"),
    b"params norm": Field("params_norm"),
    b"num zeros": Field("zeros"),
    b"skipped samples": Field("skipped_samples", is_count=True),
    b"iteration time": None,
    b"elapsed time per iteration (s)": Field("step_seconds"),
    b"elapsed time per iteration ms": Field("step_seconds", divisor=1000.0),
    **dict.fromkeys((b"samples/sec", b"s samples/sec", b"samples per second"), _SAMPLES),
    **dict.fromkeys(
        (
            b"tokens per gpu per second (tgs)",
            b"tokens per gpu per second tgs",
            b"tokens per gpu (tokens/s/gpu)",
            b"tokens/s/gpu inst/harmonic mean",
            b"tokens/s/gpu",
            b"tokens/sec/gpu",
            b"tokens/s/p",
            b"throughput (token/sec/gpu)",
        ),
        _TOKENS,
    ),
    **dict.fromkeys(
        (
            b"tflops",
            b"throughput per gpu",
            b"compute per gpu (tflop/s/gpu)",
            b"flop throughput per gpu (tflop/s/gpu)",
            b"throughput (tflops/sec/gpu)",
        ),
        _TFLOPS,
    ),
}


def step(line: Line) -> StepLine | None:
    """Parse the last step on a line, because the unfinished line of a dead process may come before it."""
    head_and_pairs = run_log.find_step(line.text)
    if head_and_pairs is None:
        return None
    head, pairs = head_and_pairs
    values: list[Value] = [(_STEP_NUMBER, *head.span("step")), (_TOTAL, *head.span("total"))]
    before = _BEFORE_HEAD.search(line.text, max(0, head.start() - _BEFORE_HEAD_BYTES), head.start())
    if before is not None:
        values.append((_SAMPLES, *before.span("value")))
    values += _pair_values(line.text, pairs)
    times = [(TIME, *head.span("time"))] if head["time"] else [label for label in line.labels if label[0] is TIME]
    end = pairs[-1].end() if pairs else head.end()
    return StepLine([*values, *times, *(label for label in line.labels if label[0] is not TIME)], head.start(), end)


def _pair_values(text: bytes, pairs: list[re.Match[bytes]]) -> list[Value]:
    keys = [_plain(pair["key"]) for pair in pairs]
    loss = next((key for key in _LOSSES if key in keys), None)
    values: list[Value] = []
    for key, pair in zip(keys, pairs, strict=True):
        end = pair.end("value")
        if key == loss:
            field: Field | None = _FIELDS[_LOSSES[0]]
        elif key == _FLOPS_KEY:
            field = _FLOPS.get(text[end : end + 6])
        else:
            name = "total loss" if key == b"loss" else pair["key"].decode(errors="replace").strip()
            field = _FIELDS[key] if key in _FIELDS else Field(name, is_metric=True)
        values.append((field, *pair.span("value")))
        # Further numbers of a pair vary but are no field: `13372.8/13364.7`, `615.5 (avg 615.5)`.
        next_bar = text.find(b"|", end)
        if text[end:next_bar].strip():
            values.append((None, end, next_bar))
    return values


def evaluation(line: Line) -> Record | None:
    match = run_log.EVALUATION.search(line.text)
    if match is None:
        return None
    name, is_first = run_log.evaluation_set(match)
    split = run_log.evaluation_split(match)
    return {
        "kind": "eval",
        "step": int(match["step"]),
        "loss": decimal(match["loss"].replace(b",", b"")),
        "split": split if is_first else f"{split}-{name}",
        **({"set": name} if name else {}),
    }


def checkpoint(line: Line) -> Record | None:
    """Parse a checkpoint that is saved, being saved, or loaded."""
    for pattern, kind, is_begin in _CHECKPOINTS:
        match = pattern.search(line.text)
        if match is not None:
            path = _SAVE_FORMAT.sub(b"", run_log.checkpoint_path(match["path"]))
            record = {"kind": kind, "step": int(match["step"]), "path": path.decode(errors="replace")}
            if is_begin:
                record["begun"] = True
            if match["time"]:
                record["time"] = match["time"].decode().replace(" ", "T")
            return record
    match = run_log.CHECKPOINT_WAITED.search(line.text)
    if match is None:
        return None
    return {
        "kind": "checkpoint",
        "step": int(match["step"]),
        "waited_seconds": decimal(match["waited"]),
        "seconds": decimal(match["seconds"]),
    }


def documents(line: Line) -> Record | None:
    match = _DOCUMENTS.search(line.text)
    if match is None:
        return None
    return {
        "kind": "preprocess",
        "documents": int(match["documents"]),
        "documents_per_second": decimal(match["rate"]),
        "megabytes_per_second": decimal(match["megabytes"]),
    }


def lifecycle(line: Line) -> Record | None:
    """Parse the begin and the orderly end of the program."""
    record: Record | None = None
    match = _EXITING.search(line.text)
    if match is not None:
        reason = "signal" if match["signal"] else "iterations" if match["step"] else "duration"
        record = {"kind": "end", "reason": reason, "message": line.decode(match.start())}
        if match["step"]:
            record["step"] = int(match["step"])
    elif (match := run_log.ENDED.search(line.text)) is not None:
        words = {b"--exit-duration-in-mins": "duration"}
        words |= dict.fromkeys((b"--exit-interval", b"--data-schedule", b"--min-nodes"), "iterations")
        record = {"kind": "end", "reason": words.get(match["reason"], "signal"), "step": int(match["step"])}
    elif (match := _DONE.search(line.text)) is not None:
        record = {"kind": "end", "reason": "completed"}
    elif (match := _STARTED.search(line.text)) is not None:
        record = note(line, "initialized", {"seconds": decimal(match["seconds"])} if match["seconds"] else {})
    elif _TRAINING_STARTS.search(line.text) is not None:
        record = note(line, "training-start", {})
    stamp = _DATETIME.search(line.text)
    if record is not None and stamp is not None:
        record["time"] = stamp["time"].decode().replace(" ", "T")
    return record


def notes(line: Line) -> Record | None:
    """Parse sizes, memory, and the speed of single ranks."""
    text = line.text
    if (match := _BRIDGE.search(text)) is not None:
        speed = {"step_seconds": decimal(match["seconds"]), "tflops_per_gpu": decimal(match["tflops"])}
        return note(line, "throughput", speed, match.start())
    if (match := _PARAMETERS.search(text)) is not None:
        return note(line, "parameters", {name: int(number) for name, number in match.groupdict().items()})
    if (match := _MEMORY.search(text)) is not None:
        sizes = {pair["key"].decode(): _megabytes(pair["value"]) for pair in _MEMORY_PAIR.finditer(match["pairs"])}
        return {**note(line, "memory", {"step": int(match["step"]), **sizes}), "rank": int(match["rank"])}
    if (match := run_log.WAITING_FOR_DATA.search(text)) is not None:
        return note(line, "waiting-for-data", {"step": int(match["step"]), "seconds": int(match["seconds"])}, match.start())
    if (match := _SLOWEST.search(text)) is not None:
        return note(line, "straggler", {"slowest": match["ranks"].decode(errors="replace").strip()})
    extremes = {
        pair["key"].decode(): {"value": decimal(pair["value"]), "rank": int(pair["rank"])}
        for pair in _STRAGGLER_PAIR.finditer(text)
    }
    return note(line, "straggler", extremes) if extremes else None


def skipped(line: Line) -> Record | None:
    """Parse the samples that lt-train skipped because of --skip-samples."""
    match = log_notes.SKIPPED.search(line.text)
    return match and note(line, log_notes.Skipped.NOTE, {name: int(number) for name, number in match.groupdict().items()})


def phase(line: Line) -> Record | None:
    """Parse the begin of a phase of lt-train's data schedule."""
    match = log_notes.PHASE.search(line.text)
    if match is None:
        return None
    numbers = ("step", "seq_length", "global_batch_size")
    fields: Record = {name: int(match[name]) for name in numbers if match[name] is not None}
    return note(line, log_notes.PhaseBegins.NOTE, {**fields, "name": match["name"].decode(errors="replace")})


def recovery(line: Line) -> Record | None:
    """Parse a local checkpoint of lt-train or Megatron, and lt-train's phases until the first step after a start or a failure."""
    for pattern, name in _RECOVERY:
        if (match := pattern.search(line.text)) is not None:
            texts = {key: text for key, text in match.groupdict().items() if key not in _TEXTS and text is not None}
            fields: Record = {key: decimal(text) if key.endswith("seconds") else int(text) for key, text in texts.items()}
            if pattern is recovery_notes.STARTED:
                fields["phases"] = recovery_notes.phases(match["phases"])
            if pattern is recovery_notes.STARTING:
                fields["phase"] = match["phase"].decode(errors="replace").rstrip()
            record = note(line, name, fields)
            return record | {"time": match["time"].decode().replace(" ", "T")} if match["time"] else record
    return None


def anomaly(line: Line) -> Record | None:
    """Parse a NaN loss (Megatron's checks, lt-train), lt-train's loss spikes, and saves that found no disk space."""
    rank = _RANK.search(line.text)
    if _NAN.search(line.text) is not None:
        return fault(line, "nan", "root", "critical", rank=int(rank["rank"]) if rank else None)
    if (postponed := run_log.CHECKPOINT_POSTPONED.search(line.text)) is not None:
        return fault(line, "disk-full", "unknown", "warning", postponed.start(), step=int(postponed["step"]))
    spike = run_log.LOSS_SPIKE.search(line.text)
    return None if spike is None else fault(line, "loss-spike", "unknown", "warning", step=int(spike["step"]))


def progress(line: Line) -> Record | None:
    """Parse a line of Megatron's progress.txt (`--log-progress`), which spans the restarts of a run."""
    match = _JOB_ID.search(line.text)
    if match is None:
        return None
    what = match["what"]
    time, gpus = match["time"].decode().replace(" ", "T"), int(match["gpus"])
    pairs = {pair["key"]: pair["value"] for pair in _PROGRESS_PAIR.finditer(line.text, match.end())}
    if what == b"Starting job":
        return {"kind": "start", "arguments": {"world_size": gpus}, "job": match["job"].decode(errors="replace"), "time": time}
    if what in _CHECKPOINT_WORDS and pairs.get(b"Iteration", b"").isdigit():
        record = {"kind": "checkpoint", "step": int(pairs[b"Iteration"]), "time": time}
        if b"async" in what:
            record["asynchronous"] = True
        return {**record, "begun": True} if what.startswith(b"Saving") else record
    numbers = {key.decode(errors="replace"): decimal(value) for key, value in pairs.items()}
    return {**note(line, "progress", {"what": what.decode(errors="replace"), "gpus": gpus, **numbers}), "time": time}


def _megabytes(text: bytes) -> float | None:
    value = decimal(text)
    return None if value is None else value * 2**20
