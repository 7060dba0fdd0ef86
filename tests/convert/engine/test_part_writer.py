"""Parts of a plan, written by several processes: one result, published once, and refusals that name their reason."""

import errno
import fcntl
import json
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from locked_files import locked_by_another_process
from output_plans import COLUMNS, ROWS, content, expected, fail_after, plan

from lt_convert.engine import journal, ledger, output_writer, part_writer
from lt_convert.engine.ledger import Terms
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Reader
from lt_shared.console import BadData, CannotCreate, IoFailure, TryAgain
from lt_shared.console.shard_option import Slice

TERMS = Terms("1.0", {"dtype": None, "to": "hf"}, "checksum", "identity")


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values"
    path.write_bytes(random.Random(0).randbytes(ROWS * COLUMNS * 4))
    return path


def finish(checksums: Checksums) -> bytes:
    return json.dumps(checksums.to_record()).encode()


def write(
    outputs: Sequence[OutputFile],
    destination: Path,
    index: int,
    count: int,
    terms: Terms = TERMS,
    replace: bool = False,
    is_published: bool = False,
) -> bool:
    part = Slice(index, count)
    return part_writer.write_part(outputs, str(destination), part, terms, replace, finish, Reader(), lambda: is_published)


def of_one_process(values: Path, directory: Path) -> dict[str, bytes]:
    output_writer.write_outputs(plan(values), str(directory), "identity", False, finish)
    return content(directory)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_last_part_publishes_the_bytes_of_one_process(count: int, values: Path, tmp_path: Path) -> None:
    one = of_one_process(values, tmp_path / "one")
    order = [*range(1, count), 0]
    assert [write(plan(values), tmp_path / "out", index, count) for index in order] == [False] * (count - 1) + [True]
    assert content(tmp_path / "out") == one
    assert {name: data for name, data in one.items() if name != "lt-convert.json"} == expected(values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "values"], "nothing hidden is left"


def test_parts_that_finish_at_the_same_moment_publish_once(values: Path, tmp_path: Path) -> None:
    for number in range(5):
        out, published = tmp_path / f"out{number}", []
        barrier = threading.Barrier(3)

        def work(index: int, out: Path = out, published: list[bool] = published, barrier: Any = barrier) -> None:
            barrier.wait()
            published.append(write(plan(values), out, index, 3))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(published) == [False, False, True]
        found = content(out)
        del found["lt-convert.json"]
        assert found == expected(values)


@pytest.mark.parametrize(
    ("terms", "count", "reason"),
    [
        (Terms("1.1", TERMS.options, "checksum", "identity"), 3, "they are by lt-convert 1.0, this is 1.1"),
        (Terms("1.0", {"dtype": "bfloat16", "to": "hf"}, "checksum", "i"), 3, 'dtype is null there, and "bfloat16" here'),
        (Terms("1.0", TERMS.options, "another", "i"), 3, "the source has changed since they began"),
        (Terms("1.0", TERMS.options, "checksum", "another"), 3, "their plan is another one"),
        (TERMS, 4, "there are 3 parts in all"),
    ],
)
def test_parts_with_other_terms_are_refused(terms: Terms, count: int, reason: str, values: Path, tmp_path: Path) -> None:
    write(plan(values), tmp_path / "out", 0, 3)
    before = content(tmp_path / ".out.partial")
    with pytest.raises(CannotCreate, match=f"part 1 of {count} is not like the parts before it: {reason}"):
        write(plan(values), tmp_path / "out", 1, count, terms)
    assert content(tmp_path / ".out.partial") == before
    write(plan(values), tmp_path / "out", 1, 3)
    assert write(plan(values), tmp_path / "out", 2, 3)


