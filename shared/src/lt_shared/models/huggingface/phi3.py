"""Phi-3, Phi-3.5 and Phi-4 in transformers: Llama with fused projections, and LongRoPE in the models for 128k positions.

The sizes alone would be a Llama or a Mistral, so the architecture keeps the type. Before transformers 4.43, LongRoPE was called
`su`. `original_max_position_embeddings` beside the scaling, not in it, is the one that transformers takes.
"""

import dataclasses
from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType
from lt_shared.models.rope_scaling import LongRopeScaling

_ORIGINAL = "original_max_position_embeddings"
_ABSENT = {"attention_bias": False, "mlp_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
_OLD_NAMES = ("su", "yarn")


def _write(architecture: Architecture) -> dict[str, Any]:
    architecture = architecture_without_usual_factor(architecture)
    scaling = architecture.rope_scaling
    original = scaling.original_max_position_embeddings if isinstance(scaling, LongRopeScaling) else None
    fields = config_fields.written(architecture)
    fields["rope_parameters"]["partial_rotary_factor"] = architecture.rotary_percent
    if isinstance(scaling, LongRopeScaling):
        fields |= _published(scaling)
    return fields | {
        _ORIGINAL: original or architecture.max_position_embeddings,
        "partial_rotary_factor": architecture.rotary_percent,
        "sliding_window": architecture.sliding_window,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        # transformers' defaults are ids of Phi-3's tokenizer, and no model with a smaller vocabulary loads with them.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def architecture_without_usual_factor(architecture: Architecture) -> Architecture:
    """The architecture without LongRoPE's factor if it equals the ratio of both numbers of positions, the default."""
    scaling = architecture.rope_scaling
    if not isinstance(scaling, LongRopeScaling) or scaling.factor is None:
        return architecture
    if scaling.factor * scaling.original_max_position_embeddings != architecture.max_position_embeddings:
        return architecture
    return dataclasses.replace(architecture, rope_scaling=dataclasses.replace(scaling, factor=None))


def _published(scaling: LongRopeScaling) -> dict[str, Any]:
    """`rope_scaling` as in published files, which transformers to 4.57 takes with these three fields alone; 5 reads it, too.

    A factor or attention factor that those files cannot say needs `rope_parameters`, which is for transformers 5 alone.
    """
    if scaling.attention_factor is not None or scaling.factor is not None:
        return {}
    lists = {"short_factor": list(scaling.short_factor), "long_factor": list(scaling.long_factor)}
    return {"rope_scaling": {"type": "longrope", **lists}}


def _read(config: dict[str, Any], name: str) -> Architecture:
    renamed_config = {
        **config,
        **{field: _renamed(config, field) for field in ("rope_scaling", "rope_parameters") if config.get(field)},
    }
    fields = config_fields.read(
        renamed_config,
        name,
        "phi3",
        absent=_ABSENT,
        rotary_percent=1.0,
        sliding_window=config.get("sliding_window"),
        model_type="phi3",
    )
    return architecture_without_usual_factor(fields)


def _renamed(config: dict[str, Any], field: str) -> dict[str, Any]:
    rope = dict(config[field])
    kind = rope.get("rope_type") or rope.get("type")
    if kind in _OLD_NAMES:
        rope["rope_type"] = "longrope"
    if config.get(_ORIGINAL):
        rope[_ORIGINAL] = config[_ORIGINAL]
    return rope


PHI3 = ModelType("phi3", "Phi3ForCausalLM", _write, _read, defaults={_ORIGINAL: 4096})
