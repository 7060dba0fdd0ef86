"""The Granite family: the tensors of Llama; its multipliers are settings. TorchTitan has no such models."""

from lt_convert.weights.families import llama
from lt_convert.weights.mapping import Family

GRANITE = Family(
    name="granite",
    shapes=llama.shapes,
    tables=llama.megatron_tables(llama.MEGATRON_TABLE),
    extra_state_modules=llama.EXTRA_STATE_MODULES,
)
