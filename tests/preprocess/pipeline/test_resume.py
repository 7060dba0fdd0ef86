"""A run that is killed at any moment is gone on with, and the result is byte for byte that of a run without interruption."""

import gzip
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nursery
import pytest
from unsynced_files import unsynced_files

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline.plan import Plan
from lt_shared.console import BadData, IoFailure, TryAgain
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
Planned = Callable[..., Plan]
Build = Callable[..., manifest.Dataset]

FAILED_LINES = 300


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """The kernel keeps what a run wrote that ended; test_durability.py looks at what is synced."""
    with unsynced_files():
        yield


def contents(directory: Path) -> dict[str, str]:
    """The hashes of all outputs; the sidecars count, too."""
    outputs = [path for path in directory.iterdir() if path.suffix in (".bin", ".idx", ".json") or "quarantine" in path.name]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in outputs}


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of some 2 kB, each followed by a line in the journal."""
    monkeypatch.setattr("lt_preprocess.readers.chunks.CHUNK_BYTES", 2000)
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 2000)
    monkeypatch.setattr(runs, "JOURNAL_INTERVAL_SECONDS", 0)
    monkeypatch.setattr(runs, "MAX_SYNC_SHARE", 1e9)


@pytest.fixture
def source(tmp_path: Path, texts: list[str]) -> Path:
    """100 documents with two keys; every 20th line is bad."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in/a.jsonl"
    lines = [json.dumps({"text": text, "title": [text[:20], text[20:30]]}) for text in texts[:100]]
    path.write_text("".join(line + ("\nbad\n" if number % 20 == 7 else "\n") for number, line in enumerate(lines)))
    return path


# Kills as many runs as it is told, each in a process group of its own and forked from here: a start of the program would take a
# second, and so would new encoders. Once the outputs are complete they are compared, deleted and made again. The kernel keeps
# what a killed process wrote, so that waiting for the disk would only cost time.
KILL = """
import hashlib, json, os, random, re, shutil, signal, sys, time
from pathlib import Path

from lt_preprocess.pipeline import plan, run
from lt_preprocess.readers import byte_ranges, chunks
from lt_shared.tokenizers import tokenizer_files

source, tokenizer, directory, seed, kills, options = sys.argv[1:]
chunks.CHUNK_BYTES = byte_ranges.LocalFile.chunk_bytes = 2000
run.JOURNAL_INTERVAL_SECONDS, run.MAX_SYNC_SHARE = 0, 1e9
os.fsync = lambda descriptor: None
directory, choose = Path(directory), random.Random(int(seed))


def planned(place):
    place.mkdir(exist_ok=True)
    wanted = json.loads(options)
    if "json_keys" in wanted:
        wanted["json_keys"] = tuple(wanted["json_keys"])
    return plan.plan([source], tokenizer_files.find(tokenizer), tokenizer, str(place / "out"), plan.Options(**wanted))


def contents(place):
    found = {path.name: path.read_bytes().replace(str(place).encode(), b"") for path in place.iterdir()}
    # A sidecar's own checksum is also of the place.
    found = {name: re.sub(rb'(?<="own_crc32": ")[0-9a-f]{8}', b"", content) for name, content in found.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


def start(wanted):
    process = os.fork()
    if process == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        run.build(wanted, 2)
        os._exit(0)
    return process


wanted = planned(directory / "whole")
encoders = run._prepared_encoders(wanted, 2)
run._prepared_encoders = lambda plan, workers: encoders
run.build(wanted, 2)
expected = contents(directory / "whole")
begun = time.monotonic()
assert os.waitstatus_to_exitcode(os.waitpid(start(planned(directory / "timed")), 0)[1]) == 0
whole_seconds = time.monotonic() - begun
assert contents(directory / "timed") == expected

killed = completed = visible = 0
place = directory / "killed"
wanted = planned(place)
# On a loaded machine none may get through in so little time; then one gets more.
while killed < int(kills) or not completed:
    process = start(wanted)
    time.sleep(choose.uniform(0, whole_seconds * (0.6 if killed < int(kills) else 9)))
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    killed += code != 0 and killed < int(kills)
    found = contents(place)
    for name in found:
        if name.endswith(".idx"):
            # What has an index is finished: so are the other files of its dataset.
            visible += code != 0
            for end in (".bin", ".idx", ".json"):
                assert found[name[:-4] + end] == expected[name[:-4] + end], (name, end)
    if code == 0:
        assert found == expected, sorted(found)
        completed += 1
        shutil.rmtree(place)
        place.mkdir()
run.build(wanted, 2)
assert contents(place) == expected
print(json.dumps({"killed": killed, "completed": completed, "visible": visible}))
"""


