"""Save checkpoints to the nodes' disks, and copy each node's shards to the next node.

1. The ranks' writers write their shards into a directory of the node. With --async-save, training continues.
2. A thread of each rank sends its shards to the next node and receives the shards of the previous node, beside training. Each
   node receives the first rank's small files.
3. When all files are on disk on all nodes, the directories are renamed, and the previous set, complete until then, is deleted.

A full or broken local disk ends no run, on any node and at any time. All ranks agree on the failure before a rank would wait for
another rank. The first failure after a success is logged, and every later checkpoint tries again. No local checkpoint begins
while a checkpoint for SAVE is being written; the next step begins it.
"""

import contextlib
import shutil
import threading
import time
from pathlib import Path
from types import TracebackType

from torch.distributed.checkpoint.api import CheckpointException

from lt_shared.console import ToolError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.recovery_notes import LocalCheckpoint
from lt_shared.files import leftovers, local_files
from lt_train.checkpoint import disk_space, saver
from lt_train.checkpoint.local.copies import SHARDS, LocalCopies
from lt_train.checkpoint.local.exchange import Beside, Transfer
from lt_train.checkpoint.local.nodes import DiskFailure, first_failure
from lt_train.checkpoint.saver import Save, Saver, Slow
from lt_train.checkpoint.shards import first_rank_files
from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.process import agreement, device, signals


