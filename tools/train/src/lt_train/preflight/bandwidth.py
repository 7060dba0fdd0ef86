"""Measure the bandwidth between ranks, report slow nodes, and check that all nodes see the same SAVE.

An all-reduce is as slow as its slowest link and does not tell which link is slow. So nodes also exchange data two by two, in the
rounds of a tournament: as many rounds as nodes, all pairs of a round at once. A node is reported if its best pair has less than
half the median bandwidth of the pairs without it. On a single node, the ranks are the players.

    python -m lt_train.preflight.bandwidth DEVICE SAVE-OR-EMPTY

runs one rank of the measurement. The environment says which rank, as for torch.distributed.
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
# Arguments for Python that run a rank.
PROGRAM = ("-P", "-m", __name__)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The result on the first rank. Bandwidths are in bytes per second; names are nodes, or ranks on a single node.

    `bus_bandwidth` is defined as in nccl-tests: the traffic on each link in an all-reduce. `seen_by` lists the nodes that see a
    file that the first node wrote into SAVE; None without a local SAVE.
    """

    ranks: int
    bus_bandwidth: float
    pairs: dict[str, dict[str, float]]
    seen_by: list[str] | None

    def slow_nodes(self) -> dict[str, tuple[float, float]]:
        """Map each slow node to its best pair's bandwidth and to the median bandwidth of the pairs without it."""
        slow = {}
        for name, row in self.pairs.items():
            usual = [
                value for first, peers in self.pairs.items() for second, value in peers.items() if name not in (first, second)
            ]
            if usual and max(row.values()) < SLOW_SHARE * statistics.median(usual):
                slow[name] = max(row.values()), statistics.median(usual)
        return slow

    def findings(self, save: str | None) -> list[Finding]:
        findings = [
            error(
                f"{best / GIGA:.2f} GB/s at best with any other, which have {usual / GIGA:.2f} GB/s among themselves",
                name,
                "leave it out (sbatch --exclude), and see its links, EFA devices and NCCL_SOCKET_IFNAME",
            )
            for name, (best, usual) in self.slow_nodes().items()
        ]
        blind = [name for name in self.pairs if self.seen_by is not None and name not in self.seen_by]
        if blind:
            findings.append(
                error(
                    f"{', '.join(blind)} do not see what the first node writes there",
                    f"--save {save}",
                    "name a directory on the shared filesystem, or s3://",
                )
            )
        return findings


def measure(rank_env: RankEnvironment, device_type: str, save: str | None) -> Measurement | None:
    """Run one rank of the measurement; only the first rank gets the result. Raises Unavailable if the ranks cannot connect."""
    try:
        return _measure(rank_env, device_type, save)
    except RuntimeError as problem:
        # torch's errors of communication are RuntimeErrors, with a stack of C++ frames below the first line.
        reason = str(problem).strip().partition("\n")[0]
        raise Unavailable(
            f"the ranks cannot exchange data: {reason}", "see NCCL_DEBUG=INFO, security groups, and the interfaces of all nodes"
        ) from None


def _measure(rank_env: RankEnvironment, device_type: str, save: str | None) -> Measurement | None:
    import torch
    import torch.distributed as dist

    from lt_train.process import agreement, rendezvous

    os.environ.update(rank_env.variables())
    device.communicate_on_loopback(rank_env)
    torch_device = device.prepare(device_type, rank_env) if device_type == device.CUDA else torch.device(device_type)
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    store = rendezvous.open_store(rank_env, timeout)
    dist.init_process_group(
        device.BACKENDS[device_type], store=store, rank=rank_env.rank, world_size=rank_env.world_size, timeout=timeout
    )
    try:
        cpu_group = dist.new_group(backend=device.BACKENDS[device.CPU], timeout=timeout)
        bus_bandwidth = _measure_all_reduce(rank_env, device_type, torch_device)
        names, player = _players(rank_env)
        bandwidths = {}
        for opponents in rounds(len(names)):
            dist.barrier(group=cpu_group)
            if player is not None and (peer := opponents.get(player)) is not None:
                rank = peer * (rank_env.world_size // len(names))
                bandwidths[names[peer]] = _measure_exchange(rank, rank_env.rank < rank, device_type, torch_device)
        gathered = agreement.gather_objects(bandwidths if player is not None else None)
        seen_by = _check_save_visible(rank_env, names, save)
        if rank_env.rank:
            return None
        rows = [row for row in gathered if row is not None]
        return Measurement(rank_env.world_size, bus_bandwidth, dict(zip(names, rows, strict=True)), seen_by)
    finally:
        dist.destroy_process_group()


def rounds(players: int) -> list[dict[int, int]]:
    """Pair every two players once, by the circle method. If the number of players is odd, one player waits in each round."""
    circle: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    played = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a is not None and b is not None]
        played.append(dict(pairs) | {b: a for a, b in pairs})
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return played


