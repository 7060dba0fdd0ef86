"""The checksums in a sidecar are those of the files, whichever command wrote them, and what no longer has them is found."""

import json
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_preprocess.datasets import merge, shuffle, split, verification
from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline import sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Build = Callable[..., manifest.Dataset]
Planned = Callable[..., Plan]
Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]


@pytest.fixture
def source(tmp_path: Path, write_lines: WriteLines) -> Path:
    return write_lines(tmp_path / "a.jsonl", [{"text": f"document {number}", "title": f"{number}"} for number in range(50)])


@pytest.fixture
def made(build: Build, source: Path, tmp_path: Path, demo_tokenizer: Path) -> manifest.Dataset:
    return build([source], demo_tokenizer, tmp_path / "out", append_eod=True)


def check_recorded(prefix: str) -> None:
    recorded = json.loads(Path(f"{prefix}.json").read_bytes())["crc32"]
    for ending in ("bin", "idx"):
        content = Path(f"{prefix}.{ending}").read_bytes()
        assert recorded[ending] == [len(content), zlib.crc32(content)]
    assert verification.verify(manifest.Dataset(prefix)).findings == []


def flip(path: str | Path, at: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[at] ^= 1
    Path(path).write_bytes(content)


def move_a_document_border(prefix: str) -> None:
    """The second document has the first one's sequence, too: an index that a writer may write, of the same size."""
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    at = len(content) - 8 * 51 + 8
    assert content[at : at + 8] == (1).to_bytes(8, "little")
    content[at : at + 8] = bytes(8)
    Path(f"{prefix}.idx").write_bytes(content)
    indexed_dataset.Reader(prefix)


@pytest.mark.parametrize("options", [{}, {"json_keys": ("text", "title")}, {"max_shard_bytes": 100}])
def test_tokenized_datasets(
    planned: Planned, source: Path, tmp_path: Path, demo_tokenizer: Path, options: dict[str, Any]
) -> None:
    made = runs.build(planned([source], demo_tokenizer, tmp_path / "out", **options), 1)
    assert len(made) > len(options) // 2
    for one in made:
        check_recorded(one.prefix)


def test_derived_datasets(made: manifest.Dataset, tmp_path: Path) -> None:
    merged = merge.build(merge.plan([made.prefix], str(tmp_path / "merged")))
    shuffled = shuffle.build(shuffle.plan(made.prefix, str(tmp_path / "shuffled"), 1))
    parts = split.build(split.plan(made.prefix, str(tmp_path / "part"), "1,1", None, 0))
    for one in (merged, shuffled, *parts):
        check_recorded(one.prefix)
    check_recorded(merge.build(merge.plan([part.prefix for part in (shuffled, *parts)], str(tmp_path / "all"))).prefix)


def test_parts_without_checksums_are_read(made: manifest.Dataset, tmp_path: Path) -> None:
    """Those of older versions and of other tools."""
    record = json.loads(Path(f"{made.prefix}.json").read_bytes())
    del record["crc32"]
    shuffled = shuffle.build(shuffle.plan(made.prefix, str(tmp_path / "shuffled"), 1))
    Path(f"{made.prefix}.json").write_text(json.dumps(record))
    check_recorded(merge.build(merge.plan([shuffled.prefix, made.prefix], str(tmp_path / "merged"))).prefix)


def test_remote_datasets(build: Build, source: Path, demo_tokenizer: Path) -> None:
    made = build([source], demo_tokenizer, "memory://checksums/out")
    assert manifest.recorded_checksums(made.prefix) is not None
    assert verification.verify(made).findings == []


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_verify_finds_damage(made: manifest.Dataset, run: Run, ending: str) -> None:
    """Of which nothing else tells: another token, another border between documents."""
    if ending == "bin":
        flip(f"{made.prefix}.bin", 20)
    else:
        move_a_document_border(made.prefix)
    found = run("verify", made.prefix)
    assert found.returncode == 1
    [line] = found.stdout.splitlines()
    content = Path(f"{made.prefix}.{ending}").read_bytes()
    assert line.startswith(f"{made.prefix}.{ending}: CRC-32 {zlib.crc32(content):08x}, ")


def test_verify_finds_another_size(made: manifest.Dataset) -> None:
    """An index and tokens that fit each other, but are not those that were written."""
    with indexed_dataset.Writer(made.prefix, np.uint16) as writer:
        writer.append_document(np.array([1, 2, 3]))
        writer.publish()
    found = {str(finding) for finding in verification.verify(manifest.Dataset(made.prefix)).findings}
    assert any(line.startswith(f"{made.prefix}.bin: 6 bytes, ") and line.endswith("were written") for line in found)
    assert any(line.startswith(f"{made.prefix}.idx: ") and line.endswith("were written") for line in found)


def test_damage_before_a_merge_is_found_after_it(made: manifest.Dataset, tmp_path: Path) -> None:
    """The kernel copies the tokens; their checksum is the one that their writer recorded."""
    flip(f"{made.prefix}.bin", 20)
    merged = merge.build(merge.plan([made.prefix], str(tmp_path / "merged")))
    [finding] = verification.verify(merged).findings
    assert finding.path == f"{merged.prefix}.bin"
    assert "was damaged" in finding.message


def shorten(prefix: str) -> None:
    path = Path(f"{prefix}.bin")
    path.write_bytes(path.read_bytes()[:-2])


def lengthen(prefix: str) -> None:
    with Path(f"{prefix}.bin").open("ab") as file:
        file.write(b"\0\0")


def lengthen_index(prefix: str) -> None:
    with Path(f"{prefix}.idx").open("ab") as file:
        file.write(bytes(8))


DAMAGE = [shorten, lengthen, lengthen_index, move_a_document_border, lambda prefix: Path(f"{prefix}.idx").unlink()]


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_damaged_is_made_again(
    planned: Planned, made: manifest.Dataset, source: Path, tmp_path: Path, demo_tokenizer: Path, damage: Callable[[str], None]
) -> None:
    plan = planned([source], demo_tokenizer, tmp_path / "out", append_eod=True)
    assert sidecar.up_to_date(plan) == [made]
    damage(made.prefix)
    assert sidecar.up_to_date(plan) is None


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_damaged_is_merged_again(
    made: manifest.Dataset, run: Run, tmp_path: Path, damage: Callable[[str], None]
) -> None:
    command = ("merge", made.prefix, "-o", tmp_path / "merged")
    assert run(*command).returncode == 0
    assert "up to date" in run(*command).stderr
    sound = Path(tmp_path / "merged.idx").read_bytes()
    damage(str(tmp_path / "merged"))
    again = run(*command)
    assert again.returncode == 0
    assert "up to date" not in again.stderr
    assert Path(tmp_path / "merged.idx").read_bytes() == sound
    check_recorded(str(tmp_path / "merged"))


@pytest.mark.parametrize("command", ["shuffle", "split"])
@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_damage_is_not_copied(command: str, ending: str, made: manifest.Dataset, run: Run, tmp_path: Path) -> None:
    """The result would have right checksums of wrong tokens."""
    if ending == "bin":
        flip(f"{made.prefix}.bin", 10)
    else:
        move_a_document_border(made.prefix)
    before = sorted(path.name for path in tmp_path.iterdir())
    more = ("--ratios", "1,1") if command == "split" else ()
    done = run(command, made.prefix, "-o", tmp_path / "result", *more)
    assert (done.returncode, done.stdout) == (65, "")
    assert f"{made.prefix}.{ending}: CRC-32 " in done.stderr and "was damaged or changed since" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
