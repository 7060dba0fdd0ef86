"""Choose the local checkpoint that a run starts from, and fetch the files that this rank needs to load it.

All ranks agree on the newest set that the nodes hold together. The run starts from that set if it is newer than the newest
checkpoint in SAVE. A node may lack files because it or its disk is new. It receives the small files first, then the shards that
its ranks read while loading. Sets that no longer count are deleted when the state is in memory.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from lt_shared.console import CannotCreate, IoFailure, ToolError, note, warn
from lt_shared.contracts import checkpoint_layout
from lt_train.checkpoint import remote_run, resume
from lt_train.checkpoint.local import holdings, nodes
from lt_train.checkpoint.local.exchange import Exchange, Transfer
from lt_train.checkpoint.local.holdings import LocalSet
from lt_train.checkpoint.local.identity import Identity
from lt_train.checkpoint.local.nodes import Nodes
from lt_train.checkpoint.local.unused import delete_copies, resumed_iteration
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.megatron import dcp_filesystem
from lt_train.process import agreement

SHARDS = ".distcp"


class LocalCopies:
    """The local checkpoints of a run. All ranks construct it together and call its methods together.

    `failure` is the reason why a node's disk cannot be used; the run then starts from SAVE. `is_logged` is set when the failure
    and its cost have been logged.
    """

    def __init__(self, settings: Checkpointing, timeout_seconds: float, device: torch.device):
        self.device = device
        self.settings = settings
        self.place = Path(str(settings.save_local)).absolute()
        self.nodes: Nodes | None = None
        self.exchange: Exchange | None = None
        self._timeout_seconds = 2 * timeout_seconds
        self.failure, self.is_logged = self._open(), False
        self.identity = Identity.read_or_create(settings)
        self._set: LocalSet | None = None

    def _open(self) -> str | None:
        """Find the nodes once. Return the reason if a node has no usable disk."""
        if self.nodes is None:
            try:
                self.nodes = nodes.find(self.place, self.device)
            except nodes.DiskFailure as error:
                return str(error)
            self.exchange = Exchange(self._timeout_seconds) if len(self.nodes) > 1 else None
        return None

    def prepare(self) -> str | None:
        """Create the directory on each node, also after it was deleted. Return the reason if a node cannot."""
        try:
            self.failure = self._open() or self._make_directory()
        except ToolError as error:
            # A path that cannot be a directory ends a run only at its start.
            self.failure = str(error)
        return self.failure

    def _make_directory(self) -> str | None:
        problem = None
        try:
            remote_run.make_spool(self.directory)
        except CannotCreate as error:
            problem = str(error)
        except OSError as error:
            problem = f"{self.directory}: {error.strerror}"
        return nodes.first_failure(problem, self.device)

    @property
    def directory(self) -> Path:
        """This node's directory for the run."""
        return self.place / self.identity.directory

    @property
    def start(self) -> Path | None:
        """The local checkpoint that the run starts from."""
        return None if self._set is None else checkpoint_layout.iteration_directory(self.directory, self._set.iteration)

    def choose_start(self, config: RunConfig, stored_step: int = 0) -> RunConfig:
        """Return `config` with the local checkpoint to start from, or unchanged if SAVE has a newer checkpoint.

        `stored_step` is the step of copies in memory, which replace lost local checkpoints.
        Raises BadConfig if the local checkpoint has another model.
        """
        start, shared, last = config.checkpointing.start, resumed_iteration(config.checkpointing), config.batches.train_iters
        local_set = self._set = self._newest(shared, last, config.checkpointing.verify)
        if local_set is None:
            self._report_lost_steps(max(shared, stored_step), last, start)
            return config
        checkpoint = checkpoint_layout.iteration_directory(self.directory, local_set.iteration)
        config = config.starting_at(str(checkpoint), continues=True)
        if self.is_first:
            note(f"the local copies of iteration {local_set.iteration} are newer than {start or 'any checkpoint in SAVE'}")
            resume.check_compatible(config, str(checkpoint))
        return config

    @contextlib.contextmanager
    def fetching_missing_files(self) -> Iterator[None]:
        """Within the context, fetch the files that torch's reader opens and this node lacks from other nodes."""
        local_set = self._set
        if local_set is None or self.exchange is None:
            yield
            return
        original = FileSystemReader.read_data

        # torch calls `read_data` when the plan is known, which lists the files that this rank opens.
        def read_data(reader: Any, plan: Any, planner: Any) -> Any:
            self._fetch(local_set, {str(reader.storage_data[item.storage_index].relative_path) for item in plan.items})
            return original(reader, plan, planner)

        with dcp_filesystem.read_data_by(read_data):
            yield

    def delete_other_sets(self) -> None:
        """Delete every set except the set that the run started from. Call it when the state is in memory."""
        if self.is_leader:
            self._delete(but=self.identity.directory)
            with contextlib.suppress(OSError):
                for path in self.directory.iterdir():
                    if path != self.start:
                        shutil.rmtree(path, ignore_errors=True)
        # A barrier: the sets are deleted on every node before the record is written.
        agreement.reduce_maximum(0, self.device)
        self._record(self.identity.iteration)

    def record_complete(self, iteration: int) -> None:
        """Record that the set of `iteration` is complete. The set counts even if SAVE has no room for the record."""
        with contextlib.suppress(OSError, ToolError):
            self._record(iteration)

    def _record(self, iteration: int | None) -> None:
        before, self.identity = self.identity, dataclasses.replace(self.identity, iteration=iteration, place=str(self.place))
        if self.is_first and self.identity != before:
            self.identity.write(self.settings, is_new=self.identity.place != before.place)

    def delete(self) -> None:
        """Delete the local checkpoints of a run that has done all its steps."""
        if self.is_leader:
            self._delete()
        if self.is_first:
            self.identity.delete(self.settings)

    def _delete(self, but: str | None = None) -> None:
        """Delete this node's directories of the run, also at the paths of earlier starts. Keep directories named `but`."""
        for place in {str(self.place), self.identity.place}:
            delete_copies(self.identity, place, but)

    @property
    def is_first(self) -> bool:
        return torch.distributed.get_rank() == 0

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the first of its node. True on every rank while the nodes are unknown."""
        return self.nodes is None or self.nodes.is_leader

    @property
    def ring(self) -> Nodes:
        """The nodes in their order in the ring. Valid after `prepare` has succeeded."""
        assert self.nodes is not None
        return self.nodes

    def _newest(self, shared: int, last: int, verify: bool) -> LocalSet | None:
        """Find the newest set that counts, and complete its small files on every node."""
        if self.failure:
            return None
        local_set = holdings.newest_complete(self.directory, self.ring, self.device, shared, last, verify)
        if local_set is None:
            return None
        self.failure = self._make_directory() or self._complete_small_files(local_set)
        return None if self.failure else local_set

    def _report_lost_steps(self, shared: int, last: int, start: str | None) -> None:
        """Log the lost steps if no set newer than `shared` is complete, and invalidate all present sets."""
        newest = self.identity.iteration
        if newest is not None and shared < newest < last:
            self.is_logged = self.failure is not None
            why = f"cannot be used, {self.failure}" if self.failure else "are on no node any more, or not all of them"
            if self.is_first:
                since, lost = start or "the beginning", newest - shared
                warn(f"the local copies of iteration {newest} {why}: the run continues from {since}, and {lost} step(s) are lost")
        self._invalidate_sets()
        self.failure = self.failure or self._make_directory()

    def _invalidate_sets(self) -> None:
        self.identity = dataclasses.replace(self.identity, generation=self.identity.generation + 1, iteration=None)
        if self.is_first:
            self.identity.write(self.settings)

    def _complete_small_files(self, local_set: LocalSet) -> str | None:
        transfers = []
        for name in sorted(name for name in local_set.files if not name.endswith(SHARDS)):
            holders = local_set.holders[name]
            lacking = [node for node in range(len(self.ring)) if node not in holders]
            transfers += [self._transfer(local_set, name, self.ring.ranks[node][0]) for node in lacking]
            holders += lacking
        return self._run(local_set, transfers)

    def _fetch(self, local_set: LocalSet, names: set[str]) -> None:
        """Fetch the files that each node's ranks name. Raise IoFailure on all ranks if any rank cannot read or write."""
        lacking = sorted(name for name in names if self.ring.local_node not in local_set.holders.get(name, []))
        requested_by_rank = agreement.gather_after_collective(lacking, self.device)
        transfers = []
        for node, ranks in enumerate(self.ring.ranks):
            requested_names = sorted({name for rank in ranks for name in requested_by_rank[rank] if name in local_set.files})
            for number, name in enumerate(requested_names):
                transfers.append(self._transfer(local_set, name, ranks[number % len(ranks)]))
                local_set.holders[name].append(node)
        if problem := self._run(local_set, transfers):
            # Loading has changed the model in part, so the next start must be from SAVE.
            self._invalidate_sets()
            hint = "run the same command again: it starts from SAVE"
            raise IoFailure(f"a local copy could not be brought to another node: {problem}", hint)

    def _transfer(self, local_set: LocalSet, name: str, target: int) -> Transfer:
        """Choose a source among the nodes that hold the file; their ranks take turns."""
        number, holders = sum(name.encode()) + target, local_set.holders[name]
        ranks = self.ring.ranks[holders[number % len(holders)]]
        return Transfer(ranks[number % len(ranks)], target, name, local_set.files[name])

    def _run(self, local_set: LocalSet, transfers: list[Transfer]) -> str | None:
        """Run `transfers` on all ranks. Return the first reason why a rank could not read or write."""
        if self.exchange is None or not transfers:
            return None
        checkpoint, problem = checkpoint_layout.iteration_directory(self.directory, local_set.iteration), None
        try:
            checkpoint.mkdir(exist_ok=True)
        except OSError as error:
            problem = f"{checkpoint}: {error.strerror}"
        if problem := nodes.first_failure(problem, self.device):
            return problem
        return nodes.first_failure(self.exchange.run(transfers, checkpoint, checkpoint), self.device)
