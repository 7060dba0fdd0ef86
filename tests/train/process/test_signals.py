"""Signals and limits end a run; a second signal ends it at once."""

import signal
import subprocess
import sys
import time

import pytest
from running import catches, command, environment

from lt_shared.console import ExitCode
from lt_train.process import signals
from lt_train.process.signals import Limits, Reason

LISTENER = """
import time
from lt_train.process import signals
signals.SAME_SIGNAL_SECONDS = 1.0
with signals.hold_back_signals():
    print("held back", flush=True)
    time.sleep(0.5)
    assert signals.Limits.received() == signals.Reason.NONE
    signals.listen()
print(signals.Limits.received().text, flush=True)
time.sleep(600)
"""


def test_the_first_signal_is_noted_and_the_second_ends_the_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held back\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == -signal.SIGTERM


def test_the_same_signal_from_two_senders_is_one() -> None:
    """Slurm signals a rank, and so does lt-train."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert process.poll() is None
    time.sleep(1)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=120) == -signal.SIGUSR1


@pytest.mark.parametrize(("saves", "is_ignored", "minds"), [(True, False, True), (False, False, False), (True, True, False)])
def test_which_runs_wait_for_ctrl_c(saves: bool, is_ignored: bool, minds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell without job control lets programs in the background ignore it."""
    handler = signal.SIG_IGN if is_ignored else signal.default_int_handler
    monkeypatch.setattr(signal, "getsignal", lambda number: handler)
    assert signals.ending_signals(saves) == [signal.SIGTERM, signal.SIGUSR1] + [signal.SIGINT] * minds


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_before_training_a_signal_puts_the_job_back_into_the_queue(number: signal.Signals) -> None:
    waits_for_data = command("--model", "tiny", "-")
    process = subprocess.Popen(waits_for_data, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stderr is not None
    while not catches(process.pid, number):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=120) == ExitCode.TRY_AGAIN
    assert f"ended by {number.name}".encode() in process.stderr.read()


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(first=8, interval=4, duration_minutes=None)
    assert [limits.reached(iteration) for iteration in (8, 9, 11, 12)] == [0, 0, 0, Reason.INTERVAL]
    assert Limits(first=0, interval=None, duration_minutes=None).reached(5) == Reason.NONE
    monkeypatch.setattr(signals, "_started", time.monotonic() - 90)
    assert Limits(first=0, interval=None, duration_minutes=2).reached(1) == Reason.NONE
    assert Limits(first=0, interval=1, duration_minutes=1).reached(1) == Reason.DURATION
    monkeypatch.setattr(signals, "_received", Reason.TERMINATION)
    assert Limits(first=0, interval=1, duration_minutes=1).reached(1) == Reason.TERMINATION
