"""What lt-train records of a checkpoint as it writes is what zlib finds in the files, and damage is noticed on loading."""

import io
import json
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from running import RUNS, train

from lt_shared.console import BadData
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import checksums
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint import object_reader


def test_every_object_of_all_ranks_has_the_checksum_that_zlib_finds(checkpoint: Path) -> None:
    record = json.loads((checkpoint / "checksums.json").read_bytes())["crc32"]
    assert set(record) == {path.name for path in checkpoint.iterdir()} - {"checksums.json"}
    for name, ranges in record.items():
        content = (checkpoint / name).read_bytes()
        for size, crc in ranges:
            assert zlib.crc32(content[:size]) == crc
            content = content[size:]
        assert content == b""
    objects: dict[str, set[tuple[int, int]]] = {}
    for info in pickle.loads((checkpoint / ".metadata").read_bytes()).storage_data.values():
        objects.setdefault(info.relative_path, set()).add((info.offset, info.length))
    assert {name.split("_")[2] for name in objects} == {"0", "1"}
    parsed = FileChecksums.read(checkpoint)
    assert parsed is not None
    for name, expected in objects.items():
        size = (checkpoint / name).stat().st_size
        assert {(offset, length) for offset, length, _ in parsed.within(name, 0, size)} == expected


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 16
    path.write_bytes(content)


def weight(checkpoint: Path) -> tuple[str, int, int]:
    """File, offset and size of the object with a layer's weights."""
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    info = next(info for key, info in metadata.storage_data.items() if key.fqn.endswith("linear_fc1.weight"))
    return info.relative_path, info.offset, info.length


def of_a_weight(checkpoint: Path) -> str:
    name, offset, size = weight(checkpoint)
    flip(checkpoint / name, offset + size // 2)
    return name


def without_record(checkpoint: Path) -> str:
    (checkpoint / FileChecksums.NAME).unlink()
    return of_a_weight(checkpoint)


def in_the_head_of_an_archive(checkpoint: Path) -> str:
    name, offset, _ = weight(checkpoint)
    flip(checkpoint / name, offset + 11)
    return name


def of_metadata(checkpoint: Path) -> str:
    flip(checkpoint / ".metadata", (checkpoint / ".metadata").stat().st_size // 2)
    return ".metadata"


def of_metadata_json(checkpoint: Path) -> str:
    flip(checkpoint / "metadata.json", 30)
    return "metadata.json"


def of_the_run_record(checkpoint: Path) -> str:
    """The tokenizer is another one then."""
    flip(checkpoint / "run.json", (checkpoint / "run.json").read_bytes().index(b'"sha256": "') + 15)
    return "run.json"


DAMAGES = [of_a_weight, without_record, in_the_head_of_an_archive, of_metadata, of_metadata_json, of_the_run_record]


def resumed(run_directory: Path, dataset: Dataset, *options: str) -> tuple[int, str]:
    steps = [*RUNS["two"], "--train-iters", "13", "--save", str(run_directory), *options, dataset.prefix]
    result = train(*steps)
    return result.code, result.err


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_not_trained_on(
    damage: Callable[[Path], str], checkpoint: Path, dataset: Dataset, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(checkpoint.parent, copy)
    damaged = damage(copy / checkpoint.name)
    code, err = resumed(copy, dataset)
    assert (code, f"{checkpoint.name}/{damaged}" in err, "copy it again" in err) == (65, True, True), err
    assert not (copy / "iter_0000013").exists()


def test_no_verify_takes_it_as_it_is(checkpoint: Path, dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(checkpoint.parent, copy)
    of_a_weight(copy / checkpoint.name)
    code, err = resumed(copy, dataset, "--no-verify")
    assert code == 0, err
    assert (copy / "iter_0000013").exists()


def test_a_remote_checkpoint_is_checked_as_well(dataset: Dataset, tmp_path: Path) -> None:
    """fsspec treats local:// as it treats s3://."""
    bucket = tmp_path / "bucket"
    variables = {"TMPDIR": str(tmp_path)}
    options = [*RUNS["two"], "--ranks", "2", "--save", f"local://{bucket}/run", dataset.prefix]
    first = train(*options, "--train-iters", "4", **variables)
    assert first.code == 0, first.err
    checkpoint = bucket / "run/iter_0000004"
    record = FileChecksums.read(checkpoint)
    assert record is not None
    for path in checkpoint.iterdir():
        if path.name != FileChecksums.NAME:
            assert record.whole(path.name) == (path.stat().st_size, zlib.crc32(path.read_bytes()))
    of_a_weight(checkpoint)
    second = train(*options, "--train-iters", "5", **variables)
    assert (second.code, "checksum" in second.err) == (65, True), second.err


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def test_an_archive_without_checksums_is_read() -> None:
    """torch writes zeros when it is told to compute none."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        content = saved({"tensor": torch.arange(5)})
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(object_reader.read_object(content)["tensor"], torch.arange(5))


@pytest.mark.parametrize("piece_bytes", [1 << 24, 100], ids=["in one piece", "in several at a time"])
def test_only_what_was_read_is_checked_and_all_of_it(piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reader, "PIECE_BYTES", piece_bytes)
    first, second = saved(torch.arange(4)).getvalue(), saved(torch.arange(5)).getvalue()
    (tmp_path / "shard").write_bytes(first + second)
    record = FileChecksums({"shard": ((len(first), zlib.crc32(first)), (len(second), checksums.crc32(second) ^ 1))})
    with (tmp_path / "shard").open("rb") as file:
        read = object_reader._Slice(file, 0, len(first), "shard", record)
        assert torch.equal(object_reader.read_object(read), torch.arange(4))
        with pytest.raises(BadData, match=f"checksum of {len(second)} bytes at {len(first)}"):
            object_reader._Slice(file, len(first), len(second), "shard", record)
        with pytest.raises(BadData, match="no checksum of the object at 1"):
            object_reader._Slice(file, 1, len(first), "shard", record)
        with pytest.raises(BadData, match=f"ends at {len(first + second)} bytes, {len(first + second) + 1} are needed"):
            object_reader._Slice(file, len(first), len(second) + 1, "shard", None)
        assert torch.equal(object_reader.read_object(object_reader._Slice(file, 0, len(first), "shard", None)), torch.arange(4))
