"""Conversions from and to a real S3 server: the same results, few requests, bounded memory, and a killed one goes on."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert_models import run_here
from s3_server import Server, names, upload

from lt_convert.commands import checkpoint_comparison, checksum_verification, conversion, inspection
from lt_convert.commands.conversion import Request
from lt_convert.engine import remote_writer
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import REMOTE_BLOCK_BYTES
from lt_shared.console import BadData, CannotCreate, NoInput, UsageError
from lt_shared.models.architecture import Architecture

COMMAND = Path(sys.executable).with_name("lt-convert")
FORMATS = ("megatron-dist", "megatron-legacy", "torchtitan")


@pytest.fixture(scope="module")
def small(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture = Architecture("small", "llama", 1, 32, 88, 4, 2, 250, 512)
    return write_model(tmp_path_factory.mktemp("small") / "small", architecture)


def convert(source: object, to: str, destination: object, **options: Any) -> str:
    return conversion.convert(Request(str(source), to, str(destination), **options)).path


@pytest.mark.parametrize("to", FORMATS)
def test_there_and_back_is_exact(
    to: str, bucket: str, small: Path, stored_tensors: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    source = upload(small, f"{bucket}/hf")
    local = Path(convert(small, to, tmp_path / "local"))
    made = convert(source, to, f"{bucket}/made")
    assert made == f"{bucket}/made{'/release' if 'megatron' in to else ''}"
    written = {str(path.relative_to(tmp_path / "local")) for path in (tmp_path / "local").rglob("*") if path.is_file()}
    assert names(f"{bucket}/made") == written, "and nothing else"
    assert local.is_dir()
    assert checksum_verification.verify(f"{bucket}/made")["problems"] == []
    back = convert(f"{bucket}/made", "hf", tmp_path / "back")
    assert stored_tensors(Path(back)) == stored_tensors(small)


def test_same_command_again_is_up_to_date(
    bucket: str, small: Path, models: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = upload(small, f"{bucket}/hf")
    convert(source, "megatron-dist", f"{bucket}/run")
    capsys.readouterr()
    convert(source, "megatron-dist", f"{bucket}/run")
    assert "up to date" in capsys.readouterr().err
    with pytest.raises(CannotCreate, match="not empty"):
        convert(source, "megatron-dist", f"{bucket}/run", dtype="bfloat16")
    with pytest.raises(CannotCreate, match="not empty"):
        convert(models["tied"], "megatron-dist", f"{bucket}/run")
    convert(models["tied"], "megatron-dist", f"{bucket}/run", force=True)
    assert checkpoint_comparison.compare(f"{bucket}/run", str(models["tied"]))["same"]
    with pytest.raises(UsageError, match="holds the source"):
        convert(source, "megatron-dist", bucket, force=True)


def test_few_requests(server: Server, bucket: str, write_model: Callable[..., Path], tmp_path: Path) -> None:
    """Looking at a checkpoint takes a request for each boundary between two large chunks, not several for each chunk."""
    architecture = Architecture("many", "llama", 8, 128, 384, 4, 2, 250, 512)
    model = write_model(tmp_path / "many", architecture)
    convert(model, "torchtitan", f"{bucket}/titan")
    before = len(server.requests())
    record = inspection.inspect(f"{bucket}/titan")
    requests = server.requests()[before:]
    chunks_bytes = record["bytes"]
    assert record["tensors"] == 8 * 9 + 3
    # Two blocks at most at each of the boundaries, and what lists and describes.
    assert len(requests) < 30 + min(record["tensors"], chunks_bytes // REMOTE_BLOCK_BYTES)
    before = len(server.requests())
    convert(f"{bucket}/titan", "hf", tmp_path / "back")
    values = len(server.requests()) - before
    assert values < 40 + 2 * record["tensors"]


def test_what_was_written_is_not_written_again(
    server: Server, bucket: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three files fails; the same command goes on with it."""
    from lt_convert.containers import dcp

    monkeypatch.setattr(dcp, "FILE_BYTES", 30_000)
    monkeypatch.setattr(remote_writer, "THREADS", 1)
    source = upload(small, f"{bucket}/hf")
    true = remote_writer._upload

    def failing(output: Any, *arguments: Any) -> Any:
        if output.name.endswith("__0_2.distcp"):
            raise KeyboardInterrupt
        return true(output, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(remote_writer, "_upload", failing)
        with pytest.raises(KeyboardInterrupt):
            convert(source, "torchtitan", f"{bucket}/titan")
    there = names(f"{bucket}/titan")
    assert {"__0_0.distcp", "__0_1.distcp", ".lt-convert.journal"} <= there
    assert ".metadata" not in there
    with pytest.raises((BadData, NoInput)):
        convert(f"{bucket}/titan", "hf", tmp_path / "hf")
    before = len(server.requests())
    convert(source, "torchtitan", f"{bucket}/titan")
    requests = server.requests()[before:]
    uploaded = {request for request in requests if re.match(r"(PUT|POST) \S*__0_[01]\.distcp", request)}
    assert not uploaded
    assert ".lt-convert.journal" not in names(f"{bucket}/titan")
    assert checkpoint_comparison.compare(f"{bucket}/titan", source)["same"]
    assert checksum_verification.verify(f"{bucket}/titan")["problems"] == []


def test_killed_upload_goes_on(bucket: str, server: Server, write_model: Callable[..., Path], tmp_path: Path) -> None:
    architecture = Architecture("large", "llama", 4, 256, 1024, 8, 8, 8000, 512)
    model = write_model(tmp_path / "model", architecture, "float16", shards=1)
    arguments = [COMMAND, model, "--to", "megatron-dist", "-o", f"{bucket}/run"]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    before = len(server.requests())
    while child.poll() is None and not any("__0_0.distcp" in request for request in server.requests()[before:]):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert "latest_checkpointed_iteration.txt" not in names(f"{bucket}/run")
    done = run_here(*arguments[1:])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["path"] == f"{bucket}/run/release"
    assert checkpoint_comparison.compare(f"{bucket}/run", str(model))["same"]


def test_tokenizers_travel(bucket: str, small: Path, tmp_path: Path) -> None:
    from lt_shared.tokenizers import tokenizer_files

    source = Path(shutil.copytree(small, tmp_path / "model"))
    gpt2 = tokenizer_files.find(Path(__file__).parents[2] / "demo" / "tokenizer")
    gpt2.copy_to(source)
    convert(upload(source, f"{bucket}/hf"), "megatron-dist", f"{bucket}/run")
    assert "tokenizer/vocab.json" in names(f"{bucket}/run")
    assert inspection.inspect(f"{bucket}/run")["tokenizer"]["sha256"] == gpt2.sha256()
    convert(f"{bucket}/run", "hf", f"{bucket}/back")
    assert "tokenizer.json" in names(f"{bucket}/back")
    assert inspection.inspect(f"{bucket}/back")["tokenizer"]["sha256"] == gpt2.sha256()


GUIDE = Path(__file__).parents[3] / "docs/guides/conversion.md"


def test_examples(server: Server, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the guide that name a store, one after the other."""
    import s3fs

    for name in ("models", "runs"):
        s3fs.S3FileSystem().mkdir(name)
    upload(small, "s3://models/Llama-3.2-1B")
    examples = [line for line in GUIDE.read_text().splitlines() if line.startswith("lt-convert ") and "s3://" in line]
    assert len(examples) > 2
    monkeypatch.chdir(tmp_path)
    for example in examples:
        done = run_here(*example.split()[1:])
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "llama-hf" / "config.json").is_file()


def test_what_is_not_there(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no such directory"):
        convert(f"{bucket}/gone", "hf", tmp_path / "hf")


def test_remote_blocks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from lt_convert.tensors.tensor import tensor_in_files

    for file, count in (("s3://b/f", 4), ("/f", 64)):
        tensor = tensor_in_files("t", "float32", (4096, 4096), [((0, 0), (4096, 4096), file, 0)])
        assert len(list(blocks.row_blocks(tensor))) == count
