"""Processes of one machine that wait for each other."""

import os
import subprocess
import sys

import pytest

from lt_shared.console import Unavailable
from lt_train.process.launchers import presence
from lt_train.process.ports import free_port

PROGRAM = "from lt_train.process.launchers import presence; presence.wait_for_ranks({}, 3, {}, 'mpiexec', 30)"


def test_three_processes_meet() -> None:
    """None ends before all have met: one that has ended is missing."""
    port = free_port()
    programs = [PROGRAM.format(rank, port) + "; print('met', flush=True); input()" for rank in (1, 2)]
    processes = [subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) for program in programs]
    presence.wait_for_ranks(0, 3, port, "mpiexec", 30)
    assert [process.stdout.readline() for process in processes if process.stdout] == ["met\n"] * 2
    for process in processes:
        process.communicate("\n")
        assert process.returncode == 0


def test_missing_processes_are_named() -> None:
    port = free_port()
    with pytest.raises(Unavailable, match="of 4 processes that mpiexec started on this machine, number 0, 2, 3 did not come"):
        presence.wait_for_ranks(1, 4, port, "mpiexec", 0.2)


def test_a_rank_that_has_ended_is_missing() -> None:
    """Its socket ends with it."""
    port = free_port()
    program = PROGRAM.format(1, port).replace(", 3, ", ", 2, ").replace("30)", "0)")
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, check=False)
    assert ended.returncode == 1
    with pytest.raises(Unavailable, match="number 1 did"):
        presence.wait_for_ranks(0, 2, port, "mpiexec", 0.2)
