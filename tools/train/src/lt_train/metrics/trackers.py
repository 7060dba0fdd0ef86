"""Write curves for TensorBoard and Weights & Biases, under Megatron-LM's names.

Both packages are optional, and imported only if an option asks for curves. After a restart, wandb continues the same run: SAVE
has the run's id.

wandb's files and its network belong to a service, a process that the rank starts. If the service fails, the curves end and the
run goes on: a thousand GPUs should not stop for a picture. metrics.jsonl has the same values, and it alone is complete: the
service writes late, and loses the unwritten values if the rank is killed. Only the watchdog notices a service that hangs.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from lt_shared.console import Unavailable, warn
from lt_shared.contracts.run_log import SOURCE_LOSS, STEP_TAGS, Evaluation, Step, evaluation_tags
from lt_train.config.settings.reporting import Reporting, Wandb
from lt_train.process import run_files

WANDB_ID = "wandb-run-id"


class Tracker(Protocol):
    def write(self, step: int, values: dict[str, float]) -> None: ...
    def close(self) -> None: ...


def open_trackers(reporting: Reporting, run: str | None, first_step: int, arguments: dict[str, Any]) -> list[Tracker]:
    """Open the trackers that `reporting` requests. `run` is the directory of the run, `first_step` this attempt's first step."""
    trackers: list[Tracker] = []
    if reporting.tensorboard_dir:
        trackers.append(TensorBoardTracker(reporting.tensorboard_dir, first_step))
    if reporting.wandb:
        trackers.append(WandbTracker(reporting.wandb, run, arguments))
    return trackers


def step_values(step: Step) -> dict[str, float]:
    """Return a training step's values for the curves, by tag."""
    values = {tag: getattr(step, field) for field, tag in STEP_TAGS.items()}
    values |= {f"{SOURCE_LOSS}{name}": loss for name, loss in (step.source_losses or {}).items()}
    return {tag: float(value) for tag, value in values.items() if value is not None}


def evaluation_values(evaluation: Evaluation) -> dict[str, float]:
    return dict(zip(evaluation_tags(evaluation.part), (evaluation.loss, evaluation.perplexity), strict=True))


class TensorBoardTracker:
    """Write event files into a directory. TensorBoard purges the events that an earlier attempt wrote from `first_step` on."""

    def __init__(self, directory: str, first_step: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(directory, purge_step=first_step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Write to a wandb run. The directory `run` keeps the run's id across restarts. WANDB_MODE=offline needs no network."""

    def __init__(self, settings: Wandb, run: str | None, arguments: dict[str, Any]):
        import wandb

        os.makedirs(settings.directory or ".", exist_ok=True)
        try:
            self._run = wandb.init(
                project=settings.project,
                name=settings.name,
                dir=settings.directory,
                id=_run_id(run),
                resume="allow",
                config={
                    name: value if isinstance(value, int | float | list) else str(value) for name, value in arguments.items()
                },
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise Unavailable(
                f"wandb: {error}", "set WANDB_API_KEY where wandb can be reached, else WANDB_MODE=offline"
            ) from None
        # The steps are a metric, `iteration`, because wandb drops values for a step that it has already received. A run that
        # continues from its last checkpoint trains some steps again.
        self._run.define_metric("*", step_metric="iteration")
        self._has_failed = False

    def write(self, step: int, values: dict[str, float]) -> None:
        if not self._has_failed:
            with self._noticing_failure(
                f"the curves end before step {step} and the last values may be missing; training continues"
            ):
                self._run.log({"iteration": step, **values})

    def close(self) -> None:
        """Return when the files are complete. `finish` leaves the last values with the service, which a job's end would kill."""
        import wandb

        for end in (self._run.finish, wandb.teardown):
            with self._noticing_failure("the last values may be missing"):
                end()

    @contextlib.contextmanager
    def _noticing_failure(self, consequence: str) -> Iterator[None]:
        """Turn wandb's exceptions, which have no common class, into a warning: ConnectionError, private ones, SystemExit."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if not self._has_failed:
                warn(f"wandb has failed ({error!r}): {consequence}")
            self._has_failed = True


def _run_id(run: str | None) -> str | None:
    """Return the id that the environment names, or the id of the earlier attempts, or a new id."""
    if "WANDB_RUN_ID" in os.environ or run is None:
        return os.environ.get("WANDB_RUN_ID")
    with os.fdopen(run_files.open_descriptor(Path(run) / WANDB_ID, os.O_RDWR), "r+") as file:
        run_id = file.read().strip()
        if not run_id:
            run_id = secrets.token_hex(4)
            file.write(run_id + "\n")
    return run_id
