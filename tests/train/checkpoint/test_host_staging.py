"""A checkpoint that is copied to host memory beside training has the state of the step that it names, whatever comes after."""

import io
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from staged_training import STAGED, LateCopies, train
from torch.distributed.checkpoint.filesystem import _StorageInfo

from lt_shared.console import BadConfig
from lt_shared.files.checksums import FileChecksums
from lt_train.checkpoint import host_memory
from lt_train.checkpoint.shard_writer import Writer
from lt_train.checkpoint.shards import host_staging, shard_files
from lt_train.checkpoint.shards.host_staging import HostStaging
from lt_train.checkpoint.shards.shard_files import WriteResults
from lt_train.kernels import split_master_weights


def tensors(checkpoint: Path) -> dict[str, int]:
    """The CRC-32 of each shard of a tensor, by its name and place in the model."""
    recorded = FileChecksums.read(checkpoint)
    assert recorded is not None
    index = pickle.loads((checkpoint / ".metadata").read_bytes())
    of_tensors = {key for key, value in index.state_dict_metadata.items() if hasattr(value, "chunks")}
    found = {}
    for key, stored in index.storage_data.items():
        if key.fqn in of_tensors:
            ((_, _, crc),) = recorded.within(stored.relative_path, stored.offset, stored.length)
            found[f"{key.fqn} {key.offset}"] = crc
    return found


def test_training_through_late_copies(tmp_path: Path) -> None:
    calls = train(tmp_path, {"waiting": ("",), "staged": (STAGED, "--async-save")})
    for iteration in (2, 4, 5):
        expected = tensors(tmp_path / f"waiting/iter_{iteration:07d}")
        assert len(expected) > 10
        assert tensors(tmp_path / f"staged/iter_{iteration:07d}") == expected
    # Made once. The first two saves let the next update wait, the last one has none.
    assert calls["waiting"] == []
    assert calls["staged"] == ["lock", *["end", "hold back True", "wait False"] * 2, "end", "wait True", "unlock"]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateCopies]:
    monkeypatch.setattr(host_staging, "SMALL_BYTES", 100)
    yield LateCopies()


def bucket(*tensors: torch.Tensor) -> list[Any]:
    return [("path", "name", ([("object", b"1")], [(f"item {n}", tensor) for n, tensor in enumerate(tensors)]))]


def staged(buckets: list[Any]) -> list[torch.Tensor]:
    return [tensor for _, tensor in buckets[0][2][1]]


def test_small_tensors_are_copied_at_once_and_large_ones_before_they_change(late: LateCopies) -> None:
    small, large = torch.arange(3), torch.arange(1000, dtype=torch.bfloat16).view(10, 100).t()
    before = large.clone()
    staging = HostStaging(late, 10_000)
    first, second = staged(staging.begin(bucket(small, large)))
    small += 1
    staging.hold_back()
    large += 1
    staging.wait()
    assert first.tolist() == [0, 1, 2]
    assert torch.equal(second, before)
    assert second.dtype == torch.bfloat16


def test_split_weights_are_joined_beside_what_comes_next_and_only_where_they_are_written(late: LateCopies) -> None:
    masters = torch.arange(-60.0, 60.0).exp().view(-1)
    weight, low_bits = torch.empty(120, dtype=torch.bfloat16), torch.empty(120, dtype=torch.int16)
    split_master_weights.split(masters, weight, low_bits)
    staging = HostStaging(late, 0)
    whole = staging.joined(weight, low_bits).view(12, 10)
    one, other = staged(staging.begin(bucket(whole[2:5], whole[7])))
    staging.hold_back()
    weight.zero_()
    staging.wait()
    assert torch.equal(one, masters.view(12, 10)[2:5])
    assert torch.equal(other, masters.view(12, 10)[7])
    assert len(staging.memory) < masters.nbytes


