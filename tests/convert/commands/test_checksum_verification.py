"""Verification finds every changed byte of a result."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lt_convert.commands import checksum_verification, conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData, NoInput


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "megatron-legacy"])
def test_a_changed_byte_anywhere_is_found(to: str, models: dict[str, Path], tmp_path: Path) -> None:
    made = convert(models["grouped"], to, tmp_path / "made")
    record = checksum_verification.verify(str(made))
    assert record["problems"] == []
    files = [path for path in made.rglob("*") if path.is_file() and path.name != "lt-convert.json"]
    assert record["files"] == len(files)
    assert record["bytes"] == sum(path.stat().st_size for path in files)
    for path in files:
        content = path.read_bytes()
        for position in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            assert len(checksum_verification.verify(str(made))["problems"]) == 1, (path, position)
        path.write_bytes(content)
    assert checksum_verification.verify(f"{made}/")["problems"] == []


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
    assert checksum_verification.verify(str(made))["problems"] == [
        f"{path}: model.layers.1.mlp.up_proj.weight changed since it was written",
        f"{made}/generation_config.json: 0 bytes, expected 3",
        f"{made}/config.json: missing",
    ]


def test_without_checksums(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(NoInput, match=r"lt-convert\.json: no such file"):
        checksum_verification.verify(str(models["grouped"]))
    with pytest.raises(NoInput):
        checksum_verification.verify(str(tmp_path / "gone"))
    shutil.copytree(models["grouped"], tmp_path / "hf")
    (tmp_path / "hf" / "lt-convert.json").write_text("junk")
    with pytest.raises(BadData, match="malformed"):
        checksum_verification.verify(str(tmp_path / "hf"))
