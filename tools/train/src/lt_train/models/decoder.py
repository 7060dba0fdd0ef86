"""A decoder-only language model on megatron-core's primitives: this pipeline stage's share of it, from top to bottom.

    tokens -> embedding -> blocks and last norm -> output layer -> the loss of every token
                                        |
                                        +-> layers that predict the tokens after the next

The first stage embeds, the last one has the last norm, the output layer, and the prediction layers; a stage between gets its
input by `set_input_tensor`. Process groups, linear layers of tensor parallelism, wrappers for data parallelism, schedules and
checkpoints are megatron-core's, and so are the names of parameters in checkpoints: those of its GPTModel, which reads them.

In reading order: this file; `block.py`, the residual stream; `mixers/attention.py` and `mixers/core_attention.py`; `mlps/mlp.py`
and `mlps/moe.py`; `embedding.py`, `output.py`, `multi_token_prediction.py`. `pattern.py` says which of them a block has, and
which kernels.

A table that several stages need (an output layer that multiplies by the embedding, prediction layers that embed) is on the first
and on the last. Their gradients are summed by megatron-core, and both copies begin alike because initial weights depend on a
parameter's name, not on its place (`lt_train.parallel.initialization`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from megatron.core.utils import make_tp_sharded_tensor_for_checkpoint
from torch import Tensor

from lt_shared.models.architecture import Architecture
from lt_train.models.embedding import Embedding
from lt_train.models.mixers.rope import Angles
from lt_train.models.multi_token_prediction import Further, PredictionLayers
from lt_train.models.output import OutputLayer

TABLE, OUTPUT_WEIGHT = "embedding.word_embeddings.weight", "output_layer.weight"


class Stage(NamedTuple):
    """A stage of the pipeline. `number` counts those of this rank; None where it has one."""

    is_first: bool
    is_last: bool
    number: int | None

    @classmethod
    def of_rank(cls, number: int | None) -> "Stage":
        return cls(
            parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=number),
            parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=number),
            number,
        )


class Decoder(MegatronModule):  # type: ignore[misc]
    """The model. `embedding`, `output_layer` and `predictions` are None where this stage has none.

    `angles` are RoPE's, None without. `prediction_losses` are the means of the last micro batch's losses, a number for each
    prediction layer.
    """

    def __init__(
        self,
        config: TransformerConfig,
        architecture: Architecture,
        blocks: MegatronModule,
        stage: Stage,
        embedding: Embedding | None,
        output_layer: OutputLayer | None,
        predictions: PredictionLayers | None,
        angles: Angles | None,
    ):
        super().__init__(config=config)
        # What megatron-core's schedules and reductions ask a model.
        self.model_type, self.vp_stage = ModelType.encoder_or_decoder, stage.number
        self.pre_process, self.post_process = stage.is_first, stage.is_last
        self.share_embeddings_and_output_weights = architecture.tie_embeddings
        # In this order megatron-core has them in gradient buffers and optimizer states.
        if embedding is not None and stage.is_first:
            self.embedding = embedding
        self.angles, self.decoder = angles, blocks
        # What megatron-core's reductions ask: whether the last stage has a copy of the embedding.
        config.mtp_num_layers = architecture.mtp_num_layers or None
        if output_layer is not None:
            self.output_layer = output_layer
        if predictions is not None:
            self.mtp = predictions
        if embedding is not None and not stage.is_first:
            self.embedding = embedding
        self.prediction_losses: Sequence[Tensor] = ()
        self._mark_tables()

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        documents: Tensor | None,
        labels: Tensor | None = None,
        further: Further | None = None,
    ) -> Tensor:
        """Losses, float32 [b, s], of int64 `tokens`, `positions` and `labels` [b, s] of this context-parallel rank.

        Without labels logits [b, s, columns]; of a stage that is not the last hidden states [s, b, h]. `documents` [b, n + 1] has
        the borders of the whole sample's documents, and `further` what the prediction layers shall predict.
        """
        hidden_states: Any = self.embedding(tokens, positions) if self.pre_process else None
        angles = None if self.angles is None else self.angles(tokens.shape[1])
        hidden_states = self.decoder(hidden_states, documents, angles)
        if not self.post_process:
            return hidden_states  # type: ignore[no-any-return]
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        if further is not None and labels is not None:
            hidden_states, self.prediction_losses = self.mtp(
                hidden_states, self.embedding, self.output_layer, weight, labels, positions, further, documents, angles
            )
        return self.output_layer(hidden_states, labels, weight)  # type: ignore[no-any-return]

    def set_input_tensor(self, input_tensor: list[Tensor | None]) -> None:
        """Take what the stage before has sent, for the next forward pass."""
        self.decoder.set_input_tensor(input_tensor[0])

    @property
    def _tables(self) -> list[Tensor]:
        """The weights [V, h] of embedding and output layer that this stage has."""
        modules = [self.embedding.word_embeddings] if hasattr(self, "embedding") else []
        modules += [self.output_layer] if hasattr(self, "output_layer") else []
        return [module.weight for module in modules if module.weight is not None]

    def shared_embedding_or_output_weight(self) -> Tensor | None:
        """The table that stages share, for megatron-core, which sums its gradients."""
        return self._tables[0] if self._tables else None

    def _mark_tables(self) -> None:
        """Tell megatron-core's optimizers and reductions what these weights are."""
        for weight in self._tables:
            weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]
        shared: Any = self.shared_embedding_or_output_weight()
        predicts = hasattr(self, "mtp")
        if shared is None or not (self.share_embeddings_and_output_weights or self.config.mtp_num_layers):
            return
        if self.config.pipeline_model_parallel_size == 1:
            # Two modules add to one gradient: where autograd gives it, it has to begin with zeros. An AccumulatingTable adds.
            shared.zero_out_wgrad = not getattr(self.embedding.word_embeddings, "is_tied", False)
        elif self.pre_process and not self.post_process:
            shared.shared_embedding = True
        elif not self.pre_process and (predicts or (self.post_process and self.share_embeddings_and_output_weights)):
            # In the gradients' norm the first stage counts it.
            shared.shared = shared.shared_embedding = True

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Of megatron-core's checkpoints: a table that two stages have is stored by the first of them."""
        metadata = ensure_metadata_has_dp_cp_group(metadata)
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        # Of linear layers an entry without content, which no GPTModel's checkpoint has for this one.
        state.pop(f"{prefix}output_layer._extra_state", None)
        if hasattr(self, "output_layer") and self.output_layer.weight is not None:
            state[f"{prefix}{OUTPUT_WEIGHT}"].allow_shape_mismatch = True
            if self.share_embeddings_and_output_weights:
                state[f"{prefix}{OUTPUT_WEIGHT}"] = self._copy_of_first_stage(prefix, metadata)
        if hasattr(self, "embedding") and not self.pre_process:
            state[f"{prefix}{TABLE}"] = self._copy_of_first_stage(prefix, metadata)
        return state

    def _copy_of_first_stage(self, prefix: str, metadata: dict[str, Any]) -> Any:
        group = metadata["dp_cp_group"]
        return make_tp_sharded_tensor_for_checkpoint(
            tensor=self.shared_embedding_or_output_weight(),
            key=f"{prefix}{TABLE}",
            replica_id=(1, 0, torch.distributed.get_rank(group)),
            allow_shape_mismatch=True,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=group,
        )
