"""The lines of a training log: one definition prints them (lt-train) and parses them (lt-monitor).

The format is Megatron-LM's, so tools made for Megatron logs read ours and lt-monitor reads Megatron's:

     [2026-11-21 10:00:00.123456] iteration      100/    1000 | consumed samples: ... | lm loss: 2.130000E+00 | ...

A step line is a list of `key: value |` pairs. They are parsed by key, never by position: versions and forks add and drop some.
The loss is absent from Megatron's line when an iteration was skipped or its loss is not a number.
"""

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Self

_TIMESTAMP = r"(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\] )?"
_STEP = re.compile(rf"\s*{_TIMESTAMP}iteration\s+(?P<step>\d+)/\s*(?P<total>\d+) \|(?P<pairs>.*)\|\s*")
_EVALUATION = re.compile(
    r"\s*validation\S* loss at iteration (?P<step>\d+)(?: on (?P<split>\w+) set)? \| lm loss value: (?P<loss>\S+) \|.*"
)
_SAVED = re.compile(
    rf"\s*{_TIMESTAMP}successfully saved checkpoint (?:from|at) iteration\s+(?P<step>\d+) to (?P<path>.+?)(?: \[ t .*\])?\s*"
)
_LOADED = re.compile(
    rf"\s*{_TIMESTAMP}successfully loaded checkpoint from (?P<path>.+?)(?: \[ t .*\])? at iteration (?P<step>\d+)\s*"
)
_DOCUMENTS = re.compile(r"\s*Processed (?P<documents>\d+) documents \((?P<rate>\S+) docs/s, (?P<megabytes>\S+) MB/s\)\.?\s*")
ARGUMENTS_BEGIN = re.compile(r"\s*-+ arguments -+\s*")
ARGUMENTS_END = re.compile(r"\s*-+ end of arguments -+\s*")
ARGUMENT = re.compile(r"\s*(\w+) \.{2,} (.*?)\s*")
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Step:
    """One training step; what a line does not hold is None.

    `tflops_per_gpu` counts as `Architecture.flops_per_token` does when lt-train printed it, and `mfu` is its share, 0 to 1, of
    the device's peak: NaN, printed as N/A, where the peak is not known. Memory is that of the rank that needed most since the
    start: allocated tensors on a GPU with what torch has `reserved` for them, resident memory on a CPU.
    """

    step: int
    total_steps: int
    consumed_samples: int | None = None
    step_seconds: float | None = None
    tflops_per_gpu: float | None = None
    learning_rate: float | None = None
    global_batch_size: int | None = None
    loss: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    skipped_steps: int | None = None
    nan_steps: int | None = None
    time: datetime.datetime | None = None
    tokens_per_second_per_gpu: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None

    def format(self) -> str:
        """The line as printed, without a newline."""
        stamp = f"[{self.time:%Y-%m-%d %H:%M:%S.%f}] " if self.time else ""
        parts = [f" {stamp}iteration {self.step:8d}/{self.total_steps:8d} |"]
        if self.consumed_samples is not None:
            parts.append(f" consumed samples: {self.consumed_samples:12d} |")
        if self.step_seconds is not None:
            parts.append(f" elapsed time per iteration (ms): {self.step_seconds * 1000:.1f} |")
        if self.tflops_per_gpu is not None:
            # Four significant digits: a CPU run at 0.01 TFLOP/s would read 0.0 with Megatron's one decimal.
            digits = 1 if self.tflops_per_gpu >= 100 else 4
            parts.append(f" throughput per GPU (TFLOP/s/GPU): {self.tflops_per_gpu:.{digits}f} |")
        if self.tokens_per_second_per_gpu is not None:
            parts.append(f" tokens per second per GPU: {self.tokens_per_second_per_gpu:.1f} |")
        if self.mfu is not None:
            parts.append(f" MFU (%): {self.mfu * 100:.2f} |" if math.isfinite(self.mfu) else " MFU (%): N/A |")
        if self.memory_bytes is not None:
            parts.append(f" memory (GiB): {self.memory_bytes / GIB:.3f} |")
        if self.reserved_memory_bytes is not None:
            parts.append(f" reserved memory (GiB): {self.reserved_memory_bytes / GIB:.3f} |")
        if self.learning_rate is not None:
            parts.append(f" learning rate: {self.learning_rate:.6E} |")
        if self.global_batch_size is not None:
            parts.append(f" global batch size: {self.global_batch_size:5d} |")
        if self.loss is not None and math.isfinite(self.loss):
            parts.append(f" lm loss: {self.loss:.6E} |")
        if self.loss_scale is not None:
            parts.append(f" loss scale: {self.loss_scale:.1f} |")
        if self.grad_norm is not None:
            parts.append(f" grad norm: {self.grad_norm:.3f} |")
        if self.skipped_steps is not None:
            parts.append(f" number of skipped iterations: {self.skipped_steps:3d} |")
        if self.nan_steps is not None:
            parts.append(f" number of nan iterations: {self.nan_steps:3d} |")
        return "".join(parts)

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Read a step line without outer prefixes; None when it is not one."""
        match = _STEP.fullmatch(line)
        if not match:
            return None
        pairs = dict(_pairs(match["pairs"]))
        return cls(
            step=int(match["step"]),
            total_steps=int(match["total"]),
            consumed_samples=_whole(pairs.get("consumed samples")),
            step_seconds=_divided(pairs.get("elapsed time per iteration (ms)"), 1000),
            tflops_per_gpu=_number(pairs.get("throughput per GPU (TFLOP/s/GPU)")),
            learning_rate=_number(pairs.get("learning rate")),
            global_batch_size=_whole(pairs.get("global batch size")),
            loss=_number(pairs.get("lm loss")),
            loss_scale=_number(pairs.get("loss scale")),
            grad_norm=_number(pairs.get("grad norm")),
            skipped_steps=_whole(pairs.get("number of skipped iterations")),
            nan_steps=_whole(pairs.get("number of nan iterations")),
            time=_time(match["time"]),
            tokens_per_second_per_gpu=_number(pairs.get("tokens per second per GPU")),
            mfu=_divided(pairs.get("MFU (%)"), 100),
            memory_bytes=_bytes(pairs.get("memory (GiB)")),
            reserved_memory_bytes=_bytes(pairs.get("reserved memory (GiB)")),
        )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            yield key.strip(), value.strip()


def _number(text: str | None) -> float | None:
    """The first number of a value: forks print `last/average`."""
    if text is None:
        return None
    try:
        return float(text.split("/")[0])
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None or not math.isfinite(value) else int(value)


def _divided(text: str | None, divisor: float) -> float | None:
    value = _number(text)
    return None if value is None else value / divisor


def _bytes(text: str | None) -> int | None:
    gibibytes = _number(text)
    return None if gibibytes is None or not math.isfinite(gibibytes) else round(gibibytes * GIB)


def _time(text: str | None) -> datetime.datetime | None:
    """The time of a line; None without one and for digits that are no date, as in a line that two processes wrote at once."""
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The loss on held-out data after `step` steps."""

    step: int
    loss: float
    split: str = "validation"

    @property
    def perplexity(self) -> float:
        """As Megatron counts it: at most exp(20)."""
        return math.exp(min(self.loss, 20.0))

    def format(self) -> str:
        return (
            f" validation loss at iteration {self.step} on {self.split} set | lm loss value: {self.loss:.6E} |"
            f" lm loss PPL: {self.perplexity:.6E} | "
        )

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = _EVALUATION.fullmatch(line)
        loss = _number(match["loss"]) if match else None
        if match is None or loss is None:
            return None
        return cls(int(match["step"]), loss, match["split"] or "validation")


