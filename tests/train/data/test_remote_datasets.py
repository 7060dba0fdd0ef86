"""A dataset on a remote store is copied once, whole, and anew when it changes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import synthetic

from lt_shared import indexed_dataset, storage
from lt_shared.console import BadData, IoFailure, TryAgain
from lt_train.config.run_config import RunConfig
from lt_train.data import remote_datasets


@pytest.fixture
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/bucket", recursive=True)


def upload(store: Any, place: Path, lengths: list[int]) -> None:
    place.mkdir()
    prefix = synthetic.write(place / "web", lengths).prefix
    for suffix in (".bin", ".idx"):
        store.pipe(f"/bucket/web{suffix}", Path(prefix + suffix).read_bytes())


def plan(cache: Path) -> RunConfig:
    return synthetic.plan("--seq-length", "16", "memory://bucket/web", "--object-storage-cache-path", str(cache))


def test_copies(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_datasets, "RANGE_BYTES", 100)
    upload(store, tmp_path / "first", [9] * 200)
    remote = plan(tmp_path / "cache")
    local = remote_datasets.fetch(remote).data.datasets[0].prefix
    assert Path(local).is_relative_to(tmp_path / "cache")
    for suffix in (".bin", ".idx"):
        assert Path(local + suffix).read_bytes() == (tmp_path / f"first/web{suffix}").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "read_range", lambda *arguments: pytest.fail("copied twice"))
        assert remote_datasets.fetch(remote).data.datasets[0].prefix == local
    upload(store, tmp_path / "second", [7] * 200)
    anew = remote_datasets.fetch(remote).data.datasets[0].prefix
    assert anew != local
    assert set(indexed_dataset.Reader(anew).sequence_lengths) == {7}


def test_what_goes_wrong_leaves_no_copy(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch, pytest.raises(IoFailure, match="were expected"):
        patch.setattr(storage, "read_range", lambda path, begin, end: bytes(end - begin - 1))
        remote_datasets.fetch(plan(cache))
    versions = iter(range(100))
    with monkeypatch.context() as patch, pytest.raises(TryAgain, match="written anew"):
        patch.setattr(storage, "fingerprint", lambda path, refresh=False: {"path": path, "version": str(next(versions))})
        remote_datasets.fetch(plan(cache))
    assert not list(cache.glob("dataset-*"))


def test_a_damaged_dataset_is_refused(store: Any, tmp_path: Path) -> None:
    upload(store, tmp_path / "data", [9] * 200)
    store.pipe("/bucket/web.bin", store.cat("/bucket/web.bin")[:-2])
    with pytest.raises(BadData, match=r"web\.bin"):
        remote_datasets.fetch(plan(tmp_path / "cache"))


@pytest.mark.parametrize("size_bytes", [0, 100, 1000])
def test_a_copy_is_on_the_disk_when_it_is_made(
    size_bytes: int, store: Any, tmp_path: Path, durable_calls: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch
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
