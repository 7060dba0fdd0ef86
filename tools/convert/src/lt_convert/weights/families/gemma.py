"""The Gemma families: the first has Llama's tensors, Gemma 2 and 3 have norms before and behind attention and MLP, and Gemma 3
norms of queries and keys.

megatron-core has no such layers. torch_dist has Megatron-Bridge's names for norms behind a linear layer, which lt-train's models
have, too; Megatron's legacy format and TorchTitan have no such models. Weights of norms are stored without the 1 that is added.

From 4B on, Gemma 3 is published with a vision tower. Of such files the language model is read, whose names begin with
`language_model.model.` in those that transformers writes, and with `model.language_model.` in memory; what belongs to the vision
tower is left out.
"""

from collections.abc import Mapping

from lt_convert.weights.families import llama, olmo, qwen3
from lt_convert.weights.families.llama import LAYER
from lt_convert.weights.mapping import MEGATRON, Family, Shape, Table
from lt_convert.weights.weight_ops import Rows
from lt_shared.models.architecture import Architecture

BEFORE_MLP = f"{LAYER}pre_feedforward_layernorm.weight"


def shapes(architecture: Architecture) -> Mapping[str, Shape]:
    hidden = (architecture.hidden_size,)
    norms: dict[str, Shape] = {BEFORE_MLP: hidden, olmo.AFTER_MLP: hidden}
    between = qwen3.norms(architecture) if architecture.qk_layernorm else {}
    return llama.decoder(architecture, llama.attention(architecture) | between | norms | llama.feed_forward(architecture))


MEGATRON_TABLE: Table = {
    **llama.MEGATRON_TABLE,
    f"{llama.MEGATRON_LAYER}mlp.linear_fc1.layer_norm_weight": Rows(BEFORE_MLP),
    **olmo.NORMS_BEHIND,
}

GEMMA = Family(
    name="gemma",
    shapes=llama.shapes,
    tables={MEGATRON: llama.MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
GEMMA2 = Family(
    name="gemma2",
    shapes=shapes,
    tables={MEGATRON: MEGATRON_TABLE},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
GEMMA3 = Family(
    name="gemma3",
    shapes=shapes,
    tables={MEGATRON: {**MEGATRON_TABLE, **qwen3.MEGATRON_NORMS}},
    extra_state_modules=llama.EXTRA_STATE_MODULES,
    hf_prefixes={r"(language_model\.model|model\.language_model)\.": "model.", r"language_model\.(?=lm_head\.)": ""},
    other_parts=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
)
