"""DeepSeek's multi-token prediction (arXiv:2412.19437, 2.2): layers after the last block predict the tokens after the next.

For each position, the k-th layer joins the output of the previous layer with the embedding of the token k positions ahead, and
predicts the token after that one. Its loss has the weight `mtp_loss_scaling_factor` / layers and is reported separately. As in
megatron-core and in the engines that serve the published weights, the input of the first layer has passed the model's last norm.
TorchTitan takes the input before the last norm.

The layers are on the last pipeline stage, together with a copy of the embedding. megatron-core sums the gradients of the copy and
of the first stage's embedding.
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
class PredictionTargets:
    """Labels and loss masks for every prediction layer, [b, s] for the tokens of this rank.

    `weight` is the weight of the micro batch in its step; None is 1.
    """

    labels: Sequence[Tensor]
    masks: Sequence[Tensor]
    weight: Tensor | None = None


def prediction_targets(
    labels: Tensor,
    mask: Tensor,
    documents: Tensor | None,
    layers: int,
    local_part: Callable[[Tensor], Tensor],
    weight: Tensor | None = None,
) -> PredictionTargets:
    """Shift the labels of whole samples [b, S] for `layers` prediction layers, and return this rank's part of the shifted labels.

    A prediction that would reach beyond its sample or document is masked. megatron-core shifts local tokens, so its
    context-parallel ranks must exchange messages. Whole samples need no messages.
    """
    shifted_labels: list[Tensor] = []
    masks: list[Tensor] = []
    for places in range(1, layers + 1):
        counts = _shift(mask, places)
        if documents is not None:
            counts = counts * (documents == _shift(documents, places, fill=-1))
        shifted_labels.append(local_part(_shift(labels, places)))
        masks.append(local_part(counts))
    return PredictionTargets(shifted_labels, masks, weight)


def _shift(tensor: Tensor, places: int, fill: int = 0) -> Tensor:
    return torch.cat((tensor[:, places:], tensor.new_full((len(tensor), places), fill)), dim=1)


class PredictionLayer(MegatronModule):  # type: ignore[misc]
    """A prediction layer. Its submodules have the names of megatron-core 0.16, with every megatron-core.

    megatron-core 0.19 calls `transformer_layer` `mtp_model_layer`, so its own GPTModel cannot load a checkpoint of 0.16.
    """

    def __init__(self, config: TransformerConfig, block: Block):
        super().__init__(config=config)
        hidden, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = (norm(config, hidden, epsilon) for _ in range(2))
        # Not tensor-parallel: each rank holds the whole weight and multiplies its part of the sequence.
        self.eh_proj = torch.nn.Linear(
            2 * hidden, hidden, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device()
        )
        self.eh_proj.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.transformer_layer = block
        self.final_layernorm = norm(config, hidden, epsilon)

    @property
    def mtp_model_layer(self) -> Any:
        """An alias that megatron-core 0.19's schedules read."""
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
        targets: PredictionTargets,
        documents: Tensor | None,
        angles: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return `hidden_states` with the prediction losses attached to their gradient, and the mean loss per prediction layer.

        `hidden_states` [s, b, h] are the output of the last norm. `weight` is the weight of a tied output layer.
        """
        predicted, tokens, means = hidden_states, labels, []
        for layer, next_labels, mask in zip(self.layers, targets.labels, targets.masks, strict=True):
            predicted = layer(embedding(tokens, positions), predicted, documents, angles)
            losses = output_layer(predicted, next_labels, weight)
            total, mean = _sum_and_mean(losses, mask, targets.weight)
            means.append(mean)
            # The hidden states pass unchanged. In the backward pass, their gradient triggers the gradient of the loss.
            hidden_states = MTPLossAutoScaler.apply(hidden_states, self.scale * total)
            tokens = next_labels
        return hidden_states, means

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        state: dict[str, Any] = {}
        for number in range(len(self.layers)):
            layer: Any = self.layers[number]
            state |= layer.sharded_state_dict(f"{prefix}layers.{number}.", sharded_offsets, metadata)
        return state


def _sum_and_mean(losses: Tensor, mask: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return this rank's contribution to the mean loss, for the backward pass, and the mean loss itself, for reports.

    The contribution is multiplied by the number of context-parallel ranks, because their gradients are averaged.
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