class LocalSaver(Saver):
    """A context that saves local checkpoints on every rank, beside the saver of checkpoints in SAVE."""

    def __init__(self, shared: Saver, copies: LocalCopies):
        self._shared = shared
        self._copies = copies
        self._copying: Beside | None = None
        self._is_due = False
        # Whether a local checkpoint has failed since the last success.
        self._is_failing = copies.is_logged
        super().__init__(shared.config, shared.kernels, shared.state, shared.device, shared.log, shared.arrivals)
        shared.before_saving = self._give_way
        self._start = self.state.iteration
        self._last = copies.start
        if copies.failure:
            self._fail(copies.failure)
        else:
            self._has_room(is_final=False)

    def _open(self, directory: str) -> None:
        self.run, self.url, self.is_publisher = self._copies.directory, None, self._copies.is_first
        self.datasets = self._shared.datasets
        self._makes_directory = True
        self._suffix = self._shared._suffix
        # The two savers share a staging buffer, because only one saver writes at a time.
        self._staging, self.is_async = self._shared._staging, self._shared.is_async

    def after_step(self, loss: float | None, slow: Slow) -> None:
        """Begin a local checkpoint if it is due and no checkpoint is being written; publish a written one. All ranks call it."""
        self._is_due |= self.state.iteration % self.config.checkpointing.local_interval == 0
        self.poll(slow=slow)
        if self._is_due and not self.is_writing and not self._shared.is_writing:
            self._is_due = False
            with slow():
                device.release(self.device)
                self.save(loss, is_final=False)

    def save(self, loss: float | None, is_final: bool = True) -> None:
        self.finish()
        if self._saved == self.state.iteration or not self._has_room(is_final):
            return
        partial, problem = self._partial_directory(), None
        try:
            partial.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            problem = f"{partial}: {error.strerror}"
        problem = first_failure(problem, self.device)
        if problem is None:
            try:
                with first_rank_files.collect_failures() as self._first_rank_errors, signals.hold_back_signals():
                    self._saves = self._begin(loss, partial)
            except CheckpointException as error:
                # The ranks agree on this error: some rank could not plan.
                problem = saver.reason(error)
        if problem is not None:
            self._fail(problem, partial)
        elif not self.is_async:
            self.finish()

    def _give_way(self) -> None:
        """Skip the local checkpoint that is due, because a checkpoint for SAVE is about to be written and replaces it."""
        self._is_due = False
        self.finish()

    def poll(self, loss: float | None = None, slow: Slow = contextlib.nullcontext) -> None:
        if self._saves is None:
            return
        with self._saves.waiting():
            self._saves.writer.start()
        if not agreement.reduce_maximum(self._is_busy(self._saves), self.device):
            with slow():
                self._advance(self._saves)

    def finish(self) -> None:
        while self._saves:
            self._advance(self._saves)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # The other saver closes the staging buffer.
        self._staging = None
        super().__exit__(kind, error, trace)

    def _is_busy(self, save: Save) -> bool:
        return save.writer.is_running() if self._copying is None else self._copying.is_alive()

    def _advance(self, save: Save) -> None:
        """Move `save` from writing to copying, or from copying to its end."""
        with save.waiting():
            if self._copying is None:
                problem = self._wait_for_shards(save)
                if problem is None:
                    problem = self._copy(save)
                if problem is None:
                    return
            else:
                copying, self._copying = self._copying, None
                problem = self._publish_on_nodes(save, copying.result())
        self._saves = None
        if problem is None:
            self._saved, self._is_failing = save.record.iteration, False
            self._last = checkpoint_layout.iteration_directory(self.run, save.record.iteration)
            self._report(save, str(self.run))
        else:
            self._fail(problem, save.partial)

    def _fail(self, reason: str, partial: Path | None = None) -> None:
        """Give up the local checkpoint after all ranks have agreed. `partial` is its incomplete directory."""
        if partial:
            shutil.rmtree(partial, ignore_errors=True)
        if not self._is_failing:
            what = f"of iteration {self.state.iteration}" if self.state.iteration > self._start else "for now"
            self.log.warning(f"no local checkpoint {what}: {reason}; training goes on, the next ones are tried silently")
        self._is_failing = True

    def _has_room(self, is_final: bool) -> bool:
        """Return whether all nodes have room for a set."""
        problem = self._copies.prepare()
        if problem is None:
            problem = first_failure(self._shortage(), self.device)
        if problem is not None:
            self._fail(problem)
        return problem is None

    def _shortage(self) -> str | None:
        """Return the reason if this node has no room for a set."""
        required_bytes = CheckpointSize.from_config(self.config).local_set(len(self._copies.ring))
        try:
            if self._last is not None and self._last.is_dir():
                required_bytes = int(disk_space.directory_bytes(self._last) * (1 + disk_space.MORE_SHARE)) + disk_space.MORE_BYTES
            free = disk_space.free_bytes(self.run)
        except OSError as error:
            return f"{self.run}: {error.strerror}"
        return (
            f"{self.run} needs {required_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free"
            if free < required_bytes
            else None
        )

    def _wait_for_shards(self, save: Save) -> str | None:
        """Wait for the writers. Return the reason if a rank's shards were not written."""
        save.writer.wait()
        problem = save.writer.error[0] if save.writer.error else "the disk became full" if save.writer.lacks_room() else None
        if problem is None and self._first_rank_errors:
            problem = saver.reason(self._first_rank_errors[0])
        if failure := first_failure(problem, self.device):
            return failure
        try:
            with first_rank_files.collect_failures() as errors:
                for finalize in save.request.finalize_fns:
                    finalize()
            if self.is_publisher and not errors:
                saver.complete_files(save)
            problem = saver.reason(errors[0]) if errors else None
        except (CheckpointException, OSError, ToolError) as error:
            problem = saver.reason(error)
        return first_failure(problem, self.device)

    def _copy(self, save: Save) -> str | None:
        """Start the transfers. Return the reason if they cannot start."""
        exchange = self._copies.exchange
        try:
            transfers = self._transfers(save)
        except DiskFailure as error:
            return str(error)
        self._copying = Beside(exchange.run if exchange else _copy_nothing, transfers, save.partial, save.partial)
        return None

    def _transfers(self, save: Save) -> list[Transfer]:
        """List the transfers: each rank's shards to a rank of the next node, and the first rank's small files to all nodes.

        Raises DiskFailure on all ranks if a rank cannot find its files.
        """
        nodes = self._copies.ring
        if len(nodes) == 1:
            return []
        shards, small, problem = [], [], None
        try:
            shards = [(path.name, path.stat().st_size) for path in save.writer.paths]
            paths = save.partial.iterdir() if self.is_publisher else ()
            small = [(path.name, path.stat().st_size) for path in paths if path.is_file() and path.suffix != SHARDS]
        except OSError as error:
            problem = f"{save.partial}: {error.strerror}"
        if failure := first_failure(problem, self.device):
            raise DiskFailure(failure)
        files_by_rank = agreement.gather_after_collective({"shards": shards, "small": small}, self.device)
        transfers = [Transfer(0, leader, name, size) for leader in nodes.leaders[1:] for name, size in files_by_rank[0]["small"]]
        for node, ranks in enumerate(nodes.ranks):
            targets = nodes.ranks[nodes.after(node)]
            for number, rank in enumerate(ranks):
                target = targets[number % len(targets)]
                transfers += [Transfer(rank, target, name, size) for name, size in files_by_rank[rank]["shards"]]
        return transfers

    def _publish_on_nodes(self, save: Save, problem: str | None) -> str | None:
        """Rename the directory on every node, or on no node. Return the reason if no directory was renamed."""
        if failure := first_failure(problem, self.device):
            return failure
        target = checkpoint_layout.iteration_directory(self.run, save.record.iteration)
        if self._copies.is_leader:
            try:
                local_files.publish_prepared_directory(save.partial, target)
            except (OSError, ToolError) as error:
                problem = f"{target}: {saver.reason(error)}"
        if failure := first_failure(problem, self.device):
            if self._copies.is_leader:
                shutil.rmtree(target, ignore_errors=True)
            return failure
        self._copies.record_complete(save.record.iteration)
        if self._copies.is_leader:
            with contextlib.suppress(OSError):
                for path in checkpoint_layout.checkpoints(self.run):
                    if path != target:
                        _delete(path)
        return None

    def _report(self, save: Save, path: str) -> None:
        seconds = time.monotonic() - save.started
        self.log.local_checkpoint(LocalCheckpoint(save.record.iteration, save.waited_seconds, seconds))


def _copy_nothing(*arguments: object) -> None:
    """Copy nothing, because the run has one node."""


def _delete(checkpoint: Path) -> None:
    """Rename the checkpoint so that it disappears at once, and delete its files while training continues."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.deleted")
    leftovers.hide(checkpoint, hidden)
    threading.Thread(target=shutil.rmtree, args=(hidden,), kwargs={"ignore_errors": True}).start()
