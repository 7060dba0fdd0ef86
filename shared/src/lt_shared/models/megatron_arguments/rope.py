"""Rotary embeddings and their scalings as Megatron-LM's arguments, and back.

Llama 3.1's scaling is `--use-rope-scaling`; only the factor is an argument, and the other three numbers are constants in
megatron-core. YaRN has one set of arguments for latent attention (`rope_type yarn`, `rotary_scaling_factor`, `mscale` ...) and
another for GPT models (`--position-embedding-type yarn`, `yarn_rotary_scaling_factor` ...). Linear scaling and LongRoPE have
none: they are kept under names that begin with `lt_`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models import rope_scaling
from lt_shared.models.architecture import Architecture
from lt_shared.models.rope_scaling import AnyScaling, RopeScaling, YarnScaling

_LLAMA3_PREFIX = "lt_rope_"
_OTHER_SCALING, _ATTENTION_FACTOR = "lt_rope_scaling", "lt_yarn_attention_factor"
_EXACT_BASE = "lt_rotary_base"
# YaRN's fields under Megatron's names: with latent attention, and without.
_LATENT = {
    "factor": "rotary_scaling_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}
_GROUPED = {
    "factor": "yarn_rotary_scaling_factor",
    "original_max_position_embeddings": "yarn_original_max_position_embeddings",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale": "yarn_mscale",
    "mscale_all_dim": "yarn_mscale_all_dim",
    "truncate": "yarn_correction_range_round_to_int",
}
# What `MLATransformerConfig` has where nothing is said.
_ORIGINAL_POSITIONS = 4096
# megatron-core multiplies attention scores by `mscale_all_dim` and the factor even where the type is plain RoPE.
_LATENT_WITHOUT_SCALING = {"rope_type": "rope", "rotary_scaling_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    """The arguments of positions."""
    scaling, llama = architecture.rope_scaling, architecture.family == "llama"
    llama3 = scaling if isinstance(scaling, RopeScaling) else None
    return {
        "position_embedding_type": _kind(architecture) if llama else "learned_absolute",
        "rotary_base": int(architecture.rotary_base),
        **({_EXACT_BASE: architecture.rotary_base} if architecture.rotary_base != int(architecture.rotary_base) else {}),
        "rotary_percent": architecture.rotary_percent,
        "use_rope_scaling": llama3 is not None,
        "rope_scaling_factor": llama3.factor if llama3 else 8.0,
        **({} if llama3 is None or is_computable_by_megatron(llama3) else _other_numbers(llama3)),
        **_other_scaling(architecture),
    }


def _kind(architecture: Architecture) -> str:
    yarn = isinstance(architecture.rope_scaling, YarnScaling) and not architecture.latent_attention
    return "yarn" if yarn else "rope"


def is_computable_by_megatron(scaling: AnyScaling) -> bool:
    """Whether megatron-core can compute it: of Llama 3.1's scaling everything but the factor is a constant there."""
    if isinstance(scaling, YarnScaling):
        return scaling.attention_factor is None
    return isinstance(scaling, RopeScaling) and scaling == RopeScaling(scaling.factor)


def _other_numbers(scaling: RopeScaling) -> dict[str, float]:
    fields = dataclasses.asdict(scaling)
    return {_LLAMA3_PREFIX + name: fields[name] for name in fields if name not in ("factor", "rope_type")}


def _other_scaling(architecture: Architecture) -> dict[str, Any]:
    """The arguments of any scaling but Llama 3.1's."""
    scaling, latent = architecture.rope_scaling, architecture.latent_attention is not None
    if scaling is None or isinstance(scaling, RopeScaling):
        return _LATENT_WITHOUT_SCALING if latent else {}
    if not isinstance(scaling, YarnScaling):
        return {_OTHER_SCALING: dataclasses.asdict(scaling)} | (_LATENT_WITHOUT_SCALING if latent else {})
    names = _LATENT if latent else _GROUPED
    scaling_arguments = {argument: getattr(scaling, field) for field, argument in names.items()}
    if latent:
        # A model without these numbers: megatron-core's magnitude, their quotient, is YaRN's own with 1 and 0.
        scaling_arguments |= {
            "rope_type": "yarn",
            "mscale": scaling.mscale or 1.0,
            "mscale_all_dim": scaling.mscale_all_dim or 0.0,
        }
    return scaling_arguments | ({} if scaling.attention_factor is None else {_ATTENTION_FACTOR: scaling.attention_factor})


