"""Qwen3.5 as it is published: a vision tower, layers of multi-token prediction and stacked experts beside the language model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.console import BadConfig, BadData, UsageError
from lt_shared.models import huggingface
from lt_shared.models.presets import preset


def published(name: str, place: Path) -> dict[str, torch.Tensor]:
    """Write a random model with the names of the published files; return the language model as transformers saves it."""
    torch.manual_seed(3)
    config = huggingface.to_config(preset(name), "bfloat16")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    model.save_pretrained(place / "transformers")
    saved = load_file(place / "transformers/model.safetensors")
    tensors = {f"model.language_model.{key.removeprefix('model.')}": value for key, value in model.state_dict().items()}
    tensors["lm_head.weight"] = tensors.pop("model.language_model.lm_head.weight")
    if preset(name).tie_embeddings:
        del tensors["lm_head.weight"]
    assert any(key.endswith(".mlp.experts.gate_up_proj") for key in tensors) == bool(preset(name).num_experts)
    others = {"model.visual.patch_embed.proj.weight": torch.ones(2, 2), "mtp.fc.weight": torch.ones(2, 2)}
    (place / "hf").mkdir()
    save_file({key: value.clone() for key, value in (tensors | others).items()}, place / "hf/model.safetensors", {"format": "pt"})
    kind = config["model_type"].removesuffix("_text")
    whole: dict[str, Any] = {"model_type": kind, "text_config": config, "vision_config": {"depth": 2}}
    (place / "hf/config.json").write_text(json.dumps(whole | {"tie_word_embeddings": config["tie_word_embeddings"]}))
    return saved


@pytest.mark.parametrize("name", ["tiny-qwen3.5", "tiny-qwen3.5-moe"])
def test_the_language_model_is_taken(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = published(name, tmp_path)
    convert(Request(str(tmp_path / "hf"), "megatron-dist", str(tmp_path / "megatron")))
    note = capfd.readouterr().err
    assert "left out what is not the language model" in note
    assert "mtp.fc.weight" in note
    assert "model.visual.patch_embed.proj.weight" in note
    convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == saved.keys()
    assert all(torch.equal(back[key], saved[key]) for key in saved)
    assert json.loads((tmp_path / "back/config.json").read_text())["model_type"] == preset(name).model_type or "qwen3_5_text"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["linear_attention"] * 3}, "layer_types has 3 layers, and num_hidden_layers is 4"),
        ({"layer_types": ["linear_attention"] * 3 + ["mamba"]}, "layer 3 in layer_types is 'mamba'"),
        ({"layer_types": ["linear_attention"] * 4}, "all layers are linear_attention"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"linear_num_key_heads": 3}, "4 value heads of gated delta layers do not share 3 key heads"),
        ({"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_settings_of_another_model_are_refused(change: dict[str, Any], message: str) -> None:
    config = huggingface.to_config(preset("tiny-qwen3.5"), "float32") | change
    with pytest.raises(BadConfig, match=message):
        huggingface.from_config(config, "model")


@pytest.mark.parametrize("target", ["megatron-hybrid", "megatron-legacy", "torchtitan"])
def test_formats_without_such_layers_are_refused(target: str, tmp_path: Path) -> None:
    published("tiny-qwen3.5", tmp_path)
    with pytest.raises((BadData, UsageError), match=r"gated delta|has no models of the qwen3_5 family"):
        convert(Request(str(tmp_path / "hf"), target, str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
