"""Shards go to S3 in parts while they are made: no file of theirs on the node, and no object when the writer dies."""

import json
import os
import signal
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import s3_server
import torch

from lt_shared.files import storage
from lt_train.checkpoint.shard_writer import Writer
from lt_train.checkpoint.shards import shard_files, writer_process
from lt_train.checkpoint.shards.late_staging import LateStaging
from lt_train.checkpoint.shards.shard_files import WriteResults

MIB = 1 << 20
# Of 12 MiB each.
TENSORS = [torch.full((3 * MIB,), float(number)) for number in range(2)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The smallest parts that S3 allows, and an own directory for temporary files, here and in a writer process."""
    monkeypatch.setattr("s3fs.S3FileSystem.default_block_size", 5 * MIB)
    monkeypatch.setenv("FSSPEC_S3", json.dumps({"default_block_size": 5 * MIB}))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def staging() -> Iterator[LateStaging]:
    # A writer that an earlier test of this process has left would have that test's environment, without these credentials.
    writer_process.stop()
    staging = LateStaging()
    yield staging
    writer_process.stop()
    staging.close()


def request(tensors_in_file: int = 1) -> tuple[Any, Any]:
    buckets = []
    for number, tensor in enumerate(TENSORS):
        name = f"__0_{number}.distcp"
        buckets.append((f"/nowhere/{name}", name, ([], [(SimpleNamespace(index=number), tensor)] * tensors_in_file)))
    results = WriteResults()
    return SimpleNamespace(async_fn=shard_files.write, async_fn_args=(0, buckets, results), preload_fn=None), results


@pytest.mark.parametrize("in_background", [True, False], ids=["beside training", "while training waits"])
def test_shards_are_uploaded_in_parts(
    in_background: bool, bucket: str, server: s3_server.Server, small_parts: Path, staging: LateStaging
) -> None:
    before = len(server.requests())
    asked, results = request()
    writer = Writer(asked, f"{bucket}/run/iter_0000001", staging if in_background else None)
    writer.wait()
    assert writer.error is None
    written = results.get_nowait()
    for number, tensor in enumerate(TENSORS):
        content = storage.read_bytes(f"{bucket}/run/iter_0000001/__0_{number}.distcp")
        (result,) = written[number]
        assert (result.size_in_bytes, result.crc32) == (len(content), zlib.crc32(content))
        assert content.count(tensor.numpy().tobytes()) == 1
    parts = [line for line in server.requests()[before:] if "partNumber=" in line]
    # A block, and what is left.
    assert len(parts) == 2 * 2
    assert os.listdir(small_parts) == []


def test_a_writer_that_is_killed_leaves_no_object(bucket: str, server: s3_server.Server, staging: LateStaging) -> None:
    before = len(server.requests())
    asked, _ = request(tensors_in_file=10)
    writer = Writer(asked, f"{bucket}/run/iter_0000001", staging)
    writer.start()
    while not any("partNumber=" in line for line in server.requests()[before:]):
        assert writer.is_running()
        time.sleep(0.01)
    os.kill(writer_process.start().pid, signal.SIGKILL)
    writer.wait()
    assert writer.error is not None
    assert "SIGKILL" in writer.error[0]
    assert s3_server.names(bucket) == set()
