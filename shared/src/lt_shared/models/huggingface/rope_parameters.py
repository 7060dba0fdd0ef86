"""The rotary settings of config.json.

transformers 5 keeps them in `rope_parameters`; older files have `rope_theta` and `rope_scaling`. Both are read; both are written,
so that transformers 4.43 and later load the result with the same frequencies. Where both are there and differ, versions of
transformers would compute different models: that is refused.
"""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.rope_scaling import SCALINGS, AnyScaling, LinearScaling, LongRopeScaling, RopeScaling, YarnScaling

DEFAULT = "default"
ORIGINAL = "original_max_position_embeddings"
FULL, SLIDING = "full_attention", "sliding_attention"


def written(base: float, scaling: AnyScaling | None) -> dict[str, Any]:
    """Both spellings."""
    fields = {} if scaling is None else {key: value for key, value in dataclasses.asdict(scaling).items() if value is not None}
    rope = {"rope_type": DEFAULT, **{key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}}
    return {
        "rope_theta": base,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {**rope, "rope_theta": base},
    }


def read(config: dict[str, Any], name: str, default_base: float = 10000.0) -> tuple[float, AnyScaling | None]:
    """The rotary base and its scaling. Raises BadConfig where the older and the newer field say different things."""
    bases_and_scalings: list[tuple[float, AnyScaling | None]] = []
    for field in ("rope_scaling", "rope_parameters"):
        rope = dict(config.get(field) or {})
        bases = [value for value in (rope.get("rope_theta"), config.get("rope_theta")) if value is not None]
        if len(bases) == 2 and bases[0] != bases[1]:
            raise BadConfig(f"{name}: rope_theta and {field} contradict each other", "remove the wrong one")
        base = (*bases, default_base)[0]
        if rope or not bases_and_scalings:
            bases_and_scalings.append((float(base) if type(base) is int else base, scaling_of(rope, config, name)))
    if not config.get("rope_scaling"):
        return bases_and_scalings[-1]
    if bases_and_scalings[0] != bases_and_scalings[-1]:
        raise BadConfig(
            f"{name}: rope_scaling and rope_parameters contradict each other",
            "remove the wrong one; transformers 5 computes with rope_scaling",
        )
    return bases_and_scalings[0]


def written_by_layer_type(base: float, scaling: AnyScaling | None, local_base: float | None) -> dict[str, Any]:
    """Both spellings, of a family whose layers with a window rotate by `local_base`, without a scaling; None is as all layers."""
    fields = written(base, scaling)
    full = fields["rope_parameters"]
    local = full if local_base is None else {"rope_type": DEFAULT, "rope_theta": local_base}
    return fields | {"rope_parameters": {FULL: full, SLIDING: local}}


def read_by_layer_type(
    config: dict[str, Any], name: str, default_base: float, local_field: str = "", default_local_base: float | None = None
) -> tuple[float, AnyScaling | None, float | None]:
    """The rotary base and scaling of the layers without a window, and the base of the others, None where they rotate alike.

    `local_field` is the older name of the latter base, whose default is `default_local_base`, or the former. Raises BadConfig
    where fields contradict each other, and for rotary settings that are not by kind of layer: transformers 5 ignores those.
    """
    by_type = dict(config.get("rope_parameters") or {})
    if by_type and not {FULL, SLIDING} & set(by_type):
        raise BadConfig(
            f"{name}: rope_parameters are not by kind of layer, and versions of transformers disagree about what they mean",
            f"put them under {FULL} and {SLIDING}",
        )
    base, scaling = read({**config, "rope_parameters": by_type.get(FULL)}, name, default_base)
    sliding = dict(by_type.get(SLIDING) or {})
    local_bases = [value for value in (sliding.get("rope_theta"), config.get(local_field)) if value is not None]
    if len(set(local_bases)) > 1:
        raise BadConfig(f"{name}: {local_field} and rope_parameters contradict each other", "remove the wrong one")
    local = local_bases[0] if local_bases else base if default_local_base is None else default_local_base
    local_scaling = scaling_of(sliding, config, name)
    if (local, local_scaling) == (base, scaling):
        return base, scaling, None
    if local_scaling is not None:
        raise BadConfig(f"{name}: the layers with a window have a rope scaling of their own, which no model here has")
    return base, scaling, float(local) if type(local) is int else local


def rotary_percent(config: dict[str, Any], name: str, default: float) -> float:
    """Read the rotated part of a head. Raises BadConfig if the config.json holds two different values."""
    places = (config, dict(config.get("rope_scaling") or {}), dict(config.get("rope_parameters") or {}))
    factors = {place["partial_rotary_factor"] for place in places if place.get("partial_rotary_factor") is not None}
    if len(factors) > 1:
        raise BadConfig(f"{name}: partial_rotary_factor is {' and '.join(map(repr, factors))}", "remove the wrong one")
    return factors.pop() if factors else default


def scaling_of(rope: dict[str, Any], config: dict[str, Any], name: str) -> AnyScaling | None:
    """Return the scaling in `rope`, one set of rotary settings. Raises BadConfig for an unknown type or a missing number."""
    kind = rope.get("rope_type") or rope.get("type") or DEFAULT
    if kind == DEFAULT:
        return None
    if kind not in SCALINGS:
        raise BadConfig(f"{name}: rope scaling type {kind!r}, known here are {', '.join(SCALINGS)}")
    if rope.get("mscale_all_dim") and kind != "yarn":
        raise BadConfig(
            f"{name}: mscale_all_dim beside {kind} scaling, which scales DeepSeek's scores, and only yarn's is known here"
        )
    if kind == "llama3":
        required = [field.name for field in dataclasses.fields(RopeScaling) if field.name != "rope_type"]
        _check_complete(rope, required, name)
        return RopeScaling(**{field: rope[field] for field in required})
    if kind == "linear":
        _check_complete(rope, ["factor"], name)
        return LinearScaling(rope["factor"])
    original = _original_positions(rope, config, name)
    if kind == "longrope":
        _check_complete(rope, ["short_factor", "long_factor"], name)
        factors = (tuple(rope["short_factor"]), tuple(rope["long_factor"]))
        return LongRopeScaling(*factors, original, rope.get("factor"), rope.get("attention_factor"))
    given = rope.get("factor")
    factor = config["max_position_embeddings"] / original if given is None else given
    return YarnScaling(
        factor,
        original,
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        mscale=rope.get("mscale"),
        mscale_all_dim=rope.get("mscale_all_dim"),
        attention_factor=rope.get("attention_factor"),
        truncate=rope.get("truncate", True),
    )


def _original_positions(rope: dict[str, Any], config: dict[str, Any], name: str) -> Any:
    """Versions of transformers take the one or the other where the number is in the scaling and beside it."""
    stored_positions = [place[ORIGINAL] for place in (rope, config) if place.get(ORIGINAL)]
    if len(set(stored_positions)) > 1:
        raise BadConfig(
            f"{name}: {ORIGINAL} is {stored_positions[0]!r} in the rope scaling, and {stored_positions[1]!r} beside it",
            "remove the wrong one",
        )
    return stored_positions[0] if stored_positions else config["max_position_embeddings"]


def _check_complete(rope: dict[str, Any], required: list[str], name: str) -> None:
    missing = [field for field in required if field not in rope]
    if missing:
        raise BadConfig(f"{name}: rope scaling has no {', '.join(missing)}")