def test_the_buffer_is_used_again_and_grows(late: LateCopies) -> None:
    staging = HostStaging(late, 4096)
    addresses = []
    for size in (1000, 500, 2000):
        (copy,) = staged(staging.begin(bucket(torch.full((size,), float(size)))))
        staging.wait()
        addresses.append(copy.data_ptr())
        assert set(copy.tolist()) == {size}
    assert addresses[0] == addresses[1] != addresses[2]
    staging.close()
    assert [call for call in late.calls if "lock" in call] == ["lock", "unlock", "lock", "unlock"]


def test_the_writer_begins_when_the_copies_are_made_and_reads_them(late: LateCopies, tmp_path: Path) -> None:
    weights = torch.zeros(100)
    path = str(tmp_path / "shard")
    buckets = [
        (path, "name", ([(SimpleNamespace(index="object"), io.BytesIO(b"1"))], [(SimpleNamespace(index="weight"), weights)]))
    ]
    staging, results = HostStaging(late, 0), WriteResults()
    request = SimpleNamespace(async_fn=shard_files.write, async_fn_args=(0, buckets, results), preload_fn=None)
    writer = Writer(request, None, staging=staging)
    assert writer.is_running()
    assert buckets == [(path, "name", ([], []))]
    staging.hold_back()
    weights += 1
    assert not list(tmp_path.iterdir())
    writer.start()
    weights += 1
    writer.wait()
    written, (first, second) = (tmp_path / "shard").read_bytes(), results.get_nowait()[0]
    assert (first.index, first.size_in_bytes, first.crc32) == ("object", 1, zlib.crc32(b"1"))
    assert (second.index, second.size_in_bytes, second.crc32) == ("weight", len(written) - 1, zlib.crc32(written[1:]))
    assert second.storage_data == _StorageInfo("name", 1, len(written) - 1)
    assert torch.load(io.BytesIO(written[1:])).tolist() == [0.0] * 100


def test_a_device_that_fails_gets_its_memory_back(late: LateCopies) -> None:
    def failed() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    late.wait = failed  # type: ignore[method-assign]
    staging = HostStaging(late, 4096)
    staging.begin(bucket(torch.ones(500)))
    staging.close()
    assert late.calls[-1] == "unlock"


def test_memory_that_cannot_be_locked(
    late: LateCopies, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(late, "lock", lambda memory: False)
    staging = HostStaging(late, 100)
    (copy,) = staged(staging.begin(bucket(torch.ones(5))))
    staging.wait()
    assert copy.tolist() == [1] * 5
    assert "could not be page-locked" in capsys.readouterr().err


def test_a_node_without_memory_for_its_ranks_is_named() -> None:
    gib = 2**30
    enough = [["n1", 30 * gib, 100 * gib], ["n1", 40 * gib, 100 * gib], ["n2", 70 * gib, 90 * gib]]
    assert host_memory._shortage(enough) is None
    short = host_memory._shortage([*enough, ["n2", 10 * gib, 95 * gib]])
    assert short == "its part of a checkpoint takes 80.0 GiB of host memory on n2, 90.0 are free"


def test_too_little_memory_ends_a_run_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.process.agreement.gather_objects", lambda value: [value])
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    assert host_memory.allows_async_save(True, 1 << 20, is_on_gpu=False)
    with pytest.raises(BadConfig, match=r"--async-save: its part of a checkpoint takes 1,048,576\.0 GiB"):
        host_memory.allows_async_save(True, 1 << 50, is_on_gpu=True)
    assert not host_memory.allows_async_save(False, 1 << 20, is_on_gpu=True)


def test_memory_is_taken_unasked_on_gpus_that_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lt_train.process.agreement.gather_objects", lambda value: [value])
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    assert host_memory.allows_async_save(None, 1 << 20, is_on_gpu=True)
    assert not host_memory.allows_async_save(None, 1 << 20, is_on_gpu=False)
    assert capsys.readouterr().err == ""
    assert not host_memory.allows_async_save(None, 1 << 50, is_on_gpu=True)
    assert "training waits for checkpoints, as with --no-async-save: its part of a checkpoint takes" in capsys.readouterr().err
