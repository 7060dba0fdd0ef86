"""The lines of a training log: what lt-train prints, and the patterns by which lt-monitor recognises the same lines.

The format is Megatron-LM's, so tools made for Megatron logs read ours and lt-monitor reads Megatron's:

     [2026-11-21 10:00:00.123456] iteration      100/    1000 | consumed samples: ... | lm loss: 2.130000E+00 | ...

A step line is a list of `key: value |` pairs. They are parsed by key, never by position: versions and forks add and drop some.
The loss is absent from Megatron's line when an iteration was skipped or its loss is not a number.

Patterns match bytes, are searched for anywhere in a line, and bound every repetition, because lt-monitor's lines have prefixes of
launchers, may follow a line that a killed process left unfinished, and come from untrusted sources. lt-monitor parses the first
line of each shape with these patterns and reads lines that differ only in digits with NumPy. `parse` makes one object per line
and is for tests and scripts.
"""

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

GIB = 2**30

NUMBER = rb"[-+]?(?:\d[\d,]{0,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,5})?|nan|NaN|inf|Infinity|N/A)"
TIMESTAMP = rb"(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\] )?"

# Some forks print `key=value` and `lm_loss`, GPT-NeoX `results` for Megatron's `loss`.
STEP_HEAD = re.compile(TIMESTAMP + rb"iteration[ =] {0,16}(?P<step>\d{1,15})/ {0,16}(?P<total>\d{1,15}) \|")
# Prefix of a dataset's key. The mean losses of a blend's datasets stand between the loss and the loss scale.
SOURCE_LOSS = "loss on "
STEP_PAIR = re.compile(rb"(?P<key>[A-Za-z_][^:=|]{0,80})[:=] {0,16}(?P<value>" + NUMBER + rb")(?P<rest>[^|:=A-Za-z]{0,80})")
LAST_STEP_PAIR = re.compile(rb"number of nan iterations: {1,16}\d{1,15} \|")
EVALUATION = re.compile(
    rb"(?P<kind>validation|test)(?P<suffix>\S{0,80}) (?:loss|results) at iteration (?P<step>\d{1,15})"
    rb"(?: on (?:[\w-]{1,40} draw from )?(?P<split>\w{1,20}) set)? \| "
    rb"lm[ _-]loss value(?:: |=)(?P<loss>" + NUMBER + rb")(?: \||lm loss PPL)"
    rb"(?: lm loss PPL: \S{1,20} \| set: (?P<set>\S{1,80}) \|)?"
)
CHECKPOINT_SAVED = re.compile(
    TIMESTAMP + rb"successfully saved checkpoint (?:from|at) iteration {1,16}(?P<step>\d{1,15}) to (?P<path>.{1,4096})"
)
CHECKPOINT_LOADED = re.compile(
    TIMESTAMP + rb"successfully loaded checkpoint from (?P<path>.{1,4096}) at iteration {1,16}(?P<step>\d{1,15})"
)
# Megatron prints the parallel sizes behind a checkpoint's path: `/fsx/run [ t 1/4, p 1/2 ]`.
PARALLEL_SIZES = re.compile(rb" \[ t .*$")
CHECKPOINT_WAITED = re.compile(
    rb"checkpoint of iteration (?P<step>\d{1,15}): training waited (?P<waited>[\d.]{1,20}) s of (?P<seconds>[\d.]{1,20}) s"
)
CHECKPOINT_POSTPONED = re.compile(rb"checkpoint of iteration (?P<step>\d{1,15}) not saved: ")
ENDED = re.compile(rb"ended by (?P<reason>\S{1,40}) at iteration (?P<step>\d{1,15});")
WAITING_FOR_DATA = re.compile(
    rb"waiting for data since (?P<seconds>\d{1,9}) s, after iteration (?P<step>\d{1,15}): (?P<what>.{1,4096})"
)
LOSS_SPIKE = re.compile(rb"loss spike at iteration (?P<step>\d{1,15}): (?P<loss>[\d.]{1,20})")
ARGUMENTS_HEADING = re.compile(rb"-{3,200} (?P<end>end of )?arguments -{3,200}\s*$")
ARGUMENT = re.compile(rb"\s{0,8}(?P<name>\w{1,80}) \.{2,80} (?P<value>.{0,4096}?)\s*$")


