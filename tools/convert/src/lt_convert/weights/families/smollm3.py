"""The SmolLM3 family: Llama's tensors. Some layers rotate nothing, which TorchTitan's Llama does not have."""

from lt_convert.weights.families import llama
from lt_convert.weights.mapping import Family

SMOLLM3 = Family(
    name="smollm3",
    shapes=llama.shapes,
    tables=llama.megatron_tables(llama.MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
