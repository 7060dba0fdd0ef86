"""Scraping with a state prints every event once, whatever happens to the log, and never loses one, whatever happens to scrape."""

import errno
import fcntl
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_monitor.collect.scrape import scrape
from lt_shared.console import BadConfig, BadData, CannotCreate, IoFailure, NoInput, TryAgain, UsageError
from lt_shared.contracts import run_log

LOGS = Path(__file__).parents[1] / "samples"
GOLDEN = sorted(path.name for path in LOGS.iterdir() if path.is_file() and path.name != "no_events.log")


def events(*logs: Path, state: Path | None = None) -> list[dict]:
    with tempfile.TemporaryFile() as output:
        scrape([str(log) for log in logs], None if state is None else str(state), output)
        output.seek(0)
        return [json.loads(line) for line in output]


def places(records: list[dict]) -> list[tuple[str, int]]:
    return [(record["kind"], record["src"]["offset"]) for record in records]


def step_lines(first: int, last: int, tag: float = 1.0) -> bytes:
    return "".join(f"{run_log.Step(step, 1000, loss=tag).format()}\n" for step in range(first, last + 1)).encode()


def steps(records: list[dict]) -> list[int]:
    return [record["step"] for record in records if record["kind"] == "step"]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("lt_train.log", {"start": 2, "load": 1, "step": 135, "eval": 6, "checkpoint": 4}),
        ("lt_train_metrics.jsonl", {"step": 135, "eval": 6}),
        ("megatron_new.log", {"start": 2, "load": 1, "step": 103, "eval": 6, "checkpoint": 8, "fault": 2, "note": 1}),
        ("megatron_old.log", {"start": 2, "load": 1, "step": 23, "eval": 2, "checkpoint": 8, "fault": 1, "end": 1, "note": 22}),
        ("no_events.log", {}),
    ],
)
def test_whole_logs(name: str, kinds: dict[str, int]) -> None:
    records = events(LOGS / name)
    assert {kind: sum(record["kind"] == kind for record in records) for kind in {record["kind"] for record in records}} == kinds
    content = (LOGS / name).read_bytes()
    for record in records:
        assert record["v"] == 1
        assert record["run"] == str(LOGS / name).rpartition(".")[0]
        assert record["src"]["file"] == str(LOGS / name)
        assert content[: record["src"]["offset"]][-1:] in (b"", b"\n", b"\r")


def test_scrape_reads_its_own_output(tmp_path: Path) -> None:
    first = events(LOGS / "megatron_new.log")
    copy = tmp_path / "events.jsonl"
    copy.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in first))
    assert events(copy) == first


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(GOLDEN), st.lists(st.integers(0, 60_000), max_size=6), st.randoms(use_true_random=False))
def test_a_log_that_grows_gives_the_same_events_as_in_one_go(name: str, cuts: list[int], choice: random.Random) -> None:
    content = (LOGS / name).read_bytes()
    with tempfile.TemporaryDirectory() as directory:
        log, state = Path(directory, name), Path(directory, "state")
        seen: list[dict] = []
        for end in [*sorted(cuts), len(content)]:
            log.write_bytes(content[:end]) if choice.random() < 0.3 else _append(log, content[:end])
            seen += events(log, state=state)
        assert seen == events(log)
        assert events(log, state=state) == []


def _append(log: Path, content: bytes) -> None:
    with log.open("ab") as file:
        file.write(content[file.tell() :])


def test_a_partial_last_line_waits_for_its_end(tmp_path: Path) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    line = step_lines(1, 1)
    log.write_bytes(line + step_lines(2, 2)[:-1])
    assert len(events(log)) == 1
    assert len(events(log, state=state)) == 1
    with log.open("ab") as file:
        file.write(b"\n")
    assert places(events(log, state=state)) == [("step", len(line))]


def test_a_dump_of_arguments_may_be_written_between_two_scrapes(tmp_path: Path) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    lines = [f"{line}\n" for line in run_log.format_arguments({"seq_length": 8, "world_size": 2})]
    log.write_text("".join(lines[:2]))
    assert events(log, state=state) == []
    with log.open("a") as file:
        file.write("".join(lines[2:]))
    (start,) = events(log, state=state)
    assert start["arguments"] == {"seq_length": 8, "world_size": 2}
    assert start["src"]["offset"] == 0


@pytest.mark.parametrize("later", [step_lines(1, 2, 7.0), step_lines(1, 50, 7.0)], ids=["shorter", "longer"])
@pytest.mark.parametrize("head", [b"", b"banner\n" * 300], ids=["different head", "same head"])
def test_a_log_that_was_written_anew_is_read_from_its_beginning(tmp_path: Path, head: bytes, later: bytes) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    log.write_bytes(head + step_lines(1, 20))
    assert steps(events(log, state=state)) == list(range(1, 21))
    log.write_bytes(head + later)
    note, *records = events(log, state=state)
    assert (note["note"], note["src"]["offset"]) == ("replaced", 0)
    assert {record["loss"] for record in records} == {7.0}
    assert events(log, state=state) == []


