"""Build the configuration that computes steps of a run again: the run's configuration, started from an earlier checkpoint.

A replay saves and reports nothing, so that it may run beside the run itself.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from lt_shared.console import BadConfig, NoInput, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import storage
from lt_train.checkpoint import remote_run
from lt_train.config import checks, optional_packages
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.config.settings.data import Data
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.replaying import LOSS_TOLERANCE, Replay
from lt_train.config.settings.reporting import Reporting
from lt_train.metrics import recorded_steps
from lt_train.metrics.recorded_steps import Attempt, RecordedStep
from lt_train.process import device, rank_environment

OTHER_LAYOUT = "another parallel layout"


def replay_config(
    run: str, first: int, last: int, start: str | None, ranks: int | None, tolerance: float | None, as_json: bool
) -> RunConfig:
    """Build the configuration that replays steps `first` to `last` of the run at `run`.

    Raises NoInput, BadConfig or UsageError if these steps cannot be replayed.
    """
    recorded = recorded_steps.read(run)
    attempt = _attempt(recorded, run, first, last)
    checkpoint = _requested_checkpoint(start, first) if start else _checkpoint_before(run, first, attempt)
    begin = checkpoint_layout.iteration_of(Path(checkpoint)) or 0 if checkpoint else 0
    _check_same(recorded, attempt, begin, last)
    if begin >= attempt.config.batches.train_iters:
        raise NoInput(
            f"{run}: by its metrics an attempt that was to end with step {begin} has trained step {first}: a line about a later"
            " attempt is lost",
            "choose other --steps",
        )
    changed = dataclasses.replace(attempt.config, parallelism=_layout(attempt.config.parallelism, ranks))
    attempts = [record.attempt for record in recorded.values() if begin < record.step <= last]
    exact, why = _exactness(changed.parallelism, changed.precision.deterministic, attempts)
    if why == OTHER_LAYOUT and changed.layers.dropout and tolerance is None:
        raise BadConfig(
            "a run with dropout cannot be compared in another parallel layout: what is dropped depends on the rank",
            "replay it with as many ranks as it had; or --tolerance allows for the difference that dropout makes",
        )
    allowed = tolerance if tolerance is not None else None if exact else LOSS_TOLERANCE
    why = "as asked" if tolerance is not None else why
    replayed = dataclasses.replace(
        changed,
        checkpointing=_without_saving(changed.checkpointing, last, checkpoint),
        faults=dataclasses.replace(changed.faults, max_restarts=0, min_nodes=None),
        reporting=_without_reports(changed.reporting),
        data=_with_index_cache(changed.data, run),
        replay=Replay(run, first, last, allowed, why, as_json),
    )
    for problem in checks.layout_problems(replayed):
        raise problem
    return replayed


def _attempt(recorded: dict[int, RecordedStep], run: str, first: int, last: int) -> Attempt:
    """Return the attempt that trained the first recorded step between `first` and `last`."""
    inside = [step for step in sorted(recorded) if first <= step <= last]
    if not inside:
        after = min((step for step in recorded if step > last), default=None)
        nearest = (
            f"step {after} is the next one" if after else f"the last one is {max(recorded)}" if recorded else "there is none"
        )
        raise NoInput(f"{run}: no line about steps {first} to {last} in its metrics: {nearest}", "choose other --steps")
    attempt = recorded[inside[0]].attempt
    if attempt is None:
        raise NoInput(
            f"{run}: its metrics do not say with which configuration step {inside[0]} was trained",
            "it was trained by a version of lt-train before there was replay; steps after the next start can be replayed",
        )
    return attempt


def _requested_checkpoint(start: str, first: int) -> str:
    """Return the checkpoint at `start`, or the newest one if `start` is a run. Raises UsageError unless it is before `first`."""
    checkpoint = remote_run.find_checkpoint(start) if storage.is_remote(start) else None
    checkpoint = checkpoint or str(checkpoint_layout.resolve_checkpoint_directory(Path(start)))
    iteration = checkpoint_layout.iteration_of(Path(checkpoint))
    if iteration is None or iteration >= first:
        raise UsageError(f"--from {start}: is not a checkpoint before step {first}", "name one whose iteration is smaller")
    return checkpoint


def _checkpoint_before(run: str, first: int, attempt: Attempt) -> str | None:
    """Return the run's newest complete checkpoint before step `first`. Raises NoInput.

    None if the steps are replayed from the beginning of the run, or from the checkpoint that --load names.
    """
    if storage.is_remote(run):
        checkpoint = remote_run.newest(run, below=first)
    else:
        candidates = [path for path in checkpoint_layout.checkpoints(Path(run)) if _iteration(path) < first]
        checkpoint = next((str(path) for path in candidates if checkpoint_layout.damage(path) is None), None)
    if checkpoint is None and attempt.start and attempt.config.checkpointing.continues:
        raise NoInput(f"{run}: no complete checkpoint before step {first}", "--keep-every keeps some of the older ones")
    return checkpoint


def _iteration(path: Path) -> int:
    return checkpoint_layout.iteration_of(path) or 0


def _check_same(recorded: dict[int, RecordedStep], attempt: Attempt, begin: int, last: int) -> None:
    """Raise BadConfig if a step between `begin` and `last` was trained with other settings than `attempt`."""
    settings = _numeric_settings(attempt)
    for step in sorted(recorded):
        other = recorded[step].attempt
        if begin < step <= last and other is not attempt and (other is None or _numeric_settings(other) != settings):
            raise BadConfig(
                f"step {step} was trained with other settings than the step to replay, from checkpoint {begin}",
                "replay the steps of one configuration, from a checkpoint that it began with",
            )


def _numeric_settings(attempt: Attempt) -> dict[str, Any]:
    """Return the settings that change a step's numbers. The parallel layout is left out: it changes only the rounding."""
    config = attempt.config
    settings = {name: value for name, value in vars(config).items() if name not in ("checkpointing", "faults", "parallelism")}
    return settings | {"reporting": config.reporting.log_interval}


