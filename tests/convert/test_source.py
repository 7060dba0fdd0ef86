"""Which checkpoint is meant, and what is refused about a Hugging Face directory."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lt_convert import conversion, source
from lt_convert.conversion import Request
from lt_shared import checkpoint_layout
from lt_shared.console import BadConfig, BadData, NoInput, ToolError


@pytest.fixture
def hf(hf_checkpoints: dict[str, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(hf_checkpoints["scaled"].directory, tmp_path / "model"))


def test_run_directory_means_its_tracked_checkpoint(megatron_checkpoints: dict[str, Any], tmp_path: Path) -> None:
    newest = checkpoint_layout.iteration_directory(tmp_path, 20)
    shutil.copytree(megatron_checkpoints["tied"].directory, newest)
    shutil.copytree(newest, checkpoint_layout.iteration_directory(tmp_path, 10))
    checkpoint_layout.write_tracker(tmp_path, 20)
    assert source.locate(str(tmp_path)) == (newest, source.MEGATRON_DIST)
    made = conversion.convert(Request(str(tmp_path), "hf", tmp_path / "hf"))
    assert (made.iteration, made.format) == (20, "hf")


LINES = [
    '{"v":1,"kind":"checkpoint","path":"gone","format":"megatron-dist"}',
    '{"v":1,"kind":"checkpoint","path":"MODEL","format":"hf"}',
    '{"v":1,"kind":"end","count":2}',
]


def test_last_checkpoint_of_a_manifest(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(LINES).replace("MODEL", str(hf)) + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert source.locate("-") == (hf, source.HF)
    (tmp_path / "manifest").write_text(text)
    assert source.locate(f"@{tmp_path / 'manifest'}") == (hf, source.HF)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"gone\n{hf}\n"))
    assert source.locate("-") == (hf, source.HF)


@pytest.mark.parametrize(
    "text", ["", LINES[1], '{"v":1,"kind":"dataset","prefix":"d","tokens":1}\n{"v":1,"kind":"end","count":1}']
)
def test_manifest_without_a_checkpoint(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(NoInput):
        source.locate("-")


def refuse(hf: Path, error: type[ToolError] = BadData) -> str:
    with pytest.raises(error) as caught:
        conversion.convert(Request(str(hf), "megatron-dist", hf.parent / "run"))
    assert sorted(path.name for path in hf.parent.iterdir()) == [hf.name]
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model type 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is set"),
        ({"model_type": "qwen2"}, "a model of the qwen2 family, only plain llama is known here"),
        ({"hidden_size": "wide"}, "config.json is malformed"),
        ({"num_hidden_layers": 4}, "is missing"),
        ({"num_hidden_layers": 2}, "has no place"),
        ({"vocab_size": 255}, "the configuration says"),
        ({"tie_word_embeddings": True}, "lm_head.weight has no place"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling type 'yarn'"),
        ({"rope_parameters": {"rope_theta": 10000.5}}, "rotary base is a whole number"),
    ],
)
def test_configuration_of_another_model(hf: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | {"rope_scaling": None} | change))
    assert message in refuse(hf)


def test_rope_scaling_that_megatron_cannot_compute(hf: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    config["rope_parameters"]["low_freq_factor"] = 2.0
    (hf / "config.json").write_text(json.dumps(config))
    assert "Megatron fixes every number of RoPE scaling but the factor" in refuse(hf)


@pytest.mark.parametrize("content", ["", "[1]", "junk"])
def test_malformed_configuration(hf: Path, content: str) -> None:
    (hf / "config.json").write_text(content)
    assert "config.json: not a model configuration" in refuse(hf)


def test_computed_buffers_of_old_files_are_ignored(hf: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(hf / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, hf / "model.safetensors", {"format": "pt"})
    conversion.convert(Request(str(hf), "megatron-dist", hf.parent / "run"))


def test_remote_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="needs a local"):
        conversion.convert(Request("s3://bucket/model", "hf", tmp_path / "out"))
