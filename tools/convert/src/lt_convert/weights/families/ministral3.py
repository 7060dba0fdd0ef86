"""The Ministral 3 family: Llama's tensors. TorchTitan's Llama has no temperature of queries.

It is published with a vision tower, of which the language model alone is read.
"""

from lt_convert.weights.families import llama
from lt_convert.weights.mapping import Family

MINISTRAL3 = Family(
    name="ministral3",
    shapes=llama.shapes,
    tables=llama.megatron_tables(llama.MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
    hf_prefixes={r"(language_model\.model|model\.language_model)\.": "model.", r"language_model\.(?=lm_head\.)": ""},
    other_parts=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
)
