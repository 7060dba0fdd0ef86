"""Writing a plan's files: the result of success, of a kill at any moment, of a full disk, and of a second writer."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
from locked_files import locked_by_another_process
from output_plans import COLUMNS, ROWS, content, expected, fail_after, plan

from lt_convert.engine import output_writer
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile
from lt_shared.console import BadData, CannotCreate, IoFailure, TryAgain


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values"
    path.write_bytes(random.Random(0).randbytes(ROWS * COLUMNS * 4))
    return path


def write(outputs: Sequence[OutputFile], destination: Path, identity: str = "id", replace: bool = False) -> list[Checksums]:
    found: list[Checksums] = []

    def finish(checksums: Checksums) -> bytes:
        found.append(checksums)
        return json.dumps(checksums.to_record()).encode()

    output_writer.write_outputs(outputs, str(destination), identity, replace, finish)
    return found


def test_files_and_checksums(values: Path, tmp_path: Path) -> None:
    (checksums,) = write(plan(values), tmp_path / "out")
    found = content(tmp_path / "out")
    assert json.loads(found.pop("lt-convert.json")) == checksums.to_record()
    assert found == expected(values)
    for name, data in found.items():
        assert checksums.sizes[name] == len(data)
        pieces = checksums.pieces[name]
        assert b"".join(data[piece.offset :][: piece.length] for piece in pieces) == data, "the pieces cover the file"
        for piece in pieces:
            assert xxhash.xxh3_128_hexdigest(data[piece.offset :][: piece.length]) == piece.digest
    assert checksums.tensors["rows50"] == [xxhash.xxh3_128_hexdigest(values.read_bytes()[10_000:20_000])]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "values"]


def test_occupied_destination(values: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(plan(values), tmp_path / "out")
    with pytest.raises(CannotCreate, match="not empty"):
        write(plan(values), tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CannotCreate, match=r"holds what no conversion wrote: a/, a/index, a/one\.bin and 2 more"):
        write(plan(values), tmp_path / "out", replace=True)


@pytest.mark.parametrize("blocks", range(1, 7))
def test_an_interrupted_run_resumes(blocks: int, values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, blocks, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(plan(values), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    partial = tmp_path / ".out.partial"
    done = {tuple(json.loads(line)[:2]) for line in (partial / ".lt-convert.journal").read_text().splitlines()[1:]}
    written: list[tuple[str, int]] = []
    true = output_writer._Workers._write
    monkeypatch.setattr(
        output_writer._Workers,
        "_write",
        lambda self, name, offset, *rest: written.append((name, offset)) or true(self, name, offset, *rest),
    )
    write(plan(values), tmp_path / "out")
    assert {name: data for name, data in content(tmp_path / "out").items() if name != "lt-convert.json"} == expected(values)
    assert done.isdisjoint(written), "what was done is not written again"
    assert len(done) + len(written) == 7 + 1


def test_another_plan_starts_over(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(plan(values), tmp_path / "out")
    (tmp_path / ".out.partial" / "stray").write_bytes(b"")
    other = tmp_path / "other"
    other.write_bytes(bytes(ROWS * COLUMNS * 4))
    write(plan(other), tmp_path / "out", "another")
    found = content(tmp_path / "out")
    del found["lt-convert.json"]
    assert found == expected(other)


@pytest.mark.parametrize(
    ("cut", "more"), [(1, b""), (30, b""), (100, b""), (-1, b""), (None, bytes(50) + b"\n"), (None, b"[1]\n")]
)
def test_a_journal_that_was_cut_off(
    cut: int | None, more: bytes, values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 5, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(plan(values), tmp_path / "out")
    journal = tmp_path / ".out.partial" / ".lt-convert.journal"
    journal.write_bytes(journal.read_bytes()[:cut] + more)
    write(plan(values), tmp_path / "out")
    found = content(tmp_path / "out")
    del found["lt-convert.json"]
    assert found == expected(values)


def test_bad_data_leaves_nothing(values: Path, tmp_path: Path) -> None:
    os.truncate(values, 30_000)
    with pytest.raises(BadData, match="ends at 30000 bytes"):
        write(plan(values), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["values"]


def test_too_little_room_is_known_before(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = os.statvfs

    def nearly_full(path: Any) -> Any:
        fields = list(true(path))
        fields[4] = 1
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    with pytest.raises(IoFailure, match=r"needs 0\.1 MB more, has 0\.0 MB free"):
        write(plan(values), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_write_crosses_a_boundary_of_folios(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the file system takes only a part of the bytes."""
    true, writes = os.pwrite, list[tuple[int, int]]()

    def short_write(descriptor: int, data: memoryview, offset: int) -> int:
        writes.append((offset, len(data)))
        return true(descriptor, data[: max(1, len(data) // 2)], offset)

    monkeypatch.setattr(output_writer, "WRITE_BYTES", 512)
    monkeypatch.setattr(os, "pwrite", short_write)
    write(plan(values), tmp_path / "out")
    assert {offset // 512 - (offset + length - 1) // 512 for offset, length in writes} == {0}
    found = content(tmp_path / "out")
    del found["lt-convert.json"]
    assert found == expected(values)


def test_second_writer_is_told_to_try_again(values: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    with locked_by_another_process(tmp_path / ".out.partial"), pytest.raises(TryAgain, match="another process is writing it"):
        write(plan(values), tmp_path / "out")
    write(plan(values), tmp_path / "out")


# For each delay in seconds a process that writes the plan, one block per millisecond, and is killed. Prints the number of lines
# in its journal. A process that got no further than the one before, as on a busy machine, was killed too early: later ones live
# longer.
KILLED = """
import os, signal, sys, time
from pathlib import Path
tests, values, out, *delays = sys.argv[1:]
sys.path[:0] = [tests, str(Path(tests).parents[1])]
from lt_convert.engine import journal, output_writer
from lt_convert.tensors import blocks
import output_plans, test_output_writer
blocks.BLOCK_BYTES = 400
journal.SYNC_SECONDS = 0.005
true = output_writer.contents
def slowly(segment, reader):
    for data in true(segment, reader):
        time.sleep(0.001)
        yield data
output_writer.contents = slowly
lines = Path(out).parent / f".{Path(out).name}.partial" / output_writer.JOURNAL
printed, longer = -1, 1.0
for delay in delays:
    child = os.fork()
    if child == 0:
        test_output_writer.write(output_plans.plan(Path(values), 40), Path(out))
        os._exit(0)
    time.sleep(float(delay) * longer)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if os.path.exists(out):
        break
    count = lines.read_bytes().count(b"\\n") if lines.exists() else 0
    longer = longer * 1.2 if count == printed else 1.0
    printed = count
    print(count)
"""


def test_killed_at_random_moments_it_resumes_and_the_result_is_the_same(values: Path, tmp_path: Path) -> None:
    # A fast machine may be done before it is killed in between; other moments are tried then.
    for seed in range(1, 9):
        out = tmp_path / f"out{seed}"
        chance = random.Random(seed)
        delays = [str(chance.uniform(0, 0.05)) for _ in range(100)]
        arguments = [str(Path(__file__).parent), str(values), str(out), *delays]
        lines = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=True).stdout
        done = [int(line) for line in lines.splitlines()]
        assert done == sorted(done), "what was done once stays done"
        if len(set(done)) > 2:
            break
    assert len(set(done)) > 2
    write(plan(values, 40), out) if not out.exists() else None
    found = content(out)
    found.pop(output_writer.JOURNAL, None)
    record = json.loads(found.pop("lt-convert.json"))
    assert found == expected(values)
    (undisturbed,) = write(plan(values, 40), tmp_path / "undisturbed")
    assert record == undisturbed.to_record()
