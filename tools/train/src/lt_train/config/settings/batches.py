"""The number of tokens in a step and the number of steps in a run."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.data.sample_order.batch_sizes import BatchSizes, PhaseSize, RampUp, ScheduledSize
from lt_shared.models.architecture import Architecture
from lt_train.config.settings import size_schedule
from lt_train.config.settings.parallelism import Parallelism

POSITIVE = click.IntRange(min=1)
LONGEST_DEFAULT_SEQUENCE = 8192
DEFAULT_STEPS = 1000
# Megatron's ramps take some million samples. The steps of a ramp are counted one by one, so a longer one would be slow.
LONGEST_RAMP_SAMPLES = 1_000_000_000

OPTIONS = console.section(
    "Steps and batches",
    click.option(
        "--seq-length", type=POSITIVE, help="Set the tokens per sample; by default the model's positions, at most 8192."
    ),
    click.option("--micro-batch-size", type=POSITIVE, default=1, help="Set the samples per rank and forward pass."),
    click.option(
        "--global-batch-size",
        type=POSITIVE,
        help="Set the number of samples per step; by default one micro batch per data-parallel rank.",
    ),
    click.option(
        "--rampup-batch-size",
        nargs=3,
        type=POSITIVE,
        metavar="START INCREMENT SAMPLES",
        help="Grow the global batch size from START by INCREMENT over SAMPLES samples.",
    ),
    click.option(
        "--step-batch-size-schedule",
        metavar="TOKENS:SIZE ...",
        help="Set the global batch size by the trained tokens: '0:384 200B:768 400B:1152'. Suffixes are K, M, B and T.",
    ),
    click.option("--train-iters", type=POSITIVE, help=f"Train for this many steps in all; {DEFAULT_STEPS} if no length is set."),
    click.option("--train-samples", type=POSITIVE, help="Set the run's length in samples; rounded down to whole steps."),
    click.option("--train-tokens", type=POSITIVE, help="Set the run's length in tokens; rounded down to whole steps."),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1234, help="Seed the weights and the data's order."),
)

LENGTHS = ("train_iters", "train_samples", "train_tokens")
# Options that set the length of a run.
WITHOUT_LENGTH = dict.fromkeys((*LENGTHS, "rampup_batch_size", "step_batch_size_schedule"))


@dataclasses.dataclass(frozen=True)
class Batches:
    """Sizes in tokens (`seq_length`) and samples; `train_iters` in steps. `global_batch_size` is the size after the ramp-up, or
    the last size of `size_schedule`, which is empty without --step-batch-size-schedule.

    `phase_sizes` has the batch sizes of the phases of --data-schedule; it is empty if no phase sets one. `requested_samples` is
    the length of a run that is set in samples or tokens. If earlier attempts had different batch sizes, they trained `first_step`
    steps on `first_sample` samples.
    """

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    train_iters: int
    ramp_up: RampUp | None = None
    phase_sizes: tuple[PhaseSize, ...] = ()
    requested_samples: int | None = None
    first_step: int = 0
    first_sample: int = 0
    size_schedule: tuple[ScheduledSize, ...] = ()

    def continued(self, steps: int, samples: int) -> Self:
        """Return the settings for resuming after `steps` steps on `samples` samples, whose batches may have had other sizes.

        If the length is set in samples or tokens, it stays: the run trains on the remaining samples only.
        """
        if self.requested_samples is None:
            return self
        if samples == self.samples_after(steps):
            return dataclasses.replace(self, train_iters=self.steps_within(self.requested_samples), first_step=0, first_sample=0)
        end = steps + self.batch_sizes.steps_between(samples, max(samples, self.requested_samples))
        return dataclasses.replace(self, train_iters=end, first_step=steps, first_sample=samples)

    @property
    def batch_sizes(self) -> BatchSizes:
        return BatchSizes(self.global_batch_size, self.ramp_up, self.phase_sizes, self.size_schedule)

    @property
    def train_samples(self) -> int:
        return self.first_sample + self.samples_between(self.first_sample, self.train_iters - self.first_step)

    @property
    def length(self) -> int:
        """The samples over which schedules run: as requested, if whole steps take fewer, as in Megatron-LM."""
        return self.requested_samples or self.train_samples

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size that a global batch has during the run."""
        return self.batch_sizes.all

    @property
    def described(self) -> str:
        """Describe the samples and tokens of a step, for people. A schedule has the first step of each size."""
        sizes = str(self.global_batch_size)
        if self.size_schedule:
            sizes = ", ".join(f"{size} from step {step:,}" if step > 1 else str(size) for step, size in self._scheduled_steps())
        elif self.ramp_up:
            sizes = f"{self.ramp_up.start} to {self.global_batch_size}"
        return f"{sizes} x {self.seq_length} tokens"

    @property
    def size_schedule_text(self) -> str | None:
        """The schedule as --step-batch-size-schedule takes it, in tokens; None without one."""
        return " ".join(f"{entry.begin * self.seq_length}:{entry.size}" for entry in self.size_schedule) or None

    def _scheduled_steps(self) -> Iterator[tuple[int, int]]:
        """Yield the first step, from 1, and the size of each entry of the schedule that a step of the run begins in."""
        for entry in self.size_schedule:
            steps = self.steps_within(entry.begin)
            steps += self.samples_after(steps) < entry.begin
            if steps < self.train_iters and self.size_at(self.samples_after(steps)) == entry.size:
                yield steps + 1, entry.size

    def size_at(self, consumed_samples: int) -> int:
        """Return the samples in the step that begins after `consumed_samples` samples."""
        return self.batch_sizes.size_at(consumed_samples)

    def samples_after(self, steps: int) -> int:
        """Return the number of samples in the first `steps` steps of the run."""
        return self.batch_sizes.samples_after(steps)

    def samples_between(self, consumed_samples: int, steps: int) -> int:
        """Return the number of samples in the `steps` steps that follow after `consumed_samples` samples."""
        return self.batch_sizes.samples_between(consumed_samples, steps)

    def steps_within(self, samples: int) -> int:
        """Return how many whole steps, from the beginning of the run, take no more than `samples` samples together."""
        return self.batch_sizes.steps_within(samples)


