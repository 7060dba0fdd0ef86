"""Conversions against the software of both sides: megatron-core saves and loads, transformers saves and loads."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert import conversion
from lt_convert.conversion import Request
from lt_shared import checkpoint_layout
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import BadData, CannotCreate, UsageError

# Two implementations of the same fp32 network: the order of sums differs. Logits here are of size 1 to 10.
FP32_TOLERANCE = 2e-5
# Rounding of activations to 8 bits of mantissa, in another order.
BF16_TOLERANCE = 0.15


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, destination, **options)).path)


def hf_logits(directory: Path, tokens: list[list[int]]) -> numpy.ndarray:
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.float().numpy()


def hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of the bytes of every tensor in a Hugging Face directory, with its dtype and shape."""
    found = {}
    for path in directory.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                content = tensor.view(torch.uint8).numpy().tobytes()
                found[name] = f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(content).hexdigest()}"
    return found


@pytest.mark.parametrize("name", ["grouped", "tied", "scaled", "tensor", "pipeline", "bfloat16"])
def test_megatron_checkpoint_gives_the_same_logits_in_transformers(
    name: str, megatron_checkpoints: dict[str, Any], tokens: list[list[int]], tmp_path: Path
) -> None:
    saved = megatron_checkpoints[name]
    result = convert(saved.directory, "hf", tmp_path / "hf")
    expected = saved.logits[..., : saved.architecture.vocab_size]
    found = hf_logits(result, tokens)
    assert found.shape == expected.shape
    assert abs(found - expected).max() < (BF16_TOLERANCE if name == "bfloat16" else FP32_TOLERANCE)
    assert expected.std() > 0.3
    config = AutoConfig.from_pretrained(result)
    assert config.dtype == (torch.bfloat16 if name == "bfloat16" else torch.float32)
    assert config.tie_word_embeddings == saved.architecture.tie_embeddings


def test_hf_checkpoint_gives_the_same_logits_in_megatron(
    megatron: Callable[..., None], hf_checkpoints: dict[str, Any], tokens: list[list[int]], tmp_path: Path
) -> None:
    names = [name for name in hf_checkpoints if name != "sharded"]
    jobs = [
        {
            "architecture": hf_checkpoints[name].architecture.to_record(),
            "padded_vocab_size": 256,
            "tokens": tokens,
            "load": str(convert(hf_checkpoints[name].directory, "megatron-dist", tmp_path / name)),
            "logits": str(tmp_path / f"{name}.npy"),
        }
        for name in names
    ]
    megatron(jobs)
    for name in names:
        saved = hf_checkpoints[name]
        found = numpy.load(tmp_path / f"{name}.npy")
        assert abs(found[..., : saved.architecture.vocab_size] - saved.logits).max() < FP32_TOLERANCE, name
        if not saved.architecture.tie_embeddings:
            assert not found[..., saved.architecture.vocab_size :].any(), "padding rows are zeros"


@pytest.mark.parametrize("name", ["grouped", "tied", "scaled", "sharded"])
def test_hf_round_trip_is_bit_exact(name: str, hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    saved = hf_checkpoints[name]
    convert(saved.directory, "megatron-dist", tmp_path / "run")
    back = convert(tmp_path / "run", "hf", tmp_path / "hf")
    assert hashes(back) == hashes(saved.directory)
    before, after = (AutoConfig.from_pretrained(directory) for directory in (saved.directory, back))
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "vocab_size", "dtype"):
        assert getattr(before, field) == getattr(after, field), field


@pytest.mark.parametrize("name", ["tensor", "bfloat16"])
def test_megatron_round_trip_keeps_the_padding_rows(name: str, megatron_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    convert(megatron_checkpoints[name].directory, "hf", tmp_path / "hf")
    run = convert(tmp_path / "hf", "megatron-dist", tmp_path / "run")
    before, after = (_model_tensors(directory) for directory in (megatron_checkpoints[name].directory, run))
    assert before == after


def _model_tensors(directory: Path) -> dict[str, bytes]:
    """Every model tensor of a torch_dist checkpoint as torch's own reader gives it."""
    from torch.distributed.checkpoint import FileSystemReader, load

    metadata = FileSystemReader(directory).read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.items()
        if hasattr(entry, "size") and not key.startswith("optimizer.")
    }
    load(state, storage_reader=FileSystemReader(directory), no_dist=True)
    return {key: tensor.view(torch.uint8).numpy().tobytes() for key, tensor in state.items()}


