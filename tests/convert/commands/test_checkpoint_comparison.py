"""The comparison finds every difference between two checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert.commands import checkpoint_comparison, conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "megatron-legacy"])
def test_conversions_are_the_same_model(to: str, models: dict[str, Path], tmp_path: Path) -> None:
    made = convert(models["tied"], to, tmp_path / "made")
    record = checkpoint_comparison.compare(str(models["tied"]), str(made))
    assert record["same"], record
    assert record["compared"] == 2 + 3 * 9
    assert record["formats"] == ["hf", to]


def copy(source: Path, destination: Path, change: Callable[[dict[str, torch.Tensor]], Any], **config: Any) -> str:
    shutil.copytree(source, destination)
    tensors = load_file(destination / "model.safetensors")
    change(tensors)
    save_file(tensors, destination / "model.safetensors", {"format": "pt"})
    content = json.loads((destination / "config.json").read_text())
    (destination / "config.json").write_text(json.dumps(content | config))
    return str(destination)


def test_values_that_differ(models: dict[str, Path], tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][:3] += 0.5
        tensors["model.layers.2.input_layernorm.weight"][0] = float("nan")

    record = checkpoint_comparison.compare(str(models["grouped"]), copy(models["grouped"], tmp_path / "other", change))
    assert (record["same"], record["configuration"]) == (False, [])
    found = {entry["name"]: entry for entry in record["tensors"]}
    assert set(found) == {"model.norm.weight", "model.layers.2.input_layernorm.weight"}
    norm = found["model.norm.weight"]
    assert (norm["difference"], norm["unequal"], norm["of"]) == ("values", 3, 32)
    assert norm["largest"] == pytest.approx(0.5)
    assert found["model.layers.2.input_layernorm.weight"]["largest"] == float("inf")
    assert list(checkpoint_comparison.lines(record))[-1].endswith("(hf): 2 of 30 tensors differ")


def test_configuration_comes_first(models: dict[str, Path], tmp_path: Path) -> None:
    """A wrong RoPE changes no tensor."""
    config = json.loads((models["scaled"] / "config.json").read_text())
    rope = config["rope_parameters"] | {"factor": 8.0}
    other = copy(models["scaled"], tmp_path / "other", lambda tensors: None, rope_parameters=rope, rope_scaling=None)
    record = checkpoint_comparison.compare(str(models["scaled"]), other)
    assert (record["same"], record["tensors"]) == (False, [])
    assert [entry["field"] for entry in record["configuration"]] == ["rope_scaling"]
    assert next(checkpoint_comparison.lines(record)).startswith("configuration: rope_scaling is ")


def test_another_dtype_differs_by_its_rounding(models: dict[str, Path], tmp_path: Path) -> None:
    cast = convert(models["grouped"], "hf", tmp_path / "cast", dtype="bfloat16")
    record = checkpoint_comparison.compare(str(models["grouped"]), str(cast))
    assert not record["same"]
    assert len(record["tensors"]) == record["compared"]
    assert {entry["difference"] for entry in record["tensors"]} == {"float32 and bfloat16"}
    assert max(entry["largest"] for entry in record["tensors"]) < 0.01


def test_a_tied_output_is_compared_with_the_embedding(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["tied"], tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match=r"lm_head\.weight differs"):
        checkpoint_comparison.compare(str(source), str(models["tied"]))


def test_other_models_differ_in_shapes_and_names(models: dict[str, Path]) -> None:
    record = checkpoint_comparison.compare(str(models["grouped"]), str(models["tied"]))
    differences = {entry["name"]: entry["difference"] for entry in record["tensors"]}
    assert differences["lm_head.weight"] == "only in a"
    assert differences["model.layers.0.self_attn.k_proj.weight"] == "[16, 32] and [32, 32]"


@pytest.mark.parametrize("change", ["an id", "a merge", "another kind"])
def test_the_same_weights_with_another_tokenizer_are_another_model(change: str, models: dict[str, Path], tmp_path: Path) -> None:
    """Its ids mean other text."""
    tokenizer = Path(__file__).parents[2] / "demo" / "tokenizer"
    for name in ("one", "other"):
        shutil.copytree(models["grouped"], tmp_path / name)
        shutil.copytree(tokenizer, tmp_path / name, dirs_exist_ok=True)
    assert checkpoint_comparison.compare(str(tmp_path / "one"), str(tmp_path / "other"))["same"]
    vocabulary = tmp_path / "other" / "vocab.json"
    ids = json.loads(vocabulary.read_text())
    if change == "an id":
        first, second, *_ = ids
        vocabulary.write_text(json.dumps(ids | {first: ids[second], second: ids[first]}))
    elif change == "a merge":
        merges = (tmp_path / "other" / "merges.txt").read_text().splitlines(keepends=True)
        (tmp_path / "other" / "merges.txt").write_text("".join([*merges[:-2], merges[-1], merges[-2]]))
    else:
        (tmp_path / "other" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))
    record = checkpoint_comparison.compare(str(tmp_path / "one"), str(tmp_path / "other"))
    assert (record["same"], record["tensors"]) == (False, [])
    assert [entry["field"] for entry in record["configuration"]] == ["tokenizer"]
    lines = list(checkpoint_comparison.lines(record))
    assert lines[0].startswith("configuration: tokenizer is ")
    assert lines[-1].endswith("the configurations differ")
