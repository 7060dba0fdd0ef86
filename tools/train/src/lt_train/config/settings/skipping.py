"""Which steps and samples are left out of training, in an order of the data that stays as it is.

A skipped step has its samples consumed and leaves weights, optimizer and schedule as they are, as with Megatron's
`--iterations-to-skip`. A skipped sample counts in no loss: its step is the mean over the others of its global batch. Other
samples in its place would be the alternative. Those behind the run's last may need one more epoch of a dataset, which shuffles
all of it anew, and so would change what every other step has; and a run that is lengthened later would train on them twice.
"""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_shared.console import UsageError
from lt_shared.data.sample_order.skip_list import SkipList

OPTIONS = console.section(
    "Data",
    click.option("--skip-steps", metavar="RANGES", help="Consume the samples of steps such as 100-120,130, and update nothing."),
    click.option(
        "--skip-samples",
        type=click.Path(dir_okay=False),
        help="Exclude the samples of this file from the losses of their steps: sample numbers, or the output of"
        " lt-monitor blame.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Skipping:
    """`steps` as the log counts them, from 1; `samples` from 0, in the order of the run."""

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