@dataclasses.dataclass(frozen=True)
class StepPair:
    """One `key: value |` of a step line: the `field` of Step that it holds, which is `value / divisor * factor`.

    `form` is how lt-train prints the value, as a format specification.
    """

    field: str
    form: str
    is_count: bool = False
    divisor: float = 1.0
    factor: float = 1.0

    def text(self, value: float) -> str:
        """Format the field's `value` as lt-train prints it. An unknown MFU is N/A."""
        if self.field == "mfu" and not math.isfinite(value):
            return "N/A"
        # Four digits behind the point: a CPU run at 0.01 TFLOP/s would read 0.0 with Megatron's one.
        form = ".4f" if self.field == "tflops_per_gpu" and value < 100 else self.form
        return format(value if self.is_count and self.factor == 1 else value / self.factor * self.divisor, form)

    def value(self, text: bytes) -> float | None:
        """The field's value from its printed text; None when that is not a finite number."""
        number = _number(text)
        if number is None:
            return None
        value = number / self.divisor * self.factor
        return round(value) if self.is_count else value


# lt-train prints them in this order.
STEP_PAIRS = {
    "consumed samples": StepPair("consumed_samples", "12d", is_count=True),
    "elapsed time per iteration (ms)": StepPair("step_seconds", ".1f", divisor=1000.0),
    "throughput per GPU (TFLOP/s/GPU)": StepPair("tflops_per_gpu", ".1f"),
    "tokens per second per GPU": StepPair("tokens_per_second_per_gpu", ".1f"),
    "MFU (%)": StepPair("mfu", ".2f", divisor=100.0),
    "memory (GiB)": StepPair("memory_bytes", ".3f", is_count=True, factor=float(GIB)),
    "reserved memory (GiB)": StepPair("reserved_memory_bytes", ".3f", is_count=True, factor=float(GIB)),
    "learning rate": StepPair("learning_rate", ".6E"),
    "global batch size": StepPair("global_batch_size", "5d", is_count=True),
    "lm loss": StepPair("loss", ".6E"),
    "mtp loss": StepPair("prediction_loss", ".6E"),
    "loss scale": StepPair("loss_scale", ".1f"),
    "grad norm": StepPair("grad_norm", ".3f"),
    "number of skipped iterations": StepPair("skipped_steps", "3d", is_count=True),
    "number of nan iterations": StepPair("nan_steps", "3d", is_count=True),
}

# What TensorBoard and Weights & Biases call the fields of Step: Megatron-LM's names, and others in its style.
STEP_TAGS = {
    "loss": "lm loss",
    "prediction_loss": "mtp loss",
    "learning_rate": "learning-rate",
    "grad_norm": "grad-norm",
    "loss_scale": "loss-scale",
    "global_batch_size": "batch-size",
    "consumed_samples": "samples",
    "step_seconds": "iteration-time",
    "tflops_per_gpu": "throughput",
    "tokens_per_second_per_gpu": "tokens-per-second-per-gpu",
    "mfu": "mfu",
    "memory_bytes": "mem-max-allocated-bytes",
    "reserved_memory_bytes": "mem-reserved-bytes",
    "skipped_steps": "skipped-iterations",
    "nan_steps": "nan-iterations",
}


def evaluation_tags(split: str) -> tuple[str, str]:
    """The same for the loss and the perplexity of an Evaluation."""
    return f"lm loss {split}", f"lm loss {split} ppl"


def find_step(text: bytes) -> tuple[re.Match[bytes], list[re.Match[bytes]]] | None:
    """Return the matches of STEP_HEAD and of every STEP_PAIR in the last step line of `text`; None without a complete line.

    A killed process may cut its line off anywhere, and another line may follow on the same line: the last head counts. If text
    follows the last `|`, the line is complete only with Megatron's last pair.
    """
    heads = list(STEP_HEAD.finditer(text))
    if not heads:
        return None
    head = heads[-1]
    end = text.rfind(b"|") + 1
    if text[end:].strip():
        last = LAST_STEP_PAIR.search(text, head.end())
        if last is None:
            return None
        end = last.end()
    return head, list(STEP_PAIR.finditer(text, head.end(), end))


