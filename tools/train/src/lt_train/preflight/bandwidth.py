"""How fast the ranks exchange data, which node is slow, and whether all see the same SAVE.

An all-reduce is as slow as its slowest link and does not say which that is. So nodes also exchange data two by two, in the rounds
of a tournament: as many rounds as nodes, all pairs of a round at once. A node whose best pair has less than half the bandwidth
that is usual among the others is named. With one node it is its ranks that play.

    python -m lt_train.preflight.bandwidth DEVICE SAVE-OR-EMPTY

is one rank of the measurement; which rank is in the environment, as for torch.distributed.
"""

import dataclasses
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lt_shared.console import Unavailable
from lt_shared.files import storage
from lt_train.preflight.check_interface import Finding, error
from lt_train.process import device, process_lifetime
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import LOOPBACK, Node, RankEnvironment

TIMEOUT_SECONDS = 120
MESSAGE_BYTES = {device.CPU: 8 * 2**20, device.CUDA: 256 * 2**20}
WARMUP, REPEATED = 2, 5
SLOW_SHARE = 0.5
GIGA = 1e9
# What python runs as a rank.
PROGRAM = ("-P", "-m", __name__)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The result on the first rank. Bandwidths are in bytes per second; names are nodes, or ranks on one node.

    `bus_bandwidth` is defined as in nccl-tests: the traffic on each link in an all-reduce. `seen_by` are the nodes that see a
    file that the first node wrote into SAVE; None without a local SAVE.
    """

    ranks: int
    bus_bandwidth: float
    pairs: dict[str, dict[str, float]]
    seen_by: list[str] | None

    def slow(self) -> dict[str, tuple[float, float]]:
        """Slow nodes with their best pair's bandwidth and the one that is usual among the others."""
        found = {}
        for name, own in self.pairs.items():
            others = [value for first, row in self.pairs.items() for second, value in row.items() if name not in (first, second)]
            if others and max(own.values()) < SLOW_SHARE * statistics.median(others):
                found[name] = max(own.values()), statistics.median(others)
        return found

    def findings(self, save: str | None) -> list[Finding]:
        found = [
            error(
                f"{best / GIGA:.2f} GB/s at best with any other, which have {usual / GIGA:.2f} GB/s among themselves",
                name,
                "leave it out (sbatch --exclude), and see its links, EFA devices and NCCL_SOCKET_IFNAME",
            )
            for name, (best, usual) in self.slow().items()
        ]
        blind = [name for name in self.pairs if self.seen_by is not None and name not in self.seen_by]
        if blind:
            found.append(
                error(
                    f"{', '.join(blind)} do not see what the first node writes there",
                    f"--save {save}",
                    "name a directory on the shared filesystem, or s3://",
                )
            )
        return found


def measure(rank_env: RankEnvironment, where: str, save: str | None) -> Measurement | None:
    """Take part as one rank; the first gets the result. Raises Unavailable when the ranks do not find each other."""
    try:
        return _measure(rank_env, where, save)
    except RuntimeError as problem:
        # torch's errors of communication are RuntimeErrors, with a stack of C++ frames below the first line.
        reason = str(problem).strip().partition("\n")[0]
        raise Unavailable(
            f"the ranks cannot exchange data: {reason}", "see NCCL_DEBUG=INFO, security groups, and the interfaces of all nodes"
        ) from None


def _measure(rank_env: RankEnvironment, where: str, save: str | None) -> Measurement | None:
    import torch
    import torch.distributed as dist

    from lt_train.process import agreement, rendezvous

    os.environ.update(rank_env.variables())
    device.communicate_on_loopback(rank_env)
    on = device.prepare(where, rank_env) if where == device.CUDA else torch.device(where)
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    store = rendezvous.open_store(rank_env, timeout)
    dist.init_process_group(
        device.BACKENDS[where], store=store, rank=rank_env.rank, world_size=rank_env.world_size, timeout=timeout
    )
    try:
        talk = dist.new_group(backend=device.BACKENDS[device.CPU], timeout=timeout)
        bus_bandwidth = _all_reduce(rank_env, where, on)
        names, player = _players(rank_env)
        own = {}
        for opponents in rounds(len(names)):
            dist.barrier(group=talk)
            if player is not None and (peer := opponents.get(player)) is not None:
                rank = peer * (rank_env.world_size // len(names))
                own[names[peer]] = _exchange(rank, rank_env.rank < rank, where, on)
        everything = agreement.gather_objects(own if player is not None else None)
        seen = _seen_by(rank_env, names, player, save)
        if rank_env.rank:
            return None
        rows = [row for row in everything if row is not None]
        return Measurement(rank_env.world_size, bus_bandwidth, dict(zip(names, rows, strict=True)), seen)
    finally:
        dist.destroy_process_group()


def rounds(players: int) -> list[dict[int, int]]:
    """Everybody meets everybody once: the circle method, one player waiting in each round when their number is odd."""
    circle: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    played = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a is not None and b is not None]
        played.append(dict(pairs) | {b: a for a, b in pairs})
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return played