def sequence_length(options: dict[str, Any], architecture: Architecture) -> int:
    return options["seq_length"] or min(architecture.max_position_embeddings, LONGEST_DEFAULT_SEQUENCE)


def resolve_batches(options: dict[str, Any], architecture: Architecture, parallelism: Parallelism) -> Batches:
    """Resolve the batch options.

    Raises UsageError for more than one length of the run or batch size, BadConfig for a malformed schedule of batch sizes, for a
    ramp-up that misses the global batch size, or for a run shorter than a step.
    """
    micro_batch_size, seq_length = options["micro_batch_size"], sequence_length(options, architecture)
    schedule = size_schedule.resolve_size_schedule(options, seq_length)
    default_size = schedule[-1].size if schedule else micro_batch_size * max(1, parallelism.data)
    batches = Batches(
        seq_length=seq_length,
        micro_batch_size=micro_batch_size,
        global_batch_size=options["global_batch_size"] or default_size,
        train_iters=options["train_iters"] or DEFAULT_STEPS,
        ramp_up=RampUp(*options["rampup_batch_size"]) if options["rampup_batch_size"] else None,
        size_schedule=schedule,
    )
    _check_ramp_up(batches)
    lengths = {name: options[name] for name in LENGTHS if options[name]}
    if len(lengths) > 1:
        raise UsageError(" and ".join(f"--{name.replace('_', '-')}" for name in lengths), "give one length of the run")
    samples = options["train_samples"] or (options["train_tokens"] or 0) // batches.seq_length
    if "train_iters" in lengths or not lengths:
        return batches
    steps = batches.steps_within(samples)
    if steps == 0:
        raise BadConfig(
            f"{samples} samples of {batches.seq_length} tokens are less than one step of {batches.size_at(0)} samples"
        )
    return dataclasses.replace(batches, train_iters=steps, requested_samples=samples)


def _check_ramp_up(batches: Batches) -> None:
    ramp = batches.ramp_up
    if ramp is None:
        return
    if ramp.samples > LONGEST_RAMP_SAMPLES:
        raise BadConfig(f"a batch size that grows over {ramp.samples:,} samples", f"at most {LONGEST_RAMP_SAMPLES:,}")
    rise = batches.global_batch_size - ramp.start
    if rise <= 0 or rise % ramp.increment:
        raise BadConfig(
            f"a batch size that grows from {ramp.start} by {ramp.increment} does not arrive at {batches.global_batch_size}",
            "--rampup-batch-size is first size, increment and samples; --global-batch-size is the size after it",
        )


def check(batches: Batches, architecture: Architecture, parallelism: Parallelism) -> Iterator[ToolError]:
    """Yield BadConfig if the ranks do not divide a batch, or if a sample is longer than the model's positions."""
    step_samples = batches.micro_batch_size * max(1, parallelism.data)
    for size in batches.sizes:
        if size % step_samples:
            yield BadConfig(
                f"global batch size {size} is not a multiple of micro batch size {batches.micro_batch_size}"
                f" x data parallel size {parallelism.data}",
                f"use {'multiples' if batches.ramp_up or batches.size_schedule else 'a multiple'} of {step_samples}",
            )
    if batches.seq_length > architecture.max_position_embeddings:
        yield BadConfig(
            f"sequence length {batches.seq_length} exceeds the model's {architecture.max_position_embeddings} positions",
            "lower --seq-length or raise --max-position-embeddings",
        )
