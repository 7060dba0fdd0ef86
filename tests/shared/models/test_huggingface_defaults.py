"""A config.json that leaves a setting out is read as transformers reads it, whose defaults differ by model type, or refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import from_config, to_config
from lt_shared.models.presets import PRESETS

TINY = sorted(name for name, shape in PRESETS.items() if name.startswith("tiny-") and shape.family == "llama")
# transformers says one prediction layer for a file that names none, and then neither makes nor reads it.
UNSAID = ("architectures", "model_type", "num_nextn_predict_layers")


def of_transformers(config: dict[str, Any], place: Path) -> dict[str, Any] | None:
    """What it makes of the file; None where it raises."""
    (place / "config.json").write_text(json.dumps(config))
    try:
        found: dict[str, Any] = AutoConfig.from_pretrained(place).to_dict()
    except (StrictDataclassError, IndexError):
        return None
    return found


def read(config: dict[str, Any]) -> Architecture | None:
    """What decides what the model computes; None where it is refused."""
    try:
        return dataclasses.replace(from_config(config, "model"), init_std=0.0, moe_aux_loss_coeff=0.0, mtp_num_layers=0)
    except BadConfig:
        return None


@pytest.mark.parametrize("name", TINY)
def test_a_setting_that_is_left_out_is_transformers_default(name: str, tmp_path: Path) -> None:
    whole = to_config(PRESETS[name], "float32")
    whole |= {"rope_parameters": None} if whole.get("rope_scaling", {}) is None else {}
    for setting in whole.keys() - set(UNSAID):
        config = {field: value for field, value in whole.items() if field != setting}
        found, theirs = read(config), of_transformers(config, tmp_path)
        assert None in (found, theirs) or found == read(theirs or {}), setting


@pytest.mark.parametrize("name", ["tiny-gpt-oss", "tiny-gemma2", "tiny-gemma3"])
def test_transformers_runs_a_model_without_the_windows_of_its_family(name: str) -> None:
    shape = dataclasses.replace(PRESETS[name], sliding_window=None, window_attn_skip_freq=None, local_rotary_base=None)
    config = to_config(shape, "float32")
    assert from_config(config, name) == shape
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        assert model(torch.zeros(1, 4, dtype=torch.long)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tiny-gemma2", {"sliding_window": None}, "layers with a window, and sliding_window is null"),
        ("tiny-gemma3", {"sliding_window": None}, "layers with a window, and sliding_window is null"),
        ("tiny-gemma2", {"query_pre_attn_scalar": 0}, "config.json is malformed"),
        ("tiny-gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("tiny-deepseek-v3", {"original_max_position_embeddings": 128}, "is 256 in the rope scaling, and 128 beside it"),
    ],
)
def test_what_has_no_meaning_or_two_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(to_config(PRESETS[name], "float32") | settings, "model")
