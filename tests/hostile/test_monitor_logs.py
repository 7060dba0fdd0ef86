"""Logs that somebody made up: no terminal, report, label or memory is theirs, and no pass waits for them."""

import functools
import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitor_command import monitor

from lt_monitor.prometheus import exposition
from lt_monitor.runs.run_state import RunState

FAULT = {"v": 1, "kind": "fault", "run": "r", "fault": "xid", "cause": "root", "severity": "critical", "message": "m"}
STEP = {"v": 1, "kind": "step", "run": "r", "step": 1, "loss": 2.5}
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x85\u202e\u2066\u200e\u200f\u061c\u2028<script>alert(1)</script>\"'`|<!channel>\\n{{7*7}}"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMANDS = {
    "scrape": ["scrape", "--state", "state"],
    "alert": ["alert", "--state", "state"],
    "prom": ["prom", "-o", "lt.prom"],
    "summarize": ["summarize"],
    "runs": ["runs"],
    "goodput": ["goodput"],
    "plot": ["plot"],
    "report": ["plot", "-o", "report.html"],
}


def run(folder: Path, *arguments: str, log: str = "run.log", seconds: float = 300) -> subprocess.CompletedProcess[bytes]:
    command = monitor(*arguments, log)
    return subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds)


def lines(*records: dict[str, object]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def evil_log() -> bytes:
    fault = {"v": 1, "kind": "fault", "run": EVIL, "fault": "xid", "cause": "root", "severity": "critical", "message": EVIL}
    start = {"v": 1, "kind": "start", "run": EVIL, "arguments": {"save": EVIL, "world_size": 8, "train_iters": 100}}
    steps = [{**STEP, "run": EVIL, "step": step} for step in range(1, 30)]
    end = {"v": 1, "kind": "checkpoint", "run": EVIL, "step": 29, "path": f"/{EVIL}"}
    raw = f"NCCL WARN {EVIL}\nTraceback (most recent call last):\n  File {EVIL}\nValueError: {EVIL}\n".encode()
    return raw + b"\0" * 1000 + b"\n" + lines(start, *steps, end, fault)


VIEWS = COMMANDS | {
    "scrape without state": ["scrape"],
    "alert --json": ["alert", "--json"],
    "summarize --json": ["summarize", "--json"],
    "runs --json": ["runs", "--json"],
    "goodput --json": ["goodput", "--json"],
    "tail-cause": ["tail-cause"],
    "tail-cause --json": ["tail-cause", "--json"],
    "tail-cause --exclude-node": ["tail-cause", "--exclude-node"],
    "prom to standard output": ["prom"],
    "diff": ["diff", "run.log"],
    "diff --json": ["diff", "--json", "run.log"],
    "export": ["export", "-o", "curves"],
    "stuck": ["stuck"],
    "stuck --json": ["stuck", "--json"],
    "gpu": ["gpu"],
    "slurm": ["slurm"],
    "neuron": ["neuron"],
}


@pytest.mark.parametrize("command", VIEWS)
def test_nothing_of_a_log_or_of_its_name_reaches_the_terminal_as_it_is(command: str, tmp_path: Path) -> None:
    name = "a\x1b[2J\x9b31m\u202e\u200f\n.log"
    for log in (name, "run.log"):
        (tmp_path / log).write_bytes(evil_log() + b'{"v":1,"kind":"st\n')
    done = run(tmp_path, *VIEWS[command], log=name)
    assert done.returncode in (0, 1, 3, 65, 66, 69, 75, 78), done.stderr
    for stream in (done.stdout, done.stderr):
        text = stream.decode()
        assert not OBEYED.search(text), text
    if command == "report":
        page = (tmp_path / "report.html").read_text()
        assert "<script>alert" not in page
        assert not OBEYED.search(page)
    if command == "prom":
        assert not OBEYED.search((tmp_path / "lt.prom").read_text())


@given(st.text())
def test_escaped_json_says_the_same(text: str) -> None:
    import orjson

    from lt_monitor.events.escaping import json_for_terminals

    escaped = json_for_terminals(orjson.dumps(text))
    assert orjson.loads(escaped) == text
    assert escaped.decode().isprintable()


def test_a_name_that_is_not_there_is_no_command_either(tmp_path: Path) -> None:
    assert b"\x1b" not in run(tmp_path, "summarize", log="\x1b[2J.log").stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_among_the_logs_is_left_out(command: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/run.log").write_bytes(lines(*({**STEP, "step": step} for step in range(1, 5))))
    os.mkfifo(tmp_path / "logs/aaa.log")
    (tmp_path / "logs/link.log").symlink_to("/dev/zero")
    done = run(tmp_path, *COMMANDS[command], "logs/*.log", log="logs")
    assert done.returncode == 0, done.stderr


def test_a_pipe_that_takes_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(lines(STEP))
    command = monitor("scrape", "--follow", "run.log")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.mkfifo(tmp_path / "pipe")
        os.replace(tmp_path / "pipe", log)
        time.sleep(2.5)
        (tmp_path / "new").write_bytes(lines({**STEP, "step": 2}))
        os.replace(tmp_path / "new", log)
        found = [process.stdout.readline() for _ in range(2)]
        process.kill()
    assert b'"step":2' in b"".join(found)


NAMES = {
    "runs": lambda number: {**STEP, "run": f"r{number}"},
    "files": lambda number: {**STEP, "step": number + 1, "src": {"file": f"f{number}", "offset": 0}},
    "ranks": lambda number: {**STEP, "rank": number},
    "nodes": lambda number: {**STEP, "node": f"n{number}"},
    "GPUs": lambda number: {"v": 1, "kind": "gpu", "node": "n", "run": "r", "gpu": number, "uuid": f"GPU-{number}"},
    "faults": lambda number: {**FAULT, "fault": f"f{number}"},
    "starts": lambda number: {"v": 1, "kind": "start", "run": "r", "rank": number, "arguments": {"world_size": number + 1}},
}  # fmt: skip


# More runs, and more files, than there may be, and many of all else.
MADE_UP = {"runs": (12_000, ["runs"]), "files": (12_000, ["files"]), "others": (2500, [*NAMES][2:])}
# What is remembered of the 10,000 runs takes 12.6 MiB, of all of them 15; of the 10,000 files 1.5, of all of them 1.8; of the
# others 0.29, of which that of ranks and that of nodes are the most: a third.
LARGEST_STATE_BYTES = {"runs": 14 << 20, "files": 1_700_000, "others": 320 << 10}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A log with names of one kind, or of several in turn."""
    place = tmp_path_factory.mktemp("made-up")

    @functools.cache
    def write(names: str) -> Path:
        path = place / f"{names}.log"
        count, kinds = MADE_UP[names]
        path.write_bytes(lines(*(NAMES[kind](number) for number in range(count) for kind in kinds)))
        return path

    return write


@pytest.mark.parametrize("names", MADE_UP)
@pytest.mark.parametrize("command", ["scrape", "alert", "prom"])
def test_made_up_names_do_not_fill_the_memory(command: str, names: str, tmp_path: Path, made_up: Callable[[str], Path]) -> None:
    """What cron runs every minute stays as small as with a hundredth of them, but for what it remembers at most."""
    done = subprocess.run(
        monitor(*COMMANDS[command], made_up(names)), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20)),
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr[-500:]
    states = [path.stat().st_size for path in tmp_path.glob("*state")]
    assert states and max(states) < LARGEST_STATE_BYTES[names]


@given(
    st.text(alphabet="\\u005cU\n\x01\ue000\U000e0001\ud8001", max_size=14),
    st.text(alphabet="\\u005cU\n\x01\ue000\U000e0001\ud8001", max_size=14),
)
def test_two_runs_never_have_one_label(one: str, other: str) -> None:
    """A series that is there twice makes node_exporter refuse the whole file."""
    assert (exposition.escape(one) == exposition.escape(other)) == (one == other)


def test_each_series_is_there_once() -> None:
    states = []
    for name in ("a\x01", "a\\u0001", "a\U000e0001", "a\ue0001", 'a"', "a\n", "a\\n"):
        states.append(RunState(name))
        states[-1].take({"kind": "step", "step": 3, "loss": None, "src": {"file": "f", "offset": 0}}, 100.0)
    series = [line.rpartition(" ")[0] for line in exposition.render(states, 100.0).splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)


RULES = {
    "device": None,
    "pipe": None,
    "directory": None,
    "huge": b"# " + b"x" * (2 << 20),
    "deep": b"a = " + b"[" * 100_000,
    "deep tables": b"[" + b"a." * 10_000 + b"a]",
    "twice": b"[hang]\nminimum_seconds = 1\nminimum_seconds = 2\n",
    "table twice": b"[hang]\n[hang]\n",
    "huge number": b"[hang]\nminimum_seconds = " + b"9" * 5000,
    "infinity": b"[hang]\nminimum_seconds = inf\n",
    "escape": b'["\\u001b[2J"]\n',
    "escape of a key": b'[hang]\n"\\u001b[2J" = 1\n',
    "no text": b"\xff\xfe",
    "NUL": b"\0",
    "date": b"hang = 1979-05-27\n",
    "list": b"[[hang]]\nminimum_seconds = 1\n",
}


@pytest.mark.parametrize("rules", RULES)
def test_a_rules_file_that_is_none_is_refused(rules: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(lines(STEP))
    content, name = RULES[rules], "rules.toml"
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif rules == "pipe":
        os.mkfifo(tmp_path / name)
    elif rules == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        (tmp_path / name).mkdir()
    done = run(tmp_path, "alert", "--rules", name, seconds=60)
    assert (done.returncode, done.stdout) == (78, b""), done.stderr
    assert b"rules.toml" in done.stderr and b"\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2 and len(done.stderr) < 2000
