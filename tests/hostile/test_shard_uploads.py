"""Shards go to S3 in parts while they are made: no file of theirs on the node, and no object when the writer dies."""

import os
import signal
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import s3_server
import torch

from lt_shared import storage
from lt_train.checkpoint.shard_writer import Writer, WriteResults
from lt_train.checkpoint.shards import direct_file, shard_files

MIB = 1 << 20
# Of 12 MiB each.
TENSORS = [torch.full((3 * MIB,), float(number)) for number in range(2)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The smallest parts that S3 allows, and an own directory for temporary files."""
    monkeypatch.setattr("s3fs.S3FileSystem.default_block_size", 5 * MIB)
    monkeypatch.setattr(direct_file, "BLOCK_BYTES", MIB)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def request(write: Any = shard_files.write) -> tuple[Any, Any]:
    buckets = []
    for number, tensor in enumerate(TENSORS):
        name = f"__0_{number}.distcp"
        buckets.append((f"/nowhere/{name}", name, ([], [(SimpleNamespace(index=number), tensor)])))
    results = WriteResults()
    return SimpleNamespace(async_fn=write, async_fn_args=(0, buckets, results), preload_fn=None), results


@pytest.mark.parametrize("in_background", [True, False], ids=["beside training", "while training waits"])
def test_shards_are_uploaded_in_parts(in_background: bool, bucket: str, server: s3_server.Server, small_parts: Path) -> None:
    before = len(server.requests())
    asked, results = request()
    writer = Writer(asked, f"{bucket}/run/iter_0000001", in_background)
    writer.wait()
    assert writer.error is None
    written = results.get_nowait()
    for number, tensor in enumerate(TENSORS):
        content = storage.read_bytes(f"{bucket}/run/iter_0000001/__0_{number}.distcp")
        (result,) = written[number]
        assert (result.size_in_bytes, result.crc32) == (len(content), zlib.crc32(content))
        assert content.count(tensor.numpy().tobytes()) == 1
    parts = [line for line in server.requests()[before:] if "partNumber=" in line]
    assert len(parts) == 2 * 3
    assert os.listdir(small_parts) == []


def test_a_writer_that_is_killed_leaves_no_object(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: Any) -> None:
        flush, blocks = direct_file.RemoteFile.flush, []

        def counted(file: direct_file.RemoteFile) -> None:
            flush(file)
            blocks.append(1)
            if len(blocks) == 12:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(direct_file.RemoteFile, "flush", counted)
        shard_files.write(*arguments)

    asked, _ = request(killed)
    writer = Writer(asked, f"{bucket}/run/iter_0000001")
    writer.wait()
    assert writer.error is not None
    assert "SIGKILL" in writer.error[0]
    assert s3_server.names(bucket) == set()
