"""Dumps that py-spy 0.4.3 made of processes of Python 3.11 and 3.12, and stacks of Python's faulthandler."""

import faulthandler
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.hangs import stack_dumps
from lt_monitor.hangs.stack_dumps import Frame, place

SAMPLES = Path(__file__).parents[1] / "samples" / "flight"
TEXTS = ("pyspy_python312_rank_5.txt", "pyspy_native_rank_5.txt", "pyspy_locals_rank_5.txt")


@pytest.mark.parametrize("name", TEXTS)
def test_the_place_is_in_the_program_and_not_in_the_library(name: str) -> None:
    dump = stack_dumps.parse((SAMPLES / name).read_text())
    assert dump is not None and dump.main is not None
    assert (dump.source, dump.main.name, len(dump.threads), dump.rank) == ("py-spy", "MainThread", 2, None)
    assert str(place(dump.main.frames)) == "spy12.py:2 next_batch"


def test_json_says_the_same_as_text() -> None:
    text = stack_dumps.parse((SAMPLES / "pyspy_python312_rank_5.txt").read_text())
    value = stack_dumps.of_py_spy(json.loads((SAMPLES / "pyspy_python312_rank_5.json").read_text()))
    assert text is not None and value is not None
    assert (text.main, set(text.threads)) == (value.main, set(value.threads))


def test_a_frame_of_a_shared_library_has_no_line() -> None:
    dump = stack_dumps.parse((SAMPLES / "pyspy_native_rank_5.txt").read_text())
    assert dump is not None and dump.main is not None
    assert Frame("libpython3.12.so.1.0", None, "PyThread_acquire_lock_timed") in dump.main.frames


def test_stacks_of_faulthandler(tmp_path: Path) -> None:
    """As the watchdog of lt-train writes them: from a thread, below a line of its own."""
    path = tmp_path / "rank-00003.txt"
    with path.open("w") as file:
        file.write("rank 3 on node-7.cluster, after step 250\n")
        file.flush()
        thread = threading.Thread(target=faulthandler.dump_traceback, args=(file,))
        thread.start()
        thread.join()
    dump = stack_dumps.parse(path.read_text())
    assert dump is not None and dump.main is not None
    assert (dump.source, dump.rank, len(dump.threads) > 1) == ("stacks", 3, True)
    assert any(frame.function == "test_stacks_of_faulthandler" for frame in dump.main.frames)


# Python 3.14 writes the names of threads.
NAMED = """\
rank 12 on node3, after step 4
Current thread 0x00007f0a2b7fe6c0 [watchdog] (most recent call first):
  File "/code/lt_train/process/watchdog.py", line 111 in _write_stacks
Thread 0x00007f0b1d2f3740 [python] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 359 in wait
  File "/venv/lib/python3.14/site-packages/megatron/core/tensor_parallel/mappings.py", line 24 in _reduce
  File "<frozen runpy>", line 88 in _run_code
"""


def test_names_of_threads_and_paths_from_the_package_on() -> None:
    dump = stack_dumps.parse(NAMED)
    assert dump is not None and dump.main is not None
    assert (dump.rank, dump.main.name) == (12, "python")
    assert str(place(dump.main.frames)) == "megatron/core/tensor_parallel/mappings.py:24 _reduce"


@pytest.mark.parametrize(
    "value", [None, {}, [], [1], [{}], [{"thread_id": 1}], [{"thread_id": 1, "frames": 3}], [{"frames": []}], "x"]
)
def test_other_json_is_no_dump(value: Any) -> None:
    assert stack_dumps.of_py_spy(value) is None


@pytest.mark.parametrize(
    "text", ["", "Process 1", "Process 1: python", "Thread 1 (idle)", "rank 3 on a, after step 4\n", "\0" * 99]
)
def test_other_text_is_no_dump(text: str) -> None:
    assert stack_dumps.parse(text) is None


def test_lines_as_long_as_they_please() -> None:
    lines = ["    f (" + "(" * 1_000_000, "    " + "a" * 1_000_000 + " (b:1)", '  File "' + "/" * 1_000_000, "x" * 1_000_000]
    header = "Process 1: python\nThread 1 (idle)\n"
    dump = stack_dumps.parse(header + "\n".join(lines * 3) + "\n    g (train.py:3)\n")
    assert dump is not None
    assert dump.threads[0].frames == (Frame("train.py", 3, "g"),)


def test_what_is_shown_is_one_visible_line() -> None:
    frame = Frame.of("/a/b/c/d\x1b[2J.py", 3, "f\u202e" + "g" * 5000)
    assert str(frame).isprintable()
    assert len(str(frame)) < 500
    assert sys.getsizeof(frame.function) < 1000
