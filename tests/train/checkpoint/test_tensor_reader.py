"""Large tensors are read to where they are needed, and nothing damaged is taken for them."""

import io
import os
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.console import BadData
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint import tensor_reader
from lt_train.checkpoint.shards.stored_shards import Place
from lt_train.checkpoint.tensor_reader import TensorReader
from lt_train.kernels import split_master_weights

FRONT = b"another object"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_reader, "PIECE_BYTES", 4096)
    monkeypatch.setattr(tensor_reader, "LEAST_BYTES", 0)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def shard(directory: Path, content: bytes) -> Place:
    (directory / "shard").write_bytes(FRONT + content)
    return Place("shard", len(FRONT), len(content))


def recorded(content: bytes) -> FileChecksums:
    return FileChecksums({"shard": ((len(FRONT), zlib.crc32(FRONT)), (len(content), zlib.crc32(content)))})


def read(directory: Path, place: Place, target: torch.Tensor, record: FileChecksums | None, verify: bool = True) -> bool:
    with TensorReader(directory, record, verify) as reader:
        begun = reader.begin(place, target)
        reader.wait()
    return begun


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("into", [None, torch.float32])
def test_reads_what_torch_saved(
    dtype: torch.dtype, into: torch.dtype | None, has_record: bool, verify: bool, tmp_path: Path
) -> None:
    value = torch.randn(70, 101).mul(100).to(dtype)
    content = saved(value)
    place = shard(tmp_path, content)
    target = torch.empty(value.shape, dtype=into or dtype)
    assert read(tmp_path, place, target, recorded(content) if has_record and verify else None, verify)
    assert torch.equal(target, value.to(target.dtype))


def test_each_piece_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.arange(5000.0)
    content = saved(value)
    place = shard(tmp_path, content)
    reads: list[tuple[int, int]] = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], position: int) -> int:
        count = preadv(descriptor, buffers, position)
        reads.append((position, count))
        return count

    monkeypatch.setattr(os, "preadv", counted)
    target = torch.empty(5000)
    pointer = target.data_ptr()
    assert read(tmp_path, place, target, recorded(content)) and torch.equal(target, value)
    assert target.data_ptr() == pointer
    assert [count for _, count in sorted(reads)] == [4096] * 4 + [20000 - 4 * 4096]


def test_split_master_weights_are_split_as_they_come(tmp_path: Path) -> None:
    value = torch.randn(50, 100)
    split, found = ((torch.empty(6000, dtype=torch.bfloat16), torch.empty(6000, dtype=torch.int16)) for _ in range(2))
    split_master_weights.split(torch.cat([torch.zeros(10, 100), value]).view(-1), *split)
    loading = split_master_weights.Loading(*(half.view(60, 100) for half in found))
    content = saved(value)
    assert read(tmp_path, shard(tmp_path, content), loading.whole[10:], recorded(content))
    loading.take(torch.cat([torch.zeros(10, 100), torch.full((50, 100), torch.nan)]))
    assert torch.equal(found[0], split[0]) and torch.equal(found[1], split[1])


OTHERS: list[Callable[[], tuple[Any, torch.Tensor]]] = [
    lambda: ({"tensor": torch.arange(5000.0)}, torch.empty(5000)),
    lambda: (torch.arange(5000.0)[1000:], torch.empty(4000)),
    lambda: (torch.arange(5000.0).view(50, 100).t(), torch.empty(100, 50)),
    lambda: ([torch.arange(5000.0), torch.arange(5000.0)], torch.empty(5000)),
    lambda: (torch.arange(5000.0), torch.empty(5001)),
    lambda: (torch.arange(5000.0), torch.empty(50, 100)),
    lambda: (torch.arange(5000.0), torch.empty(5000, 2)[:, 0]),
    lambda: ("no tensor" * 9999, torch.empty(5000)),
]


@pytest.mark.parametrize("other", OTHERS)
def test_leaves_what_is_no_whole_tensor_of_that_shape(other: Callable[[], tuple[Any, torch.Tensor]], tmp_path: Path) -> None:
    value, target = other()
    content = saved(value)
    target.fill_(7)
    assert not read(tmp_path, shard(tmp_path, content), target, recorded(content))
    assert torch.all(target == 7)


def test_leaves_an_object_that_the_record_does_not_know(tmp_path: Path) -> None:
    content = saved(torch.arange(5000.0))
    assert not read(tmp_path, shard(tmp_path, content), torch.empty(5000), FileChecksums({}))
    assert not read(tmp_path, shard(tmp_path, content), torch.empty(5000), recorded(content[:-1]))


@pytest.mark.parametrize("has_record", [True, False])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_seen_or_left_to_others(
    has_record: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    value = torch.arange(3000.0)
    content = saved(value)
    damaged = bytearray(content)
    ends = st.integers(0, 1200) | st.integers(len(content) - 1200, len(content) - 1)
    position = data.draw(ends | st.integers(0, len(content) - 1))
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    directory = tmp_path_factory.mktemp("damaged")
    target = torch.full((3000,), 7.0)
    try:
        begun = read(directory, shard(directory, bytes(damaged)), target, recorded(content) if has_record else None)
    except BadData as error:
        assert "the checksum of" in str(error)
        return
    # Without a record, the bytes between the members are anybody's.
    assert not begun or (not has_record and torch.equal(target, value))


def test_a_shard_that_ends_early_is_refused(tmp_path: Path) -> None:
    content = saved(torch.arange(5000.0))
    place = shard(tmp_path, content)
    target = torch.empty(5000)
    with TensorReader(tmp_path, recorded(content), True) as reader:
        fill = reader._fill

        def cut(*arguments: Any) -> int:
            os.truncate(tmp_path / "shard", 8000)
            return fill(*arguments)

        reader._fill = cut  # type: ignore[method-assign]
        assert reader.begin(place, target)
        with pytest.raises(BadData, match=r"shard: ends at 8000 bytes, \d+ are needed"):
            reader.wait()
    assert not read(tmp_path, place, target, recorded(content))


def test_reads_more_shards_than_a_process_may_open(tmp_path: Path) -> None:
    content = saved(torch.arange(2000.0))
    names = [f"__{number}_0.distcp" for number in range(64)]
    for name in names:
        (tmp_path / name).write_bytes(content)
    record = FileChecksums({name: ((len(content), zlib.crc32(content)),) for name in names})
    targets = [torch.empty(2000) for _ in names]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 40, before[1]))
    try:
        with TensorReader(tmp_path, record, True) as reader:
            begun = [reader.begin(Place(name, 0, len(content)), target) for name, target in zip(names, targets, strict=True)]
            reader.wait()
        left = len(os.listdir("/proc/self/fd"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert all(begun) and all(torch.equal(target, torch.arange(2000.0)) for target in targets)
    assert left == held


@pytest.mark.parametrize(("processors", "ranks", "count"), [(2, 1, 8), (64, 1, 16), (96, 8, 12)])
def test_as_many_readers_as_processors(processors: int, ranks: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(processors))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert tensor_reader.readers() == count