@pytest.mark.parametrize("name", ["a.log.1", "a.log-20261121"])
@pytest.mark.parametrize("by", ["rename", "copy"])
def test_a_rotated_log_is_read_to_its_end_first(tmp_path: Path, name: str, by: str) -> None:
    log, rotated, state = tmp_path / "a.log", tmp_path / name, tmp_path / "state"
    log.write_bytes(step_lines(1, 3))
    assert steps(events(log, state=state)) == [1, 2, 3]
    _append(log, step_lines(1, 5))
    if by == "rename":
        log.rename(rotated)
    else:
        shutil.copy(log, rotated)
    log.write_bytes(step_lines(6, 7))
    records = events(log, state=state)
    assert steps(records) == [4, 5, 6, 7]
    assert [record["src"]["file"] for record in records] == [str(rotated)] * 2 + [str(log)] * 3
    assert {record["run"] for record in records} == {str(tmp_path / "a")}
    assert events(log, rotated, state=state) == []
    log.rename(tmp_path / "elsewhere.log")
    assert events(tmp_path / "elsewhere.log", state=state) == []


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("by", ["rename", "copy"])
def test_a_log_and_its_rotated_part_may_be_given_together(tmp_path: Path, by: str, order: int) -> None:
    log, rotated, state = tmp_path / "a.log", tmp_path / "a.log.1", tmp_path / "state"
    log.write_bytes(step_lines(1, 3))
    events(log, state=state)
    _append(log, step_lines(1, 5))
    if by == "rename":
        log.rename(rotated)
    else:
        shutil.copy(log, rotated)
    log.write_bytes(step_lines(6, 7))
    both = [log, rotated][::order]
    assert steps(events(*both, state=state)) == [4, 5, 6, 7]
    assert events(*both, state=state) == []


def test_a_log_whose_beginning_changed_is_another_log(tmp_path: Path) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    log.write_bytes(b"node-1\n" + step_lines(1, 20))
    events(log, state=state)
    log.write_bytes(b"node-2\n" + step_lines(1, 20))
    assert steps(events(log, state=state)) == list(range(1, 21))


def test_a_log_that_is_copied_over_again_goes_on_where_it_was(tmp_path: Path) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    log.write_bytes(step_lines(1, 3))
    events(log, state=state)
    copy = tmp_path / ".a.log.tmp"
    copy.write_bytes(step_lines(1, 5))
    copy.replace(log)
    assert steps(events(log, state=state)) == [4, 5]


def test_two_logs_that_begin_alike_are_two_logs(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(step_lines(1, 3))
    assert steps(events(tmp_path / "a.log", state=state)) == [1, 2, 3]
    assert steps(events(tmp_path / "a.log", tmp_path / "b.log", state=state)) == [1, 2, 3]


def test_positions_of_other_logs_stay_in_the_state(tmp_path: Path) -> None:
    one, other, state = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "state"
    one.write_bytes(step_lines(1, 2))
    other.write_bytes(step_lines(5, 6))
    events(one, state=state)
    events(other, state=state)
    assert events(one, other, state=state) == []


class Broken(io.RawIOBase):
    """An output that fails after some bytes."""

    def __init__(self, error: int, limit: int):
        self.error = error
        self.left = limit

    def write(self, data: bytes) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))
        return len(data)

    def fileno(self) -> int:
        return sys.stderr.fileno()


@pytest.mark.parametrize(("error", "raised"), [(errno.EPIPE, BrokenPipeError), (errno.ENOSPC, IoFailure)])
def test_an_output_that_breaks_leaves_the_state_as_it_was(tmp_path: Path, error: int, raised: type[Exception]) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state"
    log.write_bytes(step_lines(1, 3))
    events(log, state=state)
    before = json.loads(state.read_bytes())["logs"]
    _append(log, step_lines(1, 30_000))
    with pytest.raises(raised):
        scrape([str(log)], str(state), Broken(error, 500_000))
    assert json.loads(state.read_bytes())["logs"] == before
    assert sorted(os.listdir(tmp_path)) == [".state.lock", "a.log", "state"]
    assert steps(events(log, state=state)) == list(range(4, 30_001))


