"""The sizes of short convolutions, a part of an `Architecture`."""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import mixer_layers
from lt_shared.models.rope_scaling import check_counts

_KIND = "short convolution"


@dataclasses.dataclass(frozen=True)
class ShortConvolution:
    """LFM2's gated convolution of `taps` tokens in place of attention in `layers`, counted from 0. Raises as `Architecture`."""

    layers: tuple[int, ...]
    taps: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", mixer_layers.as_tuple(self.layers, _KIND))
        check_counts(self, "taps")


def check(model: Any, convolution: ShortConvolution | None) -> None:
    """Raises BadConfig for layers that are not in `model`, and for features that no model combines with `convolution`."""
    if convolution is None:
        return
    mixer_layers.check_in_model(convolution.layers, _KIND, model.num_layers)
    excluded = ("add_bias_linear", "parallel_layers", "sliding_window", "no_rope_freq", "gated_delta", "latent_attention")
    both = [field for field in excluded if getattr(model, field)]
    if both or model.norm_placement != "pre" or model.mtp_num_layers:
        features = ", ".join(both) or "norms behind the layers, or multi-token prediction"
        raise BadConfig(f"{_KIND} with {features}: no model here has both")
