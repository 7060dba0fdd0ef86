"""The sizes of multi-head latent attention, a part of an `Architecture`."""

import dataclasses

from lt_shared.models.rope_scaling import check_counts


@dataclasses.dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): queries, and keys with values, pass through narrow latents.

    `qk_head_dim` channels of a head have no position, `qk_pos_emb_head_dim` are rotated and, of the key, shared by all heads.
    `q_lora_rank` is None where queries have no latent.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        """Raises as `Architecture`."""
        optional = () if self.q_lora_rank is None else ("q_lora_rank",)
        check_counts(self, *optional, "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")

    @property
    def query_channels(self) -> int:
        return self.qk_head_dim + self.qk_pos_emb_head_dim
