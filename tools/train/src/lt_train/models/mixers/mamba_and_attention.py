"""Mamba-2 and attention side by side: the output is the sum of both outputs for the same hidden states (Falcon-H1)."""

from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_shared.models.architecture import SideBySide
from lt_train.models.linear import Outputs
from lt_train.models.mixers.attention import Attention
from lt_train.models.mixers.mamba import MambaMixer


class MambaAndAttention(MegatronModule):  # type: ignore[misc]
    """Mix hidden states [s, b, h] of whole samples. `MambaMixer` and the scale of the scores contain the other factors."""

    def __init__(self, config: TransformerConfig, mamba: MambaMixer, attention: Attention, factors: SideBySide):
        super().__init__(config=config)
        self.mamba, self.attention, self.factors = mamba, attention, factors

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Return [s, b, h], and no bias. `documents` [b, n + 1] are document borders, `angles` is for attention."""
        factors = self.factors
        states, _ = self.mamba(hidden_states, documents, angles)
        attended, _ = self.attention(_multiply(hidden_states, factors.attention_input), documents, angles)
        return states * factors.mamba_output + _multiply(attended, factors.attention_output), None


def _multiply(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor
