"""A second table of rotary angles, for the layers with a window, where they rotate by a base of their own (Gemma 3, OLMo 3).

megatron-core computes one table for all layers and passes it on. A layer with a window exchanges it for the other one as it calls
its attention; both tables are computed once for a sequence length, and a rank of context parallelism has its part of each. A
scaling that makes rotated queries and keys longer (YaRN) is a factor of the scores of the other layers only.
"""

from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel

from lt_shared.architecture import Architecture
from lt_train.models import rope


def use_local_table(model: GPTModel, architecture: Architecture, device: torch.device) -> None:
    """Let those layers of `model` that have a window rotate by `architecture`'s local base, without a scaling."""
    table = RotaryEmbedding(architecture.kv_channels, architecture.rotary_percent, use_cpu_initialization=True)
    table.inv_freq = rope.local_inverse_frequencies(architecture).to(device)
    for layer in model.decoder.layers:
        if architecture.window(layer.layer_number - 1) is not None:
            layer.self_attention.register_forward_pre_hook(partial(_exchange, table), with_kwargs=True)
            layer.self_attention.core_attention.softmax_scale = architecture.softmax_scale


def _exchange(
    table: RotaryEmbedding, attention: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = options["rotary_pos_emb"]
    own = len(given[0] if isinstance(given, tuple) else given)
    return inputs, options | {"rotary_pos_emb": table(own * parallel_state.get_context_parallel_world_size())}
