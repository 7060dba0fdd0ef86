"""The multipliers of muP are Megatron-LM's: by hand, and, from megatron-core 0.19 on, those of its configuration."""

import dataclasses
from typing import Any

import pytest
from megatron.core.transformer import TransformerConfig

from lt_shared.models.megatron_arguments import from_arguments, mup, to_arguments
from lt_shared.models.presets import preset

WIDE = {"use_mup": True, "mup_base_hidden_size": 512}
HAS_MUP = any(field.name == "use_mup" for field in dataclasses.fields(TransformerConfig))
# By the options beside WIDE, of a width of 2,048 in heads of 64: the factors of embeddings and scores, the divisor of logits.
OPTIONS: dict[str, tuple[dict[str, Any], tuple[float, float, float]]] = {
    "defaults": ({}, (1.0, 1 / 64, 4.0)),
    "base heads": ({"mup_base_head_dim": 64}, (1.0, 1 / 8, 4.0)),
    "usual power": ({"mup_attn_scale_power": 0.5}, (1.0, 1 / 8, 4.0)),
    "multipliers": ({"mup_embedding_mult": 10.0, "mup_output_mult": 0.5}, (10.0, 1 / 64, 2.0)),
    "base model": ({"mup_base_hidden_size": None}, (1.0, 1 / 64, 1.0)),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_multipliers(case: str) -> None:
    options, (embeddings, scores, logits) = OPTIONS[case]
    fields = mup.multipliers(WIDE | options, 2048, 64, is_latent=False)
    assert fields == {"embedding_multiplier": embeddings, "softmax_scale": pytest.approx(scores), "logits_scaling": logits}


@pytest.mark.skipif(not HAS_MUP, reason="megatron-core has muP from 0.19 on")
@pytest.mark.parametrize("case", OPTIONS)
def test_multipliers_are_those_of_megatron_core(case: str) -> None:
    options = WIDE | OPTIONS[case][0]
    config: Any = TransformerConfig(num_layers=2, hidden_size=2048, num_attention_heads=32, **options)
    fields = mup.multipliers(options, 2048, 64, is_latent=False)
    assert fields["softmax_scale"] == config.softmax_scale
    assert 1 / fields["logits_scaling"] == pytest.approx(config.mup_output_mult)
    assert fields["embedding_multiplier"] == config.mup_embedding_mult
    assert mup.width_multiplier(options, 2048) == config.mup_width_mult


def test_arguments_of_megatron_lm_are_read() -> None:
    model = preset("llama3.2-1b")
    read = from_arguments(to_arguments(model) | WIDE, model.name)
    assert (read.embedding_multiplier, read.softmax_scale, read.logits_scaling) == (1.0, 1 / 64, 4.0)
    # Beside the multipliers that lt-train writes, the options say nothing more.
    multiplied = dataclasses.replace(model, embedding_multiplier=3.0, softmax_scale=0.5, logits_scaling=7.0)
    assert from_arguments(to_arguments(multiplied) | WIDE, model.name) == multiplied
