"""The local checkpoints of a run, seen by one rank: from which of them the run starts, and the files that it needs to load.

All ranks agree on the newest set that the nodes hold together; where it is newer than the newest checkpoint in SAVE, the run
starts from it. A node without its files, because its disk is new or the node is, first gets the small ones; of the shards,
those that its ranks read when they load. The files of sets that do not count any more are deleted once the state is in memory.
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
    """All ranks make it together, and call its methods together.

    `failure` says why there are none for now: some node's disk cannot be used. Then the run starts from SAVE. `is_told`: it was
    said with what is lost by it.
    """

    def __init__(self, settings: Checkpointing, timeout_seconds: float, device: torch.device):
        self.device = device
        self.settings = settings
        self.place = Path(str(settings.save_local)).absolute()
        self.nodes: Nodes | None = None
        self.exchange: Exchange | None = None
        self._timeout_seconds = 2 * timeout_seconds
        self.failure, self.is_told = self._open(), False
        self.identity = Identity.agreed(settings)
        self._set: LocalSet | None = None

    def _open(self) -> str | None:
        """Find the nodes, unless they are; returns why one of them has no disk."""
        if self.nodes is None:
            try:
                self.nodes = nodes.find(self.place, self.device)
            except nodes.DiskFailure as error:
                return str(error)
            self.exchange = Exchange(self._timeout_seconds) if len(self.nodes) > 1 else None
        return None

    def prepare(self) -> str | None:
        """Before anything is written: let each node have its directory, also when it was deleted. Returns why one cannot."""
        try:
            self.failure = self._open() or self._make_directory()
        except ToolError as error:
            # A directory that cannot be one ends a run at its start alone.
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
        """What this node holds of the run."""
        return self.place / self.identity.directory

    @property
    def start(self) -> Path | None:
        """The local checkpoint that the run starts from."""
        return None if self._set is None else checkpoint_layout.iteration_directory(self.directory, self._set.iteration)

    def starting(self, config: RunConfig) -> RunConfig:
        """The configuration with the local checkpoint to start from, or as it is where SAVE has a newer one.

        Raises BadConfig when the copies are of another model.
        """
        start, shared, last = config.checkpointing.start, resumed_iteration(config.checkpointing), config.batches.train_iters
        local_set = self._set = self._newest(shared, last, config.checkpointing.verify)
        if local_set is None:
            self._go_back(shared, last, start)
            return config
        checkpoint = checkpoint_layout.iteration_directory(self.directory, local_set.iteration)
        config = config.starting_at(str(checkpoint), continues=True)
        if self.is_first:
            note(f"the local copies of iteration {local_set.iteration} are newer than {start or 'any checkpoint in SAVE'}")
            resume.check_compatible(config, str(checkpoint))
        return config

    @contextlib.contextmanager
    def supplied(self) -> Iterator[None]:
        """Within, torch's reader finds the files that it reads: other nodes send those that this node does not hold."""
        local_set = self._set
        if local_set is None or self.exchange is None:
            yield
            return
        original = FileSystemReader.read_data

        def read_data(reader: Any, plan: Any, planner: Any) -> Any:
            self._fetch(local_set, {str(reader.storage_data[item.storage_index].relative_path) for item in plan.items})
            return original(reader, plan, planner)

        with dcp_filesystem.reading_data_by(read_data):
            yield

    def forget_others(self) -> None:
        """Delete all but the set that the run has started from, when its state is in memory: no other is its newest any more."""
        if self.is_leader:
            self._delete(but=self.identity.directory)
            with contextlib.suppress(OSError):
                for path in self.directory.iterdir():
                    if path != self.start:
                        shutil.rmtree(path, ignore_errors=True)
        agreement.reduce_maximum(0, self.device)
        self._record(self.identity.iteration)

    def saved(self, iteration: int) -> None:
        """There is a complete set of `iteration`. It counts also where SAVE has no room to say which it is."""
        with contextlib.suppress(OSError, ToolError):
            self._record(iteration)

    def _record(self, iteration: int | None) -> None:
        before, self.identity = self.identity, dataclasses.replace(self.identity, iteration=iteration, place=str(self.place))
        if self.is_first and self.identity != before:
            self.identity.write(self.settings, is_new=self.identity.place != before.place)

    def delete(self) -> None:
        """The run has done all its steps."""
        if self.is_leader:
            self._delete()
        if self.is_first:
            self.identity.delete(self.settings)

    def _delete(self, but: str | None = None) -> None:
        """Delete what this node has, also where earlier starts had it, but for directories of that name."""
        for place in {str(self.place), self.identity.place}:
            delete_copies(self.identity, place, but)

    @property
    def is_first(self) -> bool:
        return torch.distributed.get_rank() == 0

    @property
    def is_leader(self) -> bool:
        """Whether this rank is its node's first; while it is not known who that is, each may be."""
        return self.nodes is None or self.nodes.is_leader

    @property
    def found_nodes(self) -> Nodes:
        """Once `prepare` has not failed."""
        assert self.nodes is not None
        return self.nodes

    def _newest(self, shared: int, last: int, verify: bool) -> LocalSet | None:
        """The newest set that counts, when every node has its small files."""
        if self.failure:
            return None
        local_set = holdings.newest_complete(self.directory, self.found_nodes, self.device, shared, last, verify)
        if local_set is None:
            return None
        self.failure = self._make_directory() or self._complete_small_files(local_set)
        return None if self.failure else local_set

    def _go_back(self, shared: int, last: int, start: str | None) -> None:
        """There is no newer set: say what is lost, and let none of the present ones count any more."""
        newest = self.identity.iteration
        if newest is not None and shared < newest < last:
            self.is_told = self.failure is not None
            why = f"cannot be used, {self.failure}" if self.failure else "are on no node any more, or not all of them"
            if self.is_first:
                since, lost = start or "the beginning", newest - shared
                warn(f"the local copies of iteration {newest} {why}: the run continues from {since}, and {lost} step(s) are lost")
        self._let_none_count()
        self.failure = self.failure or self._make_directory()

    def _let_none_count(self) -> None:
        self.identity = dataclasses.replace(self.identity, generation=self.identity.generation + 1, iteration=None)
        if self.is_first:
            self.identity.write(self.settings)

    def _complete_small_files(self, local_set: LocalSet) -> str | None:
        transfers = []
        for name in sorted(name for name in local_set.files if not name.endswith(SHARDS)):
            holders = local_set.holders[name]
            lacking = [node for node in range(len(self.found_nodes)) if node not in holders]
            transfers += [self._transfer(local_set, name, self.found_nodes.ranks[node][0]) for node in lacking]
            holders += lacking
        return self._run(local_set, transfers)

    def _fetch(self, local_set: LocalSet, names: set[str]) -> None:
        """Let every node have the files that its ranks name. Raises IoFailure on all ranks when one cannot read or write."""
        lacking = sorted(name for name in names if self.found_nodes.own not in local_set.holders.get(name, []))
        requested_by_rank = agreement.gather_after_collective(lacking, self.device)
        transfers = []
        for node, ranks in enumerate(self.found_nodes.ranks):
            requested_names = sorted({name for rank in ranks for name in requested_by_rank[rank] if name in local_set.files})
            for number, name in enumerate(requested_names):
                transfers.append(self._transfer(local_set, name, ranks[number % len(ranks)]))
                local_set.holders[name].append(node)
        if problem := self._run(local_set, transfers):
            # The model is no longer what it was: the next start is from SAVE.
            self._let_none_count()
            hint = "run the same command again: it starts from SAVE"
            raise IoFailure(f"a local copy could not be brought to another node: {problem}", hint)

    def _transfer(self, local_set: LocalSet, name: str, target: int) -> Transfer:
        """From one of the nodes that hold the file, each node's ranks in turn."""
        number, holders = sum(name.encode()) + target, local_set.holders[name]
        ranks = self.found_nodes.ranks[holders[number % len(holders)]]
        return Transfer(ranks[number % len(ranks)], target, name, local_set.files[name])

    def _run(self, local_set: LocalSet, transfers: list[Transfer]) -> str | None:
        """All ranks make these transfers; returns what one of them could not read or write."""
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
