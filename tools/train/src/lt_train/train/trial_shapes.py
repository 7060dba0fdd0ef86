"""The tensor shapes of a layer on a rank. Kernels are tried with these shapes before the first step."""

import dataclasses
from typing import Self

from lt_shared.models.architecture import GatedDelta
from lt_train.config.run_config import RunConfig


@dataclasses.dataclass(frozen=True)
class DeltaShapes:
    """The heads of a layer of gated delta, or with `decays_channels` of Kimi Delta Attention, on a rank, and its taps."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int
    decays_channels: bool


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The shapes of a rank's shard of a layer and of a micro batch.

    `samples` is the micro batch size, `tokens` the sequence length per context-parallel rank. All widths are divided by the
    tensor-parallel size, except `hidden` and `expert_hidden`. `window` is the sliding window of the attention, or None if a query
    attends to the whole sample. With `has_documents`, attention does not cross document borders.
    """

    samples: int
    tokens: int
    hidden: int
    heads: int
    query_groups: int
    key_size: int
    value_size: int
    window: int | None
    has_documents: bool
    ffn_hidden: int
    expert_hidden: int
    vocabulary: int
    is_bfloat16: bool
    delta: DeltaShapes | None = None

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        model, tensor = config.architecture, config.parallelism.tensor
        return cls(
            samples=config.batches.micro_batch_size,
            tokens=config.batches.seq_length // config.parallelism.context,
            hidden=model.hidden_size,
            heads=model.num_attention_heads // tensor,
            query_groups=max(1, model.num_query_groups // tensor),
            key_size=model.kv_channels,
            value_size=model.value_size // model.num_attention_heads,
            window=model.sliding_window,
            has_documents=config.data.reset_attention_mask,
            ffn_hidden=model.ffn_hidden_size // tensor,
            expert_hidden=model.expert_size,
            vocabulary=config.padded_vocab_size // tensor,
            is_bfloat16=config.precision.bf16,
            delta=_delta_shapes(model.gated_delta, tensor),
        )


def _delta_shapes(delta: GatedDelta | None, ranks: int) -> DeltaShapes | None:
    if delta is None:
        return None
    return DeltaShapes(
        key_heads=delta.linear_num_key_heads // ranks,
        value_heads=delta.linear_num_value_heads // ranks,
        key_size=delta.linear_key_head_dim,
        value_size=delta.linear_value_head_dim,
        taps=delta.linear_conv_kernel_dim,
        decays_channels=delta.decays_channels,
    )
