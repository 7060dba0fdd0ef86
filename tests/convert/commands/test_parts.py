"""`lt-convert --shard`: the parts of each direction are the bytes of one process, and each reads its share of the source."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from convert_models import TINY, run_here, write_model

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData
from lt_shared.console.shard_option import Slice

# Large enough that headers do not count, with an embedding that every division cuts.
WIDE = dataclasses.replace(
    TINY, num_layers=4, hidden_size=256, ffn_hidden_size=768, num_attention_heads=8, num_query_groups=4, vocab_size=4000
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sources")
    write_model(directory / "hf", architecture=WIDE, tokenizer=True)
    for name, *options in (
        ("megatron-dist", "--to", "megatron-dist"),
        ("torchtitan", "--to", "torchtitan"),
        ("megatron-legacy", "--to", "megatron-legacy", "--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2),
        ("fp8", "--to", "hf", "--quantize", "fp8-block"),
    ):
        assert run_here(directory / "hf", *options, "-o", directory / name).returncode == 0
    return directory


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that were read from files of tensors since it was set to 0. Every part reads the tokenizer."""
    count, true = [0], os.preadv

    def counting(descriptor: int, buffers: Any, offset: int) -> int:
        length = true(descriptor, buffers, offset)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith((".safetensors", ".distcp", ".pt")):
            count[0] += length
        return length

    monkeypatch.setattr(os, "preadv", counting)
    return count


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("source", "options", "count"),
    [
        ("hf", ("--to", "megatron-dist"), 3),
        ("megatron-dist", ("--to", "hf"), 2),
        ("hf", ("--to", "torchtitan"), 2),
        ("torchtitan", ("--to", "hf"), 3),
        ("megatron-legacy", ("--to", "megatron-dist"), 2),
        ("hf", ("--to", "megatron-legacy", "--target-tensor-parallel-size", "2"), 2),
        ("fp8", ("--to", "hf"), 3),
        ("hf", ("--to", "hf", "--quantize", "fp8-block"), 2),
    ],
)
def test_the_bytes_of_one_process(
    source: str, options: tuple[str, ...], count: int, sources: Path, tmp_path: Path, read_bytes: list[int]
) -> None:
    out = tmp_path / "out"
    assert run_here(sources / source, *options, "-o", out).returncode == 0
    one, read_by_one = content(out), read_bytes[0]
    shutil.rmtree(out)
    for index in range(count):
        read_bytes[0] = 0
        done = run_here(sources / source, *options, "-o", out, "--shard", f"{index}/{count}")
        assert done.returncode == 0, done.stderr
        assert read_bytes[0] <= 1.05 * read_by_one / count
        assert (done.stdout == "") == (index < count - 1), "a manifest after the last part"
    assert content(out) == one
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    again = run_here(sources / source, *options, "-o", out, "--shard", f"0/{count}")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "up to date" in again.stderr


def test_a_damaged_tensor_that_several_parts_read(sources: Path, tmp_path: Path) -> None:
    """The embedding is cut: no part reads all that its recorded checksum covers."""
    source = tmp_path / "source"
    shutil.copytree(sources / "torchtitan", source)
    record = json.loads((source / "lt-convert.json").read_bytes())
    name, offset, length = next(
        (name, piece[0], piece[1])
        for name, entry in record["files"].items()
        for piece in entry["pieces"]
        if piece[3] == "tok_embeddings.weight"
    )
    data = bytearray((source / name).read_bytes())
    data[offset + length // 2] ^= 1
    (source / name).write_bytes(data)
    request = Request(str(source), "hf", str(tmp_path / "out"))
    with pytest.raises(BadData, match=r"tok_embeddings\.weight: not as it was written"):
        for index in range(8):
            conversion.convert_part(request, Slice(index, 8))
    assert not (tmp_path / "out").exists()


def test_inspect_names_the_parts_that_are_missing(sources: Path, tmp_path: Path) -> None:
    run_here(sources / "hf", "--to", "torchtitan", "-o", tmp_path / "out", "--shard", "1/3")
    done = run_here("inspect", tmp_path / "out")
    assert done.returncode == 66
    assert "not finished: part 0 of 3 (never begun), part 2 of 3 (never begun)" in done.stderr
    other = run_here(sources / "hf", "--to", "torchtitan", "--dtype", "bfloat16", "-o", tmp_path / "out", "--shard", "0/3")
    assert other.returncode == 73
    assert 'dtype is null there, and "bfloat16" here' in other.stderr


def test_the_plan_of_the_parts(sources: Path, tmp_path: Path) -> None:
    done = run_here(sources / "hf", "--to", "megatron-dist", "-o", tmp_path / "out", "--shard", "0/4", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert sum(part["bytes"] for part in plan["parts"]) == sum(
        file["bytes"] for file in plan["files"] if "distcp" in file["name"]
    )
    reads = [part["read_bytes"] for part in plan["parts"]]
    assert len(reads) == 4
    assert max(reads) <= 1.05 * sum(reads) / 4
    table = run_here(sources / "hf", "--to", "megatron-dist", "-o", tmp_path / "out", "--shard", "0/4", "--dry-run").stdout
    assert f"part 3: reads {reads[3]:,} bytes" in table


def test_shards_that_cannot_be(sources: Path, tmp_path: Path) -> None:
    for arguments, code in (
        (("-o", "s3://bucket/out", "--shard", "0/2"), 2),
        (("-o", tmp_path / "out", "--shard", "2/2"), 2),
        (("-o", tmp_path / "out", "--shard", "auto"), 78),
    ):
        assert run_here(sources / "hf", "--to", "torchtitan", *arguments).returncode == code
    assert list(tmp_path.iterdir()) == []


def test_one_part_is_one_process(sources: Path, tmp_path: Path) -> None:
    assert run_here(sources / "hf", "--to", "torchtitan", "-o", tmp_path / "out", "--shard", "0/1").stdout
    assert (tmp_path / "out").is_dir()


def test_force_replaces_after_the_last_part(sources: Path, tmp_path: Path) -> None:
    old = write_model(tmp_path / "out", seed=4)
    arguments = (sources / "torchtitan", "--to", "hf", "-o", old, "--shard")
    assert run_here(*arguments, "0/2").returncode == 73
    assert run_here(*arguments, "0/2", "--force").returncode == 0
    assert not (old / "lt-convert.json").exists()
    assert run_here(*arguments, "1/2", "--force").returncode == 0
    assert (old / "lt-convert.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_storage_that_is_read_only(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = run_here(sources / "hf", "--to", "torchtitan", "-o", tmp_path / "out", "--shard", "0/2")
    assert (done.returncode, done.stdout) == (73, "")
    assert "permission denied" in done.stderr
