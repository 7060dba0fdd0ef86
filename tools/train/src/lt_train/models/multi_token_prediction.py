"""DeepSeek's multi-token prediction (arXiv:2412.19437, 2.2): layers behind the last one that predict the tokens after the next.

The k-th layer joins, for every position, the output of the layer before it with the embedding of the token k places on, and
predicts the token behind that one. Its loss is added to the gradient by `mtp_loss_scaling_factor` over the number of layers,
and reported apart. As in megatron-core and in what serves the published weights, the first layer's input has passed the
model's last norm; TorchTitan's has not.

megatron-core has such layers under one name up to 0.16 (`transformer_layer`) and another since (`mtp_model_layer`), so that a
checkpoint of the one does not load into the other, and shifts a rank's own tokens, for which context-parallel ranks exchange
messages. Here `further` gives the shifted labels of each rank, and both versions have the older name. Documents end
a prediction: what would reach into the next one counts in no loss.

The layers are on the last pipeline stage, which has a copy of the embedding for them; megatron-core sums its gradient with the
first stage's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from torch import Tensor

from lt_train.models.norms import Norm


@dataclasses.dataclass(frozen=True)
class Further:
    """What the layers predict, each of them [b, s] of this rank's tokens: the labels, and whether they count.

    `weight` is that of the micro batch among those of its step; None is 1.
    """

    labels: Sequence[Tensor]
    masks: Sequence[Tensor]
    weight: Tensor | None = None


def further(
    labels: Tensor,
    mask: Tensor,
    documents: Tensor | None,
    layers: int,
    own_part: Callable[[Tensor], Tensor],
    weight: Tensor | None = None,
) -> Further:
    """The labels of `layers` layers from those of whole samples [b, S]. A sample's end has none, nor has a document's."""
    found: list[tuple[Tensor, Tensor]] = []
    for places in range(1, layers + 1):
        counts = _shifted(mask, places)
        if documents is not None:
            counts = counts * (documents == _shifted(documents, places, fill=-1))
        found.append((own_part(_shifted(labels, places)), own_part(counts)))
    return Further([each for each, _ in found], [each for _, each in found], weight)


def _shifted(tensor: Tensor, places: int, fill: int = 0) -> Tensor:
    return torch.cat((tensor[:, places:], tensor.new_full((len(tensor), places), fill)), dim=1)


class PredictionLayer(MegatronModule):  # type: ignore[misc]
    """One layer: the names of its parts are megatron-core's."""

    def __init__(self, config: TransformerConfig, layer: ModuleSpec, number: int, stage: int | None):
        super().__init__(config=config)
        hidden, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = (Norm(config, hidden, eps=epsilon) for _ in range(2))
        # Whole on every tensor-parallel rank, which has a part of the sequence for it.
        self.eh_proj = torch.nn.Linear(
            2 * hidden, hidden, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device()
        )
        self.eh_proj.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        behind = config.num_layers - get_transformer_layer_offset(config, stage)
        self.transformer_layer = build_module(layer, config=config, layer_number=number + 1 + behind, vp_stage=stage)
        self.final_layernorm = Norm(config, hidden, eps=epsilon)

    @property
    def mtp_model_layer(self) -> Any:
        """What megatron-core 0.19's schedules ask for."""
        return self.transformer_layer

    def forward(self, embedded: Tensor, hidden_states: Tensor, **layer: Any) -> Tensor:
        joined = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden_states)), dim=-1))
        output = self.transformer_layer(joined, **layer)[0]
        return self.final_layernorm(output)  # type: ignore[no-any-return]


class PredictionLayers(MegatronModule):  # type: ignore[misc]
    def __init__(self, config: TransformerConfig, layer: ModuleSpec, count: int, stage: int | None):
        super().__init__(config=config)
        self.layers = torch.nn.ModuleList(PredictionLayer(config, layer, number, stage) for number in range(count))

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        found: dict[str, Any] = {}
        for number in range(len(self.layers)):
            layer: Any = self.layers[number]
            found |= layer.sharded_state_dict(f"{prefix}layers.{number}.", sharded_offsets, metadata)
        return found


