"""A checkpoint that names code is refused before torch reads it."""

import argparse
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from running import SMALL, train
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

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


def first_tensor(metadata: Any) -> Any:
    return next(entry for entry in metadata.state_dict_metadata.values() if isinstance(entry, TensorStorageMetadata))


def first_stored(metadata: Any) -> Any:
    return next(info for place, info in metadata.storage_data.items() if "_extra_state" in place.fqn)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda metadata: vars(metadata).pop("storage_data"), "has no attribute"),
        (lambda metadata: setattr(metadata, "storage_data", [1]), "has no attribute"),
        (lambda metadata: setattr(metadata, "state_dict_metadata", [1]), "list indices"),
        (lambda metadata: metadata.state_dict_metadata.update(another=7), "has no attribute 'name'"),
        (lambda metadata: setattr(first_stored(metadata), "relative_path", ["a"]), "names a shard that is no text"),
        (lambda metadata: setattr(first_stored(metadata), "offset", -5), "not a natural number"),
        (lambda metadata: setattr(first_stored(metadata), "length", "x"), "not a natural number"),
        (lambda metadata: setattr(first_stored(metadata), "length", 1 << 60), "ends at"),
        (lambda metadata: setattr(first_tensor(metadata), "size", [[1]]), "not a natural number"),
        (lambda metadata: setattr(first_tensor(metadata), "chunks", [1]), "has no attribute 'offsets'"),
        (lambda metadata: setattr(first_tensor(metadata), "properties", None), "has no attribute 'state'"),
        (lambda metadata: setattr(first_tensor(metadata).properties, "dtype", argparse.Namespace), "Namespace|has no type"),
    ],
)
def test_an_index_of_another_structure(change: Any, reason: str, tmp_path: Path, checkpoint: Path) -> None:
    """None of them is for torch, which would end in an exception of its own, or take all memory."""
    stranger = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, stranger)
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    change(metadata)
    (stranger / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match=reason):
        pickle_allowlist.check(stranger)
