"""The sizes of DeepSeek's sparse attention, a part of an `Architecture`."""

import dataclasses
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.rope_scaling import check_counts


@dataclasses.dataclass(frozen=True)
class SparseAttention:
    """The lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556) in front of latent attention, under Megatron's names.

    The indexer scores all earlier tokens with `dsa_indexer_n_heads` queries and one key of `dsa_indexer_head_dim` channels.
    Attention sees the `dsa_indexer_topk` tokens with the best scores. `dsa_indexer_rope_interleaved` rotates adjacent channels
    as pairs (GLM-5); otherwise channel i and channel i + half are a pair (DeepSeek-V3.2). Raises as `Architecture`.
    """

    dsa_indexer_n_heads: int = 64
    dsa_indexer_head_dim: int = 128
    dsa_indexer_topk: int = 2048
    dsa_indexer_rope_interleaved: bool = False

    def __post_init__(self) -> None:
        check_counts(self, *SIZES)
        if type(self.dsa_indexer_rope_interleaved) is not bool:
            raise TypeError(f"dsa_indexer_rope_interleaved is {self.dsa_indexer_rope_interleaved!r:.40}, must be true or false")

    @property
    def query_size(self) -> int:
        """The channels of the indexer's queries, summed over the heads."""
        return self.dsa_indexer_n_heads * self.dsa_indexer_head_dim


SIZES = ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk")


def check(model: Any, sparse: SparseAttention | None) -> None:
    """Raises BadConfig for a model whose attention has no latents to index, and for features that no model combines."""
    if sparse is None:
        return
    latent = model.latent_attention
    if latent is None or latent.q_lora_rank is None:
        raise BadConfig("an indexer of attention without a latent of the queries", "give latent_attention with q_lora_rank")
    if latent.qk_pos_emb_head_dim > sparse.dsa_indexer_head_dim:
        raise BadConfig(
            f"an indexer with heads of {sparse.dsa_indexer_head_dim} channels rotates {latent.qk_pos_emb_head_dim} of them",
            "give dsa_indexer_head_dim of at least qk_pos_emb_head_dim",
        )
    both = [field for field in ("query_temperature_beta", "no_rope_freq", "gated_delta") if getattr(model, field)]
    if both:
        raise BadConfig(f"sparse attention with {', '.join(both)}: no model here has both")
