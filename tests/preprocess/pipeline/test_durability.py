"""What survives a power failure: the order in which every writing command writes, syncs and renames, as strace records it.

A killed process loses nothing that it wrote, so tests that kill cannot show a missing sync.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

TRACED = "write,pwrite64,writev,copy_file_range,sendfile,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,link"
CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)\s*= (?P<result>-?\d+)")
SMALL_STEPS = """
from lt_preprocess.pipeline import run
from lt_preprocess.readers import byte_ranges, chunks
chunks.CHUNK_BYTES = byte_ranges.LocalFile.chunk_bytes = 2000
run.JOURNAL_INTERVAL_SECONDS, run.MAX_SYNC_SHARE = 0, 1e9
"""
MAIN = "from lt_preprocess.cli import main; main()"


@dataclasses.dataclass(frozen=True)
class Event:
    """`kind`: "write", "sync", "rename" or "unlink" of `path`, for a rename to `target`."""

    kind: str
    path: str
    target: str = ""


def recorded(directory: Path, *arguments: str | Path, program: str = MAIN) -> list[Event]:
    """What the program does to the files in a directory, in the order of the calls' ends."""
    trace = directory.with_suffix(".trace")
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-o", trace, "-e", f"trace={TRACED}"]
    command = [*strace, sys.executable, "-c", program, *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=480)
    assert done.returncode == 0, done.stderr
    return events(trace.read_text(errors="replace"), directory)


def run(*arguments: str | Path) -> None:
    """The program without a record."""
    command = [nursery.light_python(), "-m", "lt_preprocess", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=480)
    assert done.returncode == 0, done.stderr


def events(trace: str, directory: Path) -> list[Event]:
    found: list[Event] = []
    started: dict[str, str] = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            started[thread] = call.removesuffix("<unfinished ...>").rstrip()
            continue
        if call.startswith("<... "):
            call = started.pop(thread) + call.partition("resumed>")[2]
        match = CALL.match(call)
        if match is None or match["result"].startswith("-"):
            continue
        name, opened = match["name"], re.findall(r"\d+<([^>]*)>", match["arguments"])
        named = re.findall(r'"([^"]*)"', match["arguments"])
        if name in ("fsync", "fdatasync"):
            found.append(Event("sync", opened[0]))
        elif name.startswith("rename"):
            found.append(Event("rename", named[0], named[1]))
        elif name.startswith("unlink"):
            found.append(Event("unlink", named[0]))
        elif opened:
            # Of the two of copy_file_range, the second is written to.
            found.append(Event("write", opened[1 if name == "copy_file_range" else 0]))
    return [event for event in found if event.path.startswith(str(directory))]


def check_order(found: list[Event], directory: Path) -> None:
    """Whatever gets its final name is on the disk, and an index only when all that belongs to it has its name there."""
    dirty: set[str] = set()
    unsynced_names: list[Event] = []
    for event in found:
        if event.kind == "write":
            if event.path.endswith(".journal"):
                assert not {path for path in dirty if not path.endswith((".journal", ".idx.partial"))}, event
            dirty.add(event.path)
        elif event.kind == "sync":
            dirty.discard(event.path)
            if event.path == str(directory):
                unsynced_names.clear()
        elif event.kind == "rename":
            assert event.path not in dirty, f"{event.path} is renamed before it is on the disk"
            assert not unsynced_names, f"{event.target} appears before {unsynced_names[0].target or unsynced_names[0].path}"
            unsynced_names.append(event)
        elif event.path.endswith((".bin", ".idx", ".json")):
            unsynced_names.append(event)
        elif event.path.endswith((".journal", ".counts.partial")):
            assert not unsynced_names, f"{event.path} is deleted before {unsynced_names[0].target} is on the disk"
    assert not unsynced_names
    assert not [path for path in dirty if os.path.exists(path)]


def published(found: list[Event]) -> list[str]:
    return [os.path.basename(event.target) for event in found if event.kind == "rename"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"document {number}, with some text" * 5, "title": "a title"}) for number in range(100)]
    path.write_text("\n".join([*lines[:50], "bad", *lines[50:], ""]))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def tokenizing(source: Path, directory: Path, tokenizer: Path, *options: str) -> list[str | Path]:
    return [source, "--tokenizer", tokenizer, "-o", directory / "a", "--workers", "1", *options]


@pytest.mark.parametrize("options", [[], ["--json-keys", "text", "--json-keys", "title"], ["--max-shard-size", "1500"]])
@pytest.mark.parametrize("again", [False, True])
def test_tokenizing(source: Path, directory: Path, demo_tokenizer: Path, options: list[str], again: bool) -> None:
    arguments = tokenizing(source, directory, demo_tokenizer, "--on-error", "quarantine", "--force", *options)
    if again:
        run(*arguments)
    found = recorded(directory, *arguments, program=SMALL_STEPS + MAIN)
    check_order(found, directory)
    journal = [event for event in found if event.kind == "write" and event.path.endswith(".journal")]
    assert len(journal) > 5
    assert len([event for event in found if event.kind == "sync" and event.path.endswith(".journal")]) >= len(journal) - 1
    names = published(found)
    for name in names:
        if name.endswith(".idx"):
            before = names[: names.index(name)]
            assert {name.replace(".idx", ".bin"), name.replace(".idx", ".json")} <= set(before)


@pytest.mark.parametrize("command", ["merge", "shuffle", "split"])
def test_commands_on_datasets(source: Path, directory: Path, demo_tokenizer: Path, command: str) -> None:
    run(*tokenizing(source, directory, demo_tokenizer, "--on-error", "skip"))
    options = ["--ratios", "1,1,1"] if command == "split" else []
    arguments = [command, directory / "a_text_document", "-o", directory / "b", "--force", *options]
    run(*arguments)
    found = recorded(directory, *arguments)
    check_order(found, directory)
    names = published(found)
    assert len(names) == (9 if command == "split" else 3)
    for first in range(0, len(names), 3):
        assert [name.rpartition(".")[2] for name in names[first : first + 3]] == ["bin", "json", "idx"]


def test_the_recorder_sees_what_is_missing(directory: Path) -> None:
    """Not a test of the program: of the test above."""
    name = str(directory / "a.bin")
    partial = str(directory / ".a.bin.partial")
    sound = [Event("write", partial), Event("sync", partial), Event("rename", partial, name), Event("sync", str(directory))]
    check_order(sound, directory)
    for left_out in (1, 3):
        with pytest.raises(AssertionError):
            check_order([event for number, event in enumerate(sound) if number != left_out], directory)
    journal = str(directory / ".a.journal")
    with pytest.raises(AssertionError):
        check_order([Event("write", partial), Event("write", journal)], directory)
