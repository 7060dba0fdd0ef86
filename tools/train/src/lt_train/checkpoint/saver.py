"""Save checkpoints whole or not at all, while training waits or continues.

1. All ranks plan: megatron-core assigns the objects to the ranks.
2. Each rank writes its shards into `.iter_NNNNNNN.partial-ATTEMPT`. With --async-save, its writer process writes them: the state
   is copied to shared memory while the next step runs (shards/host_staging.py), and the writer begins after that step.
3. When every rank's shards are written, rank 0 adds `run.json` and `checksums.json`, renames the directory, writes the tracker,
   and deletes expired checkpoints. In a remote run, shards are uploaded while they are written, and `run.json` last.

If a run is killed before the end of 3, the previous checkpoint stays the newest. A writer dies with its rank. If a writer on
another node survives, it writes into the directory of its attempt, which the next attempt has deleted. Training waits for 1 and
3, and without --async-save for 2; the log reports the seconds.
"""

import contextlib
import dataclasses
import datetime
import inspect
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

from lt_shared.console import IoFailure, ToolError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Checkpoint
from lt_shared.contracts.run_log import CheckpointSaved
from lt_shared.files import storage
from lt_train.checkpoint import disk_space, host_memory, remote_run, shard_checksums, training_state
from lt_train.checkpoint.shard_writer import Staging, Writer
from lt_train.checkpoint.shards import first_rank_files, shard_files, writer_process
from lt_train.checkpoint.shards.host_staging import HostStaging
from lt_train.checkpoint.shards.late_staging import LateStaging
from lt_train.checkpoint.training_state import TrainingState
from lt_train.config.kernels import Kernels
from lt_train.config.run_config import RunConfig
from lt_train.data import dataset_versions
from lt_train.data.arrivals import Arrivals
from lt_train.kernels import split_master_weights
from lt_train.metrics.log import Log
from lt_train.planner import checkpoint_size
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.process import agreement, device, run_files, signals
from lt_train.process.failure_report import is_echo
from lt_train.process.interruption import Echo

# Returns a context for work that may take longer than a step.
Slow = Callable[[], contextlib.AbstractContextManager[Any]]
# Retries per save interval when the disk has no room for a checkpoint.
RETRIES = 10


@dataclasses.dataclass
class Save:
    """A checkpoint that is being written. `waited_seconds` is how long training has waited for it."""

    record: RunRecord
    partial: Path
    request: Any
    writer: Writer
    started: float
    waited_seconds: float = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        since = time.monotonic()
        yield
        self.waited_seconds += time.monotonic() - since


