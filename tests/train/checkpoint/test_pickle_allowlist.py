"""A checkpoint that names code is refused before torch reads it."""

import io
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from running import SMALL, train

from lt_shared import checkpoint_layout
from lt_shared.checksums import FileChecksums
from lt_shared.console import BadData
from lt_shared.manifest import Dataset
from lt_train.checkpoint import pickle_allowlist


class Malicious:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture(scope="module")
def checkpoint(finished: Path) -> Path:
    return checkpoint_layout.resolve_checkpoint_directory(finished / "two")


def test_own_checkpoints_pass(checkpoint: Path) -> None:
    pickle_allowlist.check(checkpoint)


def test_malicious_index(tmp_path: Path, checkpoint: Path, dataset: Dataset) -> None:
    stranger = tmp_path / "run" / checkpoint.name
    shutil.copytree(checkpoint, stranger)
    (stranger / checkpoint_layout.RECORD).unlink()
    (stranger / FileChecksums.NAME).unlink()
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    metadata.planner_data = Malicious(tmp_path / "ran")
    (stranger / ".metadata").write_bytes(pickle.dumps(metadata))
    result = train(*SMALL, "--train-iters", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    assert result.code == 65
    assert "system" in result.err
    assert not (tmp_path / "ran").exists()


def test_malicious_object(tmp_path: Path, checkpoint: Path) -> None:
    stranger = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, stranger)
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    place, info = next((place, info) for place, info in metadata.storage_data.items() if "_extra_state" in place.fqn)
    buffer = io.BytesIO()
    torch.save(Malicious(tmp_path / "ran"), buffer)
    shard = stranger / info.relative_path
    metadata.storage_data[place] = type(info)(info.relative_path, shard.stat().st_size, buffer.tell())
    shard.write_bytes(shard.read_bytes() + buffer.getvalue())
    (stranger / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match="system"):
        pickle_allowlist.check(stranger)
    assert not (tmp_path / "ran").exists()
