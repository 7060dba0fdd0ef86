"""The factors of a model with Mamba-2 and attention side by side in every layer, a part of an `Architecture`."""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture.mamba import Mamba
from lt_shared.models.rope_scaling import check_number, check_numbers

_KIND = "Mamba-2 and attention side by side"


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """Mamba-2 and attention with the same input in every layer; the layer adds both outputs to the residual stream (Falcon-H1).

    The inputs and outputs of both mixers are multiplied by `*_input` and `*_output`, keys by `attention_keys`. `mamba_parts` are
    the factors of the parts of Mamba's input projection: gates, values, B, C, and time steps. An MLP multiplies its gates by
    `mlp_gates` in front of SiLU and its output by `mlp_output`. Raises as `Architecture`.
    """

    mamba_input: float = 1.0
    mamba_parts: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    mamba_output: float = 1.0
    attention_input: float = 1.0
    attention_keys: float = 1.0
    attention_output: float = 1.0
    mlp_gates: float = 1.0
    mlp_output: float = 1.0

    def __post_init__(self) -> None:
        # A record has a list.
        object.__setattr__(self, "mamba_parts", tuple(self.mamba_parts))
        if len(self.mamba_parts) != 5:
            raise BadConfig(f"mamba_parts has {len(self.mamba_parts)} factors, and Mamba-2's input projection has 5 parts")
        for factor in self.mamba_parts:
            check_number("a factor of mamba_parts", factor)
        check_numbers(self, *(field.name for field in dataclasses.fields(self) if field.name != "mamba_parts"))


def check(model: Any, side_by_side: SideBySide | None, mamba: Mamba | None) -> None:
    """Raises BadConfig if not every layer of `model` has Mamba-2, and for features that no model has beside."""
    if side_by_side is None:
        return
    if mamba is None or list(mamba.layers) != list(range(model.num_layers)):
        layers = "none" if mamba is None else f"{list(mamba.layers)!r:.80}"
        raise BadConfig(f"{_KIND} in all {model.num_layers} layers, and Mamba-2 in {layers}", "give mamba all layers")
    excluded = ("num_experts", "mlp_layers", "no_rope_freq", "qk_layernorm", "attention_output_gate", "clip_qkv", "add_qkv_bias")
    both = [field for field in excluded if getattr(model, field)]
    if both or model.activation != "silu":
        raise BadConfig(f"{_KIND} with {', '.join(both) or model.activation}: no model here has both")
