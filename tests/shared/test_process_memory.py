"""What a process says of its memory, against what it was made to hold."""

import subprocess
import sys

HUGE_BYTES = 400 << 20
SAY = "from lt_shared.memory import peak_resident_bytes; print(peak_resident_bytes())"


def test_what_was_held_and_let_go() -> None:
    held = f"text = b'x' * {HUGE_BYTES}; del text; {SAY}"
    done = subprocess.run([sys.executable, "-c", held], capture_output=True, text=True, check=True)
    assert HUGE_BYTES < int(done.stdout) < HUGE_BYTES + (100 << 20)


def test_what_the_parent_holds_is_not_counted() -> None:
    starts = f"import subprocess, sys; text = b'x' * {HUGE_BYTES}; subprocess.run([sys.executable, '-c', {SAY!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", starts], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 100 << 20
