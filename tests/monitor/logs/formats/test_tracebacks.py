"""A log that ends in an exception has it as its cause, whatever the class is called and whatever stands around the traceback."""

import time
from pathlib import Path

import pytest

from lt_monitor.logs.log_parser import LogParser
from lt_monitor.runs.faults.tail_cause import Cause, tail_cause

STEP = " iteration {:8d}/     100 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n"
STEPS = "".join(map(STEP.format, (1, 2, 3)))
FRAMES = 'Traceback (most recent call last):\n  File "/opt/train.py", line 10, in <module>\n    main()\n'
BOOM = FRAMES + "Boom: no data\n"
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/opt/t.py", line 3, in <module>
  |     raise ExceptionGroup("many", problems)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
{}    | LoadFailed: shard 3
    +---------------- 2 ----------------
    | LoadFailed: shard 4
    +------------------------------------
"""
BOX = """╭───────────── Traceback (most recent call last) ─────────────╮
│ /opt/train.py:10 in main                                    │
│                                                             │
│ ❱ 10     raise Boom("no data")                              │
╰─────────────────────────────────────────────────────────────╯
Boom: no data
"""
COLOURS = """Traceback (most recent call last):
  File \x1b[35m"/opt/t.py"\x1b[0m, line \x1b[35m1\x1b[0m, in \x1b[35m<module>\x1b[0m
    \x1b[31mmain\x1b[0m\x1b[1;31m()\x1b[0m
\x1b[1;35mBoom\x1b[0m: \x1b[35mno data\x1b[0m
"""

NOTEBOOK = """---------------------------------------------------------------------------
{}                                 Traceback (most recent call last)
/opt/train.py in main(options)
      9     rows = read(options.path)
---> 10     raise {}("no data")
     11     return rows

{}: no data
""".replace("{}", "DataMissing")


def _numbered(text: str, first: str, others: str | None = None) -> str:
    lines = text.splitlines(keepends=True)
    return "".join((first if number == 1 else others or first).format(number) + line for number, line in enumerate(lines, 1))


def _behind(label: str, text: str = BOOM) -> str:
    """`text` with a label before each line; `#` is the number of the line."""
    return "".join(label.replace("#", str(number)) + line for number, line in enumerate(text.splitlines(keepends=True), 8))


def _of_two_ranks() -> str:
    return "".join(f"[rank{rank}]: {line}" for line in BOOM.splitlines(keepends=True) for rank in (0, 1))


ENDINGS = {
    "a name with no Error in it": (FRAMES + "StageFailed: stage 3\n", "StageFailed: stage 3"),
    "a class alone": (FRAMES + "StageFailed\n", "StageFailed"),
    "a module": (FRAMES + "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n", "BackendCompilerFailed"),
    "a lower-case class": (FRAMES + "socket.timeout: timed out\n", "socket.timeout: timed out"),
    "Exception itself": ("Exception: Skipped 50 iterations\n", "Exception: Skipped 50 iterations"),
    "a panic in Rust called from Python": (FRAMES + "pyo3_runtime.PanicException: index\n", "pyo3_runtime.PanicException: index"),
    "a cause": (
        f"{FRAMES}LoadFailed: a\n\nThe above exception was the direct cause of the following exception:\n\n{FRAMES}Stopped: b\n",
        "LoadFailed: a",
    ),
    "a context": (
        f"{FRAMES}LoadFailed: a\n\nDuring handling of the above exception, another exception occurred:\n\n{FRAMES}Stopped: b\n",
        "LoadFailed: a",
    ),
    "cancelled tasks are no cause": (
        f"{FRAMES}asyncio.exceptions.CancelledError\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{FRAMES}Stopped: b\n",
        "Stopped: b",
    ),
    "a group": (GROUP.format('    | Traceback (most recent call last):\n    |   File "/opt/t.py", line 2, in f\n'), "shard 3"),
    "a group of exceptions that nobody raised": (GROUP.format(""), "LoadFailed: shard 3"),
    "cut off": (FRAMES, 'cut off, the last frame File "/opt/train.py", line 10, in <module>'),
    "only its heading": ("Traceback (most recent call last):\n", "a traceback that is cut off"),
    "only its end": ('  File "/x.py", line 3, in f\n    g()\nstages.errors.StageFailed: c\n', "stages.errors.StageFailed: c"),
    "two ranks at once": (_of_two_ranks(), "Boom: no data"),
    "a node and an arrow": (_behind("2026-01-09 17:40:26.0#4 master-0 >> "), "Boom: no data"),
    "a loader's worker": (
        f"{FRAMES}FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 2.\nOriginal {FRAMES}"
        "FileNotFoundError: [Errno 2] No such file or directory: 'a.png'\n",
        "[Errno 2]",
    ),
    "a notebook": (NOTEBOOK, "DataMissing: no data"),
    "a notebook and a task": (_behind("3: ", NOTEBOOK), "DataMissing: no data"),
    "a clock": (_behind("[12:00:#0] "), "Boom: no data"),
    "glog": (_behind("E0303 10:00:00.1# 123 torch/x.py:12] "), "Boom: no data"),
    "numbers of lines": (_behind("     # "), "Boom: no data"),
    "an unknown label": (_behind("<<gpu-3>> "), "Boom: no data"),
    "a logger": (f"2026-03-03 10:00:00,123 - root - ERROR - {BOOM}", "Boom: no data"),
    "a logger's record": (f"[2026-03-03 10:00:00,123][root][ERROR] - failed\n{BOOM}", "Boom: no data"),
    "a progress bar": (f"  1%|          | 10/1752 [00:29<1:22:01,  2.83s/it]{BOOM}", "Boom: no data"),
    "rich": (BOX, "Boom: no data"),
    "rich of a rank": (_behind("[rank1]: ", BOX), "Boom: no data"),
    "colours": (COLOURS, "Boom: no data"),
    "300 frames": (FRAMES + '  File "/opt/t.py", line 3, in f\n    f()\n' * 300 + "Boom: no data\n", "Boom: no data"),
    "a message of several lines": (BOOM + "  detail one\nmore\n", "Boom: no data"),
    "C++": ("terminate called after throwing an instance of 'X'\n  what():  no such tensor\nAborted\n", "no such tensor"),
    "Rust": ("thread 'main' panicked at src/main.rs:10:5:\nindex out of bounds\n", "panicked at src/main.rs:10:5"),
    "Go": ("panic: runtime error: index out of range [3]\n\ngoroutine 1 [running]:\n", "panic: runtime error"),
    "glibc": ("double free or corruption (!prev)\n", "double free or corruption"),
    "glog's check": ("F0303 10:00:00.123456 77 mesh.cc:12] Check failed: size > 0 (0 vs. 0)\n", "Check failed: size > 0"),
    "a shell": ("/var/spool/slurm_script: line 12: torchrunn: command not found\n", "command not found"),
    "a program's own words": ("trainer: error: the config has no model\n", "the config has no model"),
    "a library of CUDA": (
        "CUDA runtime error: an illegal instruction was encountered (73) in f at f.cu:1\n",
        "illegal instruction",
    ),
}
ENDINGS |= {
    "a class of a function": (f"{FRAMES}__main__.main.<locals>.Boom: no data\n", "__main__.main.<locals>.Boom: no data"),
    "a class of a function's class": (f"{FRAMES}a.b.<locals>.C.<locals>.Boom\n", "a.b.<locals>.C.<locals>.Boom"),
    "Cyrillic": (f"{FRAMES}Ошибка: плохо\n", "Ошибка: плохо"),
    "Latin": (f"{FRAMES}pkg.Défaut: no data\n", "pkg.Défaut: no data"),
    "Chinese": (f"{FRAMES}数据.错误: no data\n", "数据.错误: no data"),
    "a generator that is closed": (f"{FRAMES}GeneratorExit\n", "GeneratorExit"),
    "grep -n of one file": (_numbered(BOOM, "{}:"), "Boom: no data"),
    "grep -n": (_numbered(BOOM, "slurm-77.out:{}:"), "Boom: no data"),
    "grep -n below a directory": (_numbered(BOOM, "run.1/slurm-77.out:{}:"), "Boom: no data"),
    "grep -nA": (_numbered(BOOM, "slurm-77.out:{}:", "slurm-77.out-{}-"), "Boom: no data"),
}
HEALTHY = {
    "a thread": f"Exception in thread Thread-1 (run):\n{BOOM}",
    "a destructor": f"Exception ignored in: <function X.__del__ at 0x7f>\n{BOOM}",
    "steps follow": BOOM + "".join(map(STEP.format, (4, 5, 6))),
    "a warning": f"WARNING:root:could not import apex\n{BOOM}" + "building datasets\n" * 10,
    "a generator that is thrown away": f"Exception ignored in: <generator object f at 0x7f>\n{FRAMES}GeneratorExit: \n",
    "no failure at all": "building datasets\nINFO: all is well\n",
    "the exit that was asked for": f"{FRAMES}SystemExit: 0\n",
}


def cause_of(text: str, tmp_path: Path) -> Cause:
    (tmp_path / "a.log").write_text(text)
    return tail_cause([str(tmp_path / "a.log")])


@pytest.mark.parametrize("before", ["", STEPS], ids=["at the start", "after steps"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_cause(ending: str, before: str, tmp_path: Path) -> None:
    text, message = ENDINGS[ending]
    cause = cause_of(before + text, tmp_path)
    assert cause.fault is not None
    assert message in cause.message
    assert cause.last_step == (3 if before else None)


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_no_failure(text: str, tmp_path: Path) -> None:
    assert cause_of(STEPS + text, tmp_path).fault is None


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("text", [BOOM, _of_two_ranks(), BOX, _behind("<<gpu-3>> ")], ids=["plain", "ranks", "rich", "label"])
def test_blocks_that_end_anywhere_give_the_same(text: str, size: int) -> None:
    lines = (STEPS + text + STEPS).encode().splitlines(keepends=True)
    whole = LogParser().parse(b"".join(lines), 0).records("a.log", "a")
    parser, records, offset = LogParser(), [], 0
    for begin in range(0, len(lines), size):
        block = b"".join(lines[begin : begin + size])
        records += parser.parse(block, offset).records("a.log", "a")
        offset += len(block)
        parser = LogParser(parser.to_record())
    assert records == whole
    assert {record["exception"] for record in records if record["kind"] == "fault"} == {"Boom"}


def test_many_tracebacks_cost_what_each_costs_alone() -> None:
    """All ranks print one within a block. Each was read with the 64 KiB behind it: ten times as long as now."""
    traceback = _behind("[rank3]: ").encode()

    def cpu_seconds(block: bytes, times: int) -> float:
        begin = time.process_time()
        for _ in range(times):
            LogParser().parse(block, 0)
        return time.process_time() - begin

    cpu_seconds(traceback, 1)
    together, alone = cpu_seconds(traceback * 800, 1), cpu_seconds(traceback * 8, 100)
    assert together < 3 * alone, (together, alone)