KILLED = """
import os, signal, sys
from lt_monitor.collect import outputs, scrape
left = int(sys.argv[1])
class Killed:
    def __init__(self, stream): self.stream = stream
    def fileno(self): return self.stream.fileno()
    def flush(self): self.stream.flush()
    def write(self, text):
        global left
        self.stream.write(text[:left])
        self.stream.flush()
        left -= len(text)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
scrape.scrape(sys.argv[3:], sys.argv[2], Killed(sys.stdout.buffer))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("has_state", [True, False])
def test_a_scrape_that_is_killed_while_it_writes_loses_and_doubles_nothing(tmp_path: Path, has_state: bool) -> None:
    log, state, output = tmp_path / "a.log", tmp_path / "state", tmp_path / "events.jsonl"
    log.write_bytes(step_lines(1, 100))
    if has_state:
        with output.open("ab") as file:
            scrape([str(log)], str(state), file)
    _append(log, step_lines(1, 400))
    for limit_bytes in (1, 150, 17_000, 30_000):
        with output.open("ab") as file:
            command = [sys.executable, "-c", KILLED, str(limit_bytes), str(state), str(log)]
            assert subprocess.run(command, stdout=file, check=False).returncode == -signal.SIGKILL
        _append(log, step_lines(1, 400) + step_lines(401, 400 + limit_bytes % 7))
    with output.open("ab") as file:
        scrape([str(log)], str(state), file)
    assert steps([json.loads(line) for line in output.read_bytes().splitlines()]) == list(range(1, 406))


def test_a_scrape_that_is_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    logs, state, output = [tmp_path / "a.log", tmp_path / "b.log"], tmp_path / "state", tmp_path / "events.jsonl"
    command = [sys.executable, "-m", "lt_monitor", "scrape", *map(str, logs), "--state", str(state)]
    written = 0
    for delay_seconds in (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        for log in logs:
            with log.open("ab") as file:
                file.write(step_lines(written + 1, written + 4000))
        written += 4000
        with output.open("ab") as file:
            process = subprocess.Popen(command, stdout=file)
            time.sleep(delay_seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
    with output.open("ab") as file:
        subprocess.run(command, stdout=file, check=True)
    printed = [json.loads(line) for line in output.read_bytes().splitlines()]
    for log in logs:
        assert sorted(steps([record for record in printed if record["src"]["file"] == str(log)])) == list(range(1, written + 1))


def test_what_others_append_to_the_output_stays(tmp_path: Path) -> None:
    log, state, output = tmp_path / "a.log", tmp_path / "state", tmp_path / "events.jsonl"
    for last in (2, 4):
        log.write_bytes(step_lines(1, last))
        with output.open("ab") as file:
            scrape([str(log)], str(state), file)
        with output.open("ab") as file:
            file.write(b"a word of another program\n")
    lines = output.read_bytes().splitlines()
    assert [line[:1] for line in lines] == [b"{", b"{", b"a", b"{", b"{", b"a"]


def test_an_output_that_was_rotated_begins_anew(tmp_path: Path) -> None:
    log, state, output = tmp_path / "a.log", tmp_path / "state", tmp_path / "events.jsonl"
    for last in (2, 4):
        log.write_bytes(step_lines(1, last))
        with output.open("ab") as file:
            scrape([str(log)], str(state), file)
        output.rename(tmp_path / f"until-{last}.jsonl")
    assert [steps([json.loads(line) for line in (tmp_path / name).open()]) for name in ("until-2.jsonl", "until-4.jsonl")] == [
        [1, 2],
        [3, 4],
    ]


def test_two_scrapes_with_one_state_exclude_each_other(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (tmp_path / ".state.lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TryAgain):
            events(LOGS / "lt_train.log", state=state)
    assert not state.exists()
    assert events(LOGS / "lt_train.log", state=state)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{", b"[]", b'{"v":1}', b'{"v":1,"kind":"scrape-state","logs":[{"path":"x"}]}', b"\xff"]
)
def test_a_state_that_is_none_is_bad_data(tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state"
    state.write_bytes(content)
    with pytest.raises(BadData, match="not a state"):
        events(LOGS / "lt_train.log", state=state)
    assert state.read_bytes() == content


def test_a_missing_log_prints_nothing_at_all(tmp_path: Path) -> None:
    output = io.BytesIO()
    for missing in ("missing.log", "*.missing"):
        with pytest.raises(NoInput, match=r"no such file|no file matches"):
            scrape([str(LOGS / "lt_train.log"), str(tmp_path / missing)], None, output)
    assert output.getvalue() == b""


def test_a_state_needs_files_with_offsets(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, error in (("-", UsageError), (str(tmp_path / "pipe"), UsageError), ("memory://a.log", BadConfig)):
        with pytest.raises(error):
            scrape([path], str(tmp_path / "state"), io.BytesIO())
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_state_in_a_missing_directory_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(CannotCreate):
        events(LOGS / "lt_train.log", state=tmp_path / "missing" / "state")


def test_malformed_records_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"v":1,"kind":"step","step":1,"loss":2.0}\n{"v":1,"kind":"step","st\n')
    assert steps(events(log)) == [1]
    assert "metrics.jsonl: 1 malformed event record, the first at byte 42: not JSON" in capfd.readouterr().err
