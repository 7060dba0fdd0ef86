"""Verification finds every changed byte of a result, and every difference between two checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert.commands import conversion, verification
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData, NoInput


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "megatron-legacy"])
def test_a_changed_byte_anywhere_is_found(to: str, models: dict[str, Path], tmp_path: Path) -> None:
    made = convert(models["grouped"], to, tmp_path / "made")
    record = verification.verify(str(made))
    assert record["problems"] == []
    files = [path for path in made.rglob("*") if path.is_file() and path.name != "lt-convert.json"]
    assert record["files"] == len(files)
    assert record["bytes"] == sum(path.stat().st_size for path in files)
    for path in files:
        content = path.read_bytes()
        for position in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            assert len(verification.verify(str(made))["problems"]) == 1, (path, position)
        path.write_bytes(content)
    assert verification.verify(f"{made}/")["problems"] == []


def test_problems_name_the_tensor_and_the_file(models: dict[str, Path], tmp_path: Path) -> None:
    source = convert(models["grouped"], "megatron-dist", tmp_path / "run")
    made = convert(source, "hf", tmp_path / "hf")
    path = made / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] += 1
    (made / "config.json").unlink()
    (made / "generation_config.json").write_text("")
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    begin, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    content[start + begin : start + end] = tensors["model.layers.1.mlp.up_proj.weight"].numpy().tobytes()
    path.write_bytes(content)
    assert verification.verify(str(made))["problems"] == [
        f"{path}: model.layers.1.mlp.up_proj.weight changed since it was written",
        f"{made}/generation_config.json: 0 bytes, expected 3",
        f"{made}/config.json: missing",
    ]


def test_without_checksums(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(NoInput, match=r"lt-convert\.json: no such file"):
        verification.verify(str(models["grouped"]))
    with pytest.raises(NoInput):
        verification.verify(str(tmp_path / "gone"))
    shutil.copytree(models["grouped"], tmp_path / "hf")
    (tmp_path / "hf" / "lt-convert.json").write_text("junk")
    with pytest.raises(BadData, match="malformed"):
        verification.verify(str(tmp_path / "hf"))


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "megatron-legacy"])
def test_conversions_are_the_same_model(to: str, models: dict[str, Path], tmp_path: Path) -> None:
    made = convert(models["tied"], to, tmp_path / "made")
    record = verification.compare(str(models["tied"]), str(made))
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

    record = verification.compare(str(models["grouped"]), copy(models["grouped"], tmp_path / "other", change))
    assert (record["same"], record["configuration"]) == (False, [])
    found = {entry["name"]: entry for entry in record["tensors"]}
    assert set(found) == {"model.norm.weight", "model.layers.2.input_layernorm.weight"}
    norm = found["model.norm.weight"]
    assert (norm["difference"], norm["unequal"], norm["of"]) == ("values", 3, 32)
    assert norm["largest"] == pytest.approx(0.5)
    assert found["model.layers.2.input_layernorm.weight"]["largest"] == float("inf")
    assert list(verification.lines(record))[-1].endswith("(hf): 2 of 30 tensors differ")


def test_configuration_comes_first(models: dict[str, Path], tmp_path: Path) -> None:
    """A wrong RoPE changes no tensor."""
    config = json.loads((models["scaled"] / "config.json").read_text())
    rope = config["rope_parameters"] | {"factor": 8.0}
    other = copy(models["scaled"], tmp_path / "other", lambda tensors: None, rope_parameters=rope, rope_scaling=None)
    record = verification.compare(str(models["scaled"]), other)
    assert (record["same"], record["tensors"]) == (False, [])
    assert [entry["field"] for entry in record["configuration"]] == ["rope_scaling"]
    assert next(verification.lines(record)).startswith("configuration: rope_scaling is ")


def test_another_dtype_differs_by_its_rounding(models: dict[str, Path], tmp_path: Path) -> None:
    cast = convert(models["grouped"], "hf", tmp_path / "cast", dtype="bfloat16")
    record = verification.compare(str(models["grouped"]), str(cast))
    assert not record["same"]
    assert len(record["tensors"]) == record["compared"]
    assert {entry["difference"] for entry in record["tensors"]} == {"float32 and bfloat16"}
    assert max(entry["largest"] for entry in record["tensors"]) < 0.01


def test_a_tied_output_is_compared_with_what_it_repeats(models: dict[str, Path], tmp_path: Path) -> None:
    source = shutil.copytree(models["tied"], tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match=r"lm_head\.weight differs"):
        verification.compare(str(source), str(models["tied"]))


def test_other_models_differ_in_shapes_and_names(models: dict[str, Path]) -> None:
    record = verification.compare(str(models["grouped"]), str(models["tied"]))
    differences = {entry["name"]: entry["difference"] for entry in record["tensors"]}
    assert differences["lm_head.weight"] == "only in a"
    assert differences["model.layers.0.self_attn.k_proj.weight"] == "[16, 32] and [32, 32]"
