"""OLMo Hybrid: files as transformers saves them, whose convolution is divided wrongly, and as they are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

TINY = preset("tiny-olmo-hybrid")


def test_both_forms_have_the_same_weights(tmp_path: Path) -> None:
    assert TINY.gated_delta is not None
    keys, values = TINY.gated_delta.key_size, TINY.gated_delta.value_size
    assert values == 2 * keys
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**huggingface.to_config(TINY, "float32")))
    model.save_pretrained(tmp_path / "saved")
    weight = model.state_dict()["model.layers.0.linear_attn.conv1d.weight"]
    tensors = load_file(tmp_path / "saved/model.safetensors")
    assert len(tensors["model.layers.0.linear_attn.q_conv1d.weight"]) == (2 * keys + values) // 3
    convert(Request(str(tmp_path / "saved"), "megatron-dist", str(tmp_path / "megatron")))
    convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    parts = [back[f"model.layers.0.linear_attn.{letter}_conv1d.weight"] for letter in "qkv"]
    assert list(map(len, parts)) == [keys, keys, values]
    assert torch.equal(torch.cat(parts), weight)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    # The published name of the norm behind attention.
    attention = f"model.layers.{TINY.num_layers - 1}."
    back[f"{attention}post_attention_layernorm.weight"] = back.pop(f"{attention}feedforward_layer_norm.weight")
    (tmp_path / "published").mkdir()
    save_file(back, tmp_path / "published/model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "back/config.json").read_text()) | {"rope_parameters": None}
    (tmp_path / "published/config.json").write_text(json.dumps(config))
    convert(Request(str(tmp_path / "published"), "megatron-dist", str(tmp_path / "other")))
    convert(Request(str(tmp_path / "other"), "hf", str(tmp_path / "again")))
    again = load_file(tmp_path / "again/model.safetensors")
    assert all(torch.equal(again[name], value) for name, value in load_file(tmp_path / "back/model.safetensors").items())
