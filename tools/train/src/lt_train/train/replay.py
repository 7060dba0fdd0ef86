"""`lt-train replay`: compute steps of a run again and compare them with the recorded losses and gradient norms.

A GPU or CPU that computes wrong without an error changes some digits of a loss or a gradient norm, and the run goes on. The same
steps from the same checkpoint give the same numbers: bit for bit if training is deterministic, else within a tolerance that only
a gross error exceeds. The training loop computes the steps; `Comparison` takes the place of its log.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from lt_shared import console
from lt_shared.console import ExitCode, NoInput, warn
from lt_shared.contracts.manifest import Checkpoint
from lt_shared.contracts.run_log import Evaluation, Step
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.replaying import Replay
from lt_train.config.settings.reporting import Reporting
from lt_train.metrics import recorded_steps
from lt_train.metrics.log import Log
from lt_train.metrics.recorded_steps import Attempt, RecordedStep
from lt_train.metrics.step_timer import Lap

KEYS = ("loss", "grad_norm")
SHOWN_ROWS = 6


@dataclasses.dataclass(frozen=True)
class Compared:
    """The recorded and the recomputed numbers of a step, by KEYS. `agrees`: they are equal within the tolerance."""

    step: int
    recorded: dict[str, float | None]
    recomputed: dict[str, float | None]
    agrees: bool

    def record(self) -> dict[str, Any]:
        numbers = {key: {"recorded": self.recorded[key], "recomputed": self.recomputed[key]} for key in KEYS}
        return {"step": self.step, "agrees": self.agrees, **numbers}

    def differences(self) -> str:
        different = [key for key in KEYS if self.recorded[key] != self.recomputed[key]]
        names = {"loss": "loss", "grad_norm": "gradient norm"}
        return "; ".join(f"{names[key]} {self.recorded[key]!r} recorded, {self.recomputed[key]!r} now" for key in different)


class Comparison(Log):
    """A log that compares steps instead of writing them, and prints the result at the end."""

    def __init__(self, replay: Replay, start: str | None, reporting: Reporting, active: bool):
        """`start` is the checkpoint that the replay starts from, None for the beginning of the run."""
        super().__init__(reporting, None, active)
        self.replay = replay
        self.start = start or "the beginning"
        self.recorded = recorded_steps.read(self.replay.run) if active else {}
        self.compared: list[Compared] = []

    def line(self, text: str, brief: Sequence[str] | None = None) -> None:
        pass

    def begin(self, attempt: Attempt, batches: Batches, schedule: Schedule, arguments: dict[str, Any]) -> None:
        pass

    def step(self, step: Step, tokens_per_second: float, lap: Lap) -> None:
        recorded = self.recorded.get(step.step)
        if recorded is not None and self.replay.first <= step.step <= self.replay.last:
            self.compared.append(compare(recorded, step.loss, step.grad_norm, self.replay))

    def evaluation(self, evaluation: Evaluation) -> None:
        pass

    def checkpoint(self, entry: Checkpoint, waited_seconds: float, seconds: float) -> None:
        raise AssertionError("a replay saves nothing")

    def end(self) -> None:
        pass

    def code(self) -> ExitCode:
        """Print the result on rank 0, and return the exit code of this rank. Raise NoInput if no step was compared."""
        if not self.active:
            return ExitCode.OK
        if not self.compared:
            steps = f"steps {self.replay.first} to {self.replay.last}"
            raise NoInput(f"{self.replay.run}: none of {steps} was computed again: nothing is compared", "choose other --steps")
        inside = [step for step in self.recorded if self.compared[-1].step < step <= self.replay.last]
        if inside:
            warn(f"steps {ranges(sorted(inside))} are not compared: a phase of another form begins there; replay them apart")
        result = summary(self.replay, self.start, self.compared)
        if self.replay.as_json:
            console.print_json(result)
        else:
            console.print_text(describe(self.replay, result, self.compared))
        return ExitCode.OK if result["agrees"] else ExitCode.FOUND


def compare(step: RecordedStep, loss: float | None, grad_norm: float | None, replay: Replay) -> Compared:
    recorded = {"loss": step.loss, "grad_norm": step.grad_norm}
    recomputed = {"loss": _finite(loss), "grad_norm": _finite(grad_norm)}
    tolerances = {"loss": replay.tolerance, "grad_norm": replay.grad_norm_tolerance}
    agrees = all(is_close(recorded[key], recomputed[key], tolerances[key]) for key in KEYS)
    return Compared(step.step, recorded, recomputed, agrees)


def _finite(number: float | None) -> float | None:
    """Return None for an infinity or a NaN, as metrics.jsonl does."""
    return number if number is not None and math.isfinite(number) else None


def is_close(recorded: float | None, recomputed: float | None, tolerance: float | None) -> bool:
    """Whether two numbers are equal; with a `tolerance`, whether their relative difference is at most `tolerance`."""
    if recorded is None or recomputed is None or tolerance is None:
        return recorded == recomputed
    return abs(recorded - recomputed) <= tolerance * abs(recorded)


def summary(replay: Replay, start: str, compared: list[Compared]) -> dict[str, Any]:
    """Return the JSON object of a replay."""
    differing = [step for step in compared if not step.agrees]
    return {
        "v": 1,
        "kind": "replay",
        "run": replay.run,
        "checkpoint": start,
        "first": replay.first,
        "last": replay.last,
        "tolerance": replay.tolerance,
        "grad_norm_tolerance": replay.grad_norm_tolerance,
        "why": replay.why,
        "compared": len(compared),
        "agrees": not differing,
        "first_difference": differing[0].step if differing else None,
        "steps": [step.record() for step in compared],
    }


def describe(replay: Replay, result: dict[str, Any], compared: list[Compared]) -> str:
    """Format the result of a replay for people."""
    if replay.tolerance is None:
        how = f"bit for bit ({replay.why})"
    else:
        how = f"loss within {replay.tolerance:g}, gradient norm within {replay.grad_norm_tolerance:g} ({replay.why})"
    head = f"{replay.run}: steps {replay.first} to {replay.last} from {result['checkpoint']}, {how}"
    if len(compared) < replay.last - replay.first + 1:
        head += f", of which {ranges([step.step for step in compared])} have a record"
    differing = [step for step in compared if not step.agrees]
    if not differing:
        return f"{head}: {len(compared)} recorded steps agree"
    first_difference = differing[0]
    agreeing_before = [step.step for step in compared if step.step < first_difference.step]
    since = f", the first of {len(differing)} that differ of {len(compared)}" if len(compared) > 1 else ""
    after = f"; step {agreeing_before[-1]} agrees" if agreeing_before else ""
    return f"{head}\nstep {first_difference.step} differs{since}: {first_difference.differences()}{after}"


def ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges ("3 to 7, 9"). Only the first ranges and the last one are shown if there are many."""
    # Successive numbers have the same difference to their index.
    rows = [[number for _, number in row] for _, row in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{row[0]} to {row[-1]}" if len(row) > 1 else str(row[0]) for row in rows]
    return ", ".join(texts if len(texts) <= SHOWN_ROWS else [*texts[: SHOWN_ROWS - 1], "...", texts[-1]])
