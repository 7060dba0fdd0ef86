"""What a power failure would leave, and what a pass costs on a shared filesystem, as strace sees it.

A kill does not show whether data was synced before it was relied on; the order of the system calls does.
"""

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

LT_MONITOR = Path(sys.executable).parent / "lt-monitor"
TRACED = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,ftruncate"
KINDS = {
    "write": ("write", "pwrite64", "ftruncate"),
    "sync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
}
CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")


@dataclasses.dataclass(frozen=True)
class Call:
    """A system call and the paths in it, which strace writes as <path> for descriptors and in quotes for names."""

    name: str
    paths: tuple[str, ...]


def recorded(folder: Path, arguments: Sequence[str], output: str = "out.jsonl") -> list[Call]:
    """The successful calls of `lt-monitor ARGUMENTS >> output` in `folder`, with paths relative to it; others are left out."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = folder / "trace"
    with (folder / output).open("ab") as stream:
        subprocess.run(
            ["strace", "-f", "-y", "-s", "0", "-e", f"trace={TRACED}", "-o", trace, LT_MONITOR, *arguments],
            cwd=folder, stdout=stream, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    calls = []
    for line in trace.read_text(errors="replace").splitlines():
        match = CALL.match(line)
        if match is None or int(match[3]) < 0:
            continue
        found = re.findall(r'<(/[^>]*)>|"([^"]+)"', match[2])
        names = [descriptor or str(folder / name) for descriptor, name in found]
        own = tuple(name.removeprefix(f"{folder}").lstrip("/") or "." for name in names if name.startswith(str(folder)))
        if own:
            calls.append(Call(match[1], own))
    return calls


def index(calls: Sequence[Call], kind: str, path: str, last: bool = False) -> int:
    """Where a write, sync or rename of a path is for the first or the last time. A rename is named by its target."""
    found = [
        at for at, call in enumerate(calls) if call.name in KINDS[kind] and call.paths[-1 if kind == "rename" else 0] == path
    ]
    assert found, f"no {kind} of {path}"
    return found[-1 if last else 0]


def opened(calls: Sequence[Call]) -> set[str]:
    return {call.paths[-1] for call in calls if call.name == "openat"}


WRITERS = {
    "scrape": (["scrape", "--state", "state", "run.log"], ["state"]),
    "alert": (["alert", "--state", "state", "--heartbeat", "beat", "run.log"], ["state", "beat"]),
    "prom": (["prom", "-o", "lt.prom", "run.log"], ["lt.prom", "lt.prom.state"]),
    "report": (["plot", "-o", "report.html", "run.log"], ["report.html"]),
    "image": (["plot", "-o", "loss.svg", "run.log"], ["loss.svg"]),
}


def log(folder: Path, steps: int = 3) -> None:
    lines = (f'{{"v":1,"kind":"step","step":{step},"loss":2.5}}\n' for step in range(1, steps + 1))
    fault = '{"v":1,"kind":"fault","fault":"xid","cause":"root","severity":"critical","message":"Xid 79"}\n'
    (folder / "run.log").write_text("".join(lines) + fault)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_is_on_disk_before_it_is_visible(writer: str, tmp_path: Path) -> None:
    """Written, synced, renamed, and then its directory synced."""
    arguments, outputs = WRITERS[writer]
    log(tmp_path)
    calls = recorded(tmp_path, arguments)
    for output in outputs:
        partial = f".{output}.partial"
        renamed = index(calls, "rename", output, last=True)
        assert index(calls, "write", partial, last=True) < index(calls, "sync", partial, last=True) < renamed
        assert renamed < index(calls, "sync", ".", last=True)


def test_events_are_on_disk_before_the_state_says_so(tmp_path: Path) -> None:
    log(tmp_path)
    for _ in range(2):
        calls = recorded(tmp_path, ["scrape", "--state", "state", "run.log"])
        written = index(calls, "write", "out.jsonl", last=True)
        # The rename before it records which file the output is.
        assert written < index(calls, "sync", "out.jsonl", last=True) < index(calls, "rename", "state", last=True)
        log(tmp_path, steps=7)


def test_findings_are_out_before_the_state_says_so(tmp_path: Path) -> None:
    log(tmp_path)
    calls = recorded(tmp_path, ["alert", "--state", "state", "--heartbeat", "beat", "run.log"])
    assert index(calls, "write", "out.jsonl", last=True) < index(calls, "rename", "state") < index(calls, "rename", "beat")


def test_metrics_are_out_before_the_state_says_so(tmp_path: Path) -> None:
    log(tmp_path)
    calls = recorded(tmp_path, ["prom", "-o", "lt.prom", "run.log"])
    assert index(calls, "rename", "lt.prom") < index(calls, "rename", "lt.prom.state")


@pytest.mark.parametrize("writer", ["scrape", "alert", "prom"])
def test_logs_that_did_not_change_are_not_opened(writer: str, tmp_path: Path) -> None:
    """A thousand of them would otherwise be a thousand reads from a shared filesystem, every five minutes."""
    *arguments, _ = WRITERS[writer][0]
    names = [f"{number}.log" for number in range(30)]
    for name in names:
        log(tmp_path)
        (tmp_path / "run.log").rename(tmp_path / name)
    assert opened(recorded(tmp_path, [*arguments, *names])) >= set(names)
    with (tmp_path / names[7]).open("a") as file:
        file.write('{"v":1,"kind":"step","step":9,"loss":2.5}\n')
    assert opened(recorded(tmp_path, [*arguments, *names])) & set(names) == {names[7]}