def is_rotary(arguments: Mapping[str, Any], name: str) -> bool:
    """Whether positions are rotary; otherwise they are learned. Raises BadConfig for a third kind."""
    kind = arguments["position_embedding_type"]
    if kind not in ("rope", "yarn", "learned_absolute"):
        raise BadConfig(f"{name}: position embedding type {kind!r} is not known here")
    return bool(kind != "learned_absolute")


def from_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an architecture that say how positions are rotated."""
    return {
        "rotary_base": float(arguments.get(_EXACT_BASE) or arguments.get("rotary_base", 10000)),
        "rotary_percent": arguments.get("rotary_percent", 1.0),
        "rope_scaling": _scaling(arguments),
    }


def _scaling(arguments: Mapping[str, Any]) -> AnyScaling | None:
    if arguments.get(_OTHER_SCALING):
        return rope_scaling.from_record(dict(arguments[_OTHER_SCALING]))
    if arguments.get("multi_latent_attention"):
        return latent_scaling(arguments)
    if arguments.get("position_embedding_type") == "yarn":
        return _yarn(arguments, _GROUPED)
    if not arguments.get("use_rope_scaling"):
        return None
    names = (field.name for field in dataclasses.fields(RopeScaling))
    llama3_numbers = {name: arguments[_LLAMA3_PREFIX + name] for name in names if _LLAMA3_PREFIX + name in arguments}
    return RopeScaling(arguments.get("rope_scaling_factor", 8.0), **llama3_numbers)


def latent_scaling(arguments: Mapping[str, Any]) -> YarnScaling | None:
    """Return the RoPE scaling of latent attention.

    Without an option for it, Megatron-LM leaves `rope_type` None, and megatron-core then uses YaRN.

    Raises BadConfig for plain RoPE whose attention scores megatron-core multiplies all the same.
    """
    factor = arguments.get(_LATENT["factor"])
    if multiplies_plain_scores(arguments):
        raise BadConfig(
            f"rope_type rope with rotary_scaling_factor {factor} and mscale_all_dim {arguments[_LATENT['mscale_all_dim']]}: "
            "megatron-core multiplies attention scores by them even so, and no other format can say that"
        )
    if not _has_yarn(arguments):
        return None
    if factor is None:
        raise BadConfig("latent attention without a rotary_scaling_factor, for which megatron-core has had several defaults")
    if factor == 1:
        # Plain RoPE.
        return None
    set_arguments = {name: value for name, value in arguments.items() if value is not None}
    return _yarn({_LATENT["original_max_position_embeddings"]: _ORIGINAL_POSITIONS} | set_arguments, _LATENT)


def multiplies_plain_scores(arguments: Mapping[str, Any]) -> bool:
    """Whether megatron-core multiplies the scores of latent attention by a factor that no scaling of positions says."""
    has_factor = (arguments.get(_LATENT["factor"]) or 1) > 1 and bool(arguments.get(_LATENT["mscale_all_dim"]))
    return has_factor and not _has_yarn(arguments)


def _has_yarn(arguments: Mapping[str, Any]) -> bool:
    return (arguments.get("rope_type") or "yarn") == "yarn"


def _yarn(arguments: Mapping[str, Any], names: Mapping[str, str]) -> YarnScaling:
    yarn_fields = {field: arguments[argument] for field, argument in names.items() if arguments.get(argument) is not None}
    return YarnScaling(**yarn_fields, attention_factor=arguments.get(_ATTENTION_FACTOR))
