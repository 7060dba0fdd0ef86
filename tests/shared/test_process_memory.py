"""What a process says of its memory, against what it was made to hold."""

import os
import subprocess
import sys
from pathlib import Path

from lt_shared.memory import available_bytes

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


def test_a_control_group_has_less_than_the_machine(tmp_path: Path) -> None:
    """As of a job of Slurm: the step's group has no limit, the job's has one, and a part of what it uses is page cache."""
    kib, gib = 1 << 10, 1 << 30
    files = {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {100 * gib // kib} kB\n",
        "proc/self/cgroup": "1:name=systemd:/x\n0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/memory.current": "5\n",
        "sys/fs/cgroup/job/memory.max": f"{32 * gib}\n",
        "sys/fs/cgroup/job/memory.current": f"{30 * gib}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon {20 * gib}\nfile {10 * gib}\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert available_bytes(tmp_path) == 12 * gib
    (tmp_path / "proc/self/cgroup").write_text("0::/other\n")
    assert available_bytes(tmp_path) == 100 * gib


def test_this_machine_has_some_memory() -> None:
    assert 1 << 20 < available_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_freed_memory_that_is_kept_comes_back_without_new_pages() -> None:
    work = (
        "import resource; from lt_shared.memory import keep_freed_memory; {}\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(3): b'x' * (8 << 20)\n"
        "before = faults()\n"
        "for _ in range(10): b'x' * (8 << 20)\n"
        "print(faults() - before)\n"
    )
    texts = [work.format("pass"), work.format(f"keep_freed_memory({32 << 20})")]
    usual, kept = (int(subprocess.run([sys.executable, "-c", text], capture_output=True, check=True).stdout) for text in texts)
    pages = (8 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert kept < pages / 10
    assert kept <= usual
