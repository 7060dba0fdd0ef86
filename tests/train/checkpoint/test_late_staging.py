"""On a CPU the writer gets each tensor as it was when the save began, with memory for what it cannot write before the update."""

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lt_train.checkpoint.shard_writer import Writer
from lt_train.checkpoint.shards import late_staging, shard_files, writer_process
from lt_train.checkpoint.shards.late_staging import LateStaging
from lt_train.checkpoint.shards.shard_files import WriteResults
from lt_train.checkpoint.shards.writer_process import File, StagedTensor

COUNT = 2000


def buckets(folder: Path, *files: list[torch.Tensor]) -> list[Any]:
    """Each tensor is named by its number in its file."""
    items = [[(SimpleNamespace(index=number), tensor) for number, tensor in enumerate(tensors)] for tensors in files]
    return [(str(folder / f"{file}"), f"{file}", ([], tensors)) for file, tensors in enumerate(items)]


def offsets(files: list[File]) -> list[int | None]:
    return [stored.offset for _, file in files for stored in file if isinstance(stored, StagedTensor)]


def copy_at(staging: LateStaging, offset: int) -> list[float]:
    """The value of COUNT numbers in the memory."""
    assert staging.descriptor is not None
    content = os.pread(staging.descriptor, 4 * COUNT, offset)
    values: list[float] = torch.frombuffer(bytearray(content), dtype=torch.float32).unique().tolist()
    return values


def filled(value: float) -> torch.Tensor:
    return torch.full((COUNT,), value, dtype=torch.float32)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_staging, "SMALL_BYTES", 100)


def test_a_tensor_is_copied_when_its_turn_comes_or_before_the_update(tmp_path: Path) -> None:
    first, second = [filled(0), filled(1), filled(2)], [filled(3), filled(4), filled(5)]
    staging = LateStaging()
    assert offsets(staging.files(staging.begin(buckets(tmp_path, first, second)))) == [None] * 6
    turns = [staging.offset(0, 0), staging.offset(1, 0)]
    assert [copy_at(staging, turn) for turn in turns] == [[0.0], [3.0]]
    # The second of a file is written from where the first was.
    assert staging.offset(0, 1) == turns[0]
    staging.hold_back()
    for tensor in (*first, *second):
        tensor.fill_(-1)
    # What is being written meanwhile stays.
    assert [copy_at(staging, turn) for turn in turns] == [[1.0], [3.0]]
    later = [staging.offset(0, 2), staging.offset(1, 1), staging.offset(1, 2)]
    assert [copy_at(staging, offset) for offset in later] == [[2.0], [4.0], [5.0]]
    assert len({*turns, *later}) == 5


def test_small_tensors_are_copied_at_once(tmp_path: Path) -> None:
    small, large = torch.arange(3), filled(7)
    staging = LateStaging()
    first, second = offsets(staging.files(staging.begin(buckets(tmp_path, [small, large]))))
    small += 1
    assert second is None
    assert first is not None
    assert staging.descriptor is not None
    content = os.pread(staging.descriptor, small.nbytes, first)
    assert torch.frombuffer(bytearray(content), dtype=torch.int64).tolist() == [0, 1, 2]


def test_it_takes_memory_for_what_was_copied_and_gives_it_back(tmp_path: Path) -> None:
    staging = LateStaging()
    staging.begin(buckets(tmp_path, [torch.ones(1 << 20) for _ in range(8)]))

    def taken_mib() -> int:
        assert staging.descriptor is not None
        return round(os.fstat(staging.descriptor).st_blocks * 512 / 2**20)

    taken = []
    for number in range(3):
        staging.offset(0, number)
        taken.append(taken_mib())
    assert taken == [4, 4, 4]
    staging.hold_back()
    assert taken_mib() == 4 + 5 * 4
    staging.end()
    assert staging.descriptor is None


@pytest.mark.parametrize("is_update_late", [False, True])
def test_every_file_is_as_when_the_save_began(is_update_late: bool, tmp_path: Path) -> None:
    staging = LateStaging()
    values = [[float(number) for number in range(file, 40, 2)] for file in range(2)]
    tensors = [[torch.full((50, 40 + int(value)), value).t() for value in file] for file in values]
    results = WriteResults()
    arguments = (0, buckets(tmp_path, *tensors), results)
    try:
        writer = Writer(SimpleNamespace(async_fn=shard_files.write, async_fn_args=arguments, preload_fn=None), None, staging)
        while is_update_late and writer.is_running():
            pass
        staging.hold_back()
        for tensor in (*tensors[0], *tensors[1]):
            tensor.fill_(-1)
        writer.wait()
        assert writer.error is None
        assert staging.descriptor is None
    finally:
        writer_process.stop()
    for file, expected in enumerate(values):
        content = (tmp_path / str(file)).read_bytes()
        for result, value in zip(results.get_nowait()[file], expected, strict=True):
            begin = result.storage_data.offset
            tensor = torch.load(io.BytesIO(content[begin : begin + result.size_in_bytes]))
            assert torch.equal(tensor, torch.full((50, 40 + int(value)), value).t())


def test_an_error_while_a_tensor_is_copied_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = LateStaging()

    def fail(offset: int, tensor: torch.Tensor) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(staging, "_copy_to", fail)
    arguments = (0, buckets(tmp_path, [filled(1)]), WriteResults())
    writer = Writer(SimpleNamespace(async_fn=shard_files.write, async_fn_args=arguments, preload_fn=None), None, staging)
    with pytest.raises(MemoryError, match="no memory"):
        writer.wait()
    writer_process.stop()
