"""Cohere's families: Llama's tensors without a norm for the MLP, which is parallel to attention; RoPE pairs adjacent channels.

Megatron's formats get Llama's order of channels, as for all families whose RoPE pairs adjacent channels. megatron-core has no
parallel layers: only torch_dist and lt-train's models have them.
"""

from collections.abc import Mapping

from lt_convert.weights.families import adjacent_pairs, llama
from lt_convert.weights.mapping import MEGATRON, Family, Shape
from lt_shared.models.architecture import Architecture


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = {name: shape for name, shape in llama.attention(architecture).items() if name != llama.MLP_NORM}
    return llama.decoder(architecture, attention | llama.feed_forward(architecture))


COHERE = Family("cohere", _shapes, {MEGATRON: adjacent_pairs.TABLE}, llama.EXTRA_STATE_MODULES)
