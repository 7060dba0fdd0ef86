"""Checkpoints on a store, each a few bytes: a copy of one is whole, or there is none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lt_shared import checkpoint_layout, storage
from lt_shared.architecture import Architecture
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import BadData
from lt_train.checkpoint import remote_run

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


def test_a_copy_is_whole(store: Any, tmp_path: Path) -> None:
    copy = remote_run.fetch(URL)
    assert copy.name == "iter_0000004"
    assert checkpoint_layout.damage(copy) is None
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "iter_0000004").iterdir()
    }


@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_that_changes_while_it_is_copied_is_not_used(name: str, change: str, store: Any, tmp_path: Path) -> None:
    """It was complete when it was looked for."""
    assert remote_run.newest("memory://bucket/run") == URL
    content = store.cat(f"/bucket/run/iter_0000004/{name}")
    store.pipe(f"/bucket/run/iter_0000004/{name}", {"shorter": content[:-1], "longer": content + b"x", "empty": b""}[change])
    with pytest.raises(BadData, match=rf"/{name}: \d+ bytes, expected {len(content)}") as caught:
        remote_run.fetch(URL)
    assert caught.value.hint == f"{URL} changed while it was copied"
    assert copies(tmp_path) == []