class Saver:
    """A context that saves the checkpoints of a run, on every rank. Without SAVE it does nothing.

    When the context ends, the last checkpoint is complete. After an error, its writing is stopped instead.
    """

    def __init__(
        self, config: RunConfig, kernels: Kernels, state: TrainingState, device: torch.device, log: Log, arrivals: Arrivals
    ):
        self.config = config
        self.kernels = kernels
        self.state = state
        self.device = device
        self.log = log
        self.arrivals = arrivals
        self._saves: Save | None = None
        # The last checkpoint of this attempt: its iteration, its path, and whether it ends the run.
        self._saved: int | None = None
        self._last: Path | None = None
        self._is_final = True
        self._retry_at: int | None = None
        self._planned_bytes = CheckpointSize.from_config(config).total
        # Errors that stopped the first rank's files of the checkpoint that is being written.
        self._first_rank_errors: list[BaseException] = []
        self._staging: Staging | None = None
        self.is_async = False
        # Another saver sets this to end its checkpoint before a checkpoint of this saver begins.
        self.before_saving: Callable[[], None] = lambda: None
        if config.checkpointing.directory is not None:
            self._open(config.checkpointing.directory)

    def _open(self, directory: str) -> None:
        config = self.config
        copies = device.host_copies(self.device)
        bytes_each = checkpoint_size.parameter_bytes(config.precision, config.optimization, config.checkpointing)
        local_bytes = host_memory.local_checkpoint_bytes(
            self.state.chunks, bytes_each, config.parallelism, config.memory.fully_sharded
        )
        self.is_async = host_memory.allows_async_save(config.checkpointing.async_save, local_bytes, copies is not None)
        if self.is_async:
            writer_process.start()
            self._staging = HostStaging(copies, local_bytes) if copies else LateStaging()
        else:
            writer_process.stop()
        self.run = Path(directory)
        if config.checkpointing.is_remote:
            remote_run.make_spool(self.run)
        self.url = config.checkpointing.save if config.checkpointing.is_remote else None
        self.is_publisher = torch.distributed.get_rank() == 0
        # In a remote run, every node has a spool directory, so every rank makes it.
        self._makes_directory = self.is_publisher or self.url is not None
        self.datasets = dataset_versions.versions(config.data.all_datasets) if self.is_publisher else {}
        self._suffix = f".partial-{agreement.from_first_rank(secrets.token_hex(4))}"
        if self._makes_directory:
            run_files.delete_abandoned(self.run)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint has begun and is not complete yet; the same on all ranks."""
        return self._saves is not None

    def save(self, loss: float | None, is_final: bool = True) -> None:
        """Save the present state. With --async-save, return when the copies are launched. `loss` is the last step's loss.

        If the disk has no room, training continues, and the checkpoint is tried again RETRIES times per save interval. For the
        run's last checkpoint, IoFailure is raised instead.
        """
        if not self.config.checkpointing.save:
            return
        self.finish()
        self.before_saving()
        if self._saved == self.state.iteration or not self._has_room(is_final):
            return
        self._is_final = is_final
        partial = self._partial_directory()
        if not self._make_directory(partial):
            return
        explaining, collecting = self._explain_errors(partial, self.state.iteration), first_rank_files.collect_failures()
        with explaining, signals.hold_back_signals(), collecting as self._first_rank_errors:
            self._saves = self._begin(loss, partial)
        if not self.is_async:
            self.finish()

    def _partial_directory(self) -> Path:
        """Return the directory where the shards of the present state are written."""
        return self.run / f".{checkpoint_layout.iteration_directory(self.run, self.state.iteration).name}{self._suffix}"

    def _make_directory(self, partial: Path) -> bool:
        """Make the directory `partial`. Return False on all ranks if a disk had no room for it."""
        is_full = False
        if self._makes_directory:
            try:
                partial.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                is_full = run_files.is_full(error)
                if not is_full:
                    raise
        if agreement.reduce_maximum(is_full, self.device):
            self._give_up(partial, self.state.iteration)
            return False
        return True

    def _begin(self, loss: float | None, partial: Path) -> Save:
        """Plan this rank's part of the checkpoint together with all ranks, and begin to write it into `partial`."""
        started = time.monotonic()
        record = training_state.record(self.config, self.kernels, self.state, loss, self.datasets, self.arrivals.record)
        files = shard_files.REMOTE_FILES if self.url else shard_files.FILES
        joined = self._staging.joined if self._staging else split_master_weights.joined
        request = _request(training_state.content(self.config, self.state, joined), partial, files)
        destination = f"{self.url}/{checkpoint_layout.iteration_directory(self.run, record.iteration).name}" if self.url else None
        writer = Writer(request, destination, self._staging)
        return Save(record, partial, request, writer, started, time.monotonic() - started)

    def hold_back_update(self) -> None:
        """Order the copies to host memory before the optimizer's update. On a GPU, only the device waits for them."""
        if self._staging:
            self._staging.hold_back()

    def poll(self, loss: float | None = None, slow: Slow = contextlib.nullcontext) -> None:
        """Publish the checkpoint if all ranks have written their shards, or retry a checkpoint that the disk had no room for.

        All ranks call it. Work that takes longer than a reduction over the ranks runs in a context of `slow`.
        """
        if self._saves:
            with self._saves.waiting():
                self._saves.writer.start()
            if not agreement.reduce_maximum(self._saves.writer.is_running(), self.device):
                with slow():
                    self.finish()
        iteration = self.state.iteration
        is_due = self._retry_at is not None and iteration >= self._retry_at
        if is_due and iteration % self.config.checkpointing.save_interval:
            with slow():
                device.release(self.device)
                self.save(loss, is_final=False)

    def _has_room(self, is_final: bool) -> bool:
        """Return whether the next checkpoint fits, after deleting expired checkpoints. A store has room until a write fails."""
        self._retry_at = None
        settings = self.config.checkpointing
        if self.url:
            return True
        shortage = None
        if self.is_publisher:
            self.run.mkdir(parents=True, exist_ok=True)
            required_bytes = disk_space.needed_bytes(self._planned_bytes, self._last)
            free = disk_space.make_room(self.run, required_bytes, self.state.iteration, settings.keep_last, settings.keep_every)
            shortage = disk_space.describe_shortage(required_bytes, free) if free < required_bytes else None
        shortage = agreement.from_first_rank(shortage)
        if shortage is not None:
            self._postpone(self.state.iteration, shortage, is_final)
        return shortage is None

    def _postpone(self, iteration: int, reason: str, is_final: bool) -> None:
        """Try again later when the disk has no room, or raise IoFailure if the run has no later step."""
        if not is_final:
            self._retry_at = self.state.iteration + max(1, self.config.checkpointing.save_interval // RETRIES)
            self.log.checkpoint_postponed(iteration, self._retry_at, reason)
        elif self.is_publisher:
            raise IoFailure(
                f"{self.run}: iteration {iteration} not saved: {reason}",
                "make room and run the same command again: it continues from the checkpoint before",
            )
        else:
            raise Echo("no room for the checkpoint")

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and publish it. All ranks call it."""
        save, self._saves = self._saves, None
        if save is None:
            return
        with save.waiting():
            save.writer.wait()
            with self._explain_errors(save.partial, save.record.iteration):
                if not self._is_written(save):
                    return
                # megatron-core's functions are collective. On the first rank, they write `.metadata` and the small files.
                with first_rank_files.collect_failures() as errors:
                    for finalize in save.request.finalize_fns:
                        finalize()
                self._first_rank_errors += errors
                path = self._publish(save)
                if path is None:
                    return
        self._saved = save.record.iteration
        self._last = None if self.url else Path(path)
        self._report(save, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.finish()
        elif self._saves:
            self._saves.writer.kill()
        if self._staging:
            writer_process.stop()
            self._staging.close()

    def _is_written(self, save: Save) -> bool:
        """Return False, and give up the checkpoint, if a rank's disk was full. Raise this rank's error, or Echo for another's."""
        error = save.writer.error
        lacks_room = save.writer.lacks_room()
        # A full disk on one rank counts less than another error on another rank, because training continues after a full disk.
        worst = agreement.reduce_maximum(1 if lacks_room else 2 if error is not None else 0, self.device)
        if worst == 1:
            self._give_up(save.partial, save.record.iteration)
            return False
        if worst:
            if error is None:
                raise Echo("the writer of another rank failed")
            message, hint, code = error
            failure = IoFailure(f"{self.run}: iteration {save.record.iteration} not saved: {message}", hint)
            failure.exit_code = code  # type: ignore[assignment]
            raise failure
        return True

    def _give_up(self, partial: Path, iteration: int) -> None:
        """Delete the partial checkpoint after the disk became full. All ranks call it."""
        if self._makes_directory:
            shutil.rmtree(partial, ignore_errors=True)
        reason = "the disk became full while it was written"
        if self.is_publisher and not self.url:
            required_bytes, free = disk_space.needed_bytes(self._planned_bytes, self._last), disk_space.free_bytes(self.run)
            reason += f": {disk_space.describe_shortage(required_bytes, free)}"
        self._postpone(iteration, reason, self._is_final)

    def _publish(self, save: Save) -> str | None:
        """Publish the checkpoint for every rank. Return its path or URL, or None if rank 0's disk became full meanwhile."""
        iteration, settings = save.record.iteration, self.config.checkpointing
        target = checkpoint_layout.iteration_directory(self.run, iteration)
        path = f"{self.url}/{target.name}" if self.url else str(target.absolute())
        shards: dict[str, int] = {}
        is_full = False
        if self.is_publisher:
            try:
                if self._first_rank_errors:
                    raise self._first_rank_errors[0]
                shards = complete_files(save)
                if not self.url:
                    storage.publish_prepared_directory(save.partial, target)
            except (OSError, RuntimeError, ToolError) as error:
                is_full = run_files.is_full(error)
                if not is_full:
                    raise
        if agreement.reduce_maximum(is_full, self.device):
            self._give_up(save.partial, iteration)
            return None
        if self.url:
            if self.is_publisher:
                remote_run.publish(save.partial, path, iteration, shards)
                remote_run.delete_expired(self.url, iteration, settings.keep_last, settings.keep_every)
            torch.distributed.barrier()
            shutil.rmtree(save.partial, ignore_errors=True)
        elif self.is_publisher:
            if warning := disk_space.write_tracker(self.run, iteration):
                self.log.warning(warning)
            else:
                disk_space.delete_expired(self.run, iteration, settings.keep_last, settings.keep_every)
        torch.distributed.barrier()
        return path

    def _report(self, save: Save, path: str) -> None:
        iteration = save.record.iteration
        saved = CheckpointSaved(iteration, str(self.config.checkpointing.save), datetime.datetime.now())
        self.log.line(saved.format(), brief=())
        seconds = time.monotonic() - save.started
        is_hybrid = self.config.checkpointing.saves_hybrid_layers(self.state.is_hybrid)
        checkpoint = Checkpoint(path, "megatron-hybrid" if is_hybrid else "megatron-dist", iteration, save.record.loss)
        self.log.checkpoint(checkpoint, save.waited_seconds, seconds)
        if self.url and self.is_publisher:
            remote_run.send_log(self.run, self.url)

    @contextlib.contextmanager
    def _explain_errors(self, partial: Path, iteration: int) -> Iterator[None]:
        """Add the free space to errors, because torch's writers report a full disk as a wrong file position."""
        try:
            yield
        except ToolError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        except (OSError, RuntimeError, CheckpointException) as error:
            if is_echo(error):
                raise
            if not self.is_publisher and isinstance(error, CheckpointException):
                raise Echo(str(error)) from error
            free_bytes = shutil.disk_usage(self.run).free
            shutil.rmtree(partial, ignore_errors=True)
            raise IoFailure(
                f"{self.run}: iteration {iteration} not saved, {free_bytes / 1e6:,.0f} MB are free there: {reason(error)}",
                "make room and run the same command again: it continues from the checkpoint before",
            ) from error


def complete_files(save: Save) -> dict[str, int]:
    """Write `run.json` and `checksums.json` on the first rank. Return the shards' sizes by name. Raise OSError, IoFailure."""
    shards = shard_checksums.sizes()
    save.record.write(save.partial, shards)
    shard_checksums.write(save.partial)
    return shards


def reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {reason(cause)}"
    lines = str(error).strip().splitlines()
    return lines[-1].removeprefix("Worker failure: ") if lines else type(error).__name__


def _request(content: dict[str, Any], partial: Path, files: int) -> Any:
    """Plan this rank's `files` shard files with megatron-core. Return its request, with the functions to call afterwards."""
    shard_checksums.install()
    shard_files.install()
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=files)
    options: dict[str, Any] = {"async_sharded_save": True, "sharded_strategy": strategy}
    if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters:
        # The other strategy needs nvidia-resiliency-ext.
        options["async_strategy"] = "mcore"
    return dist_checkpointing.save(content, str(partial), content_metadata=dict(training_state.CONTENT_METADATA), **options)
