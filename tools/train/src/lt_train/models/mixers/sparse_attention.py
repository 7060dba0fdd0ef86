"""DeepSeek's sparse attention (arXiv:2512.02556): latent attention to the tokens that a lightning indexer chooses.

    score of a token = sum over heads of weight * relu(index query . index key)

The indexer is not trained by the model's loss. Its own loss is the divergence between its scores and the attention of all heads,
and its inputs are detached. Modules have megatron-core's names (DSAttention, DSAIndexer). The published inference code rotates
index queries and keys by a Hadamard matrix and quantizes them; the rotation changes no score, and transformers leaves out both.

Queries are computed in chunks, and the backward pass computes each chunk again. A rank keeps the chosen tokens of each query,
and never a matrix of all scores. Masked dense attention computes a chunk; a kernel that reads the chosen keys alone is a later
step.
"""

import functools
from collections.abc import Callable

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lt_shared.models.architecture import Architecture, SparseAttention
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs, replicated_linear
from lt_train.models.mixers import latent_attention
from lt_train.models.mixers.core_attention import document_numbers
from lt_train.models.mixers.latent_attention import LatentAttention
from lt_train.ops.attached_loss import attach_loss

KEY_NORM_EPSILON = 1e-6
# Queries computed at a time: with DeepSeek-V3.2's indexer and 32,768 keys, the index scores of a chunk take 1 GiB.
CHUNK = 128
# As in megatron-core, the smallest probability whose logarithm is taken.
SMALLEST = 1e-10


class LatentSparseAttention(LatentAttention):
    """Latent attention over hidden states [s, b, h] of whole samples, to the tokens of an indexer."""

    core_attention: "SparseCoreAttention"

    def __init__(self, config: TransformerConfig, architecture: Architecture, linears: Linears):
        super().__init__(config, architecture, linears, SparseCoreAttention(config, architecture))

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Attend over `hidden_states`. `angles` is unused, as in latent attention."""
        latent = self.q_layernorm(self.linear_q_down_proj(hidden_states))
        query, key, value = self._keys_values(hidden_states, self.linear_q_up_proj(latent)[0])
        is_recomputed = self.recomputes_core and self.training
        inputs = (query, key, value, documents, hidden_states.detach(), latent.detach())
        return self.linear_proj(recomputation.compute(self.core_attention, is_recomputed, *inputs))[0], None


class SparseCoreAttention(MegatronModule):  # type: ignore[misc]
    """Chooses tokens and attends to them. `loss_coeff` weighs the indexer's loss, which is added to the model's."""

    def __init__(self, config: TransformerConfig, architecture: Architecture):
        super().__init__(config=config)
        sparse = architecture.sparse_attention
        assert sparse is not None
        self.indexer = Indexer(config, architecture, sparse)
        self.topk = sparse.dsa_indexer_topk
        self.scale = latent_attention.score_scale(architecture)
        self.loss_coeff: float = config.lt_indexer_loss_coeff
        self.has_sparse_loss: bool = config.lt_indexer_has_sparse_loss

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None, hidden_states: Tensor, latent: Tensor
    ) -> Tensor:
        """Return [s, b, heads * v] for `query` and `key` [s, b, heads, d] and `value` [s, b, heads, v] of the local heads.

        `hidden_states` [s, b, h] and `latent` [s, b, r], the queries' latent, are detached, and of this rank's tokens with
        sequence parallelism.
        """
        if self.config.sequence_parallel:
            gather = functools.partial(gather_from_sequence_parallel_region, tensor_parallel_output_grad=False)
            hidden_states, latent = gather(hidden_states), gather(latent)
        is_trained = self.training and torch.is_grad_enabled()
        with torch.set_grad_enabled(is_trained and self.loss_coeff > 0):
            index = self.indexer(hidden_states, latent)
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        length = query.shape[2]
        numbers = None if documents is None else document_numbers(documents, length)
        outputs, losses = [], []
        # A slice has a gradient of the whole tensor: of the queries, split makes one for all chunks.
        index_parts = zip(*(torch.split(part, CHUNK, dim=1) for part in (index[0], index[2])), strict=True)
        parts = zip(range(0, length, CHUNK), torch.split(query, CHUNK, dim=2), index_parts, strict=True)
        for start, query_part, (index_queries, index_weights) in parts:
            stop = min(start + CHUNK, length)
            visible = _visible(numbers, start, stop, query.device)
            index_part = index_queries, index[1][:, :stop], index_weights
            chosen = self._choose(index_part, visible)
            part = query_part, key[:, :, :stop], value[:, :, :stop]
            outputs.append(checkpoint(_attend, *part, chosen, visible, self.scale, use_reentrant=False))
            if is_trained and self.loss_coeff > 0:
                inputs = (index_part, part[0].detach(), part[1].detach(), chosen, visible)
                losses.append(
                    checkpoint(divergence, *inputs, self.scale, self.has_sparse_loss, self._across_heads, use_reentrant=False)
                )
        mixed = torch.cat(outputs, dim=2)
        if is_trained:
            mixed = attach_loss(mixed, self._loss(losses, length * len(query)))
        return mixed.permute(2, 0, 1, 3).flatten(2)

    def _choose(self, index: "Index", visible: Tensor) -> Tensor:
        """Return the numbers [b, queries, k] of the tokens that the queries of `index` see."""
        with torch.no_grad():
            scores = _index_scores(*index).masked_fill(~visible, float("-inf"))
            return scores.topk(min(self.topk, scores.shape[-1]), dim=-1).indices

    def _loss(self, losses: list[Tensor], queries: int) -> Tensor:
        """Return the indexer's mean loss per query; without a weight, a zero that depends on all parameters.

        The parameters of an indexer that is not trained have gradients of zero, because DDP waits for every gradient.
        """
        if losses:
            return torch.stack(losses).sum() * (self.loss_coeff / queries)
        return torch.stack([parameter.sum() * 0 for parameter in self.indexer.parameters()]).sum().float()

    def _across_heads(self, probabilities: Tensor) -> Tensor:
        """Sum over the tensor-parallel ranks, which hold different heads."""
        if self.config.tensor_model_parallel_size > 1:
            torch.distributed.all_reduce(probabilities, group=parallel_state.get_tensor_model_parallel_group())
        return probabilities


# Index queries [b, s, heads, d], index keys [b, s, d] and the weights of the heads [b, s, heads], float32.
Index = tuple[Tensor, Tensor, Tensor]


class Indexer(MegatronModule):  # type: ignore[misc]
    """Projections of the index queries and keys. Every tensor-parallel rank has them whole and computes all of a sample."""

    def __init__(self, config: TransformerConfig, architecture: Architecture, sparse: SparseAttention):
        super().__init__(config=config)
        latent = architecture.latent_attention
        assert latent is not None and latent.q_lora_rank is not None
        self.architecture, self.sparse, self.rotated = architecture, sparse, latent.qk_pos_emb_head_dim
        hidden, size = config.hidden_size, sparse.dsa_indexer_head_dim
        self.linear_wq_b = replicated_linear(config, latent.q_lora_rank, sparse.query_size)
        self.linear_wk = replicated_linear(config, hidden, size)
        device = torch.cuda.current_device()
        self.k_norm = torch.nn.LayerNorm(size, eps=KEY_NORM_EPSILON, dtype=config.params_dtype, device=device)
        self.linear_weights_proj = replicated_linear(config, hidden, sparse.dsa_indexer_n_heads)
        for parameter in self.parameters():
            # Ranks compute the whole gradient, although the layers around split the sequence.
            parameter.sequence_parallel = False

    def forward(self, hidden_states: Tensor, latent: Tensor) -> Index:
        """Project `hidden_states` [s, b, h] and the queries' `latent` [s, b, r]."""
        heads, size = self.sparse.dsa_indexer_n_heads, self.sparse.dsa_indexer_head_dim
        queries = self._rotate(self.linear_wq_b(latent).unflatten(-1, (heads, size)))
        keys = self._rotate(self.k_norm(self.linear_wk(hidden_states)).unsqueeze(2)).squeeze(2)
        weights = self.linear_weights_proj(hidden_states).float() * (heads * size) ** -0.5
        return queries.float().transpose(0, 1), keys.float().transpose(0, 1), weights.transpose(0, 1)

    def _rotate(self, channels: Tensor) -> Tensor:
        """Rotate the first channels of [s, b, heads, d]."""
        angles = latent_attention.cosines_and_sines(self.architecture, len(channels), channels.device, channels.dtype)
        turned, unrotated = torch.split(channels, [self.rotated, channels.shape[-1] - self.rotated], dim=-1)
        if not self.sparse.dsa_indexer_rope_interleaved:
            # Channel i and channel i + half are a pair: make the channels of a pair adjacent.
            turned = turned.reshape(*turned.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)
        return torch.cat((latent_attention.rotate_pairs(turned, *angles), unrotated), dim=-1)


