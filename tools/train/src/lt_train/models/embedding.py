"""Token embeddings and learned positions (GPT).

Each tensor-parallel rank holds some rows of the table and outputs zeros for the tokens of its peers; the ranks sum their outputs.
With sequence parallelism, the sum is a reduce-scatter over the sequence, unless learned positions are added first.
"""

import contextlib
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    VocabParallelEmbedding,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_shared.models.architecture import Architecture


class Embedding(MegatronModule):  # type: ignore[misc]
    """The input of the first layer. Its parameters have the names of megatron-core's checkpoints.

    `adds_gradient`: the gradient of the table is added directly to the gradient buffer (`lt_train.ops.embedding`). `is_tied`: the
    output layer on this rank shares the table.
    """

    def __init__(
        self, config: TransformerConfig, architecture: Architecture, vocab_size: int, adds_gradient: bool, is_tied: bool
    ):
        super().__init__(config=config)
        has_positions = architecture.family == "gpt"
        self.multiplier = architecture.embedding_multiplier
        self.is_scattered = config.sequence_parallel and not has_positions
        settings: dict[str, Any] = {
            "init_method": config.embedding_init_method,
            "reduce_scatter_embeddings": self.is_scattered,
            "config": config,
        }
        if adds_gradient:
            self.word_embeddings: Any = AccumulatingTable(vocab_size, config.hidden_size, is_tied=is_tied, **settings)
        else:
            self.word_embeddings = VocabParallelEmbedding(vocab_size, config.hidden_size, **settings)
        self.position_embeddings = (
            torch.nn.Embedding(architecture.max_position_embeddings, config.hidden_size) if has_positions else None
        )
        self.dropout = torch.nn.Dropout(config.hidden_dropout)
        # Sequence-parallel ranks hold different tokens, so each draws its dropout from a different random state.
        self.dropout_generator = get_cuda_rng_tracker().fork if config.sequence_parallel else contextlib.nullcontext

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return [s, b, h] for int64 `tokens` and `positions` [b, s]; with sequence parallelism, this rank's part of `s`."""
        embedded: Tensor = self.word_embeddings(tokens)
        if self.position_embeddings is not None:
            embedded = embedded + self.position_embeddings(positions)
        if not self.is_scattered:
            embedded = embedded.transpose(0, 1).contiguous()
            if self.config.sequence_parallel:
                # A copy, because the view of a part would keep the whole tensor in memory.
                embedded = scatter_to_sequence_parallel_region(embedded).clone()
        with self.dropout_generator():
            embedded = self.dropout(embedded)
        if self.multiplier != 1:
            # The factor is rounded to the dtype of the embeddings, as in transformers: the root of 3072 is 55.5 in bfloat16.
            embedded = embedded * float(torch.tensor(self.multiplier, dtype=embedded.dtype))
        return embedded


class AccumulatingTable(VocabParallelEmbedding):  # type: ignore[misc]
    """A table that adds its gradient to `weight.main_grad`, or to a zero tensor if FSDP has gathered the weight."""

    def __init__(self, vocab_size: int, hidden_size: int, *, is_tied: bool, **settings: Any):
        super().__init__(vocab_size, hidden_size, **settings)
        self.is_tied = is_tied

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [b, s, h] for int64 `tokens` [b, s], stored as [s, b, h], the layout of the layers; if scattered, [s, b, h]."""
        # Imported here, because an installation without a GPU need not have Triton.
        from lt_train.ops import embedding

        if self.tp_group.size() == 1:
            return embedding.look_up_rows(self.weight, tokens.t(), self.is_tied).transpose(0, 1)
        rows = embedding.look_up_local_rows(self.weight, tokens.t() - self.vocab_start_index, self.is_tied)
        if self.reduce_scatter_embeddings:
            return reduce_scatter_to_sequence_parallel_region(rows, group=self.tp_group)  # type: ignore[no-any-return]
        return reduce_from_tensor_model_parallel_region(rows, group=self.tp_group).transpose(0, 1)  # type: ignore[no-any-return]
