"""Whole conversions: every way and back is exact, nothing is cast or replaced unasked, and results are recognised."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader, load, save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from lt_convert.commands import conversion, inspection
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow import following
from lt_convert.commands.follow.following import FollowRequest
from lt_convert.commands.merge.merging import MergeRequest, merge
from lt_convert.commands.merge.sources import Chosen
from lt_convert.containers import dcp
from lt_convert.formats.checkpoint import LegacyTarget
from lt_convert.formats.huggingface import safetensors_files
from lt_convert.tensors import blocks
from lt_shared.console import BadData, CannotCreate, NoInput, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.models.architecture import Architecture

FORMATS = ("megatron-dist", "megatron-legacy", "torchtitan")

Read = Callable[[Path], dict[str, Any]]


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", ["grouped", "tied", "scaled", "sharded"])
def test_round_trip_is_bit_exact(name: str, to: str, models: dict[str, Path], stored_tensors: Read, tmp_path: Path) -> None:
    options = {"legacy_target": LegacyTarget(2, 3)} if to == "megatron-legacy" else {}
    made = convert(models[name], to, tmp_path / "made", **options)
    back = convert(made, "hf", tmp_path / "hf")
    assert stored_tensors(back) == stored_tensors(models[name])


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(FORMATS, 2)))
def test_any_two_formats_in_a_row(first: str, second: str, models: dict[str, Path], stored_tensors: Read, tmp_path: Path) -> None:
    made = convert(models["sharded"], first, tmp_path / "first")
    again = convert(made, second, tmp_path / "second")
    assert stored_tensors(convert(again, "hf", tmp_path / "hf")) == stored_tensors(models["sharded"])


def test_large_models_are_cut_into_files_and_chunks(
    models: dict[str, Path], stored_tensors: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(dcp, "FILE_BYTES", 20_000)
    monkeypatch.setattr(safetensors_files, "SHARD_BYTES", 30_000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "TRANSPOSED_BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "MATRIX_BYTES", 4000)
    monkeypatch.setattr(blocks, "OF_MATRIX_BYTES", 700)
    monkeypatch.setattr(blocks, "SPAN_BYTES", 500)
    run = convert(models["sharded"], "megatron-dist", tmp_path / "run")
    assert len(list(run.glob("*.distcp"))) > 2
    back = convert(run, "hf", tmp_path / "hf")
    assert len(list(back.glob("model-*.safetensors"))) > 2
    assert all(path.stat().st_size < 35_000 for path in back.glob("model-*.safetensors"))
    assert stored_tensors(back) == stored_tensors(models["sharded"])


def test_release_is_a_run_that_other_tools_recognise(
    models: dict[str, Path], architectures: dict[str, Architecture], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    directory = convert(models["scaled"], "megatron-dist", run)
    assert checkpoint_layout.read_tracker(run) == checkpoint_layout.RELEASE
    assert checkpoint_layout.resolve_checkpoint_directory(run) == directory == run / "release"
    saved = RunRecord.read(directory)
    assert dataclasses.replace(saved.architecture, name="") == dataclasses.replace(architectures["scaled"], name="")
    assert (saved.padded_vocab_size, saved.dtype) == (256, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("to", ["hf", *FORMATS])
def test_cast_only_when_asked(to: str, dtype: str, models: dict[str, Path], tmp_path: Path) -> None:
    source = models["grouped"]
    if to == "hf":
        source = convert(source, "megatron-dist", tmp_path / "source")
    result = convert(source, to, tmp_path / "cast", dtype=dtype)
    back = result if to == "hf" else convert(result, "hf", tmp_path / "back")
    with safe_open(models["grouped"] / "model.safetensors", "pt") as file:
        original = file.get_tensor("model.layers.1.mlp.up_proj.weight")
    with safe_open(back / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("model.layers.1.mlp.up_proj.weight"), original.to(getattr(torch, dtype)))
    assert json.loads((back / "config.json").read_text())["dtype"] == dtype


def test_cast_that_overflows_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "place" / "source")
    _edit(source / "model.safetensors", lambda tensors: tensors["model.norm.weight"].fill_(1e6))
    with pytest.raises(BadData, match=r"model\.norm\.weight: has values too large for float16"):
        convert(source, "megatron-dist", tmp_path / "place" / "run", dtype="float16")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["source"]


def _edit(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_dtypes_are_kept_tensor_by_tensor_and_never_mixed(models: dict[str, Path], stored_tensors: Read, tmp_path: Path) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "source")
    _edit(source / "model.safetensors", lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.bfloat16)}))
    back = convert(convert(source, "megatron-dist", tmp_path / "run"), "hf", tmp_path / "hf")
    assert stored_tensors(back) == stored_tensors(source)
    name = "model.layers.0.self_attn.q_proj.weight"
    _edit(source / "model.safetensors", lambda t: t.update({name: t[name].to(torch.bfloat16)}))
    with pytest.raises(BadData, match=r"linear_qkv.weight: its pieces are stored as bfloat16 and float32"):
        convert(source, "megatron-dist", tmp_path / "other")
    with pytest.raises(BadData, match=r"linear_qkv.weight: its pieces are stored as bfloat16 and float32"):
        convert(source, "megatron-dist", tmp_path / "other", dtype="bfloat16")
    same = convert(source, "hf", tmp_path / "same", dtype="bfloat16")
    assert convert(same, "megatron-dist", tmp_path / "other").is_dir()


def test_layers_of_two_dtypes_are_not_stacked(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "source")
    layer = "model.layers.1."
    _edit(
        source / "model.safetensors",
        lambda t: t.update({name: value.to(torch.float16) for name, value in t.items() if name.startswith(layer)}),
    )
    message = r"layers\.0\.input_layernorm\.weight is float32, and \S+layers\.1\.input_layernorm\.weight is float16"
    with pytest.raises(BadData, match=message) as refusal:
        convert(source, "megatron-dist", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "--dtype bfloat16" in str(refusal.value.hint)
    same = convert(source, "hf", tmp_path / "same", dtype="bfloat16")
    for checkpoint in (convert(same, "megatron-dist", tmp_path / "run"), convert(source, "torchtitan", tmp_path / "titan")):
        assert len(FileSystemReader(_release(checkpoint)).read_metadata().state_dict_metadata) > 10


def _release(checkpoint: Path) -> Path:
    return checkpoint / "release" if (checkpoint / "release").is_dir() else checkpoint


def test_same_command_again_is_up_to_date(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "source")
    first = convert(source, "megatron-dist", tmp_path / "run")
    stamp = (first / ".metadata").stat().st_mtime_ns
    capsys.readouterr()
    assert convert(source, "megatron-dist", tmp_path / "run") == first
    assert "up to date" in capsys.readouterr().err
    assert (first / ".metadata").stat().st_mtime_ns == stamp
    convert(source, "megatron-dist", tmp_path / "run", force=True)
    assert (first / ".metadata").stat().st_mtime_ns != stamp


def test_changed_source_options_or_result_is_not_up_to_date(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "source")
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


@pytest.mark.parametrize("destination", ["source", "source/..", "link", "source/"])
def test_source_is_never_replaced(destination: str, models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["grouped"], tmp_path / "place" / "source")
    (tmp_path / "place" / "link").symlink_to(source)
    with pytest.raises(UsageError, match="holds the source"):
        conversion.convert(Request(str(source), "megatron-dist", f"{tmp_path}/place/{destination}", force=True))
    assert (source / "model.safetensors").exists()


def test_source_in_the_wanted_format_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the format hf already"):
        convert(models["grouped"], "hf", tmp_path / "hf")
    cast = convert(models["grouped"], "hf", tmp_path / "hf", dtype="bfloat16")
    assert all(tensor.dtype == torch.bfloat16 for tensor in load_file(cast / "model.safetensors").values())


def test_several_destinations() -> None:
    assert conversion.destinations(["a"], "/out") == [("a", "/out")]
    assert conversion.destinations(["x/a", "s3://b/c/"], "/out/") == [("x/a", "/out/a"), ("s3://b/c/", "/out/c")]
    runs = ["/x/run1/release", "/x/run2/release"]
    assert conversion.destinations(runs, "/out") == [(runs[0], "/out/run1"), (runs[1], "/out/run2")]
    for sources in (["x/a", "y/a/"], ["a", "-"]):
        with pytest.raises(UsageError, match="several checkpoints would go to"):
            conversion.destinations(sources, "/out")
    with pytest.raises(UsageError, match="empty path"):
        conversion.destinations(["a"], "")


@pytest.mark.parametrize("destination", [".", "..", "../.."])
def test_the_working_directory_is_never_replaced(
    destination: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "place" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(UsageError, match="holds the working directory"):
        conversion.convert(Request(str(models["grouped"]), "torchtitan", destination, force=True))
    assert here.is_dir()


def test_a_destination_may_be_named_in_any_way(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to a place on another disk is followed, and the same place has one name."""
    source = shutil.copytree(models["grouped"], tmp_path / "source")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path)
    convert(source, "torchtitan", tmp_path / "link" / "made")
    assert (tmp_path / "disk" / "made" / "run.json").is_file()
    for names in (("source/", "disk/../link/made"), (f"file://{source}", f"file://{tmp_path}/disk/made/")):
        conversion.convert(Request(names[0], "torchtitan", names[1]))
        assert "up to date" in capsys.readouterr().err
    for _ in range(2):
        convert(source, "torchtitan", source / "inside")
    assert "up to date" in capsys.readouterr().err


