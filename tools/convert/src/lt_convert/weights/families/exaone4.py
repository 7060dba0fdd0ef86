"""The EXAONE 4 family: OLMo 2's norms behind attention and MLP, and norms of queries and keys per head.

megatron-core has no norms behind the layers: torch_dist alone has such models, as lt-train's models do.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, olmo, qwen3
from lt_convert.weights.mapping import MEGATRON, Family, Shape
from lt_shared.models.architecture import Architecture


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    attention = {name: shape for name, shape in llama.attention(architecture).items() if name != llama.ATTENTION_NORM}
    norms: dict[str, Shape] = {**qwen3.norms(architecture), olmo.AFTER_MLP: (architecture.hidden_size,)}
    return llama.decoder(architecture, attention | norms | llama.feed_forward(architecture))


EXAONE4 = Family(
    name="exaone4",
    shapes=shapes,
    tables={MEGATRON: olmo.MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
