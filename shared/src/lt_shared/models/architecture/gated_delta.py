"""The sizes of gated delta layers, a part of an `Architecture`."""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import mixer_layers
from lt_shared.models.rope_scaling import check_counts, check_numbers


@dataclasses.dataclass(frozen=True)
class GatedDelta:
    """Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464) in place of attention in `layers`, counted from 0.

    Every value head has a state of `linear_key_head_dim` x `linear_value_head_dim` numbers, and consecutive value heads share a
    key head. A causal convolution of `linear_conv_kernel_dim` taps mixes the tokens of queries, keys and values. The names are
    Megatron's and transformers'. With `doubles_strength`, a token may write up to twice its value, which gives the state's update
    negative eigenvalues. `output_norm_epsilon` is the epsilon of the output's norm if it differs from the model's.

    With `decays_channels`, the layers are Kimi Delta Attention (arXiv:2510.26692): every channel of a key has a decay, decays and
    output gates pass through latents as wide as a head, and key and value heads are alike. Raises as `Architecture`.
    """

    layers: tuple[int, ...]
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    doubles_strength: bool = False
    output_norm_epsilon: float | None = None
    decays_channels: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", mixer_layers.as_tuple(self.layers, "gated delta"))
        check_counts(self, *SIZES)
        check_numbers(self, *(("output_norm_epsilon",) if self.output_norm_epsilon is not None else ()))
        for field in ("doubles_strength", "decays_channels"):
            if type(getattr(self, field)) is not bool:
                raise TypeError(f"{field} is {getattr(self, field)!r:.40}, must be true or false")
        keys, values = (getattr(self, f"linear_num_{part}_heads") for part in ("key", "value"))
        key_size, value_size = self.linear_key_head_dim, self.linear_value_head_dim
        if self.decays_channels and ((keys, key_size) != (values, value_size) or self.doubles_strength):
            raise BadConfig(
                f"Kimi Delta Attention with {keys} key heads of {key_size} channels and {values} value heads of {value_size}"
                f"{', and doubled strengths' if self.doubles_strength else ''}",
                "give both kinds of heads one number and one size",
            )
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise BadConfig(
                f"{self.linear_num_value_heads} value heads of gated delta layers do not share {self.linear_num_key_heads} key"
                " heads evenly",
                "make the number of value heads a multiple of the number of key heads",
            )

    @property
    def key_size(self) -> int:
        """The channels of the queries, and of the keys, summed over the heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_size(self) -> int:
        """The channels of the values, of their output gates, and of the layer's output, summed over the heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def convolved_size(self) -> int:
        """The channels that the convolution mixes: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def projected_size(self) -> int:
        """The outputs of the input projection: queries, keys, values, output gates, and two numbers per value head.

        With `decays_channels`: queries, keys, values, and a number per value head.
        """
        if self.decays_channels:
            return self.convolved_size + self.linear_num_value_heads
        return self.convolved_size + self.value_size + 2 * self.linear_num_value_heads

    @property
    def state_size(self) -> int:
        """The numbers in the states of all heads."""
        return self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim


def check_gates(model: Any, num_layers: int, delta: GatedDelta | None) -> None:
    """Raises BadConfig for layers of `delta` that are not in `model`, and for features that no model combines with gates."""
    excluded: tuple[str, ...] = ("add_qkv_bias", "add_bias_linear", "attention_sinks", "clip_qkv", "parallel_layers")
    if delta is not None:
        mixer_layers.check_in_model(delta.layers, "gated delta", num_layers)
        excluded += ("sliding_window", *(() if model.no_rope_freq == 1 else ("no_rope_freq",)))
        if model.norm_placement == "both" or model.normalization != "RMSNorm":
            raise BadConfig(f"gated delta with {model.normalization} ({model.norm_placement}): no model here has both")
    both = [field for field in excluded if getattr(model, field)]
    if both and (delta or model.attention_output_gate):
        part = "gated delta" if delta else "an output gate of attention"
        raise BadConfig(f"{part} with {', '.join(both)}: no model here has both")


SIZES = tuple(field.name for field in dataclasses.fields(GatedDelta) if field.name.startswith("linear_"))
