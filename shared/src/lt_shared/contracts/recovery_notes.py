"""Log lines about local checkpoints, starts, and restarts after a failure. lt-train prints them, lt-monitor parses them.

metrics.jsonl has the same texts as notes. The patterns work like the patterns of `run_log`. The line of a local checkpoint begins
like Megatron-LM's line, which ends after the iteration.
"""

import dataclasses
import datetime
import re

from lt_shared.contracts import run_log

LOCAL_CHECKPOINT = re.compile(
    run_log.TIMESTAMP
    + rb"successfully saved local checkpoint from iteration {1,16}(?P<step>\d{1,15})"
    + rb"(?:: training waited (?P<waited_seconds>[\d.]{1,20}) s of (?P<seconds>[\d.]{1,20}) s)?"
)
RECOVERED = re.compile(
    run_log.TIMESTAMP
    + rb"recovered in (?P<seconds>[\d.]{1,20}) s: iteration (?P<before>\d{1,15}) was the last before the failure, "
    + rb"(?P<step>\d{1,15}) the first after it, (?P<repeated_steps>\d{1,15}) step\(s\) repeated"
)
STARTED = re.compile(
    run_log.TIMESTAMP + rb"started in (?P<seconds>[\d.]{1,20}) s, with iteration (?P<step>\d{1,15}): (?P<phases>[^;\r\n]{0,2000})"
)
STARTING = re.compile(run_log.TIMESTAMP + rb"starting since (?P<seconds>[\d.]{1,20}) s: (?P<phase>[^\r\n]{1,200})")
NODES = re.compile(
    run_log.TIMESTAMP + rb"continues on (?P<nodes>\d{1,9}) of (?P<all_nodes>\d{1,9}) node\(s\) from iteration (?P<step>\d{1,15})"
)
_PHASE = re.compile(rb"(?P<name>[^ ,][^,]{0,60}?) (?P<seconds>\d{1,15}\.\d{1,6})(?:, |\s*$)")


@dataclasses.dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint of `step` was complete on the nodes' local disks after `seconds`; training waited for a part of this time."""

    step: int
    waited_seconds: float
    seconds: float

    NOTE = "local-checkpoint"

    def format(self, time: datetime.datetime | None = None) -> str:
        waited = f"training waited {self.waited_seconds:.2f} s of {self.seconds:.2f} s"
        return f"  {run_log.stamp(time)}successfully saved local checkpoint from iteration {self.step:7d}: {waited}"


@dataclasses.dataclass(frozen=True)
class Recovery:
    """`before` was the last step before a failure, `step` the first after it, complete `seconds` later.

    `repeated_steps` counts the steps up to `before` that were newer than the checkpoint.
    """

    seconds: float
    before: int
    step: int
    repeated_steps: int

    NOTE = "recovery"

    def format(self, time: datetime.datetime | None = None) -> str:
        sentence = f"iteration {self.before} was the last before the failure, {self.step} the first after it"
        repeated = f"{self.repeated_steps} step(s) repeated"
        return f"  {run_log.stamp(time)}recovered in {self.seconds:.2f} s: {sentence}, {repeated}"


@dataclasses.dataclass(frozen=True)
class Started:
    """`step` was the first of its attempt, complete `seconds` after lt-train's start, on the first rank.

    `phases` has the seconds of each phase of the start, in order; `beside` the seconds of work that ran at the same time.
    """

    seconds: float
    step: int
    phases: dict[str, float]
    beside: dict[str, float]

    NOTE = "started"

    def format(self, time: datetime.datetime | None = None) -> str:
        beside = f"; beside that {_listed(self.beside)}" if self.beside else ""
        sentence = f"started in {self.seconds:.2f} s, with iteration {self.step}"
        return f"  {run_log.stamp(time)}{sentence}: {_listed(self.phases)}{beside}"


@dataclasses.dataclass(frozen=True)
class Starting:
    """An attempt without a step yet begins the `phase`, such as `loading a checkpoint`, `seconds` after lt-train's start."""

    seconds: float
    phase: str

    NOTE = "starting"

    def format(self, time: datetime.datetime | None = None) -> str:
        return f"  {run_log.stamp(time)}starting since {self.seconds:.2f} s: {self.phase}"


@dataclasses.dataclass(frozen=True)
class Nodes:
    """After `step` steps, a run that may lose nodes continues on `nodes` of its `all_nodes` nodes."""

    nodes: int
    all_nodes: int
    step: int

    NOTE = "nodes"

    def format(self, time: datetime.datetime | None = None) -> str:
        return f"  {run_log.stamp(time)}continues on {self.nodes} of {self.all_nodes} node(s) from iteration {self.step}"


def phases(text: bytes) -> dict[str, float]:
    """Parse the group `phases` of STARTED into seconds by name."""
    return {match["name"].decode(errors="replace"): float(match["seconds"]) for match in _PHASE.finditer(text)}


def _listed(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