def test_large_models_are_cut_into_files_and_chunks(
    hf_checkpoints: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lt_convert import tensors, torch_dist_writer

    monkeypatch.setattr(torch_dist_writer, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(torch_dist_writer, "FILE_BYTES", 20_000)
    monkeypatch.setattr(conversion, "SHARD_BYTES", 30_000)
    monkeypatch.setattr(tensors, "BLOCK_BYTES", 1000)
    saved = hf_checkpoints["sharded"]
    run = convert(saved.directory, "megatron-dist", tmp_path / "run")
    assert len(list(run.glob("*.distcp"))) > 2
    back = convert(run, "hf", tmp_path / "hf")
    assert len(list(back.glob("model-*.safetensors"))) > 2
    assert all(path.stat().st_size < 35_000 for path in back.glob("model-*.safetensors"))
    assert hashes(back) == hashes(saved.directory)
    AutoModelForCausalLM.from_pretrained(back)


def test_release_is_a_run_that_other_tools_recognise(hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    directory = convert(hf_checkpoints["scaled"].directory, "megatron-dist", run)
    assert checkpoint_layout.read_tracker(run) == checkpoint_layout.RELEASE
    assert checkpoint_layout.resolve(run) == directory == run / "release"
    saved = RunRecord.read(directory)
    architecture = hf_checkpoints["scaled"].architecture
    assert dataclasses.replace(saved.architecture, name="") == dataclasses.replace(architecture, name="")
    assert (saved.padded_vocab_size, saved.dtype) == (256, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("to", ["hf", "megatron-dist"])
def test_cast_only_when_asked(to: str, dtype: str, hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    source = hf_checkpoints["grouped"].directory
    if to == "hf":
        source = convert(source, "megatron-dist", tmp_path / "source")
    result = convert(source, to, tmp_path / "cast", dtype=dtype)
    back = result if to == "hf" else convert(result, "hf", tmp_path / "back")
    with safe_open(hf_checkpoints["grouped"].directory / "model.safetensors", "pt") as file:
        original = file.get_tensor("model.layers.1.mlp.up_proj.weight")
    with safe_open(back / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("model.layers.1.mlp.up_proj.weight"), original.to(getattr(torch, dtype)))
    assert json.loads((back / "config.json").read_text())["dtype"] == dtype


def test_cast_that_overflows_is_refused(hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    source = shutil.copytree(hf_checkpoints["grouped"].directory, tmp_path / "source")
    _edit(source / "model.safetensors", lambda tensors: tensors["model.norm.weight"].fill_(1e6))
    with pytest.raises(BadData, match=r"model\.norm\.weight: has values too large for float16"):
        convert(source, "megatron-dist", tmp_path / "run", dtype="float16")
    assert not (tmp_path / "run").exists()


def _edit(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_same_command_again_is_up_to_date(
    hf_checkpoints: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shutil.copytree(hf_checkpoints["grouped"].directory, tmp_path / "source")
    first = convert(source, "megatron-dist", tmp_path / "run")
    stamp = (first / ".metadata").stat().st_mtime_ns
    capsys.readouterr()
    assert convert(source, "megatron-dist", tmp_path / "run") == first
    assert "up to date" in capsys.readouterr().err
    assert (first / ".metadata").stat().st_mtime_ns == stamp
    convert(source, "megatron-dist", tmp_path / "run", force=True)
    assert (first / ".metadata").stat().st_mtime_ns != stamp


def test_changed_source_options_or_result_is_not_up_to_date(hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    source = shutil.copytree(hf_checkpoints["grouped"].directory, tmp_path / "source")
    run = convert(source, "megatron-dist", tmp_path / "run")
    with pytest.raises(CannotCreate, match="not empty"):
        convert(source, "megatron-dist", tmp_path / "run", dtype="bfloat16")
    (run / "common.pt").write_bytes(b"")
    with pytest.raises(CannotCreate, match="not empty"):
        convert(source, "megatron-dist", tmp_path / "run")
    convert(source, "megatron-dist", tmp_path / "run", force=True)
    _edit(source / "model.safetensors", lambda tensors: tensors["model.norm.weight"].zero_())
    with pytest.raises(CannotCreate, match="not empty"):
        convert(source, "megatron-dist", tmp_path / "run")


@pytest.mark.parametrize("destination", ["source", "source/..", "link"])
def test_source_is_never_replaced(destination: str, hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    source = shutil.copytree(hf_checkpoints["grouped"].directory, tmp_path / "place" / "source")
    (tmp_path / "place" / "link").symlink_to(source)
    with pytest.raises(UsageError, match="holds the source"):
        convert(source, "megatron-dist", tmp_path / "place" / destination, force=True)
    assert (source / "model.safetensors").exists()


def test_source_in_the_wanted_format_is_refused(hf_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the format hf already"):
        convert(hf_checkpoints["grouped"].directory, "hf", tmp_path / "hf")
