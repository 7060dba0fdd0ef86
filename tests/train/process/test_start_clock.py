"""The phases of a rank's start add up, from the start of lt-train on."""

import os
import subprocess
import sys
import time

import pytest

from lt_shared.contracts.recovery_notes import STARTED
from lt_train.process import start_clock
from lt_train.process.start_clock import StartClock


def test_a_process_knows_when_it_started() -> None:
    program = "from lt_train.process import start_clock; print(start_clock.process_start())"
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    # To a hundredth of a second.
    assert before - 0.02 <= float(done.stdout) <= time.monotonic()


def test_phases_add_up_from_the_start_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = start_clock.process_start() - 5
    monkeypatch.setenv(start_clock.VARIABLE, f"{os.getppid()} {launched}")
    clock = StartClock()
    clock.begin()
    clock.lap("torch")
    with clock.beside("context"):
        clock.lap("model")
    clock.lap("torch")
    started = clock.end(7)
    assert started and clock.end(8) is None
    assert list(started.phases) == ["launcher", "torch", "model", "first step"] and list(started.beside) == ["context"]
    assert started.phases["launcher"] == pytest.approx(5, abs=1) and started.step == 7
    assert sum(started.phases.values()) == pytest.approx(started.seconds)
    found = STARTED.search(started.format().encode())
    assert found and float(found["seconds"]) == pytest.approx(started.seconds, abs=0.01) and found["step"] == b"7"


@pytest.mark.parametrize("value", ["abc", "1", "1 2.5"])
def test_what_another_process_has_said_is_not_used(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(start_clock.VARIABLE, value)
    clock = StartClock()
    clock.begin()
    started = clock.end(1)
    assert started and list(started.phases) == ["first step"]


def test_another_attempt_has_phases_of_its_own() -> None:
    clock = StartClock()
    clock.lap("torch")
    assert clock.end(3)
    clock.begin_again()
    clock.lap("process groups")
    started = clock.end(4)
    assert started and list(started.phases) == ["process groups", "first step"] and started.seconds < 60
