"""Megatron's options of multi-head latent attention, and of the YaRN that goes with it, as lt-train's.

megatron-core rotates with YaRN there unless it is told not to. With a factor of 1 that is plain RoPE.
"""

import json
import math
from typing import Any

from lt_train.config.settings.model.latent_attention import SIZES
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

OF_YARN = (
    "rope_type",
    "rotary_scaling_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
WITHOUT = "without --multi-latent-attention it has no effect"
# megatron-core's `MLATransformerConfig`.
ORIGINAL_POSITIONS, MSCALE, MSCALE_ALL_DIM = 4096, 1.0, 0.0
SCORES = "beside plain RoPE megatron-core still multiplies attention scores by it and the factor"
NORMS = "the latents have no norms then; lt-train's have them, as all models of DeepSeek"


def translate(ledger: Ledger, section: str = "") -> None:
    """The keys of `section`, as "model.", whose values are words of a command line or those of a file."""
    switch = f"{section}multi_latent_attention"
    if not ledger.has(switch) or ledger.peek(switch) is False:
        for key in (*SIZES, "mscale", "mscale_all_dim"):
            ledger.drop(section + key, WITHOUT)
        return
    for key in ("kv_channels", "num_query_groups", "group_query_attention"):
        ledger.drop(section + key, "latent attention has heads of its own sizes")
    ledger.drop(f"{section}transformer_impl", "lt-train computes latent attention by PyTorch's layers")
    norms = f"{section}qk_layernorm"
    if ledger.has(norms) and ledger.peek(norms) is not False:
        ledger.drop(norms, "the latents have norms in any case")
    else:
        ledger.drop_value(norms, ledger.take(norms, False), NORMS, Effect.MODEL)
    given = {key: _text(ledger.take(section + key)) for key in OF_YARN if ledger.has(section + key)}
    try:
        scaling = _yarn(given)
    except ValueError:
        for key, text in given.items():
            ledger.drop_value(section + key, text, "a number is needed there", Effect.MODEL)
        return
    if scaling is None and _multiplies_scores(given):
        ledger.drop_value(f"{section}mscale_all_dim", given["mscale_all_dim"], SCORES, Effect.MODEL)
    for key, text in given.items():
        if scaling:
            ledger.set("rope_scaling", scaling, section + key)
        else:
            ledger.drop_value(section + key, text, "plain RoPE", Effect.NONE)


def _multiplies_scores(given: dict[str, str]) -> bool:
    """What megatron-core does to plain RoPE, too."""
    return _number(given.get("rotary_scaling_factor", "1")) > 1 and _number(given.get("mscale_all_dim", "0")) != 0


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _yarn(given: dict[str, str]) -> str | None:
    """The scaling as in config.json, None for plain RoPE. Raises ValueError for a text that is no number."""
    factor = _number(given.get("rotary_scaling_factor", "1"))
    if given.get("rope_type", "yarn") != "yarn" or factor == 1:
        return None
    numbers: dict[str, float] = {
        "factor": factor,
        "original_max_position_embeddings": int(given.get("original_max_position_embeddings", ORIGINAL_POSITIONS)),
        "mscale": _number(given.get("mscale", str(MSCALE))),
        "mscale_all_dim": _number(given.get("mscale_all_dim", str(MSCALE_ALL_DIM))),
        **{key: _number(given[key]) for key in ("beta_fast", "beta_slow") if key in given},
    }
    return json.dumps({"rope_type": "yarn", **numbers})


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
