"""The local checkpoints of a run, seen by one rank: from which of them the run starts, and the files that it needs to load.

All ranks agree on the newest set that the nodes hold together; where it is newer than the newest checkpoint in SAVE, the run
starts from it. A node without its files, because its disk is new or the node is, first gets the small ones; of the shards,
those that its ranks read when they load. The files of sets that do not count any more are deleted once the state is in memory.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem

from lt_shared import checkpoint_layout
from lt_shared.console import IoFailure, note, warn
from lt_train.checkpoint import remote_run, resume
from lt_train.checkpoint.local import holdings, nodes
from lt_train.checkpoint.local.exchange import Exchange, Transfer
from lt_train.checkpoint.local.holdings import LocalSet
from lt_train.checkpoint.local.identity import Identity
from lt_train.checkpoint.local.unused import delete_copies, own_iteration
from lt_train.config.run_config import RunConfig
from lt_train.runtime import agreement

SHARDS = ".distcp"


class LocalCopies:
    """All ranks make it together, and call its methods together."""

    def __init__(self, config: RunConfig, where: torch.device):
        settings = config.checkpointing
        self.where = where
        self.settings = settings
        self.place = Path(str(settings.save_local)).absolute()
        self.nodes = nodes.find(self.place, where)
        self.exchange = Exchange(2 * config.faults.timeout_seconds) if len(self.nodes) > 1 else None
        self.identity = Identity.agreed(settings)
        self._set: LocalSet | None = None

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
        start, shared, last = config.checkpointing.start, own_iteration(config), config.batches.train_iters
        found = holdings.newest_complete(self.directory, self.nodes, self.where, shared, last, config.checkpointing.verify)
        if found is None:
            self._go_back(shared, last, start)
            return config
        self._set = found
        remote_run.make_spool(self.directory)
        checkpoint = checkpoint_layout.iteration_directory(self.directory, found.iteration)
        self._complete_small_files(checkpoint)
        config = config.starting_at(str(checkpoint), continues=True)
        if self.is_first:
            note(f"the local copies of iteration {found.iteration} are newer than {start or 'any checkpoint in SAVE'}")
            resume.check_compatible(config, str(checkpoint))
        return config

    @contextlib.contextmanager
    def supplied(self) -> Iterator[None]:
        """Within, torch's reader finds the files that it reads: other nodes send those that this node does not hold."""
        found, reader = self._set, filesystem.FileSystemReader
        if found is None or self.exchange is None:
            yield
            return
        original = reader.read_data

        def read_data(self_: Any, plan: Any, planner: Any) -> Any:
            self._fetch({str(self_.storage_data[item.storage_index].relative_path) for item in plan.items})
            return original(self_, plan, planner)

        reader.read_data = read_data  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            reader.read_data = original  # type: ignore[method-assign]

    def forget_others(self) -> None:
        """Delete all but the set that the run has started from, when its state is in memory: no other is its newest any more."""
        if self.nodes.is_leader:
            self._delete(but=self.identity.directory)
            for path in self.directory.iterdir():
                if path != self.start:
                    shutil.rmtree(path, ignore_errors=True)
        agreement.largest(0, self.where)
        self._record(self.identity.iteration)

    def saved(self, iteration: int) -> None:
        """There is a complete set of `iteration`."""
        self._record(iteration)

    def _record(self, iteration: int | None) -> None:
        now = dataclasses.replace(self.identity, iteration=iteration, place=str(self.place))
        if self.is_first and now != self.identity:
            now.write(self.settings)
        self.identity = now

    def delete(self) -> None:
        """The run has done all its steps."""
        if self.nodes.is_leader:
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

    def _go_back(self, shared: int, last: int, start: str | None) -> None:
        """There is no newer set: say what is lost, and let none of the present ones count any more."""
        newest = self.identity.iteration
        if self.is_first and newest is not None and shared < newest < last:
            since = start or "the beginning"
            warn(
                f"the local copies of iteration {newest} are on no node any more, or not all of them: the run continues"
                f" from {since}, and {newest - shared} step(s) are lost"
            )
        self.identity = dataclasses.replace(self.identity, generation=self.identity.generation + 1, iteration=None)
        if self.is_first:
            self.identity.write(self.settings)
        remote_run.make_spool(self.directory)

    def _complete_small_files(self, checkpoint: Path) -> None:
        assert self._set is not None
        transfers = []
        for name in sorted(name for name in self._set.files if not name.endswith(SHARDS)):
            holders = self._set.holders[name]
            lacking = [node for node in range(len(self.nodes)) if node not in holders]
            transfers += [self._transfer(name, holders, self.nodes.ranks[node][0]) for node in lacking]
            holders += lacking
        self._run(transfers, checkpoint)

    def _fetch(self, names: set[str]) -> None:
        """Let every node have the files that its ranks name."""
        assert self._set is not None
        checkpoint = checkpoint_layout.iteration_directory(self.directory, self._set.iteration)
        lacking = sorted(name for name in names if self.nodes.own not in self._set.holders.get(name, []))
        asked = agreement.gathered(lacking, self.where)
        transfers = []
        for node, ranks in enumerate(self.nodes.ranks):
            wanted = sorted({name for rank in ranks for name in asked[rank] if name in self._set.files})
            for number, name in enumerate(wanted):
                transfers.append(self._transfer(name, self._set.holders[name], ranks[number % len(ranks)]))
                self._set.holders[name].append(node)
        if transfers:
            self._run(transfers, checkpoint)

    def _transfer(self, name: str, holders: list[int], target: int) -> Transfer:
        """From one of the nodes that hold the file, each node's ranks in turn."""
        assert self._set is not None
        number = sum(name.encode()) + target
        ranks = self.nodes.ranks[holders[number % len(holders)]]
        return Transfer(ranks[number % len(ranks)], target, name, self._set.files[name])

    def _run(self, transfers: list[Transfer], checkpoint: Path) -> None:
        """All ranks make these transfers. Raises IoFailure on all when one of them cannot read or write."""
        if self.exchange is None or not transfers:
            return
        checkpoint.mkdir(exist_ok=True)
        agreement.largest(0, self.where)
        if problem := agreement.first_problem(self.exchange.run(transfers, checkpoint, checkpoint), self.where):
            raise IoFailure(
                f"a local copy could not be brought to another node: {problem}",
                f"make room there; without {os.path.join(str(self.settings.save), 'local-copies.json')} the run starts from SAVE",
            )