def _players(rank_env: RankEnvironment) -> tuple[list[str], int | None]:
    """Return the players' names (nodes, or ranks on a single node), and this rank's index among them, None if it only waits."""
    from lt_train.process import agreement

    nodes = rank_env.world_size // rank_env.local_world_size
    hosts = agreement.gather_objects(socket.gethostname())
    if nodes == 1:
        return [f"rank {rank} on {hosts[rank]}" for rank in range(rank_env.world_size)], rank_env.rank
    firsts = range(0, rank_env.world_size, rank_env.local_world_size)
    is_distinct = len({hosts[rank] for rank in firsts}) == nodes
    names = [hosts[rank] if is_distinct else f"node {number} ({hosts[rank]})" for number, rank in enumerate(firsts)]
    return names, rank_env.rank // rank_env.local_world_size if rank_env.local_rank == 0 else None


def _median_seconds(work: Callable[[], Any], device_type: str, torch_device: Any) -> float:
    """Return the median seconds of `work`."""
    seconds = []
    for _ in range(WARMUP + REPEATED):
        device.synchronize(torch_device)
        start = time.perf_counter()
        work()
        device.synchronize(torch_device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARMUP:])


def _measure_all_reduce(rank_env: RankEnvironment, device_type: str, torch_device: Any) -> float:
    import torch
    import torch.distributed as dist

    data = torch.ones(MESSAGE_BYTES[device_type], dtype=torch.uint8, device=torch_device).view(torch.float32)
    seconds = _median_seconds(lambda: dist.all_reduce(data), device_type, torch_device)
    return MESSAGE_BYTES[device_type] * 2 * (rank_env.world_size - 1) / rank_env.world_size / seconds


def _measure_exchange(peer: int, is_first: bool, device_type: str, torch_device: Any) -> float:
    """Send to `peer` and receive from it, one after the other; return the bandwidth in bytes per second."""
    import torch
    import torch.distributed as dist

    size = MESSAGE_BYTES[device_type] // 4
    data = torch.empty(size, dtype=torch.uint8, device=torch_device)

    def send_and_receive() -> None:
        for sends in (is_first, not is_first):
            if sends:
                dist.send(data, peer)
            else:
                dist.recv(data, peer)

    return 2 * size / _median_seconds(send_and_receive, device_type, torch_device)


def _check_save_visible(rank_env: RankEnvironment, names: list[str], save: str | None) -> list[str] | None:
    """Return the players that see a probe file of the first rank in SAVE, or in its nearest directory that exists."""
    from lt_train.process import agreement

    if not save or storage.is_remote(save):
        return None
    folder = Path(save).absolute()
    while not folder.is_dir():
        folder = folder.parent
    probe = folder / f".lt-train-preflight-{rank_env.master_port}"
    probe_path: str | None = None
    if rank_env.rank == 0:
        try:
            probe.touch(exist_ok=False)
            probe_path = str(probe)
        except OSError:
            pass
    try:
        probe_path = agreement.from_first_rank(probe_path)
        is_visible = agreement.gather_objects(probe_path is not None and os.path.exists(probe_path))
    finally:
        if rank_env.rank == 0 and probe_path is not None:
            probe.unlink(missing_ok=True)
    if probe_path is None:
        return None
    ranks_per_player = rank_env.world_size // len(names)
    return [name for number, name in enumerate(names) if is_visible[number * ranks_per_player]]


def measure_from_this_machine(node: Node | None, ranks: int, device_type: str, save: str | None) -> Measurement | None:
    """Start the measurement's ranks on this machine. `node` is this machine's place among several nodes, None for a single node.

    Only the first node gets the result. Raises Unavailable if a rank fails.
    """
    port = free_port()
    processes = []
    for rank in range(ranks):
        alone = RankEnvironment(rank, rank, ranks, ranks, LOOPBACK, port, "lt-train")
        rank_env = node.rank_environment(rank, ranks) if node else alone
        program = [sys.executable, *PROGRAM, device_type, save or ""]
        environment = {**os.environ, **rank_env.variables(), process_lifetime.PARENT_VARIABLE: str(os.getpid())}
        processes.append(subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate() for process in processes]
    for process, (_, stderr) in zip(processes, outputs, strict=True):
        if process.returncode:
            reason = stderr.strip().splitlines()[-1:] or [f"a rank ended with code {process.returncode}"]
            raise Unavailable(reason[0], "see NCCL_DEBUG=INFO, security groups, and the interfaces of all nodes")
    text = outputs[0][0].strip()
    return Measurement(**json.loads(text.splitlines()[-1])) if text else None


def main() -> None:
    from lt_train.process import rank_environment

    rank_env = rank_environment.find()
    assert rank_env
    process_lifetime.die_with_launcher()
    try:
        measurement = measure(rank_env, sys.argv[1], sys.argv[2] or None)
    except Unavailable as problem:
        raise SystemExit(str(problem)) from None
    if measurement:
        print(json.dumps(dataclasses.asdict(measurement)))


if __name__ == "__main__":
    main()