def _layout(parallelism: Parallelism, ranks: int | None) -> Parallelism:
    """Return the run's layout with the number of ranks that a launcher has started, or else with `ranks` ranks if requested."""
    here, node = rank_environment.find(), rank_environment.find_node()
    stored_world_size = parallelism.world_size
    if here is not None:
        size = here.world_size
    elif node is not None:
        # Without a number of ranks, distribute the run's ranks over the nodes, rounded up.
        size = node.nodes * (ranks or node.ranks or -(-stored_world_size // node.nodes))
    else:
        size = ranks or stored_world_size
    return dataclasses.replace(parallelism, world_size=size)


def _exactness(parallelism: Parallelism, deterministic: bool, attempts: list[Attempt | None]) -> tuple[bool, str]:
    """Return whether the numbers must be the same bit for bit, and why."""
    known_attempts = [other for other in attempts if other is not None]
    if any(other.config.parallelism != parallelism for other in known_attempts):
        return False, OTHER_LAYOUT
    if any(other.other_layers for other in known_attempts):
        return False, "trained with TransformerEngine's layers, which lt-train no longer has"
    here = optional_packages.versions()
    if changed := sorted({name for other in known_attempts for name in here if other.versions.get(name) != here[name]}):
        return False, f"another version of {', '.join(changed)}"
    if parallelism.device == device.CUDA and not deterministic:
        return False, "trained without --deterministic"
    return True, "deterministic"


def _without_saving(settings: Checkpointing, last: int, checkpoint: str | None) -> Checkpointing:
    """Return settings that start from `checkpoint`, end after step `last`, and write nothing."""
    changes: dict[str, Any] = {"save": None, "async_save": False, "save_local": None, "keep_last": None, "keep_every": None}
    changes |= {"exit_interval": last, "exit_duration_minutes": None, "start": checkpoint, "continues": checkpoint is not None}
    changes |= {"load": None} if checkpoint else {}
    return dataclasses.replace(settings, **changes)


def _without_reports(reporting: Reporting) -> Reporting:
    return dataclasses.replace(reporting, timing_log_level=0, tensorboard_dir=None, wandb=None, profile=None, plain=False)


def _with_index_cache(data: Data, run: str) -> Data:
    """Return `data` with the run's index cache, unless the settings name a cache."""
    cache = os.path.join(run, "data-cache")
    is_usable = data.cache_path is None and not storage.is_remote(run) and os.path.isdir(cache)
    return dataclasses.replace(data, cache_path=cache) if is_usable else data
