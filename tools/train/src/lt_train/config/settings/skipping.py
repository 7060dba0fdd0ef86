"""Exclude steps and samples from training without changing the order of the data.

A skipped step consumes its samples and does not update weights, optimizer or schedule, as Megatron's `--iterations-to-skip`. A
skipped sample has no loss: the loss of its step is the mean over the remaining samples of the global batch.

Skipped samples are not replaced by samples after the end of the run. Replacements may need one more epoch of a dataset, which
reshuffles the dataset and changes the samples of every step; and a run that is lengthened later would train on them twice.
"""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_shared.console import UsageError
from lt_shared.data.sample_order.skip_list import SkipList

OPTIONS = console.section(
    "Data",
    click.option(
        "--skip-steps", metavar="RANGES", help="Skip steps such as 100-120,130: consume their samples without updating weights."
    ),
    click.option(
        "--skip-samples",
        type=click.Path(dir_okay=False),
        help="Exclude the samples of this file from the losses of their steps: sample numbers, or the output of"
        " lt-monitor blame.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Skipping:
    """The steps to skip, counted from 1 as in the log, and the samples, counted from 0 in the order that the run reads them."""

    steps: SkipList
    samples: SkipList

    def __bool__(self) -> bool:
        return bool(self.steps or self.samples)

    def skipped(self, step: int, samples: range) -> list[int]:
        """Return the samples of `samples` that `step` excludes from its loss."""
        return list(samples) if step in self.steps else self.samples.within(samples)

    def described(self, steps: int, samples: int) -> str:
        """Describe the skipped steps and samples of a run with `steps` and `samples`."""
        return f"{self.steps.count(steps + 1):,} of {steps:,} steps, {self.samples.count(samples):,} of {samples:,} samples"


def resolve_skipping(options: dict[str, Any]) -> Skipping:
    """Resolve the options. Raises UsageError for invalid steps, and as `SkipList.read`."""
    path = options["skip_samples"]
    return Skipping(_steps(options["skip_steps"]), SkipList.read(path) if path else SkipList())


def _steps(text: str | None) -> SkipList:
    if text is None:
        return SkipList()
    try:
        steps = SkipList.parse(text)
    except ValueError as error:
        raise UsageError(f"--skip-steps: {error}", "for example --skip-steps 100-120,130") from None
    if 0 in steps:
        raise UsageError("--skip-steps: there is no step 0", "steps are counted from 1, as in the log")
    return steps
