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
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler
from torch import Tensor

from lt_train.models.block import Block
from lt_train.models.embedding import Embedding
from lt_train.models.norms import norm
from lt_train.models.output import OutputLayer


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

    def __init__(self, config: TransformerConfig, block: Block):
        super().__init__(config=config)
        hidden, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = (norm(config, hidden, epsilon) for _ in range(2))
        # Whole on every tensor-parallel rank, which has a part of the sequence for it.
        self.eh_proj = torch.nn.Linear(
            2 * hidden, hidden, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device()
        )
        self.eh_proj.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.transformer_layer = block
        self.final_layernorm = norm(config, hidden, epsilon)

    @property
    def mtp_model_layer(self) -> Any:
        """What megatron-core 0.19's schedules ask for."""
        return self.transformer_layer

    def forward(self, embedded: Tensor, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Tensor:
        joined = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden_states)), dim=-1))
        output = self.transformer_layer(joined, documents, angles)
        return self.final_layernorm(output)  # type: ignore[no-any-return]


class PredictionLayers(MegatronModule):  # type: ignore[misc]
    def __init__(self, config: TransformerConfig, blocks: Sequence[Block]):
        super().__init__(config=config)
        self.layers = torch.nn.ModuleList(PredictionLayer(config, block) for block in blocks)
        self.scale = config.mtp_loss_scaling_factor / len(blocks)

    def forward(
        self,
        hidden_states: Tensor,
        embedding: Embedding,
        output_layer: OutputLayer,
        weight: Tensor | None,
        labels: Tensor,
        positions: Tensor,
        further: Further,
        documents: Tensor | None,
        angles: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """`hidden_states` [s, b, h] of the last norm, whose gradient now has the predictions', and the mean of each layer's
        losses. `weight` is that of a tied output layer, the others are the model's own inputs."""
        predicted, tokens, means = hidden_states, labels, []
        for layer, targets, mask in zip(self.layers, further.labels, further.masks, strict=True):
            predicted = layer(embedding(tokens, positions), predicted, documents, angles)
            losses = output_layer(predicted, targets, weight)
            total, mean = _sum_and_mean(losses, mask, further.weight)
            means.append(mean)
            hidden_states = MTPLossAutoScaler.apply(hidden_states, self.scale * total)
            tokens = targets
        return hidden_states, means

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        state: dict[str, Any] = {}
        for number in range(len(self.layers)):
            layer: Any = self.layers[number]
            state |= layer.sharded_state_dict(f"{prefix}layers.{number}.", sharded_offsets, metadata)
        return state


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