@pytest.mark.parametrize(
    ("kills", "compressed", "options"),
    [
        (4, False, {"on_error": "skip"}),
        (2, True, {"on_error": "skip"}),
        (5, False, {"on_error": "quarantine", "json_keys": ["title", "text"], "max_shard_bytes": 9000, "append_eod": True}),
    ],
    ids=["one dataset", "compressed", "parts of two keys"],
)
def test_killed_at_random_moments(
    tmp_path: Path, source: Path, demo_tokenizer: Path, kills: int, compressed: bool, options: dict[str, Any]
) -> None:
    if compressed:
        source.write_bytes(gzip.compress(source.read_bytes()))
    arguments = [source, demo_tokenizer, tmp_path, len(options), kills, json.dumps(options)]
    done = subprocess.run([sys.executable, "-c", KILL, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["killed"] == kills
    assert counts["completed"] > 0


@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 9000}], ids=["one part", "parts"])
def test_a_run_that_failed_goes_on_where_it_was(
    planned: Planned,
    small_steps: None,
    tmp_path: Path,
    source: Path,
    demo_tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
) -> None:
    """The lines before the first bad one are not tokenized again, with another number of workers."""
    whole = runs.build(planned([source], demo_tokenizer, tmp_path / "whole", on_error="skip", **options), 3)
    (tmp_path / "failed").mkdir()
    good = source.with_name("good.jsonl")
    good.write_bytes(source.read_bytes().replace(b"\nbad\n", b"\n") + b"bad\n")
    capsys.readouterr()
    with pytest.raises(BadData):
        runs.build(planned([good], demo_tokenizer, tmp_path / "failed/out", **options), 2)
    assert "the same command resumes from what is done" in capsys.readouterr().err
    assert ".out_text_document.journal" in hidden(tmp_path / "failed")
    made = runs.build(planned([good], demo_tokenizer, tmp_path / "failed/out", on_error="skip", **options), 1)
    noted = capsys.readouterr().err
    resumed_at = int(noted.partition("resuming at byte ")[2].partition(" of")[0].replace(",", ""))
    assert resumed_at > good.stat().st_size - 10_000
    assert str(good) in noted
    for one, expected in zip(made, whole, strict=True):
        for end in (".bin", ".idx"):
            assert Path(f"{one.prefix}{end}").read_bytes() == Path(f"{expected.prefix}{end}").read_bytes()
    assert hidden(tmp_path / "failed") == []


@pytest.fixture
def failed(planned: Planned, small_steps: None, tmp_path: Path, source: Path, demo_tokenizer: Path) -> Callable[..., Plan]:
    """A run of some lines that met a bad one; returns the plan for the same inputs with some changes."""
    source.write_bytes(b'{"text": "some text", "title": "a title"}\n' * FAILED_LINES + b"bad\n")

    def changed(**options: Any) -> Plan:
        return planned([source], demo_tokenizer, tmp_path / "out", **options)

    with pytest.raises(BadData):
        runs.build(changed(), 1)
    return changed


