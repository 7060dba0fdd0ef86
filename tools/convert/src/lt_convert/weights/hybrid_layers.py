"""Tables of megatron-core's HybridModel, made from GPTModel's tables: each mixer and each MLP is a layer with its own number.

HybridModel has the modules and tensors of GPTModel's TransformerEngine layers, and torch_dist never stacks its layers.
"""

from collections.abc import Mapping
from typing import TypeVar

from lt_convert.weights.placeholders import OF_LAYERS, mixer_of, mlp_of

Value = TypeVar("Value")
LAYERS = "decoder.layers."
# Parts of a block's mixer. The block's MLP has all other parts.
OF_MIXER = ("input_layernorm", "self_attention", "mixer")
FINAL_NORM, FINAL_NORM_OF_GPT = "decoder.final_norm", "decoder.final_layernorm"


def module(pattern: str) -> str:
    """HybridModel's name for a module or tensor of GPTModel's decoder; other names stay."""
    if pattern.startswith(FINAL_NORM_OF_GPT):
        return FINAL_NORM + pattern.removeprefix(FINAL_NORM_OF_GPT)
    for placeholder in OF_LAYERS:
        prefix = f"{LAYERS}{placeholder}."
        if pattern.startswith(prefix):
            part = pattern.removeprefix(prefix)
            renumbered = mixer_of(placeholder) if part.split(".")[0] in OF_MIXER else mlp_of(placeholder)
            return f"{LAYERS}{renumbered}.{part}"
    return pattern


def table(gpt_table: Mapping[str, Value]) -> dict[str, Value]:
    """The table of HybridModel with the rows of a table of GPTModel."""
    return {module(pattern): op for pattern, op in gpt_table.items()}