def test_parts_that_are_missing_are_named(values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(plan(values), tmp_path / "out", 1, 4)
    assert "part 1 of 4 has finished; not finished: part 0 of 4 (never begun), part 2 of 4" in capsys.readouterr().err
    assert [text[:11] for text in ledger.pending(str(tmp_path / "out"))] == ["part 0 of 4", "part 2 of 4", "part 3 of 4"]
    assert ledger.pending(str(tmp_path / "other")) == []


def test_of_many_parts_the_first_are_named(values: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(plan(values), tmp_path / "out", 0, 100)
    assert capsys.readouterr().err.rstrip().endswith("part 8 of 100 (never begun) and 91 more")


@pytest.mark.parametrize("with_options", [True, False])
def test_abandoned_parts_are_removed(with_options: bool, values: Path, tmp_path: Path) -> None:
    """They began after the publication; parts with other options may go on."""
    write(plan(values), tmp_path / "out", 0, 2)
    with (tmp_path / ".out.partial/.lt-convert.parts/00000.lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ledger.remove_abandoned(str(tmp_path / "out"), TERMS.options)
    assert (tmp_path / ".out.partial").exists(), "a part runs"
    ledger.remove_abandoned(str(tmp_path / "out"), TERMS.options if with_options else {"to": "torchtitan"})
    assert (tmp_path / ".out.partial").exists() != with_options


@pytest.mark.parametrize("blocks", [1, 3])
def test_an_interrupted_part_resumes(blocks: int, values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = of_one_process(values, tmp_path / "one")
    write(plan(values), tmp_path / "out", 1, 2)
    with monkeypatch.context() as patch:
        fail_after(patch, blocks, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(plan(values), tmp_path / "out", 0, 2)
    (state,) = ledger.pending(str(tmp_path / "out"))
    assert state.startswith("part 0 of 2 (begun on ")
    written: list[tuple[str, int]] = []
    true = output_writer._Workers._write
    monkeypatch.setattr(
        output_writer._Workers,
        "_write",
        lambda self, name, offset, *rest: written.append((name, offset)) or true(self, name, offset, *rest),
    )
    partial = tmp_path / ".out.partial"
    done = {tuple(json.loads(line)[:2]) for line in (partial / ".lt-convert.parts/00000.journal").read_text().splitlines()[1:]}
    assert write(plan(values), tmp_path / "out", 0, 2)
    assert done.isdisjoint(written), "what was done is not written again"
    assert content(tmp_path / "out") == one


def test_a_finished_part_writes_again_what_has_changed(values: Path, tmp_path: Path) -> None:
    one = of_one_process(values, tmp_path / "one")
    write(plan(values), tmp_path / "out", 0, 2)
    path = tmp_path / ".out.partial" / "a" / "one.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert not write(plan(values), tmp_path / "out", 0, 2)
    assert write(plan(values), tmp_path / "out", 1, 2)
    assert content(tmp_path / "out") == one


def test_a_cut_tensor_that_has_changed_is_not_published(values: Path, tmp_path: Path) -> None:
    """The last part hashes the tensors that a cut has divided."""
    one = of_one_process(values, tmp_path / "one")
    cut = [OutputFile("a/one.bin", (plan(values, 1)[0].segments[1],)), *plan(values)[2:]]
    write(cut, tmp_path / "out", 0, 2)
    path = tmp_path / ".out.partial" / "a" / "one.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadData, match=r"one\.bin: bytes 0 to 20,000 are not as their part has written them"):
        write(cut, tmp_path / "out", 1, 2)
    assert not (tmp_path / "out").exists()
    assert write(cut, tmp_path / "out", 0, 2)
    assert content(tmp_path / "out")["a/one.bin"] == values.read_bytes() == one["a/one.bin"][4:-4]


def test_one_part_twice_at_once(values: Path, tmp_path: Path) -> None:
    write(plan(values), tmp_path / "out", 1, 2)
    with (
        locked_by_another_process(tmp_path / ".out.partial/.lt-convert.parts/00000.lock"),
        pytest.raises(TryAgain, match="another process is writing part 0 of 2"),
    ):
        write(plan(values), tmp_path / "out", 0, 2)
    assert write(plan(values), tmp_path / "out", 0, 2)


def test_parts_and_one_process_do_not_mix(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(plan(values), tmp_path / "out", 0, 2)
    with pytest.raises(CannotCreate, match="is of a conversion in parts, which has not finished"):
        output_writer.write_outputs(plan(values), str(tmp_path / "out"), "identity", False, finish)
    with monkeypatch.context() as patch:
        fail_after(patch, 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            output_writer.write_outputs(plan(values), str(tmp_path / "alone"), "identity", False, finish)
    with pytest.raises(CannotCreate, match="is of a conversion by one process, which has not finished"):
        write(plan(values), tmp_path / "alone", 0, 2)


def test_an_occupied_destination(values: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_bytes(b"")
    write(plan(values), tmp_path / "out", 0, 2)
    with pytest.raises(CannotCreate, match="exists and is not empty"):
        write(plan(values), tmp_path / "out", 1, 2)
    with pytest.raises(CannotCreate, match=r"holds no checkpoint, only notes"):
        write(plan(values), tmp_path / "out", 1, 2, replace=True)
    (tmp_path / "out" / "notes").rename(tmp_path / "out" / "model.safetensors")
    assert write(plan(values), tmp_path / "out", 1, 2, replace=True)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_part_that_begins_after_the_publication(values: Path, tmp_path: Path) -> None:
    """It was planned before the others have published."""
    (tmp_path / "out").mkdir()
    assert write(plan(values), tmp_path / "out", 0, 2, is_published=True), "as if up to date"
    assert not (tmp_path / ".out.partial").exists()


def test_a_full_disk_and_one_without_room(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = of_one_process(values, tmp_path / "one")
    true = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("two.bin"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(IoFailure, match=r"two\.bin: no space left on device"):
            for index in range(2):
                write(plan(values), tmp_path / "out", index, 2)
    for index in (1, 0):
        write(plan(values), tmp_path / "out", index, 2)
    assert content(tmp_path / "out") == one


def test_a_filesystem_without_locks(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without)
    assert [write(plan(values), tmp_path / "out", index, 3) for index in (2, 0, 1)] == [False, False, True]


def test_a_planted_partial_directory_is_refused(values: Path, tmp_path: Path) -> None:
    write(plan(values), tmp_path / "out", 0, 2)
    (tmp_path / ".out.partial").chmod(0o777)
    with pytest.raises(CannotCreate, match="can be written to by others"):
        write(plan(values), tmp_path / "out", 1, 2)
    (tmp_path / ".out.partial").chmod(0o700)
    os.link(tmp_path / "values", tmp_path / ".out.partial" / "link")
    with pytest.raises(CannotCreate, match=r"link has another name \(a hard link\)"):
        write(plan(values), tmp_path / "out", 1, 2)


def test_a_journal_that_lacks_a_piece(values: Path, tmp_path: Path) -> None:
    write(plan(values), tmp_path / "out", 0, 2)
    path = tmp_path / ".out.partial/.lt-convert.parts/00000.journal"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:-1]))
    with pytest.raises(TryAgain, match="not complete, although part 0 has finished"):
        write(plan(values), tmp_path / "out", 1, 2)
    write(plan(values), tmp_path / "out", 0, 2)
    assert journal.JOURNAL not in content(tmp_path / "out")
