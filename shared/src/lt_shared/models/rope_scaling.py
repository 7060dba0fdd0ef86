"""Scalings of the rotary embedding: how a model reads positions beyond those it was pretrained on. One contract for all tools.

A scaling is a record with the numbers of its paper, named as in Hugging Face's `rope_parameters`; `rope_type` tells scalings
apart. `lt_train.models.rope` computes the frequencies with torch. The attention's temperature is computed here, because plans and
converters need it, too.
"""

import dataclasses
import math
from typing import Any, Literal

from lt_shared.console import BadConfig

# The largest size, so that the product of two sizes fits an int64 file offset.
LARGEST = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent RoPE scaling (the `llama3` type of Hugging Face); the defaults are Megatron's constants.

    Raises as `lt_shared.models.architecture.Architecture`, as do all here.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    rope_type: Literal["llama3"] = "llama3"

    def __post_init__(self) -> None:
        check_counts(self, "original_max_position_embeddings")
        check_numbers(self, "factor", "low_freq_factor", "high_freq_factor")


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (arXiv:2306.15595): all positions are divided by the factor."""

    factor: float
    rope_type: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        check_numbers(self, "factor")


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): fast frequencies are kept, slow ones divided by the factor, a ramp lies between.

    `beta_fast` and `beta_slow` are the turns within the original positions where the ramp ends and begins; with `truncate` its
    ends are rounded to whole channels. Rotated queries and keys are multiplied by `magnitude`. Models with latent attention
    (DeepSeek) also multiply all attention scores by `score_factor`.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    rope_type: Literal["yarn"] = "yarn"

    def __post_init__(self) -> None:
        check_counts(self, "original_max_position_embeddings")
        check_numbers(self, "factor", "beta_fast", "beta_slow")
        set_fields = [name for name in ("mscale", "mscale_all_dim", "attention_factor") if getattr(self, name) is not None]
        check_numbers(self, *set_fields, zero=True)
        if type(self.truncate) is not bool:
            raise TypeError(f"truncate is {self.truncate!r:.40}, must be true or false")

    @property
    def magnitude(self) -> float:
        """The factor of cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    @property
    def score_factor(self) -> float:
        """The factor of latent attention's scores, in addition to the inverse root of the head size."""
        return self._temperature(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _temperature(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclasses.dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (arXiv:2402.13753): a divisor for each frequency, one set up to the original positions and one beyond them.

    `factor` is None where it is the ratio of the model's positions to the original ones.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    rope_type: Literal["longrope"] = "longrope"

    def __post_init__(self) -> None:
        check_counts(self, "original_max_position_embeddings")
        check_numbers(self, *(name for name in ("factor", "attention_factor") if getattr(self, name) is not None))
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for value in getattr(self, name):
                check_number(name, value)
        if len(self.short_factor) != len(self.long_factor):
            raise BadConfig(f"short_factor has {len(self.short_factor)} numbers, long_factor {len(self.long_factor)}")

    def magnitude(self, max_position_embeddings: int) -> float:
        """Return the factor of cosine and sine in a model with this number of positions."""
        if self.attention_factor is not None:
            return self.attention_factor
        factor = self.factor or max_position_embeddings / self.original_max_position_embeddings
        return math.sqrt(1 + math.log(factor) / math.log(self.original_max_position_embeddings)) if factor > 1 else 1.0


AnyScaling = RopeScaling | LinearScaling | YarnScaling | LongRopeScaling
SCALINGS: dict[str, type[AnyScaling]] = {
    "llama3": RopeScaling,
    "linear": LinearScaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
}


def from_record(record: dict[str, Any]) -> AnyScaling:
    """The scaling of a record with its fields. One without `rope_type` is Llama 3.1's. Raises BadConfig or TypeError."""
    kind = record.get("rope_type", "llama3")
    if kind not in SCALINGS:
        raise BadConfig(f"rope scaling type {kind!r:.40} is not known here", f"known are {', '.join(SCALINGS)}")
    return SCALINGS[kind](**record)


def check_counts(sizes: Any, *fields: str) -> None:
    """Raises TypeError for a field that is not a whole number, BadConfig for one that no model has."""
    for field in fields:
        value = getattr(sizes, field)
        if type(value) is not int:
            raise TypeError(f"{field} is {value!r:.40}, must be a whole number")
        if not 0 < value <= LARGEST:
            raise BadConfig(f"{field} is {value!r:.40}, must be positive and at most {LARGEST}")


def check_numbers(sizes: Any, *fields: str, zero: bool = False) -> None:
    """Raises TypeError for a field that is not a number, BadConfig for one that is not positive (or zero, with `zero`)."""
    for field in fields:
        check_number(field, getattr(sizes, field), zero)


def check_number(field: str, value: Any, zero: bool = False) -> None:
    """Check one value like `check_numbers`."""
    if type(value) not in (int, float):
        raise TypeError(f"{field} is {value!r:.40}, must be a number")
    # A comparison, unlike math.isfinite, takes integers of any size. NaN fails it.
    if not (0 < value < 1e300 or (zero and value == 0)):
        raise BadConfig(f"{field} is {value!r:.40}, must be {'' if zero else 'positive and '}finite")