class PredictingModel(GPTModel):  # type: ignore[misc]
    """GPTModel with prediction layers behind its decoder, called with `further` where it trains.

    `prediction_losses` are the means of the last micro batch's losses, a number for each layer.
    """

    def __init__(self, config: TransformerConfig, layer: ModuleSpec, layers: int, vp_stage: int | None, **settings: Any):
        # megatron-core would give its own layers to a configuration that names them.
        super().__init__(config=config, vp_stage=vp_stage, **settings)
        self.further: Further | None = None
        self.prediction_losses: Sequence[Tensor] = ()
        self.mtp_process = self.post_process
        if self.mtp_process:
            self.mtp = PredictionLayers(config, layer, layers, vp_stage)
        if self.mtp_process and not self.pre_process:
            self.embedding = LanguageModelEmbedding(
                config=config,
                vocab_size=self.vocab_size,
                max_sequence_length=self.max_sequence_length,
                position_embedding_type=self.position_embedding_type,
            )
        config.mtp_num_layers = layers
        self.setup_embeddings_and_output_layer()

    def forward(self, *inputs: Any, further: Further | None = None, **settings: Any) -> Tensor:
        self.further = further
        try:
            return super().forward(*inputs, **settings)  # type: ignore[no-any-return]
        finally:
            self.further = None

    def _postprocess(self, hidden_states: Tensor, labels: Tensor | None = None, **inputs: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        if self.further is not None:
            assert labels is not None
            hidden_states = self._with_predictions(hidden_states, labels, self.further, weight, inputs)
        logits, _ = self.output_layer(hidden_states, weight=weight, runtime_gather_output=inputs.get("runtime_gather_output"))
        if labels is None:
            transposed: Tensor = logits.transpose(0, 1).contiguous()
            return transposed
        return self.compute_language_model_loss(labels, logits)  # type: ignore[no-any-return]

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        # megatron-core wants it for a copy of the embedding, and has a default everywhere else.
        return super().sharded_state_dict(prefix, sharded_offsets, ensure_metadata_has_dp_cp_group(metadata))

    def _with_predictions(
        self, hidden_states: Tensor, labels: Tensor, further: Further, weight: Tensor | None, inputs: dict[str, Any]
    ) -> Tensor:
        """The hidden states [s, b, h] of the last norm, whose gradient also has that of the predictions."""
        predicted, tokens, means = hidden_states, labels, []
        for layer, targets, mask in zip(self.mtp.layers, further.labels, further.masks, strict=True):
            embedded = self.embedding(input_ids=tokens, position_ids=inputs["position_ids"])
            predicted = layer(
                embedded, predicted, attention_mask=inputs["attention_mask"], rotary_pos_emb=inputs["rotary_pos_emb"]
            )
            logits, _ = self.output_layer(predicted, weight=weight)
            losses = self.compute_language_model_loss(targets, logits)
            total, mean = _sum_and_mean(losses, mask, further.weight)
            means.append(mean)
            factor = self.config.mtp_loss_scaling_factor / len(self.mtp.layers)
            hidden_states = MTPLossAutoScaler.apply(hidden_states, factor * total)
            tokens = targets
        self.prediction_losses = means
        return hidden_states


def _sum_and_mean(losses: Tensor, mask: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """What this rank contributes to the mean over the tokens that count, for the backward pass, and the mean, for reports.

    The gradients of context-parallel ranks are averaged: each contributes as many times its share as there are ranks.
    """
    total = (losses.float() * mask).sum()
    if weight is not None:
        total = total * weight
    sums = torch.stack((total.detach(), mask.sum().float()))
    ranks = parallel_state.get_context_parallel_world_size()
    if ranks > 1:
        torch.distributed.all_reduce(sums, group=parallel_state.get_context_parallel_group())
    count = sums[1].clamp(min=1)
    return total * ranks / count, sums[0] / count
