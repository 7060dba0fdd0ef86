"""Settings for reports: the log interval, the directories and services that a run writes to, and the profiled steps."""

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, Unavailable, UsageError
from lt_shared.files import storage
from lt_train.config.settings.checkpointing import local_directory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.process import device

COUNT = click.IntRange(min=0)
ALL_RANKS = "all"

OPTIONS = console.section(
    "Reports",
    click.option("--log-interval", type=click.IntRange(min=1), default=10, help="Write a log line every N steps."),
    click.option("--log-sample-loss", is_flag=True, help="Write the loss of every sample in a step to SAVE/sample-losses.jsonl."),
    click.option("--log-throughput", is_flag=True, hidden=True, help="No effect: throughput is always logged."),
    click.option(
        "--timing-log-level", type=click.IntRange(0, 2), default=0, help="Time the parts of a step, coarse (1) or fine (2)."
    ),
    click.option(
        "--timing-log-option",
        type=click.Choice(["max", "minmax", "all"]),
        default="minmax",
        help="Select the ranks whose times are shown.",
    ),
    click.option("--tensorboard-dir", type=click.Path(file_okay=False), help="Write TensorBoard events to DIRECTORY."),
    click.option("--wandb-project", help="Report to this Weights & Biases project."),
    click.option("--wandb-exp-name", help="Name the run in Weights & Biases."),
    click.option(
        "--wandb-save-dir", type=click.Path(file_okay=False), help="Keep wandb's files in this directory; by default in SAVE."
    ),
    click.option("--profile", is_flag=True, help="Trace some steps with torch's profiler."),
    click.option("--profile-step-start", type=COUNT, default=10, help="Start the profile after this many steps."),
    click.option("--profile-step-end", type=click.IntRange(min=1), default=12, help="End the profile after this many steps."),
    click.option("--profile-ranks", default="0", help="Profile these ranks, for example 0,8; or all."),
    click.option("--record-memory-history", is_flag=True, help="Take a snapshot of GPU memory for the profiled steps and ranks."),
    click.option("--plain", is_flag=True, help="Print bare checkpoint paths instead of JSON lines."),
)


@dataclasses.dataclass(frozen=True)
class Wandb:
    """`directory` holds wandb's files."""

    project: str
    name: str | None
    directory: str | None


@dataclasses.dataclass(frozen=True)
class Profile:
    """Profile the steps from `first` to `end`, counted from 0, on `ranks`, and write the traces to `directory`."""

    trace: bool
    memory: bool
    first: int
    end: int
    ranks: tuple[int, ...]
    directory: str


@dataclasses.dataclass(frozen=True)
class Reporting:
    """`command` holds the arguments of lt-train if a command line started the run."""

    log_interval: int
    timing_log_level: int
    timing_log_option: str
    tensorboard_dir: str | None
    wandb: Wandb | None
    profile: Profile | None
    plain: bool
    sample_losses: bool = False
    command: tuple[str, ...] = ()


def resolve_reporting(options: dict[str, Any], parallelism: Parallelism) -> Reporting:
    return Reporting(
        log_interval=options["log_interval"],
        timing_log_level=options["timing_log_level"],
        timing_log_option=options["timing_log_option"],
        tensorboard_dir=options["tensorboard_dir"],
        wandb=_wandb(options),
        profile=_profile(options, parallelism.world_size),
        plain=options["plain"],
        sample_losses=options["log_sample_loss"],
    )


def _wandb(options: dict[str, Any]) -> Wandb | None:
    if options["wandb_project"]:
        return Wandb(
            options["wandb_project"], options["wandb_exp_name"], options["wandb_save_dir"] or local_directory(options["save"])
        )
    for name in ("wandb_exp_name", "wandb_save_dir"):
        if options[name]:
            raise UsageError(f"--{name.replace('_', '-')} without --wandb-project", "name the project, or drop it")
    return None


def _profile(options: dict[str, Any], world_size: int) -> Profile | None:
    if not (options["profile"] or options["record_memory_history"]):
        return None
    directory = local_directory(options["save"]) or options["tensorboard_dir"]
    if not directory:
        raise UsageError("no directory for the profile", "give --save or --tensorboard-dir")
    return Profile(
        trace=options["profile"],
        memory=options["record_memory_history"],
        first=options["profile_step_start"],
        end=options["profile_step_end"],
        ranks=_ranks(options["profile_ranks"], world_size),
        directory=os.path.join(directory, "profile"),
    )


def _ranks(text: str, world_size: int) -> tuple[int, ...]:
    if text == ALL_RANKS:
        return tuple(range(world_size))
    try:
        ranks = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--profile-ranks {text} is no list of ranks", "for example --profile-ranks 0,8") from None
    beyond = [rank for rank in ranks if not 0 <= rank < world_size]
    if beyond:
        raise BadConfig(f"--profile-ranks names rank {beyond[0]}, the run has {world_size}")
    return ranks


def check(reporting: Reporting, device_type: str, train_iters: int) -> Iterator[ToolError]:
    """Yield BadConfig for a profile without steps or hardware."""
    profile = reporting.profile
    if profile and profile.first >= train_iters:
        yield BadConfig(
            f"profiling begins at step {profile.first}, and the run has {train_iters}", "choose --profile-step-start within it"
        )
    if profile and profile.end <= profile.first:
        yield BadConfig(f"profiling ends at step {profile.end}, before it begins at step {profile.first}")
    if profile and profile.memory and device_type == device.CPU:
        yield BadConfig("--record-memory-history records GPU memory, and this run is on a CPU", "drop it")


def missing_packages(reporting: Reporting) -> Iterator[ToolError]:
    """Yield Unavailable if a tracker's package is not installed here."""
    for option, package, is_enabled in (
        ("--tensorboard-dir", "tensorboard", reporting.tensorboard_dir),
        ("--wandb-project", "wandb", reporting.wandb),
    ):
        if is_enabled and importlib.util.find_spec(package) is None:
            yield Unavailable(f"{option} needs the package {package}", f"pip install 'lt-train[{package}]'")


def check_directories(reporting: Reporting) -> Iterator[ToolError]:
    """Yield BadConfig for reports that cannot be written."""
    for option, directory in (
        ("--tensorboard-dir", reporting.tensorboard_dir),
        ("--wandb-save-dir", reporting.wandb and reporting.wandb.directory),
    ):
        if directory and not storage.is_remote(directory):
            yield from _check_writable(option, Path(directory))


def _check_writable(option: str, directory: Path) -> Iterator[ToolError]:
    existing = directory.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield BadConfig(f"{option} {directory}: {existing} is not a directory that can be written", "choose another one")