def _players(rank_env: RankEnvironment) -> tuple[list[str], int | None]:
    """Return the names of the participants, nodes or ranks on one node, and this rank's index, None if it only waits."""
    from lt_train.process import agreement

    nodes = rank_env.world_size // rank_env.local_world_size
    hosts = agreement.gather_objects(socket.gethostname())
    if nodes == 1:
        return [f"rank {rank} on {hosts[rank]}" for rank in range(rank_env.world_size)], rank_env.rank
    firsts = range(0, rank_env.world_size, rank_env.local_world_size)
    is_distinct = len({hosts[rank] for rank in firsts}) == nodes
    names = [hosts[rank] if is_distinct else f"node {number} ({hosts[rank]})" for number, rank in enumerate(firsts)]
    return names, rank_env.rank // rank_env.local_world_size if rank_env.local_rank == 0 else None


def _timed(work: Callable[[], Any], where: str, on: Any) -> float:
    """Median seconds of `work`."""
    seconds = []
    for _ in range(WARMUP + REPEATED):
        device.synchronize(on)
        start = time.perf_counter()
        work()
        device.synchronize(on)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARMUP:])


def _all_reduce(rank_env: RankEnvironment, where: str, on: Any) -> float:
    import torch
    import torch.distributed as dist

    data = torch.ones(MESSAGE_BYTES[where], dtype=torch.uint8, device=on).view(torch.float32)
    seconds = _timed(lambda: dist.all_reduce(data), where, on)
    return MESSAGE_BYTES[where] * 2 * (rank_env.world_size - 1) / rank_env.world_size / seconds


def _exchange(peer: int, is_first: bool, where: str, on: Any) -> float:
    """Send to `peer` and receive from it, one after the other; bytes per second."""
    import torch
    import torch.distributed as dist

    size = MESSAGE_BYTES[where] // 4
    data = torch.empty(size, dtype=torch.uint8, device=on)

    def there_and_back() -> None:
        for sends in (is_first, not is_first):
            if sends:
                dist.send(data, peer)
            else:
                dist.recv(data, peer)

    return 2 * size / _timed(there_and_back, where, on)


def _seen_by(rank_env: RankEnvironment, names: list[str], player: int | None, save: str | None) -> list[str] | None:
    """The players that see a file which the first rank wrote into the part of SAVE that exists."""
    from lt_train.process import agreement

    if not save or storage.is_remote(save):
        return None
    folder = Path(save).absolute()
    while not folder.is_dir():
        folder = folder.parent
    probe = folder / f".lt-train-preflight-{rank_env.master_port}"
    written: str | None = None
    if rank_env.rank == 0:
        try:
            probe.touch(exist_ok=False)
            written = str(probe)
        except OSError:
            pass
    try:
        written = agreement.from_first_rank(written)
        seen = agreement.gather_objects(written is not None and os.path.exists(written))
    finally:
        if rank_env.rank == 0 and written is not None:
            probe.unlink(missing_ok=True)
    if written is None:
        return None
    step = rank_env.world_size // len(names)
    return [name for number, name in enumerate(names) if seen[number * step]]


def on_this_machine(node: Node | None, ranks: int, where: str, save: str | None) -> Measurement | None:
    """Start the ranks of this machine, which is `node` among several nodes if it is given; the first node gets the result.

    Raises Unavailable if a rank fails.
    """
    port = free_port()
    started = []
    for rank in range(ranks):
        alone = RankEnvironment(rank, rank, ranks, ranks, LOOPBACK, port, "lt-train")
        rank_env = node.rank_environment(rank, ranks) if node else alone
        program = [sys.executable, *PROGRAM, where, save or ""]
        environment = {**os.environ, **rank_env.variables(), process_lifetime.PARENT_VARIABLE: str(os.getpid())}
        started.append(subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate() for process in started]
    for process, (_, said) in zip(started, outputs, strict=True):
        if process.returncode:
            reason = said.strip().splitlines()[-1:] or [f"a rank ended with code {process.returncode}"]
            raise Unavailable(reason[0], "see NCCL_DEBUG=INFO, security groups, and the interfaces of all nodes")
    text = outputs[0][0].strip()
    return Measurement(**json.loads(text.splitlines()[-1])) if text else None


def main() -> None:
    from lt_train.process import rank_environment

    rank_env = rank_environment.find()
    assert rank_env
    process_lifetime.die_with_launcher()
    try:
        found = measure(rank_env, sys.argv[1], sys.argv[2] or None)
    except Unavailable as problem:
        raise SystemExit(str(problem)) from None
    if found:
        print(json.dumps(dataclasses.asdict(found)))


if __name__ == "__main__":
    main()
