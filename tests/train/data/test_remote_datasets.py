"""A dataset on a remote store: its index is copied once, its tokens are read by ranges, and the run is that of local files."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import synthetic
import torch
from megatron.core import parallel_state

from lt_shared.console import BadData, IoFailure, NoInput, TryAgain
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import RemoteBin
from lt_shared.files import object_versions, storage
from lt_train.config.run_config import RunConfig
from lt_train.data import blended_dataset, cached_bin, dataset_versions, remote_datasets
from lt_train.data.blended_dataset import SampleOrder

SIZES = (
    "--seq-length",
    "16",
    "--micro-batch-size",
    "4",
    "--global-batch-size",
    "16",
    "--train-iters",
    "60",
    "--eval-iters",
    "12",
)
NAMES = ("web", "code", "books")
BLOCK_BYTES = 256


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Small blocks, so that a few kilobytes have many."""
    for module in (cached_bin, remote_datasets):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
    for name, value in (("rank", 0), ("world_size", 1)):
        monkeypatch.setattr(parallel_state, f"get_data_parallel_{name}", lambda value=value: value)
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/bucket", recursive=True)


def fetch(config: RunConfig) -> RunConfig:
    """The configuration with local indices."""
    return dataclasses.replace(config, data=remote_datasets.fetch(config.data, config.architecture.vocab_size))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranges of tokens that the store is asked for."""
    found: list[tuple[str, int, int]] = []
    read = object_versions.read_range

    def read_range(path: str, begin: int, end: int, version: str) -> bytes:
        found.append((path, begin, end))
        return read(path, begin, end, version)

    monkeypatch.setattr(object_versions, "read_range", read_range)
    return found


def upload(store: Any, place: Path, lengths: Sequence[int], name: str = "web") -> None:
    place.mkdir(exist_ok=True)
    prefix = synthetic.write(place / name, lengths).prefix
    for suffix in (".bin", ".idx"):
        store.pipe(f"/bucket/{name}{suffix}", Path(prefix + suffix).read_bytes())


def plan(cache: Path, *more: str) -> RunConfig:
    words = more or ("memory://bucket/web",)
    return synthetic.plan("--seq-length", "16", *words, "--object-storage-cache-path", str(cache))


def blocks(cache: Path) -> list[Path]:
    return sorted(cache.glob("dataset-*/blocks/*"))


def kept_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in blocks(cache))


def seen(config: RunConfig, cache: Path) -> list[torch.Tensor]:
    """The tokens of all batches: of training, and of each validation set."""
    data = blended_dataset.build(SampleOrder.from_config(config), str(cache))
    assert data.training is not None
    batches = [*synthetic.training(config, data.training)]
    for samples in data.validation.values():
        batches += synthetic.loader(config).evaluating(samples)
    return [batch["tokens"] for batch in batches]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def test_the_index_is_copied_once_and_the_tokens_are_read(store: Any, tmp_path: Path, requests: list[Any]) -> None:
    upload(store, tmp_path / "first", [9] * 200)
    remote = plan(tmp_path / "cache")
    fetched = fetch(remote)
    local = fetched.data.datasets[0].prefix
    assert Path(local).is_relative_to(tmp_path / "cache")
    assert Path(f"{local}.idx").read_bytes() == (tmp_path / "first/web.idx").read_bytes()
    assert not Path(f"{local}.bin").exists()
    with pytest.raises(NoInput, match="no such file") as refused:
        indexed_dataset.Reader(local)
    assert "on a store" in str(refused.value.hint)
    sequences = remote_datasets.open_sequences(fetched.data, fetched.data.datasets[0])
    asked = len(requests)
    for _ in range(2):
        np.testing.assert_array_equal(sequences.read(np.array([150, 2]), 4, 7), [*range(67, 72), *range(18, 25)])
    assert len(requests) == asked + 2
    assert fetch(remote).data.datasets[0].prefix == local
    trained_on = dataset_versions.versions(fetched.data.datasets)
    assert trained_on == dataset_versions.versions(remote.data.datasets)
    assert trained_on["memory://bucket/web"]["bin_bytes"] == 200 * 9 * 2
    upload(store, tmp_path / "second", [7] * 200)
    anew = fetch(remote)
    assert anew.data.datasets[0].prefix != local
    assert set(remote_datasets.open_sequences(anew.data, anew.data.datasets[0]).lengths) == {7}
    with pytest.raises(BadData, match="memory://bucket/web: is another dataset"):
        dataset_versions.check_unchanged("iter_1", trained_on, dataset_versions.versions(remote.data.datasets))


@pytest.mark.parametrize("kept", [1.0, 0.4, 0.0])
def test_the_samples_are_those_of_local_files(kept: float, store: Any, tmp_path: Path, requests: list[Any]) -> None:
    """With room for all three datasets, for two of them and a part of the third, and for no block at all."""
    lengths = {"web": [*range(1, 120)], "code": [5, 40, 0, 17] * 30, "books": [300, 2] * 10}
    for name in NAMES:
        upload(store, tmp_path / "data", lengths[name], name)
    sizes = {name: 2 * sum(lengths[name]) for name in NAMES}
    room = int(kept * sum(sizes.values()))

    def words(place: str) -> tuple[str, ...]:
        blend = ("--train-data-path", "3", f"{place}/web", "1", f"{place}/code", "--valid-data-path", "a=", f"{place}/books")
        return (*SIZES, *blend, "b=", f"{place}/code")

    wanted = seen(synthetic.plan(*words(str(tmp_path / "data"))), tmp_path / "indices")
    gib = max(room, 1) / remote_datasets.GIB
    config = fetch(plan(tmp_path / "cache", *words("memory://bucket"), "--object-storage-cache-gib", repr(gib)))
    assert same(wanted, seen(config, tmp_path / "indices"))
    assert kept_bytes(tmp_path / "cache") <= room
    first = len(requests)
    assert same(wanted, seen(config, tmp_path / "indices"))
    again = requests[first:]
    if kept == 1.0:
        assert kept_bytes(tmp_path / "cache") == sum(sizes.values())
        assert not again
        assert len([each for each in requests if each[2] - each[1] == BLOCK_BYTES]) == len(set(requests) - set(requests[:3])) - 3
    else:
        assert again
        assert max(end - begin for _, begin, end in again) < BLOCK_BYTES or kept


def test_the_smallest_datasets_are_kept_whole(store: Any, tmp_path: Path) -> None:
    for name, count in (("web", 400), ("code", 100), ("books", 200)):
        upload(store, tmp_path / "data", [10] * count, name)
    gib = (2000 + 4000 + 3 * BLOCK_BYTES + 100) / remote_datasets.GIB
    words = [word for name in NAMES for word in ("1", f"memory://bucket/{name}")]
    config = fetch(plan(tmp_path / "cache", *words, "--object-storage-cache-gib", repr(gib)))
    found = {Path(prefix).name: size for prefix, size in remote_datasets.cached_bytes(config.data).items()}
    assert found == {"code": 2000, "books": 4000, "web": 3 * BLOCK_BYTES}


def test_an_object_that_is_replaced_is_noticed(store: Any, tmp_path: Path) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    config = fetch(plan(tmp_path / "cache"))
    sequences = remote_datasets.open_sequences(config.data, config.data.datasets[0])
    first = sequences.read(np.array([0]), 0, 9)
    upload(store, tmp_path / "other", [9] * 200)
    np.testing.assert_array_equal(sequences.read(np.array([0]), 0, 9), first)
    with pytest.raises(BadData, match=r"web\.bin: was replaced"):
        sequences.read(np.array([150]), 0, 9)
    store.rm("/bucket/web.bin")
    with pytest.raises(NoInput, match=r"web\.bin"):
        sequences.read(np.array([150]), 0, 9)
    assert [path.name for path in blocks(tmp_path / "cache")] == ["0"]


def test_what_goes_wrong_leaves_no_copy(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch, pytest.raises(IoFailure, match="were expected"):
        patch.setattr(storage, "read_range", lambda path, begin, end: bytes(end - begin - 1))
        fetch(plan(cache))
    versions = iter(range(100))
    with monkeypatch.context() as patch, pytest.raises(TryAgain, match="written anew"):
        patch.setattr(storage, "fingerprint", lambda path, refresh=False: {"path": path, "version": str(next(versions))})
        fetch(plan(cache))
    assert not list(cache.glob("dataset-*"))


def test_fewer_bytes_than_asked_for_are_no_block(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    config = fetch(plan(tmp_path / "cache"))
    sequences = remote_datasets.open_sequences(config.data, config.data.datasets[0])
    with monkeypatch.context() as patch, pytest.raises(IoFailure, match="255 bytes from byte 0 on, 256 were expected"):
        patch.setattr(object_versions, "read_range", lambda path, begin, end, version: bytes(end - begin - 1))
        sequences.read(np.array([0]), 0, 9)
    assert not blocks(tmp_path / "cache")
    np.testing.assert_array_equal(sequences.read(np.array([0]), 0, 9), range(9))


def test_a_record_that_says_nothing(tmp_path: Path) -> None:
    assert RemoteBin.of(str(tmp_path / "web")) is None
    for content in ("{}", "[1]", '{"v": 2, "url": "memory://a", "version": "1", "size_bytes": 1}'):
        (tmp_path / "web.bin.remote").write_text(content)
        with pytest.raises(BadData, match="does not say where"):
            RemoteBin.of(str(tmp_path / "web"))


def test_a_damaged_dataset_is_refused(store: Any, tmp_path: Path) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    store.pipe("/bucket/web.bin", store.cat("/bucket/web.bin")[:-2])
    with pytest.raises(BadData, match=r"web\.bin"):
        fetch(plan(tmp_path / "cache"))


@pytest.mark.parametrize("size_bytes", [0, 100, 1000])
def test_a_copy_is_on_the_disk_when_it_is_made(
    size_bytes: int,
    store: Any,
    tmp_path: Path,
    durable_calls: list[tuple[str, str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A checkpoint's files and a dataset's: synced once, after the last byte was written."""
    monkeypatch.setattr(remote_datasets, "RANGE_BYTES", 300)
    content = bytes(number % 251 for number in range(size_bytes))
    store.pipe("/bucket/object", content)
    synced = os.fsync
    seen: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((tmp_path / "copy").read_bytes()) or synced(file))
    remote_datasets.copy_file("memory://bucket/object", tmp_path / "copy")
    assert durable_calls == [("fsync", str(tmp_path / "copy"), size_bytes)]
    assert seen == [content]
    # Five small files are copied to continue a run: no line for each.
    assert capsys.readouterr().err.count("copying") == (size_bytes > 300)
