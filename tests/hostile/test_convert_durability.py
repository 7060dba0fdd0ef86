"""What survives a power failure: the order in which lt-convert writes, syncs and renames, as the kernel sees it."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from convert_models import run_here, write_model

CALLS = "openat,write,pwrite64,pwritev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,close,copy_file_range"
# A line in the journal after every tensor.
PROGRAM = """
from lt_convert.engine import journal
journal.SYNC_SECONDS = 0.0
from lt_convert.cli import main
main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("durability") / "model", tokenizer=True)


def recorded(directory: Path, *arguments: object) -> list[tuple[str, str]]:
    """The calls on files below `directory`, in order: (call, path); a rename has both paths with an arrow between them."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = directory.parent / f"{directory.name}.strace"
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", str(log), "-e", f"trace={CALLS}"]
    words = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    calls = []
    for line in whole_lines(log):
        match = re.match(r"\d+ +(\w+)\((.*)\) += \d+", line)
        if match is None or str(directory) not in match[2]:
            continue
        call, text = match[1], match[2]
        if call.startswith("rename"):
            old, new = re.findall(r'"([^"]+)"', text)
            calls.append((call, f"{old} -> {new}"))
        elif call in ("unlink", "unlinkat", "openat"):
            folder = re.match(r"(?:AT_FDCWD|\d+)<([^>]*)>, ", text)
            (name,) = re.findall(r'"([^"]+)"', text)[:1]
            calls.append((call, os.path.normpath(os.path.join(folder[1] if folder else "", name))))
        else:
            path = re.match(r"\d+<([^>]*)>", text)
            if path:
                calls.append((call, path[1]))
    return calls


def whole_lines(log: Path) -> Iterator[str]:
    """The lines of strace; a call during which another thread was shown is put together where it ended."""
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        process = line.split()[0]
        if line.endswith(" <unfinished ...>"):
            begun[process] = line.removesuffix(" <unfinished ...>")
        elif resumed := re.match(r"\d+ +<\.\.\. \w+ resumed>(.*)", line):
            yield begun.pop(process) + resumed[1]
        else:
            yield line


@pytest.mark.parametrize(
    ("to", "replaces"), [("megatron-dist", False), ("megatron-legacy", True), ("torchtitan", False), ("torchtitan", True)]
)
def test_all_is_synced_before_it_is_published(to: str, replaces: bool, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    out, partial = place / "out", place / ".out.partial"
    if replaces:
        write_model(out, seed=1)
    calls = recorded(place, source, "--to", to, "-o", out, *(["--force"] if replaces else []))
    published = calls.index(("rename", f"{partial} -> {out}"))
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert "lt-convert.json" in files
    for name in files:
        path = str(partial / name)
        last_write = max(index for index, (call, where) in enumerate(calls) if where == path and "write" in call)
        synced = [index for index, each in enumerate(calls) if each == ("fsync", path) and last_write < index < published]
        assert synced, f"{name} is not synced before it is published"
    folders = {str((partial / name).parent) for name in files}
    for folder in folders:
        assert ("fsync", folder) in calls[:published], f"the names in {folder} are not synced before it is published"
    after = calls[published:]
    assert ("fsync", str(place)) in after, "the new name is not synced"
    deletions = [index for index, (call, _) in enumerate(after) if call.startswith("unlink")]
    assert deletions, "the journal is deleted, and what was replaced"
    assert after.index(("fsync", str(place))) < min(deletions), "something was deleted before the new name was durable"


def test_the_journal_names_only_what_is_on_disk(source: Path, tmp_path: Path) -> None:
    """Between the last write to a file and the line for it there is an fdatasync of that file."""
    place = tmp_path / "place"
    place.mkdir()
    calls = recorded(place, source, "--to", "torchtitan", "-o", place / "out")
    journal = str(place / ".out.partial" / ".lt-convert.journal")
    lines = [index for index, each in enumerate(calls) if each == ("write", journal)]
    assert len(lines) > 3, "one for the identity, then one for each sync"
    for before, line in itertools.pairwise(lines):
        synced = {path for call, path in calls[before:line] if call == "fdatasync"}
        assert synced, "a line without a sync before it"
        for path in synced:
            last = max(index for index in range(before, line) if calls[index] == ("fdatasync", path))
            begun = [index for index in range(lines[0], last) if calls[index] == ("pwrite64", path)]
            assert begun, f"{path} is synced before it is written"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("pwrite64", "ENOSPC"),
        ("pwrite64", "EDQUOT"),
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("ftruncate", "ENOSPC"),
        ("rename", "EIO"),
    ],
)
def test_no_error_of_a_disk_ends_with_0(call: str, error: str, source: Path, tmp_path: Path) -> None:
    """Also in a thread that writes: the message names the place, and nothing is published."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "lt_convert", source, "--to", "torchtitan", "-o", out]
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when=1+"]
    done = subprocess.run([*strace, *map(str, words)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (74, ""), done.stderr
    assert str(tmp_path) in done.stderr
    assert not out.exists()
    again = run_here(source, "--to", "torchtitan", "-o", out)
    assert again.returncode == 0, again.stderr
    assert run_here("verify", out).returncode == 0
