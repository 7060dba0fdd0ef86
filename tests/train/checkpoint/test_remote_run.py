"""Checkpoints on a store, each a few bytes: what is copied of one is whole, or there is nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lt_shared.console import BadData
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.files import object_versions, storage
from lt_shared.models.architecture import Architecture
from lt_train.checkpoint import remote_run
from lt_train.checkpoint.shards import stored_shards
from lt_train.checkpoint.shards.stored_shards import StoredShards

URL = "memory://bucket/run/iter_0000004"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """It holds the checkpoint; the spool is empty."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    checkpoint = tmp_path / "iter_0000004"
    checkpoint.mkdir()
    (tmp_path / "tmp").mkdir()
    for name in (".metadata", "__0_0.distcp", "common.pt"):
        (checkpoint / name).write_bytes(name.encode() * 100)
    architecture = Architecture("tiny", "llama", 1, 16, 24, 2, 2, 50, 64)
    RunRecord(architecture, 50, 4, 16, None, "float32", {}, {}).write(checkpoint)
    for path in checkpoint.iterdir():
        storage.upload(path, f"{URL}/{path.name}")
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/bucket", recursive=True)


def copies(directory: Path) -> list[str]:
    return [str(path) for path in (directory / "tmp").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_the_small_files_are_copied_and_the_shards_are_not(store: Any, tmp_path: Path) -> None:
    copy = remote_run.fetch(URL, "run")
    assert copy.name == "iter_0000004"
    small = {path.name: path.read_bytes() for path in (tmp_path / "iter_0000004").iterdir() if path.suffix != ".distcp"}
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.name != stored_shards.NAME} == small
    shards = StoredShards.load(copy)
    assert shards is not None
    content = (tmp_path / "iter_0000004/__0_0.distcp").read_bytes()
    assert shards.read("__0_0.distcp", 10, 30) == content[10:30]


def test_each_run_has_a_copy_of_its_own_and_a_repaired_object_is_copied_anew(store: Any) -> None:
    one, other = remote_run.fetch(URL, "one"), remote_run.fetch(URL, "other")
    assert remote_run.fetch(URL, "one") == one
    remote_run.forget(one)
    assert (other / ".metadata").exists() and not one.exists()
    content = store.cat("/bucket/run/iter_0000004/.metadata")
    store.pipe("/bucket/run/iter_0000004/.metadata", content[:-1] + bytes([content[-1] ^ 1]))
    damaged = remote_run.fetch(URL, "other")
    store.pipe("/bucket/run/iter_0000004/.metadata", content)
    assert (damaged / ".metadata").read_bytes() != content == (remote_run.fetch(URL, "other") / ".metadata").read_bytes()


def test_checksums_that_a_listing_has_not_yet(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_bytes(f"{URL}/checksums.json", b"{}")
    below = object_versions.below

    def late(url: str) -> dict[str, tuple[int, str]]:
        return {name: found for name, found in below(url).items() if name != "checksums.json"}

    monkeypatch.setattr(object_versions, "below", late)
    assert (remote_run.fetch(URL, "run") / "checksums.json").read_bytes() == b"{}"


@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_that_changes_while_it_is_copied_is_not_used(name: str, change: str, store: Any, tmp_path: Path) -> None:
    """It was complete when it was looked for."""
    assert remote_run.newest("memory://bucket/run") == URL
    content = store.cat(f"/bucket/run/iter_0000004/{name}")
    store.pipe(f"/bucket/run/iter_0000004/{name}", {"shorter": content[:-1], "longer": content + b"x", "empty": b""}[change])
    with pytest.raises(BadData, match=rf"/{name}: \d+ bytes, expected {len(content)}") as caught:
        remote_run.fetch(URL, "run")
    assert caught.value.hint == f"{URL} changed while it was copied"
    assert copies(tmp_path) == []
