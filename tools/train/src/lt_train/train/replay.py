"""`lt-train replay`: steps of a run computed again and compared with what the run recorded.

A GPU or CPU that computes wrong without an error changes a loss or a gradient norm somewhere in its digits, and the run goes on.
The same steps from the same checkpoint give the same numbers: bit for bit where training is deterministic, else within a
tolerance, which only a gross error exceeds. The steps are a training run's, with its own loop; this log compares its lines.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import click

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
    """A recorded step and the same computed again, the numbers by KEYS; `agrees` within the tolerance."""

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
    """A log that compares the steps instead of writing them, and prints the result at the end."""

    def __init__(self, replay: Replay, start: str | None, reporting: Reporting, active: bool):
        """`start` is the checkpoint from which the steps are computed again, None for the beginning."""
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
        there = self.recorded.get(step.step)
        if there is not None and self.replay.first <= step.step <= self.replay.last:
            self.compared.append(compare(there, step.loss, step.grad_norm, self.replay))

    def evaluation(self, evaluation: Evaluation) -> None:
        pass

    def checkpoint(self, entry: Checkpoint, waited_seconds: float, seconds: float) -> None:
        raise AssertionError("a replay saves nothing")

    def end(self) -> None:
        pass

    def code(self) -> ExitCode:
        """Print the result, on rank 0; the exit code of this rank. Raises NoInput when no step was compared."""
        if not self.active:
            return ExitCode.OK
        if not self.compared:
            asked = f"steps {self.replay.first} to {self.replay.last}"
            raise NoInput(f"{self.replay.run}: none of {asked} was computed again: nothing is compared", "choose other --steps")
        inside = [step for step in self.recorded if self.compared[-1].step < step <= self.replay.last]
        if inside:
            warn(f"steps {ranges(sorted(inside))} are not compared: a phase of another form begins there; replay them apart")
        result = summary(self.replay, self.start, self.compared)
        if self.replay.as_json:
            console.print_json(result)
        else:
            click.echo(console.visible(described(self.replay, result, self.compared)))
        return ExitCode.OK if result["agrees"] else ExitCode.FOUND


def compare(there: RecordedStep, loss: float | None, grad_norm: float | None, replay: Replay) -> Compared:
    recorded = {"loss": there.loss, "grad_norm": there.grad_norm}
    recomputed = {"loss": _finite(loss), "grad_norm": _finite(grad_norm)}
    tolerances = {"loss": replay.tolerance, "grad_norm": replay.grad_norm_tolerance}
    agrees = all(is_close(recorded[key], recomputed[key], tolerances[key]) for key in KEYS)
    return Compared(there.step, recorded, recomputed, agrees)


def _finite(number: float | None) -> float | None:
    """As it is in metrics.jsonl."""
    return number if number is not None and math.isfinite(number) else None


def is_close(recorded: float | None, recomputed: float | None, tolerance: float | None) -> bool:
    """Whether two numbers are the same, or with a `tolerance` differ by at most that share of the recorded one."""
    if recorded is None or recomputed is None or tolerance is None:
        return recorded == recomputed
    return abs(recorded - recomputed) <= tolerance * abs(recorded)


def summary(replay: Replay, start: str, compared: list[Compared]) -> dict[str, Any]:
    """The JSON object of a replay."""
    differing = [each for each in compared if not each.agrees]
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
        "steps": [each.record() for each in compared],
    }


def described(replay: Replay, result: dict[str, Any], compared: list[Compared]) -> str:
    """The same for people."""
    if replay.tolerance is None:
        how = f"bit for bit ({replay.why})"
    else:
        how = f"loss within {replay.tolerance:g}, gradient norm within {replay.grad_norm_tolerance:g} ({replay.why})"
    head = f"{replay.run}: steps {replay.first} to {replay.last} from {result['checkpoint']}, {how}"
    if len(compared) < replay.last - replay.first + 1:
        head += f", of which {ranges([each.step for each in compared])} have a record"
    differing = [each for each in compared if not each.agrees]
    if not differing:
        return f"{head}: {len(compared)} recorded steps agree"
    first = differing[0]
    before = [each.step for each in compared if each.step < first.step]
    since = f", the first of {len(differing)} that differ of {len(compared)}" if len(compared) > 1 else ""
    after = f"; step {before[-1]} agrees" if before else ""
    return f"{head}\nstep {first.step} differs{since}: {first.differences()}{after}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, each row of successive ones as its first and last; of many rows only the first and the last."""
    rows = [[number for _, number in row] for _, row in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    texts = [f"{row[0]} to {row[-1]}" if len(row) > 1 else str(row[0]) for row in rows]
    return ", ".join(texts if len(texts) <= SHOWN_ROWS else [*texts[: SHOWN_ROWS - 1], "...", texts[-1]])
