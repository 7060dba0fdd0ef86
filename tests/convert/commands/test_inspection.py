"""What inspect says of a checkpoint, in every format."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert.commands import conversion, inspection
from lt_convert.commands.conversion import Request
from lt_convert.formats.checkpoint import LegacyTarget
from lt_shared.console import NoInput
from lt_shared.models.architecture import Architecture


@pytest.mark.parametrize("to", ["hf", "megatron-dist", "megatron-legacy", "torchtitan"])
def test_every_format_tells_the_same(
    to: str, models: dict[str, Path], architectures: dict[str, Architecture], tmp_path: Path
) -> None:
    source = models["grouped"]
    if to != "hf":
        options: dict[str, Any] = {"legacy_target": LegacyTarget(2, 3)} if to == "megatron-legacy" else {}
        source = Path(conversion.convert(Request(str(source), to, str(tmp_path / "made"), **options)).path)
    record = inspection.inspect(str(source))
    json.dumps(record)
    architecture = architectures["grouped"]
    assert record["format"] == to
    assert record["parameters"] == architecture.parameters()
    assert record["dtypes"] == {"float32": architecture.parameters()}
    assert record["bytes"] == 4 * architecture.parameters()
    assert record["tensors"] == 3 + 3 * 9
    assert (record["trained"], record["tokenizer"], record["optimizer"]) == (True, None, None)
    if to == "megatron-legacy":
        assert record["parallel"]["tensor_parallel"] == 2
        assert record["parallel"]["pipeline_parallel"] == 3


@pytest.mark.parametrize("trained", [True, False])
def test_a_model_that_was_never_trained(trained: bool, models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["grouped"], tmp_path / "fresh")
    path = tmp_path / "fresh" / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        torch.nn.init.ones_(tensor) if tensor.dim() == 1 else torch.nn.init.normal_(tensor, std=0.02)
        if trained and "norm" in name:
            tensor[0] += 0.001
    save_file(tensors, path, {"format": "pt"})
    record = inspection.inspect(str(tmp_path / "fresh"))
    assert record["trained"] == trained


def test_table(models: dict[str, Path]) -> None:
    output = io.StringIO()
    inspection.write_table(inspection.inspect(str(models["scaled"])), output)
    lines = {line.split("  ")[0]: line for line in output.getvalue().splitlines()}
    assert "base 20,000, scaled by 32" in lines["rope"]
    assert "4 heads of 16, 2 for keys and values" in lines["attention"]
    assert "256, padded to 256" in lines["vocabulary"]
    assert "iteration" not in lines


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NoInput):
        inspection.inspect(str(tmp_path))