def _visible(numbers: Tensor | None, start: int, stop: int, device: torch.device) -> Tensor:
    """Return which of the first `stop` tokens the queries from `start` on may see, [1 or b, queries, keys]."""
    positions = torch.arange(stop, device=device)
    visible = (positions[None, :] <= positions[start:, None]).unsqueeze(0)
    return visible if numbers is None else visible & (numbers[:, None, :stop] == numbers[:, start:stop, None])


def _index_scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Return the scores [b, queries, keys] of the index `queries` [b, q, heads, d] for the `keys` [b, k, d]."""
    products = torch.relu(queries @ keys.transpose(-1, -2).unsqueeze(1))
    return (weights.unsqueeze(-2) @ products).squeeze(-2)


def _is_chosen(chosen: Tensor, visible: Tensor) -> Tensor:
    """Return the mask [b, queries, keys]. Of an early query, tokens that it may not see are among `chosen`."""
    mask = torch.zeros(len(chosen), *visible.shape[1:], dtype=torch.bool, device=chosen.device)
    return mask.scatter_(-1, chosen, True) & visible


def _attend(query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Return [b, heads, queries, v] for `query` [b, heads, queries, d] and the `chosen` tokens."""
    mask = _is_chosen(chosen, visible).unsqueeze(1)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def divergence(
    index: Index,
    query: Tensor,
    key: Tensor,
    chosen: Tensor,
    visible: Tensor,
    scale: float,
    is_sparse: bool,
    across_heads: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the divergence KL(attention, indexer) of a chunk, summed over the queries; `across_heads` sums over ranks.

    The attention is the mean of all heads, over the chosen tokens if `is_sparse`, over all visible tokens otherwise.
    """
    mask = _is_chosen(chosen, visible) if is_sparse else visible.expand(len(query), -1, -1)
    with torch.no_grad():
        scores = (query.float() @ key.float().transpose(-1, -2) * scale).masked_fill(~mask.unsqueeze(1), float("-inf"))
        target = across_heads(scores.softmax(dim=-1).sum(dim=1))
        target = target / target.sum(dim=-1, keepdim=True)
    scores = _index_scores(*index).masked_fill(~mask, float("-inf"))
    predicted = scores.log_softmax(dim=-1).masked_fill(~mask, 0)
    return (target * (target.clamp_min(SMALLEST).log() - predicted)).sum()
