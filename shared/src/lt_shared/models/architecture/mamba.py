"""The sizes of Mamba-2 layers, a part of an `Architecture`."""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import mixer_layers
from lt_shared.models.rope_scaling import check_counts, check_numbers

_KIND = "Mamba-2"
# The names of megatron-core, which has no argument for the taps.
SIZES = ("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups")


@dataclasses.dataclass(frozen=True)
class Mamba:
    """Mamba-2 (Dao and Gu 2024, arXiv:2405.21060) in place of attention in `layers`, counted from 0.

    Every head has a state of `mamba_state_dim` x `mamba_head_dim` numbers. The heads of a group share the inputs B and the
    outputs C of their states, and are normalized together. A causal convolution of `taps` taps, with a bias if
    `convolution_bias`, mixes the tokens of values, B and C. Without `has_norm`, the output is gated and not normalized. A time
    step is at least `least_step`. Sizes have Megatron's names if
    it has one. Raises as `Architecture`.
    """

    layers: tuple[int, ...]
    mamba_num_heads: int
    mamba_head_dim: int = 64
    mamba_state_dim: int = 128
    mamba_num_groups: int = 8
    taps: int = 4
    convolution_bias: bool = True
    has_norm: bool = True
    least_step: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", mixer_layers.as_tuple(self.layers, _KIND))
        check_counts(self, *SIZES, "taps")
        check_numbers(self, "least_step", zero=True)
        for field in ("convolution_bias", "has_norm"):
            if type(getattr(self, field)) is not bool:
                raise TypeError(f"{field} is {getattr(self, field)!r:.40}, must be true or false")
        if self.mamba_num_heads % self.mamba_num_groups:
            raise BadConfig(f"{self.mamba_num_heads} {_KIND} heads do not split into {self.mamba_num_groups} groups")

    @property
    def inner_size(self) -> int:
        """The channels of the values, of their gates, and of the layer's output, summed over the heads."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def group_size(self) -> int:
        """The channels of B, and of C, summed over the groups."""
        return self.mamba_num_groups * self.mamba_state_dim

    @property
    def convolved_size(self) -> int:
        """The channels that the convolution mixes: values, B and C."""
        return self.inner_size + 2 * self.group_size

    @property
    def projected_size(self) -> int:
        """The outputs of the input projection: gates, values, B, C, and a time step per head."""
        return self.inner_size + self.convolved_size + self.mamba_num_heads

    @property
    def part_sizes(self) -> dict[str, int]:
        """The rows per part of the input projection, by megatron-core's names, in their order."""
        inner, group = self.inner_size, self.group_size
        return {"z": inner, "x": inner, "B": group, "C": group, "dt": self.mamba_num_heads}

    @property
    def state_size(self) -> int:
        """The numbers in the heads' states."""
        return self.inner_size * self.mamba_state_dim


def check(model: Any, mamba: Mamba | None) -> None:
    """Raises BadConfig for layers that are not in `model`, or that are MLPs alone, and for features that no model has beside."""
    if mamba is None:
        return
    if set(mamba.layers) & set(model.mlp_layers):
        raise BadConfig(f"{_KIND} in the layers {list(mamba.layers)!r:.80}, and an MLP alone in {list(model.mlp_layers)!r:.80}")
    if not model.side_by_side:
        mixer_layers.check_in_model(mamba.layers, _KIND, model.num_layers)
    excluded = ("add_bias_linear", "parallel_layers", "sliding_window", "gated_delta", "short_convolution", "latent_attention")
    both = [field for field in excluded if getattr(model, field)]
    if both or model.norm_placement != "pre" or model.mtp_num_layers or model.normalization != "RMSNorm":
        features = ", ".join(both) or "norms behind the layers, LayerNorm, or multi-token prediction"
        raise BadConfig(f"{_KIND} with {features}: no model here has both")
