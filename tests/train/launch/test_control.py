"""A rank that is killed is replaced by a spare process, and the others go on in theirs."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from running import copied_ranks_in, environment, faulty, losses, quick_command, train

from lt_train.launch.control import Control, Controlled
from lt_train.launch.kept_copies import KeptCopies
from lt_train.process import interruption
from lt_train.process.interruption import Echo
from lt_train.process.reading import Reading

SIZES = (
    *("--mock-data", "--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--device", "cpu", "--seq-length", "32", "--global-batch-size", "6", "--micro-batch-size", "1", "--log-interval", "1"),
    *("--eval-iters", "0", "--train-iters", "12", "--save-interval", "4"),
)
LAYOUTS = {
    "three ranks": ("--ranks", "3"),
    # One of four waits for two others, which must close their connections: those of a model that is not freed stay open.
    "distributed optimizer": ("--ranks", "4", "--use-distributed-optimizer", "--async-save", "--global-batch-size", "8"),
}
LOCAL = "three ranks"


def started(place: Path, layout: str) -> subprocess.Popen[bytes]:
    local = ("--save-local", str(place / "local"), "--save-local-interval", "1") if layout == LOCAL else ()
    options = (*SIZES, *LAYOUTS[layout], *local, "--max-restarts", "3", "--save", str(place / "run"))
    with (place / "log").open("w") as log:
        return subprocess.Popen(quick_command(*options), stdout=subprocess.DEVNULL, stderr=log, env=environment(), cwd=place)


def steps(place: Path) -> list[int]:
    return [int(number) for number in re.findall(r"iteration +(\d+)/", (place / "log").read_text())]


def wait_for_step(place: Path, run: subprocess.Popen[bytes], step: int, seen: int = 0) -> None:
    while not any(number >= step for number in steps(place)[seen:]):
        assert run.poll() is None, (place / "log").read_text()
        time.sleep(0.02)


@pytest.mark.parametrize(("layout", "killed"), [("three ranks", ["2"]), ("distributed optimizer", ["1", "0"])])
def test_losses_are_those_of_an_undisturbed_run(layout: str, killed: list[str], tmp_path: Path) -> None:
    run, seen = started(tmp_path, layout), 0
    for rank in killed:
        wait_for_step(tmp_path, run, 6, seen)
        before, seen = copied_ranks_in(tmp_path), len(steps(tmp_path))
        os.kill(before[int(rank)], signal.SIGKILL)
    assert run.wait(timeout=600) == 0
    said = (tmp_path / "log").read_text()
    assert ("the local copies of iteration" in said) == (layout == LOCAL)
    for rank in killed:
        assert f"the other ranks go on in their processes, and a spare one is rank {rank}" in said
    assert train(*SIZES, *LAYOUTS[layout], "--save", str(tmp_path / "still")).code == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "still")


def test_a_rank_that_does_not_leave_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.launch.control.READY_SECONDS", 0.3)
    monkeypatch.setattr("lt_train.launch.control.IMPORT_SECONDS", 0.3)
    control = Control(tmp_path / "control", KeptCopies())
    ranks = [Controlled(str(tmp_path / "control"), rank) for rank in (0, 1)]
    control.hold([0, 1])
    assert [rank.is_held() for rank in ranks] == [True, True]
    for rank in ranks:
        rank.say_imported()
    ranks[0].say_ready()
    assert not control.are_ready([0, 1])
    assert not control.begin({2: {}}, {2: 0}), "there is no spare"
    control.close()
    assert ranks[0].wait_for_attempt() is None


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_before_its_first_step_is_replaced(killed: int, tmp_path: Path) -> None:
    """The other rank imports, then finds no rank to meet. It goes on in its process, and loses no import."""
    options = (*SIZES, "--ranks", "2", "--train-iters", "1", "--save", str(tmp_path / "run"))
    run = train(*options, "--max-restarts", "1", **faulty(f"{killed}:python_open:run_config-1:SIGKILL:rank"))
    assert run.code == 0, run.err
    assert f"rank {killed} on " in run.err and "SIGKILL" in run.err
    assert f"the other ranks go on in their processes, and a spare one is rank {killed}" in run.err


def test_a_rank_that_imports_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.launch.control.READY_SECONDS", 0.0)
    control = Control(tmp_path / "control", KeptCopies())
    control.hold([0])
    rank = Controlled(str(tmp_path / "control"), 0)
    looks: list[int] = []

    def is_alive(number: int) -> bool:
        looks.append(number)
        if len(looks) == 3:
            rank.say_ready()
        return True

    assert control.are_ready([0], is_alive)
    assert rank.is_held(), "it has connected after the other rank's death"
    assert looks == [0, 0, 0]
    control.hold([0])
    rank.say_imported()
    assert not control.are_ready([0], lambda number: True)
    assert not control.are_ready([0], lambda number: False)
    control.close()


def test_the_ranks_and_the_spare_hear_what_to_begin(tmp_path: Path) -> None:
    control = Control(tmp_path / "control", KeptCopies())
    rank, spare = (Controlled(str(tmp_path / "control"), number) for number in (0, -3))
    control.hold([0])
    assert rank.is_held()
    rank.say_ready()
    assert control.are_ready([0])
    attempts = {number: {"config": "config", "variables": {"RANK": str(4 + number)}, "stored": 3} for number in (0, 1)}
    assert control.begin(attempts, {1: 2})
    assert [end.wait_for_attempt() for end in (rank, spare)] == list(attempts.values())
    assert spare.stored_step == 3
    control.close()


def test_a_rank_is_held_once_it_is_free_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.launch.control.READY_SECONDS", 0.3)
    control = Control(tmp_path / "control", KeptCopies())
    calls: list[str] = []
    stuck = threading.Event()
    free = Controlled(str(tmp_path / "control"), 0, lambda: calls.append("interrupted"))
    bound = Controlled(str(tmp_path / "control"), 1, stuck.wait)  # type: ignore[arg-type]
    control.hold([0, 1])
    assert free.is_held()
    assert calls == ["interrupted"]
    assert not bound.is_held(), "its collectives do not end"
    stuck.set()
    control.close()


def test_the_launcher_hears_of_ranks_that_hang(tmp_path: Path) -> None:
    control = Control(tmp_path / "control", KeptCopies())
    first, second = (Controlled(str(tmp_path / "control"), rank) for rank in (0, 1))
    assert control.suspects() == []
    first.suspect(1)
    assert control.suspects() == [1]
    assert control.suspects() == []
    second.say_ready()
    first.say_ready()
    assert control.are_ready([0, 1])
    control.close()


def test_what_is_read_after_an_interruption_is_not_used() -> None:
    reading = Reading(torch.tensor([1.5]))
    assert reading.values() == [1.5]
    interruption.interrupt()
    try:
        with pytest.raises(Echo):
            reading.values()
    finally:
        interruption.clear()
    assert reading.values() == [1.5]


def test_without_word_of_a_death_a_rank_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.launch.control.HOLD_SECONDS", 0.1)
    control = Control(tmp_path / "control", KeptCopies())
    assert not Controlled(str(tmp_path / "control"), 0).is_held()
    control.close()
