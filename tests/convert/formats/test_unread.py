"""What is not read is named for what it is, with the way around it."""

import re
import shutil
from pathlib import Path

import pytest

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData, ToolError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"


def error(source: Path, tmp_path: Path) -> ToolError:
    with pytest.raises(ToolError) as found:
        conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "result")))
    assert found.value.hint
    return found.value


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["config.json", "pytorch_model.bin"], r"pytorch_model\.bin: PyTorch weights"),
        (["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"], "PyTorch weights"),
        (["params.json", "consolidated.00.pth", "tokenizer.model"], "Meta's original"),
        (["params.json", "consolidated.safetensors", "tekken.json"], "Mistral's original"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter without its model"),
        (["model-Q4_K_M.gguf"], "GGUF"),
        (["config.json", "model.onnx"], "ONNX"),
        (["config.json", "flax_model.msgpack"], "Flax"),
        (["config.json", "tf_model.h5"], "TensorFlow"),
        (["run.nemo"], "NeMo 1"),
        (["last.ckpt"], "Lightning"),
        (["state.pt"], "pickles"),
    ],
)
def test_kinds(names: list[str], message: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    place.mkdir()
    for name in names:
        (place / name).write_text("{}")
    found = error(place, tmp_path)
    assert isinstance(found, BadData)
    assert re.search(message, str(found)), str(found)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_pointers_of_git_lfs(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    (place / name).write_bytes(POINTER)
    found = error(place, tmp_path)
    assert f"{name}: a git-lfs pointer" in str(found)
    assert "git lfs pull" in str(found.hint)


def test_a_pointer_in_place_of_a_shard(models: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    conversion.convert(Request(str(models["grouped"]), "torchtitan", str(run)))
    shard = min(run.glob("*.distcp"))
    shard.write_bytes(POINTER)
    with pytest.raises(ToolError, match=r"distcp: a git-lfs pointer"):
        conversion.convert(Request(str(run), "hf", str(tmp_path / "hf"), verify=False))