@dataclasses.dataclass(frozen=True)
class Step:
    """One training step. Fields that the line lacks are None.

    `tflops_per_gpu` counts as `Architecture.flops_per_token` does when lt-train printed it, and `mfu` is its share, 0 to 1, of
    the device's peak: NaN, printed as N/A, if the peak is not known. Memory is the maximum over ranks since the
    start: allocated tensors on a GPU with what torch has `reserved` for them, resident memory on a CPU. `prediction_loss` is the
    last step's, of multi-token prediction; `source_losses` are the mean losses of a blend's datasets, by their names.
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
    prediction_loss: float | None = None
    source_losses: Mapping[str, float] | None = None

    def format(self) -> str:
        """The line as printed, without a newline. A loss that is not a number is left out, as Megatron does."""
        parts = [f" {stamp(self.time)}iteration {self.step:8d}/{self.total_steps:8d} |"]
        for key, pair in STEP_PAIRS.items():
            if pair.field == "loss_scale":
                parts += [f" {SOURCE_LOSS}{name}: {loss:.6E} |" for name, loss in (self.source_losses or {}).items()]
            value = getattr(self, pair.field)
            if value is not None and (pair.field != "loss" or math.isfinite(value)):
                parts.append(f" {key}: {pair.text(value)} |")
        return "".join(parts)

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Read a step line; None when it is not one."""
        matches = find_step(line.encode(errors="replace"))
        if matches is None:
            return None
        head, pairs = matches
        step_pairs = [(STEP_PAIRS.get(pair["key"].decode()), pair["value"]) for pair in pairs]
        values: dict[str, Any] = {pair.field: pair.value(text) for pair, text in step_pairs if pair is not None}
        sources = [pair for pair in pairs if pair["key"].startswith(SOURCE_LOSS.encode())]
        loss_by_source = {pair["key"].decode().removeprefix(SOURCE_LOSS): _number(pair["value"]) for pair in sources}
        losses = {name: loss for name, loss in loss_by_source.items() if loss is not None} or None
        return cls(int(head["step"]), int(head["total"]), time=_time(head["time"]), source_losses=losses, **values)