def test_other_options_start_anew_and_clear_what_was_left(
    failed: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    runs.build(failed(on_error="skip", append_eod=True), 1)
    assert "resuming" not in capsys.readouterr().err
    assert hidden(tmp_path) == []


def test_force_starts_anew(failed: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    runs.build(failed(on_error="skip"), 1, anew=True)
    assert "resuming" not in capsys.readouterr().err
    assert hidden(tmp_path) == []


def test_a_changed_input_starts_anew(
    failed: Callable[..., Plan], tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_bytes(b'{"text": "another text"}\n' * 3)
    capsys.readouterr()
    [made] = runs.build(failed(), 1)
    assert "resuming" not in capsys.readouterr().err
    assert made.documents == 3
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["bin", "lengths", "counts"])
def test_partial_files_that_are_gone_start_anew(
    failed: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / f".out_text_document.{name}.partial").unlink()
    capsys.readouterr()
    [made] = runs.build(failed(on_error="skip"), 1)
    assert "resuming" not in capsys.readouterr().err
    assert made.documents == FAILED_LINES


@pytest.mark.parametrize("damage", ["torn", "zeros", "first line alone", "empty"])
def test_a_torn_journal(failed: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    """The last line that is whole counts."""
    journal = tmp_path / ".out_text_document.journal"
    content = journal.read_bytes()
    lines = content.splitlines(keepends=True)
    journal.write_bytes(
        {
            "torn": content + lines[-1][:50],
            "zeros": b"".join(lines[:-1]) + bytes(len(lines[-1]) - 1) + b"\n",
            "first line alone": lines[0],
            "empty": b"",
        }[damage]
    )
    capsys.readouterr()
    [made] = runs.build(failed(on_error="skip"), 1)
    assert ("resuming" in capsys.readouterr().err) == (damage in ("torn", "zeros"))
    assert made.documents == FAILED_LINES
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    "line", ["123", "{}", "[]", "null", '"a"', '{"position": 1}', "wrong part", "wrong datasets", "wrong extents"]
)
# A run that is to begin anew looks for the names of datasets alone.
@pytest.mark.parametrize(("is_alone", "anew"), [(False, False), (True, False), (False, True)])
def test_lines_of_a_journal_that_tell_no_state(
    failed: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, anew: bool, is_alone: bool
) -> None:
    """The last line that does counts; without any, the run starts from the beginning and says so."""
    journal = tmp_path / ".out_text_document.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    wrong: dict[str, dict[str, Any]] = {
        "wrong part": {"part": "x"},
        "wrong datasets": {"datasets": 5},
        "wrong extents": {"extents": [{"tokens": "many", "sequences": 0, "documents": 0}]},
    }
    text = json.dumps(json.loads(lines[-1]) | wrong[line]) if line in wrong else line
    journal.write_bytes(b"".join(lines[:1] if is_alone else lines) + text.encode() + b"\n")
    capsys.readouterr()
    [made] = runs.build(failed(on_error="skip"), 1, anew=anew)
    said = capsys.readouterr().err
    assert ("resuming" in said) == (not is_alone and not anew)
    assert ("starting from the beginning" in said) == (is_alone and not anew)
    assert made.documents == FAILED_LINES
    assert hidden(tmp_path) == []


def test_a_run_with_other_keys_clears_what_it_makes_useless(failed: Callable[..., Plan], tmp_path: Path) -> None:
    """An interrupted run is left alone until another one makes one of its datasets."""
    with pytest.raises(BadData):
        runs.build(failed(json_keys=("title", "text")), 1)
    assert {".out_title_document.journal", ".out_text_document.bin.partial"} <= set(hidden(tmp_path))
    assert ".out_text_document.journal" not in hidden(tmp_path)
    (tmp_path / ".out_title_document.idx.partial").touch()
    [before] = [path for path in tmp_path.iterdir() if path.name == ".out_title_document.journal"]
    content = before.read_bytes()
    runs.build(failed(on_error="skip", max_shard_bytes=1 << 20), 1)
    assert before.read_bytes() == content
    runs.build(failed(on_error="skip"), 1)
    assert hidden(tmp_path) == []


def test_killed_while_publishing_and_then_run_in_parts(
    failed: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves the index that it had begun."""
    (tmp_path / ".out_text_document.idx.partial").touch()
    runs.build(failed(on_error="skip", max_shard_bytes=1 << 20), 1)
    assert hidden(tmp_path) == []


def test_a_second_process_is_told_to_try_again(
    planned: Planned, small_steps: None, tmp_path: Path, source: Path, demo_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first run writes, the same command, and one that shares a dataset with it, leave everything as it is."""
    wanted = planned([source], demo_tokenizer, tmp_path / "out", on_error="skip", json_keys=("title", "text"))
    others = [wanted, planned([source], demo_tokenizer, tmp_path / "out", on_error="skip")]
    take = runs._Run._take
    intruded = 0

    def intrude(run: runs._Run, encoded: Any) -> None:
        nonlocal intruded
        take(run, encoded)
        monkeypatch.setattr(runs._Run, "_take", take)
        before = hidden(tmp_path)
        for other in others:
            with pytest.raises(TryAgain, match="another process is writing it"):
                runs.build(other, 1)
            intruded += 1
        assert hidden(tmp_path) == before

    monkeypatch.setattr(runs._Run, "_take", intrude)
    made = runs.build(wanted, 1)
    assert intruded == 2
    assert [indexed_dataset.Reader(one.prefix).documents for one in made] == [100, 100]
    assert hidden(tmp_path) == []


def test_a_full_disk_keeps_what_was_done(
    planned: Planned, small_steps: None, tmp_path: Path, source: Path, demo_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files stands in for the disk: the write fails half-way all the same."""
    [whole] = runs.build(planned([source], demo_tokenizer, tmp_path / "whole", on_error="skip"), 1)
    wanted = planned([source], demo_tokenizer, tmp_path / "out", on_error="skip")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(IoFailure, match="file too large"):
            runs.build(wanted, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out_text_document.idx").exists()
    capsys.readouterr()
    [made] = runs.build(wanted, 1)
    assert "resuming" in capsys.readouterr().err
    for end in (".bin", ".idx"):
        assert Path(f"{made.prefix}{end}").read_bytes() == Path(f"{whole.prefix}{end}").read_bytes()


@pytest.fixture(scope="session")
def large_corpus(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """28 MB of text: about a second of work."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    path.write_text(lines * 16)
    return path


def start(arguments: list[Any], **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lt_preprocess", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_for_partial(directory: Path) -> None:
    """Wait until the start, with imports and perhaps compilation, is over and the output is being written."""
    deadline = time.monotonic() + 300
    while not (directory / ".out_text_document.bin.partial").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Ends itself before the call of `os` that its first arguments say.
KILLED = """
import os, signal, sys

name, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
call, calls = getattr(os, name), 0


def counted(*arguments, **options):
    global calls
    calls += 1
    if calls == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*arguments, **options)


setattr(os, name, counted)
from lt_preprocess.cli import main

main()
"""


def test_the_program_killed_over_an_older_dataset(tmp_path: Path, run: Run, demo_tokenizer: Path, source: Path) -> None:
    """After SIGKILL there is no index, or the pair is whole; the next run is not kept from its work."""
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "--on-error", "skip", "-o", tmp_path / "out", "--force"]
    arguments = [str(argument) for argument in (source, *options)]
    assert run(*arguments).returncode == 0
    complete = contents(tmp_path)
    for call, number in (("fsync", "1"), ("replace", "1"), ("replace", "2"), ("replace", "3")):
        command = [nursery.light_python(), "-c", KILLED, call, number, *arguments]
        assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
        has_index = (tmp_path / "out_text_document.idx").exists()
        assert not has_index or (number == "1" and contents(tmp_path) == complete)
    assert run(*arguments).returncode == 0
    assert contents(tmp_path) == complete
    assert hidden(tmp_path) == []


def processor_seconds(process: int) -> float:
    """What a process that runs has used of the processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_seconds_of_children() -> float:
    """What the processes that were waited for had used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("source", ["busy", "waiting"])
def test_signals_end_it_promptly_and_leave_nothing(
    tmp_path: Path, demo_tokenizer: Path, large_corpus: Path, source: str, number: signal.Signals, code: int
) -> None:
    """In the first seconds, before there is anything to go on with."""
    files = [large_corpus] * 20 if source == "busy" else ["-"]
    process = start([*files, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"], stdin=subprocess.PIPE)
    wait_for_partial(tmp_path)
    time.sleep(0.2)
    others, before = processor_seconds_of_children(), processor_seconds(process.pid)
    process.send_signal(number)
    assert process.wait(timeout=240) == code
    # Of a processor: what else the machine does makes no difference.
    assert processor_seconds_of_children() - others - before < 5
    assert process.stdin is not None
    process.stdin.close()
    assert process.stderr is not None
    lines = process.stderr.read().decode().strip().splitlines()
    assert sum("error:" in line for line in lines) == 1
    assert os.listdir(tmp_path) == []


def test_a_full_disk_from_the_start(tmp_path: Path, run: Run, demo_tokenizer: Path, corpus: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    result = run(corpus, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", preexec_fn=limit)
    assert result.returncode == 74
    assert result.stdout == ""
    assert sum(line.startswith("lt-preprocess: error: ") for line in result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("step", "when"), [*((step, "before") for step in range(7)), *((step, "after") for step in (0, 3, 6))])
def test_stopped_while_publishing(
    planned: Planned, tmp_path: Path, source: Path, demo_tokenizer: Path, step: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three renames for each of the two datasets and one for the quarantine: the next run does only what is left of them."""
    options: dict[str, Any] = {"json_keys": ("text", "title"), "on_error": "quarantine"}
    runs.build(planned([source], demo_tokenizer, tmp_path / "whole", **options), 1)
    wanted = planned([source], demo_tokenizer, tmp_path / "out", **options)
    replace, steps = os.replace, iter(range(99))

    def stop(*names: Any) -> None:
        is_the_one = next(steps) == step
        if is_the_one and when == "before":
            raise KeyboardInterrupt
        replace(*names)
        if is_the_one:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            runs.build(wanted, 1)
    with monkeypatch.context() as patch:
        patch.setattr(runs.encoding, "encode", None)
        made = runs.build(wanted, 1)
    assert [one.documents for one in made] == [100, 100]
    for name in ("_text_document.bin", "_text_document.idx", "_title_document.bin", "_title_document.idx", "_quarantine.jsonl"):
        assert (tmp_path / f"out{name}").read_bytes() == (tmp_path / f"whole{name}").read_bytes()
    assert hidden(tmp_path) == []


def test_a_pipe_by_name_is_not_gone_on_with(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert planned([tmp_path / "pipe"], demo_tokenizer, tmp_path / "out").fingerprint is None