@dataclasses.dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint of `step` that is complete in `path` (the run's directory, as Megatron prints it)."""

    step: int
    path: str
    time: datetime.datetime | None = None

    def format(self) -> str:
        stamp = f"[{self.time:%Y-%m-%d %H:%M:%S.%f}] " if self.time else ""
        return f"  {stamp}successfully saved checkpoint from iteration {self.step:7d} to {self.path}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = _SAVED.fullmatch(line)
        return cls(int(match["step"]), match["path"], _time(match["time"])) if match else None


@dataclasses.dataclass(frozen=True)
class CheckpointLoaded:
    """Training continues from the checkpoint of `step` in `path`."""

    step: int
    path: str
    time: datetime.datetime | None = None

    def format(self) -> str:
        stamp = f"[{self.time:%Y-%m-%d %H:%M:%S.%f}] " if self.time else ""
        return f"  {stamp}successfully loaded checkpoint from {self.path} at iteration {self.step}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = _LOADED.fullmatch(line)
        return cls(int(match["step"]), match["path"], _time(match["time"])) if match else None


@dataclasses.dataclass(frozen=True)
class DocumentsProcessed:
    """Progress of Megatron's own preprocessing script: documents so far, and its rates since the start."""

    documents: int
    documents_per_second: float
    megabytes_per_second: float

    def format(self) -> str:
        return f"Processed {self.documents} documents ({self.documents_per_second} docs/s, {self.megabytes_per_second} MB/s)."

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = _DOCUMENTS.fullmatch(line)
        if not match:
            return None
        rate, megabytes = _number(match["rate"]), _number(match["megabytes"])
        return None if rate is None or megabytes is None else cls(int(match["documents"]), rate, megabytes)


Event = Step | Evaluation | CheckpointSaved | CheckpointLoaded | DocumentsProcessed


def parse(line: str) -> Event | None:
    """The event of one log line, with outer prefixes (srun labels, timestamps of kubectl) already removed."""
    if "iteration" not in line and "Processed" not in line:
        return None
    for event_type in (Step, Evaluation, CheckpointSaved, CheckpointLoaded, DocumentsProcessed):
        event = event_type.parse(line)
        if event is not None:
            return event
    return None


def format_arguments(arguments: dict[str, Any]) -> list[str]:
    """Megatron's dump of the run's arguments, a line each: `  name ....... value`."""
    lines = ["------------------------ arguments ------------------------"]
    for name in sorted(arguments, key=str.lower):
        lines.append(f"  {name} {'.' * max(2, 48 - len(name))} {arguments[name]}")
    lines.append("-------------------- end of arguments ---------------------")
    return lines


def parse_arguments(lines: Iterable[str]) -> dict[str, str] | None:
    """The first argument dump among `lines`, values as text; None when there is no complete one."""
    arguments: dict[str, str] | None = None
    for line in lines:
        if arguments is None:
            if ARGUMENTS_BEGIN.fullmatch(line):
                arguments = {}
        elif ARGUMENTS_END.fullmatch(line):
            return arguments
        elif match := ARGUMENT.fullmatch(line):
            arguments[match[1]] = match[2]
    return None