def _number(text: bytes) -> float | None:
    """A finite number; None for anything else."""
    try:
        number = float(text.replace(b",", b""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def stamp(time: datetime.datetime | None) -> str:
    """The time at the beginning of a line."""
    return f"[{time:%Y-%m-%d %H:%M:%S.%f}] " if time else ""


def _time(text: bytes | None) -> datetime.datetime | None:
    """The time of a line; None without one and for digits that are no date, as in a line that two processes wrote at once."""
    try:
        return datetime.datetime.fromisoformat(text.decode()) if text else None
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The loss on held-out data after `step` steps.

    `name` distinguishes several validation sets. Tools that know only one validation set read the first.
    """

    step: int
    loss: float
    split: str = "validation"
    name: str | None = None
    is_first: bool = True

    @property
    def part(self) -> str:
        """The name of this set's losses: `validation`, `validation-code`, `test`."""
        return self.split if self.is_first else f"{self.split}-{self.name}"

    @property
    def perplexity(self) -> float:
        """exp(loss), limited to exp(20) as in Megatron."""
        return math.exp(min(self.loss, 20.0))

    def format(self) -> str:
        other = "" if self.is_first else f"-{self.name}"
        named = f"set: {self.name} |" if self.name else ""
        return (
            f" validation{other} loss at iteration {self.step} on {self.split} set | lm loss value: {self.loss:.6E} |"
            f" lm loss PPL: {self.perplexity:.6E} | {named}"
        )

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = EVALUATION.search(line.encode(errors="replace"))
        loss = _number(match["loss"]) if match else None
        if match is None or loss is None:
            return None
        return cls(int(match["step"]), loss, evaluation_split(match), *evaluation_set(match))


def evaluation_split(match: re.Match[bytes]) -> str:
    """The name of the held-out data in a match of EVALUATION."""
    return str((match["split"] or match["kind"]).decode())


def evaluation_set(match: re.Match[bytes]) -> tuple[str | None, bool]:
    """Return the validation set's name in a match of EVALUATION, and whether it is the first set.

    Megatron-LM's --multiple-validation-sets counts them: `validation-0`, `validation-1`.
    """
    other, named = match["suffix"].removeprefix(b"-"), match["set"]
    if not match["suffix"].startswith(b"-"):
        return (named.decode() if named else None), True
    return other.decode(errors="replace"), other == b"0" and not named


def checkpoint_path(printed: bytes) -> bytes:
    """The directory in the path of CHECKPOINT_SAVED or CHECKPOINT_LOADED, without Megatron's parallel sizes behind it."""
    return PARALLEL_SIZES.sub(b"", printed).rstrip()


@dataclasses.dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint of `step` that is complete in `path` (the run's directory, as Megatron prints it)."""

    step: int
    path: str
    time: datetime.datetime | None = None

    def format(self) -> str:
        return f"  {stamp(self.time)}successfully saved checkpoint from iteration {self.step:7d} to {self.path}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = CHECKPOINT_SAVED.search(line.encode(errors="replace"))
        return cls(int(match["step"]), checkpoint_path(match["path"]).decode(), _time(match["time"])) if match else None


@dataclasses.dataclass(frozen=True)
class CheckpointLoaded:
    """Training continues from the checkpoint of `step` in `path`."""

    step: int
    path: str
    time: datetime.datetime | None = None

    def format(self) -> str:
        return f"  {stamp(self.time)}successfully loaded checkpoint from {self.path} at iteration {self.step}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        match = CHECKPOINT_LOADED.search(line.encode(errors="replace"))
        return cls(int(match["step"]), checkpoint_path(match["path"]).decode(), _time(match["time"])) if match else None


Event = Step | Evaluation | CheckpointSaved | CheckpointLoaded


def parse(line: str) -> Event | None:
    """Parse the event in one log line. None if the line holds no event."""
    for event_type in (Step, Evaluation, CheckpointSaved, CheckpointLoaded):
        event = event_type.parse(line)
        if event is not None:
            return event
    return None


def format_checkpoint_waited(step: int | None, waited_seconds: float, seconds: float) -> str:
    """A checkpoint was complete `seconds` after its step; training waited for a part of this time."""
    return f"  checkpoint of iteration {step}: training waited {waited_seconds:.2f} s of {seconds:.2f} s"


def format_checkpoint_postponed(step: int, retry: int, reason: str) -> str:
    """There was no room for the checkpoint of `step`, and the run tries again after `retry` steps."""
    return f"checkpoint of iteration {step} not saved: {reason}; training continues, and tries again at iteration {retry}"


def format_ended(step: int, reason: str, then: str, time: datetime.datetime) -> str:
    """Training ended before its last step: `reason` is a signal or the option that set the limit, `then` how to continue."""
    return f"  {stamp(time)}ended by {reason} at iteration {step}; {then}"


def format_waiting_for_data(step: int, seconds: float, what: str, time: datetime.datetime) -> str:
    """Training has waited for data for some time after `step` steps; `what` names the streams that are behind."""
    return f"  {stamp(time)}waiting for data since {seconds:.0f} s, after iteration {step}: {what}"


def format_loss_spike(step: int, loss: float, mean: float, steps: int) -> str:
    """The loss of a step is far above the `mean` of the `steps` before it."""
    return f" loss spike at iteration {step}: {loss:.4f}, mean of the {steps} steps before it {mean:.4f}"


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
        text = line.encode(errors="replace")
        heading = ARGUMENTS_HEADING.search(text)
        if heading and not heading["end"]:
            arguments = {}
        elif heading and arguments is not None:
            return arguments
        elif arguments is not None and (match := ARGUMENT.match(text)):
            arguments[match["name"].decode()] = match["value"].decode()
    return None
