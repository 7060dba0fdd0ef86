"""Ranks that meet, and those that do not come."""

import datetime
import re
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from lt_shared.console import BadConfig, ExitCode, Unavailable
from lt_train.process import interruption, ports, rendezvous
from lt_train.process.rank_environment import RankEnvironment


def meet(
    ranks: list[int], world_size: int, seconds: float, digests: dict[int, dict[str, str]] | None = None
) -> dict[int, BaseException | None]:
    """How the meeting ends for each of `ranks`. `digests` are those of a rank's settings."""
    store = torch.distributed.HashStore()
    ends: dict[int, BaseException | None] = {}

    def come(rank: int) -> None:
        try:
            rank_env = RankEnvironment(rank, rank, world_size, world_size, "127.0.0.1", 0, "srun")
            rendezvous.meet(store, rank_env, datetime.timedelta(seconds=seconds), (digests or {}).get(rank, {}))
            ends[rank] = None
        except (Unavailable, BadConfig, SystemExit) as end:
            ends[rank] = end

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ends


def test_all_come() -> None:
    assert meet([0, 1, 2], 3, seconds=20) == {0: None, 1: None, 2: None}


def test_the_first_names_those_who_do_not_come_and_the_others_end_silently() -> None:
    ends = meet([0, 2], 4, seconds=0.3)
    assert isinstance(ends[0], Unavailable)
    assert "of 4 ranks, number 1, 3 did not come within 0.005 minutes" in str(ends[0])
    assert isinstance(ends[2], SystemExit)
    assert ends[2].code == ExitCode.UNAVAILABLE


def test_ranks_with_other_settings_do_not_train_together() -> None:
    """Ranks of two runs may meet on one port: the error names the first rank that differs, and each rank ends."""
    here, there = {"batches": "a", "seed": "b", "data": "c"}, {"batches": "a", "seed": "d", "data": "e"}
    assert meet([0, 1], 2, seconds=20, digests={0: here, 1: here}) == {0: None, 1: None}
    ends = meet([0, 1, 2, 3], 4, seconds=20, digests={0: here, 1: here, 2: there, 3: there})
    assert isinstance(ends[0], BadConfig)
    assert re.search(r"rank 2 on \S+ has other settings than rank 0 on \S+: seed, data$", str(ends[0]))
    for rank in (1, 2, 3):
        end = ends[rank]
        assert isinstance(end, SystemExit)
        assert end.code == ExitCode.BAD_CONFIG


def test_a_rank_that_was_started_again_waits_for_the_store_of_this_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = torch.distributed.HashStore(), torch.distributed.HashStore()
    found = iter((old, old, old, new))
    monkeypatch.setattr(rendezvous, "open_store", lambda rank_env, timeout: next(found))
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.0)
    rank_env = RankEnvironment(1, 1, 2, 2, "127.0.0.1", 0, "srun")
    long, short = datetime.timedelta(seconds=20), datetime.timedelta(seconds=-1)
    assert rendezvous.open_own_store(rank_env, long) is old
    assert rendezvous.open_own_store(rank_env, long) is new
    monkeypatch.setattr(rendezvous, "open_store", lambda rank_env, timeout: new)
    with pytest.raises(Unavailable, match="has a rank 1 already"):
        rendezvous.open_own_store(rank_env, short)


def end_of_interrupted_rank(
    rank_env: RankEnvironment, wait: Callable[[], None], is_waiting: threading.Event
) -> BaseException | None:
    """Interrupt a rank while it waits in `wait`. Return the error that ends the wait."""
    ends: list[BaseException | None] = []

    def rank() -> None:
        try:
            with rendezvous.interruptible_waits(rank_env):
                wait()
            ends.append(None)
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=rank, daemon=True)
    thread.start()
    assert is_waiting.wait(60)
    interruption.interrupt()
    thread.join(60)
    assert ends, "the rank still waits"
    return ends[0]


@pytest.fixture
def rank_that_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interruption, "_replace", lambda rank: None)
    yield
    interruption.clear()


@pytest.mark.usefixtures("rank_that_can_be_interrupted")
def test_an_interruption_ends_the_wait_for_a_killed_rank() -> None:
    rank_env = RankEnvironment(0, 0, 2, 2, "127.0.0.1", ports.free_port(), "lt-train")
    hour, is_waiting = datetime.timedelta(hours=1), threading.Event()
    store = rendezvous.open_own_store(rank_env, hour)
    monitor = store.clone()

    def wait() -> None:
        is_waiting.set()
        rendezvous.meet(store, rank_env, hour, {})

    error = end_of_interrupted_rank(rank_env, wait, is_waiting)
    assert isinstance(error, torch.distributed.DistError), error
    with pytest.raises(torch.distributed.DistError):
        monitor.get("any")


@pytest.mark.usefixtures("rank_that_can_be_interrupted")
def test_an_interruption_ends_the_wait_for_a_killed_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    rank_env = RankEnvironment(1, 1, 2, 2, "127.0.0.1", ports.free_port(), "lt-train")
    is_waiting = threading.Event()
    monkeypatch.setattr(rendezvous, "CONNECT_POLL_SECONDS", 0.0)

    def refuse(*arguments: object) -> None:
        is_waiting.set()
        raise ConnectionRefusedError

    monkeypatch.setattr(rendezvous.socket, "create_connection", refuse)
    error = end_of_interrupted_rank(
        rank_env, lambda: rendezvous.open_own_store(rank_env, datetime.timedelta(hours=1)), is_waiting
    )
    assert isinstance(error, interruption.Echo), error
    with pytest.raises(interruption.Echo), rendezvous.interruptible_waits(rank_env):
        pass


def test_groups_of_a_process_group_with_a_device_are_not_connected_at_once() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        everyone = torch.distributed.group.WORLD
        assert everyone
        everyone.bound_device_id = torch.device("cuda:0")
        with rendezvous.connect_when_used():
            # With a device, torch would connect it, and there is none.
            assert torch.distributed.new_group([0]).bound_device_id is None
        assert everyone.bound_device_id == torch.device("cuda:0")
    finally:
        torch.distributed.destroy_process_group()
