"""What a command takes, its children included."""

import sys

import processes
import pytest

MIB = 1 << 20
CHILD = "import time; held = bytearray(b'x') * (100 << 20); time.sleep(1.2)"
BUSY = "import time; start = time.process_time()\nwhile time.process_time() < start + 0.3: pass"


def test_memory_of_parent_and_child_is_added() -> None:
    held_here = bytearray(b"x") * (300 << 20)
    parent = f"import subprocess, sys; held = bytearray(b'x') * (100 << 20); subprocess.run([sys.executable, '-c', {CHILD!r}])"
    usage = processes.run([sys.executable, "-c", parent])
    assert 200 * MIB < usage.peak_bytes < 300 * MIB < len(held_here) + 1


def test_cpu_seconds_of_a_child_count() -> None:
    usage = processes.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"])
    assert 0.3 <= usage.cpu_seconds < 3
    assert usage.wall_seconds >= 0.3


def test_environment_is_added() -> None:
    processes.run([sys.executable, "-c", "import os; assert os.environ['ADDED'] == '1' and os.environ['PATH']"], {"ADDED": "1"})


def test_failure_shows_the_output() -> None:
    with pytest.raises(processes.Failed, match=r"(?s)exit 3.*the reason"):
        processes.run([sys.executable, "-c", "import sys; print('the reason'); sys.exit(3)"])
