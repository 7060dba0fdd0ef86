"""Translate Megatron's options of multi-head latent attention and its YaRN scaling.

megatron-core's latent attention uses YaRN by default. With a factor of 1, YaRN is plain RoPE.
"""

import dataclasses
import json
import math
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.megatron_arguments import rope
from lt_shared.models.rope_scaling import YarnScaling
from lt_train.config.settings.model.latent_attention import SIZES
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

YARN_KEYS = (
    "rope_type",
    "rotary_scaling_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
WITHOUT = "without --multi-latent-attention it has no effect"
# Defaults of Megatron-LM's arguments.
DEFAULTS = {"rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}
SCORES = "beside plain RoPE megatron-core still multiplies attention scores by it and the factor"
NORMS = "the latents have no norms then; lt-train's have them, as all models of DeepSeek"


def translate(ledger: Ledger, section: str = "") -> None:
    """Translate the keys below `section`, such as "model.". A value is a list of command-line words or a value of a file."""
    switch = f"{section}multi_latent_attention"
    if not ledger.has(switch) or ledger.peek(switch) is False:
        for key in (*SIZES, "mscale", "mscale_all_dim", "rotary_scaling_factor"):
            ledger.drop(section + key, WITHOUT)
        return
    for key in ("kv_channels", "num_query_groups", "group_query_attention"):
        ledger.drop(section + key, "latent attention has heads of its own sizes")
    norms = f"{section}qk_layernorm"
    if ledger.has(norms) and ledger.peek(norms) is not False:
        ledger.drop(norms, "the latents have norms in any case")
    else:
        ledger.drop_value(norms, ledger.take(norms, False), NORMS, Effect.MODEL)
    texts = {key: _text(ledger.take(section + key)) for key in YARN_KEYS if ledger.has(section + key)}
    try:
        arguments = DEFAULTS | {key: _value(key, text) for key, text in texts.items()}
        is_lost = rope.multiplies_plain_scores(arguments)
        scaling = None if is_lost else rope.latent_scaling(arguments)
    except (ValueError, TypeError, BadConfig):
        for key, text in texts.items():
            ledger.drop_value(section + key, text, "a number is needed there", Effect.MODEL)
        return
    if is_lost:
        ledger.drop_value(f"{section}mscale_all_dim", texts["mscale_all_dim"], SCORES, Effect.MODEL)
    for key, text in texts.items():
        if scaling:
            ledger.set("rope_scaling", _to_config_json(scaling), section + key)
        else:
            ledger.drop_value(section + key, text, "plain RoPE", Effect.NONE)


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _value(key: str, text: str) -> Any:
    """Convert the text of `key`. "None" becomes None. Raises ValueError for a text that is no number."""
    if text == "None":
        return None
    return text if key == "rope_type" else int(text) if key == "original_max_position_embeddings" else _number(text)


def _to_config_json(scaling: YarnScaling) -> str:
    return json.dumps({name: value for name, value in dataclasses.asdict(scaling).items() if value is not None})


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
