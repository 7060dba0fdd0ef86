"""Of Mistral's models with a vision tower the language model is read: names in files, and in memory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Ministral3ForCausalLM, Mistral3Config, Mistral3ForConditionalGeneration, Mistral4ForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 250, "pad_token_id": None}
CLASSES = {"ministral3": Ministral3ForCausalLM, "mistral4": Mistral4ForCausalLM}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("names", ["written", "in memory"])
@pytest.mark.parametrize("kind", CLASSES)
def test_the_language_model_is_read(kind: str, names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AutoConfig.for_model(**huggingface.to_config(preset(f"tiny-{kind}"), "float32") | SIZES)
    config = Mistral3Config(
        text_config=text.to_dict(),
        vision_config={"model_type": "pixtral", "image_size": 28, "patch_size": 14, **VISION},
        tie_word_embeddings=text.tie_word_embeddings,
    )
    model = Mistral3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "model")
    if names == "in memory":
        stored = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if name != "lm_head.weight" or not text.tie_word_embeddings
        }
        save_file({name: tensor.clone() for name, tensor in stored.items()}, tmp_path / "model" / "model.safetensors")
    prefixes = {re.sub(r"layers.*", "", name) for name in load_file(tmp_path / "model" / "model.safetensors")}
    assert any("language_model" in prefix for prefix in prefixes)
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "there")))
    assert "left out what is not the language model: " in (said := capsys.readouterr().err) and "vision_tower" in said
    convert(Request(str(tmp_path / "there"), "hf", str(tmp_path / "back")))
    back = CLASSES[kind].from_pretrained(tmp_path / "back").eval()
    tokens = torch.arange(48)[None] * 5 % 250
    with torch.no_grad():
        torch.testing.assert_close(back(tokens).logits, model(tokens).logits)
