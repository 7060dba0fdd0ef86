"""One call of `lt-monitor blame`: choose the steps, get the losses of their samples, report and write the result."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lt_monitor.blame import page, rollback, spikes, text
from lt_monitor.blame.rollback import Rollback
from lt_monitor.blame.spikes import StepRange
from lt_monitor.blame.suspects import Blame, RunSamples, blame
from lt_monitor.runs import run_loader
from lt_shared.console import BadData, IoFailure, Unavailable, UsageError, note
from lt_shared.data.sample_order import sample_losses
from lt_shared.files import storage

STANDARD_INPUT = "-"
SKIP_LIST = "skip.jsonl"
LOGGED, GIVEN, SCORED = "as logged while training", "as given", "of the checkpoint before"


@dataclasses.dataclass(frozen=True)
class Investigation:
    """The result for `run`. `attempt` is the attempt of the first steps."""

    run: str
    blames: list[Blame]
    origin_of_losses: str
    samples: RunSamples

    @property
    def suspects(self) -> list[int]:
        return sorted({sample for one in self.blames for sample in one.suspects})

    def rollback(self, skip_list: str | None) -> Rollback:
        first = self.blames[0].steps
        attempt, _ = self.samples.of_steps(first)
        return rollback.plan(self.run, attempt, first.first, self.suspects, skip_list or SKIP_LIST)

    def lines(self, skip_list: str | None) -> Iterator[str]:
        return text.lines(self.blames, self.rollback(skip_list), self.origin_of_losses, skip_list)

    def to_record(self, skip_list: str | None) -> dict[str, Any]:
        """What --json prints."""
        return {
            "v": 1,
            "kind": "blame",
            "run": self.run,
            "found": [one.to_record() for one in self.blames],
            "rollback": self.rollback(skip_list).to_record(),
            "skip_list": skip_list,
        }

    def write_skip_list(self, path: str) -> None:
        """Raises CannotCreate and IoFailure; and NoInput and BadData for the list that the run itself was given."""
        attempt, _ = self.samples.of_steps(self.blames[0].steps)
        storage.write_bytes(path, rollback.skip_lines(self.suspects, rollback.skipped_by(attempt)).encode())

    def write_report(self, path: str) -> None:
        """Raises UsageError for a name that does not end in .html, and as `storage.write_bytes`."""
        if not path.lower().endswith((".html", ".htm")):
            raise UsageError(f"{path}: the report is HTML", "end the name in .html")
        storage.write_bytes(path, page.build(self.run, self.blames, self.rollback(None), self.origin_of_losses).encode())


def investigate(run: str, steps: tuple[int, int] | None, losses: str | None, score: bool, shown: int) -> Investigation | None:
    """Look at `steps`, or where the loss jumped; None when it did not.

    `losses` is a file of losses, `score` computes them. Raises NoInput and BadData for a run or a file that is not readable or
    does not have these steps, Unavailable where lt-train is not installed, IoFailure when it fails.
    """
    samples = RunSamples(run)
    ranges = [StepRange(*steps)] if steps else _spikes(run)
    if not ranges:
        return None
    numbers = [samples.of_steps(one)[1] for one in ranges]
    loss_by_sample, origin = _losses(run, ranges, numbers, losses, score)
    blames = [blame(samples, one, loss_by_sample, shown, are_logged=origin == LOGGED) for one in ranges]
    return Investigation(run, blames, origin, samples)


def _spikes(run: str) -> list[StepRange]:
    jumps = [spike for one in run_loader.join_by_checkpoints(run_loader.read([run])) for spike in spikes.find(one)]
    for spike in jumps:
        note(f"the loss jumped at {spike}")
    return jumps


def _losses(
    run: str, ranges: Sequence[StepRange], numbers: Sequence[range], losses: str | None, score: bool
) -> tuple[Mapping[int, float], str]:
    """Get the known losses of samples `numbers` and of some earlier samples, and the origin of the losses."""
    sample_numbers = {number for some in numbers for number in sample_losses.with_those_before(some)}
    if losses == STANDARD_INPUT:
        return sample_losses.parse(sys.stdin.buffer, sample_numbers, "standard input"), GIVEN
    if losses is not None:
        with storage.open_read(losses) as file:
            return sample_losses.parse(file, sample_numbers, losses), GIVEN
    if score:
        return {key: loss for one in ranges for key, loss in _scored(run, one, sample_numbers).items()}, SCORED
    return sample_losses.read(run, sample_numbers), LOGGED


def _scored(run: str, steps: StepRange, sample_numbers: set[int]) -> dict[int, float]:
    """Run `lt-train score` for the samples of these steps and of earlier steps, with the checkpoint before `steps`."""
    program = shutil.which("lt-train")
    if program is None:
        raise Unavailable("lt-train is not installed here", "run lt-train score where it is, and pass its output to --losses")
    command = [program, "score", run, "--step", f"{steps.first}-{steps.last}"]
    note(" ".join(command))
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if process.returncode:
        raise IoFailure(f"lt-train score ended with exit code {process.returncode}")
    loss_by_sample = sample_losses.parse(process.stdout.splitlines(), sample_numbers, "lt-train score")
    if not loss_by_sample:
        raise BadData("lt-train score printed no loss of these samples")
    return loss_by_sample