def test_a_tied_output_that_differs_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["tied"], tmp_path / "source")
    _edit(source / "model.safetensors", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    convert(source, "megatron-dist", tmp_path / "run")
    _edit(source / "model.safetensors", lambda t: t["lm_head.weight"][7].add_(1))
    with pytest.raises(BadData, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        convert(source, "megatron-dist", tmp_path / "other")


def averaged_checkpoint(model: Path, directory: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint of `model` as lt-train --ema-decay saves it, and the averages by Megatron's names: the weights plus 1."""
    made = convert(model, "megatron-dist", directory / "made", dtype="bfloat16", optimizer=False)
    reader = FileSystemReader(made)
    metadata = reader.read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(info.size, dtype=info.properties.dtype)
        for key, info in metadata.items()
        if isinstance(info, TensorStorageMetadata)
    }
    load(tensors, storage_reader=reader, no_dist=True)
    averages = {key: tensor.float() + 1 for key, tensor in tensors.items()}
    saved = directory / "run" / "iter_0000003"
    save({**tensors, **{f"optimizer.state.ema.{key}": average for key, average in averages.items()}}, checkpoint_id=saved)
    for name in (checkpoint_layout.COMMON, checkpoint_layout.CONFIGURATION):
        shutil.copy(made / name, saved)
    return saved, averages


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_averages_in_the_place_of_the_weights(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, averages = averaged_checkpoint(models["grouped"], tmp_path)
    again = convert(source, "megatron-dist", tmp_path / "float32", ema=True, dtype="float32")
    reader = FileSystemReader(again)
    found = {key: torch.empty_like(average) for key, average in averages.items()}
    load(found, storage_reader=reader, no_dist=True)
    assert all(torch.equal(found[key], average) for key, average in averages.items())
    # As the weights are stored, in bfloat16.
    plain, averaged = convert(source, "hf", tmp_path / "plain"), convert(source, "hf", tmp_path / "averaged", ema=True)
    assert "has averaged weights, too: --ema converts them" in capsys.readouterr().err
    weights, tensors = (load_file(path / "model.safetensors") for path in (plain, averaged))
    assert weights.keys() == tensors.keys()
    for name, weight in weights.items():
        assert torch.equal(tensors[name], (weight.float() + 1).bfloat16())
    assert inspection.inspect(str(source))["averages"] and not inspection.inspect(str(plain))["averages"]
    chosen = [Chosen(str(source), 1.0), Chosen(str(models["grouped"]), 0.0)]
    with pytest.raises(NoInput, match="has no averaged weights"):
        merge(MergeRequest(chosen, "hf", str(tmp_path / "merged"), ema=True))
    other, _ = averaged_checkpoint(models["grouped"], tmp_path / "second")
    merge(MergeRequest([Chosen(str(path), None) for path in (source, other)], "hf", str(tmp_path / "merged"), ema=True))
    for name, tensor in load_file(tmp_path / "merged" / "model.safetensors").items():
        assert torch.equal(tensor, tensors[name])
    (tmp_path / "run" / checkpoint_layout.TRACKER).write_text("3")
    request = FollowRequest(str(tmp_path / "run"), "hf", str(tmp_path / "followed"), ema=True)
    assert following.follow(request, None, lambda _: None)
    for name, tensor in load_file(tmp_path / "followed" / "iter_0000003" / "model.safetensors").items():
        assert torch.equal(tensor, tensors[name])
    with pytest.raises(UsageError, match="follows with ema True, not None"):
        following.follow(dataclasses.replace(request, ema=False), None, lambda _: None)
    # Neither result is taken for the other one.
    with pytest.raises(CannotCreate):
        convert(source, "hf", tmp_path / "plain", ema=True)
    with pytest.raises(NoInput, match="has no averaged weights"):
        convert(tmp_path / "made", "hf", tmp_path / "none", ema=True)
    with pytest.raises(NoInput, match="has no averaged weights"):
        convert(models["grouped"], "torchtitan", tmp_path / "none", ema=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_average_that_is_missing_is_noticed(models: dict[str, Path], tmp_path: Path) -> None:
    source, averages = averaged_checkpoint(models["grouped"], tmp_path)
    kept = list(averages)[1:]
    reader = FileSystemReader(source)
    tensors = {key: torch.empty_like(averages[key]) for key in averages}
    stored = {key: tensors[key].bfloat16() for key in averages} | {f"optimizer.state.ema.{key}": tensors[key] for key in kept}
    load(stored, storage_reader=reader, no_dist=True)
    for file in (*source.glob("*.distcp"), source / ".metadata"):
        file.unlink()
    save(stored, checkpoint_id=source)
    with pytest.raises(BadData, match="has no average of "):
        convert(source, "hf", tmp_path / "hf")
