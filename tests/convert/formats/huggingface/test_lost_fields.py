"""Fields of config.json that a conversion loses are named, and those that change nothing are not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.huggingface.lost_fields import lost_fields

LOST = {
    "attention_dropout": 0.3,
    "use_cache": False,
    "output_router_logits": True,
    "auto_map": {"AutoModelForCausalLM": "modeling.Model"},
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    "architectures": ["LlamaForSequenceClassification"],
}


def test_lost_fields_are_told(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | LOST))
    conversion.convert(Request(str(place), "megatron-dist", str(tmp_path / "run")))
    names = ", ".join(f"config.json's {name}" for name in sorted(LOST))
    assert f"{place}: not taken along: {names} (6 in all)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "olmo2", "deepseek_v3"])
def test_a_stock_configuration_loses_nothing(kind: str) -> None:
    config: dict[str, Any] = json.loads(AutoConfig.for_model(kind).to_json_string(use_diff=False))
    assert lost_fields(config | {"architectures": ["LlamaForCausalLM"]}) == ()


def test_dropout_of_gpt2_is_told() -> None:
    config = json.loads(AutoConfig.for_model("gpt2").to_json_string(use_diff=False))
    assert lost_fields(config | {"architectures": ["GPT2LMHeadModel"]}) == tuple(
        f"config.json's {name}" for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop")
    )
