"""A decoder-only language model on megatron-core's primitives: the part on this pipeline stage, from top to bottom.

    tokens -> embedding -> blocks and last norm -> output layer -> the loss of every token
                                        |
                                        +-> layers that predict the tokens after the next

megatron-core provides the process groups, tensor-parallel linear layers, data-parallel wrappers, schedules and checkpoints. The
parameters have the names of its GPTModel, which can load the checkpoints.

In reading order: this file; `block.py`, the residual stream; `mixers/attention.py` and `mixers/core_attention.py`; `mlps/mlp.py`
and `mlps/moe.py`; `embedding.py`, `output.py`, `multi_token_prediction.py`. `pattern.py` chooses the modules and kernels for
every block.
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
from lt_train.models.multi_token_prediction import PredictionLayers, PredictionTargets
from lt_train.models.output import OutputLayer

TABLE, OUTPUT_WEIGHT = "embedding.word_embeddings.weight", "output_layer.weight"


class Stage(NamedTuple):
    """A pipeline stage. `number` counts the interleaved stages of this rank; None if it has one stage."""

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
    """The part of the model on one pipeline stage.

    The first stage has the embedding. The last stage has the last norm, the output layer and the prediction layers. `embedding`,
    `output_layer` and `predictions` are None on a stage without them. `angles` are the RoPE angles, None without RoPE.
    `prediction_losses` has a mean loss for every prediction layer, from the last micro batch.
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
        # megatron-core's schedules and reductions read these attributes.
        self.model_type, self.vp_stage = ModelType.encoder_or_decoder, stage.number
        self.pre_process, self.post_process = stage.is_first, stage.is_last
        self.share_embeddings_and_output_weights = architecture.tie_embeddings
        # The order of the submodules determines the order in megatron-core's gradient buffers and optimizer states.
        if embedding is not None and stage.is_first:
            self.embedding = embedding
        self.angles, self.decoder = angles, blocks
        # megatron-core's reductions read this field to know whether the last stage has a copy of the embedding.
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
        targets: PredictionTargets | None = None,
    ) -> Tensor:
        """Return float32 losses [b, s] for int64 `tokens`, `positions` and `labels` [b, s] of this context-parallel rank.

        Without labels, return logits [b, s, columns]. A stage before the last returns hidden states [s, b, h]. `documents`
        [b, n + 1] are the document borders of the whole samples, `targets` the labels of the prediction layers.
        """
        hidden_states: Any = self.embedding(tokens, positions) if self.pre_process else None
        angles = None if self.angles is None else self.angles(tokens.shape[1])
        hidden_states = self.decoder(hidden_states, documents, angles)
        if not self.post_process:
            return hidden_states  # type: ignore[no-any-return]
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        if targets is not None and labels is not None:
            hidden_states, self.prediction_losses = self.mtp(
                hidden_states, self.embedding, self.output_layer, weight, labels, positions, targets, documents, angles
            )
        return self.output_layer(hidden_states, labels, weight)  # type: ignore[no-any-return]

    def set_input_tensor(self, input_tensor: list[Tensor | None]) -> None:
        """Set the input of the next forward pass, received from the previous stage."""
        self.decoder.set_input_tensor(input_tensor[0])

    @property
    def _tables(self) -> list[Tensor]:
        """The weights [V, h] of the embedding and the output layer on this stage."""
        modules = [self.embedding.word_embeddings] if hasattr(self, "embedding") else []
        modules += [self.output_layer] if hasattr(self, "output_layer") else []
        return [module.weight for module in modules if module.weight is not None]

    def shared_embedding_or_output_weight(self) -> Tensor | None:
        """Return the table that the first and the last stage share. megatron-core calls this to sum its gradients."""
        return self._tables[0] if self._tables else None

    def _mark_tables(self) -> None:
        """Mark the tables for megatron-core's optimizers and reductions.

        The first and the last stage hold copies of a shared table, for a tied output layer or for prediction layers.
        megatron-core sums the gradients of the copies. Both start with equal weights, because initial weights depend on the name
        of a parameter, not on its rank (`lt_train.parallel.initialization`).
        """
        for weight in self._tables:
            weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]
        shared: Any = self.shared_embedding_or_output_weight()
        predicts = hasattr(self, "mtp")
        if shared is None or not (self.share_embeddings_and_output_weights or self.config.mtp_num_layers):
            return
        if self.config.pipeline_model_parallel_size == 1:
            # Embedding and output layer add to one gradient. If autograd computes the embedding's gradient, the buffer must start
            # with zeros. An AccumulatingTable adds to the buffer itself.
            shared.zero_out_wgrad = not getattr(self.embedding.word_embeddings, "is_tied", False)
        elif self.pre_process and not self.post_process:
            shared.shared_embedding = True
        elif not self.pre_process and (predicts or (self.post_process and self.share_embeddings_and_output_weights)):
            # `shared`: the gradient norm counts the copy on the first stage only.
            shared.shared = shared.shared_embedding = True

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints. The first stage stores a table that two stages share."""
        metadata = ensure_metadata_has_dp_cp_group(metadata)
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        # Linear layers have an empty `_extra_state`. GPTModel's checkpoints do not store the output layer's.
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
