"""`lt-train score`: print the losses of single samples of a run, computed with the weights of a checkpoint."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, BadData, ExitCode, NoInput, UsageError
from lt_shared.contracts import checkpoint_layout, manifest
from lt_shared.contracts.manifest import Dataset
from lt_train.config import options as run_options
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import schedule_file, streaming
from lt_train.config.settings.batches import LENGTHS
from lt_train.config.settings.data_schedule import Phase
from lt_train.config.settings.model.architecture import resolve_architecture
from lt_train.config.settings.scoring import Scoring
from lt_train.process import rank_environment

if TYPE_CHECKING:
    from lt_shared.data.sample_order.run_order import AttemptOrder, OrderedDataset

EXAMPLES = """
lt-train score run9 --step 12
lt-train score run9 --step 11-12 | lt-monitor blame run9 --step 11-12 --losses -
lt-train score run9 --samples 90-97 --checkpoint run9/iter_0000010 --device cpu --ranks 1
"""


class _Range(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Parse a number, or a range such as 100-120, into (first, last)."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            self.fail(f"{value!r} is no number and no range such as 100-120", param, ctx)
        return first, last


@click.command(
    "score",
    cls=console.Command,
    examples=EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False))
@click.argument("more", metavar="[OPTIONS OF THE RUN]", nargs=-1, type=click.UNPROCESSED)
@click.option("--step", "steps", type=_Range(), metavar="N|M-N", help="Score the samples in these steps, and some earlier ones.")
@click.option("--samples", type=_Range(), metavar="A|A-B", help="Score these samples of the run, counted from 0.")
@click.option(
    "--checkpoint", type=click.Path(file_okay=False), help="Load these weights; by default the newest before the samples."
)
def command(
    run: str, more: tuple[str, ...], steps: tuple[int, int] | None, samples: tuple[int, int] | None, checkpoint: str | None
) -> int:
    """Print the loss of each sample in a step, in nats per token, as JSON lines.

    RUN is the directory that a run saves into. The command that started the run sets the model and its layout; options of
    lt-train after RUN, such as --device cpu, --ranks 1 or --tensor-model-parallel-size 1, are added to it.
    """
    from lt_shared.data.sample_order import run_order
    from lt_train.launch import launcher

    _check_options([run, *more] if run.startswith("-") else more)
    if (steps is None) == (samples is None):
        raise click.UsageError("Give --step or --samples.")
    attempts = run_order.read(run)
    attempt, numbers = _select_samples(attempts, samples) if samples else _select_steps(attempts, steps or (1, 1))
    step = steps[0] if steps else run_order.step_of(attempts, numbers.start)
    checkpoint_path = Path(checkpoint) if checkpoint else checkpoint_layout.newest_before(Path(run), step)
    if checkpoint_path is None:
        raise NoInput(f"{run}: no checkpoint was saved before step {step}", "--checkpoint names one")
    parts = _scoring_configs(run, attempt, checkpoint_path, more, numbers)
    if len(parts) > 1 and rank_environment.find():
        ranges = ", ".join(f"{part.start}-{part.stop - 1}" for _, part in parts)
        raise BadConfig(
            f"samples {ranges} have different lengths, which need new ranks, but a launcher started this rank",
            "score one of these ranges at a time: --samples",
        )
    for config, part in parts:
        scoring = Scoring(str(Path(run).absolute()), attempts.index(attempt), part.start, part.stop)
        if code := launcher.launch(dataclasses.replace(config, scoring=scoring)):
            return code
    return ExitCode.OK


def _check_options(more: Sequence[str]) -> None:
    """Raise NoSuchOption for an option that lt-train does not have."""
    # click passes unknown options as arguments here, and the first becomes RUN.
    try:
        run_options.schema().make_context("lt-train", list(more))
    except click.NoSuchOption as error:
        raise click.NoSuchOption(error.option_name, possibilities=error.possibilities, ctx=click.get_current_context()) from None


def _select_steps(attempts: "Sequence[AttemptOrder]", steps: tuple[int, int]) -> "tuple[AttemptOrder, range]":
    from lt_shared.data.sample_order import run_order, sample_losses

    if steps[0] < 1:
        raise UsageError(f"step {steps[0]}: steps count from 1")
    attempt = run_order.of_step(attempts, steps[1])
    return attempt, sample_losses.with_those_before(run_order.samples_of(attempts, *steps))


def _select_samples(attempts: "Sequence[AttemptOrder]", samples: tuple[int, int]) -> "tuple[AttemptOrder, range]":
    attempt = next((one for one in reversed(attempts) if one.consumed_samples <= samples[0]), attempts[0])
    if samples[1] >= attempt.samples:
        raise BadData(f"sample {samples[1]}: the run has samples 0 to {attempt.samples - 1}")
    return attempt, range(samples[0], samples[1] + 1)


def _scoring_configs(
    run: str, attempt: "AttemptOrder", checkpoint: Path, more: Sequence[str], numbers: range
) -> list[tuple[RunConfig, range]]:
    """Return configurations that score the run's data with the weights of `checkpoint`, each with its range of samples.

    Samples with the same sequence length and rotary embedding share the configuration of their phase.
    """
    from lt_train.planner.resolve import resolve_run_config

    if not attempt.command:
        raise BadConfig(f"{run}: nothing says with which command it was started", "it was not started on a command line")
    context = run_options.schema().make_context("lt-train", [*attempt.command, *more])
    unused = {"data", "dry_run", "as_json"}
    options = {name: value for name, value in context.params.items() if name not in unused}
    datasets = tuple(_dataset(dataset) for dataset in attempt.datasets)
    scoring_options = {
        "save": None,
        "save_local": None,
        "save_local_interval": None,
        "replicate_interval": None,
        "keep_last": None,
        "keep_every": None,
        "async_save": False,
        "exit_interval": None,
        "exit_duration_in_mins": None,
        "load": str(checkpoint),
        "finetune": True,
        "log_sample_loss": True,
        "eval_iters": 0,
        "rampup_batch_size": None,
        "step_batch_size_schedule": None,
        "data_schedule": None,
        "tensorboard_dir": None,
        "wandb_project": None,
        "wandb_exp_name": None,
        "profile": False,
        "record_memory_history": False,
        "max_restarts": 0,
        "spare_nodes": 0,
        "min_nodes": None,
    }
    if not attempt.phases:
        return [(resolve_run_config(options | scoring_options, datasets), numbers)]
    parts: list[tuple[RunConfig, range]] = []
    for phase, part in _split_by_phase(attempt, options, datasets, numbers):
        config = resolve_run_config(options | scoring_options | {"seq_length": phase.seq_length}, datasets)
        config = dataclasses.replace(config, architecture=phase.architecture)
        if parts and parts[-1][0] == config:
            parts[-1] = (config, range(parts[-1][1].start, part.stop))
        else:
            parts.append((config, part))
    return parts


def _dataset(dataset: "OrderedDataset") -> Dataset:
    if dataset.shard_list is None:
        return dataclasses.replace(manifest.describe(dataset.prefix), weight=dataset.weight)
    (head,) = streaming.datasets((f"@{dataset.shard_list}",), follow=True)
    return dataclasses.replace(head, weight=dataset.weight)


def _split_by_phase(
    attempt: "AttemptOrder", options: dict[str, Any], datasets: tuple[Dataset, ...], numbers: range
) -> Iterator[tuple[Phase, range]]:
    """Yield each phase with some of the samples, and their range. Raises BadConfig if the run had a different schedule."""
    planned = schedule_file.resolve_schedule(
        options | dict.fromkeys(LENGTHS), datasets, resolve_architecture(options, datasets)
    ).phases
    begin = 0
    for number, read in enumerate(attempt.phases):
        part = range(max(numbers.start, begin), min(numbers.stop, begin + read.samples))
        begin += read.samples
        if not part:
            continue
        phase = planned[number] if number < len(planned) else None
        if phase is None or (phase.seq_length, phase.weights) != (read.sequence_length, read.weights):
            raise BadConfig(
                f"{options['data_schedule']}: phase {number + 1} is not the one that the run was trained in",
                "put the schedule of the run back",
            )
        yield phase, part
