"""The shapes of a layer's tensors on one rank, for which kernels are tried before the first step."""

import dataclasses
from typing import Self

from lt_train.config.run_config import RunConfig


@dataclasses.dataclass(frozen=True)
class Shapes:
    """A rank's share of a layer, and of a micro batch: `tokens` of each of its `samples`.

    Widths are those of one tensor-parallel rank, but for `hidden` and `expert_hidden`, which all ranks have whole. `window` is as
    long as the attention of a query reaches back, None for all of the sample; `has_documents`: it ends at a document's begin.
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

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
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
        )
