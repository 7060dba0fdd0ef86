"""The shape of a decoder-only transformer: one dataclass, exact parameter count, FLOPs per token.

Two styles share it: GPT-3 style (learned positions, LayerNorm, GELU, biases) and Llama style (RoPE, RMSNorm, SwiGLU, grouped
queries). Mistral, Qwen and Mixtral are Llama style with one feature each: a sliding window, biases of queries, keys and values,
norms of queries and keys, experts. Field names are Megatron's where Megatron has one. `presets` holds the named shapes;
`huggingface` and `megatron_arguments` translate to the configurations of others.
"""

import dataclasses
from typing import Any, Literal, Self

from lt_shared.console import BadConfig

Family = Literal["gpt", "llama"]

# The largest size, so that the product of two sizes fits an int64 file offset.
LARGEST = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent RoPE scaling (the `llama3` type of Hugging Face); the defaults are Megatron's constants."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        """Raises as `Architecture`."""
        _check_counts(self, "original_max_position_embeddings")
        _check_numbers(self, "factor", "low_freq_factor", "high_freq_factor")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One decoder-only model. Sizes are in elements; `vocab_size` is the tokenizer's, before any padding.

    `sliding_window` counts the keys that a query sees, its own included; None is all. With experts, every layer has
    `num_experts` of size `ffn_hidden_size`, and a token goes to `moe_router_topk` of them. `init_std` and `moe_aux_loss_coeff`
    matter for training only. The constructor raises BadConfig for impossible or contradictory sizes, and TypeError for a field of
    another type, as a malformed file may have.
    """

    name: str
    family: Family
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    max_position_embeddings: int
    kv_channels: int = 0
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    init_std: float = 0.02
    rotary_percent: float = 1.0
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    sliding_window: int | None = None
    num_experts: int | None = None
    moe_router_topk: int = 2
    moe_aux_loss_coeff: float = 0.0

    def __post_init__(self) -> None:
        sizes = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
        _check_counts(self, *sizes, "max_position_embeddings", "moe_router_topk")
        if self.sliding_window is not None and self.sliding_window <= 0:
            raise BadConfig(f"a sliding window of {self.sliding_window} tokens sees nothing", "leave it out for full attention")
        _check_counts(self, *(field for field in ("num_experts", "sliding_window") if getattr(self, field) is not None))
        _check_numbers(self, "norm_epsilon", "rotary_base", "rotary_percent")
        _check_numbers(self, "init_std", "moe_aux_loss_coeff", zero=True)
        for field in ("tie_embeddings", "add_qkv_bias", "qk_layernorm"):
            if type(getattr(self, field)) is not bool:
                raise TypeError(f"{field} is {getattr(self, field)!r:.40}, must be true or false")
        if self.kv_channels != 0:
            _check_counts(self, "kv_channels")
        else:
            if self.hidden_size % self.num_attention_heads:
                raise BadConfig(
                    f"hidden size {self.hidden_size} is not divisible by {self.num_attention_heads} attention heads",
                    "choose another number of heads or give kv_channels",
                )
            object.__setattr__(self, "kv_channels", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_query_groups:
            raise BadConfig(f"{self.num_attention_heads} attention heads do not split into {self.num_query_groups} query groups")
        if self.family == "llama" and self.rotary_channels % 2:
            raise BadConfig(f"rotary embeddings need an even head size, this one is {self.rotary_channels}")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.num_experts is None:
            return
        if self.family != "llama":
            raise BadConfig("experts are known in the Llama style only", "use RoPE, RMSNorm, SwiGLU and no biases")
        if not 1 <= self.moe_router_topk <= self.num_experts:
            raise BadConfig(f"a token cannot go to {self.moe_router_topk} of {self.num_experts} experts")

    @property
    def rotary_channels(self) -> int:
        """The number of channels of a head that RoPE rotates."""
        return int(self.kv_channels * self.rotary_percent)

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_size(self) -> int:
        return self.num_query_groups * self.kv_channels

    def padded_vocab_size(self, divisible_by: int = 128, tensor_parallel: int = 1) -> int:
        """Megatron's padding: the next multiple of `divisible_by` x `tensor_parallel`."""
        multiple = divisible_by * tensor_parallel
        return -(-self.vocab_size // multiple) * multiple

    def _attention_weights(self) -> int:
        return self.hidden_size * (self.query_size + 2 * self.kv_size) + self.query_size * self.hidden_size

    def _mlp_weights(self, experts: int) -> int:
        """Weights of a layer's MLP, or of its router and `experts` of its experts."""
        weights = (3 if self.family == "llama" else 2) * self.hidden_size * self.ffn_hidden_size
        return weights if self.num_experts is None else self.num_experts * self.hidden_size + experts * weights

    def _vectors(self) -> int:
        """A layer's biases and norms."""
        if self.family == "llama":
            biases = self.query_size + 2 * self.kv_size if self.add_qkv_bias else 0
            return biases + 2 * self.hidden_size + (2 * self.kv_channels if self.qk_layernorm else 0)
        biases = self.query_size + 2 * self.kv_size + self.hidden_size + self.ffn_hidden_size + self.hidden_size
        return biases + 4 * self.hidden_size + (4 * self.kv_channels if self.qk_layernorm else 0)

    def parameters(self, vocab_size: int | None = None) -> int:
        """Exact number of parameters, with `vocab_size` rows in the embedding (default: unpadded)."""
        return self._parameters(vocab_size or self.vocab_size, self.num_experts or 0)

    def active_parameters(self, vocab_size: int | None = None) -> int:
        """Exact number of parameters used for one token: of the experts only those to which it is routed."""
        return self._parameters(vocab_size or self.vocab_size, self.moe_router_topk)

    def _parameters(self, vocab_size: int, experts: int) -> int:
        layer = self._attention_weights() + self._mlp_weights(experts) + self._vectors()
        final_norm = self.hidden_size if self.family == "llama" else 2 * self.hidden_size
        positions = 0 if self.family == "llama" else self.max_position_embeddings * self.hidden_size
        vocabulary = vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + final_norm + positions + vocabulary

    def flops_per_token(self, sequence_length: int) -> int:
        """Floating-point operations of one training step per token, forward and backward, no recomputation.

        Six per weight of a GEMM (the input embedding is a look-up and has none), plus attention scores and values over the
        causal half of the score matrix, or the part of it in the sliding window. Megatron and TorchTitan count the whole
        matrix in the figures that they print.
        """
        layer = self._attention_weights() + self._mlp_weights(self.moe_router_topk)
        weights = self.num_layers * layer + self.vocab_size * self.hidden_size
        window = min(self.sliding_window or sequence_length, sequence_length)
        pairs = window * (2 * sequence_length - window)
        return 6 * weights + 6 * self.num_layers * self.query_size * pairs // sequence_length

    def to_record(self) -> dict[str, Any]:
        """A JSON object that `from_record` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(record) - known)
        if unknown:
            raise BadConfig(f"architecture has unknown fields: {', '.join(unknown)}", "it was written by a newer version")
        scaling = record.get("rope_scaling")
        try:
            return cls(**{**record, "rope_scaling": RopeScaling(**scaling) if scaling else None})
        except TypeError as error:
            raise BadConfig(f"architecture is incomplete or malformed: {error}") from None


def _check_counts(sizes: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(sizes, field)
        if type(value) is not int:
            raise TypeError(f"{field} is {value!r:.40}, must be a whole number")
        if not 0 < value <= LARGEST:
            raise BadConfig(f"{field} is {value!r:.40}, must be positive and at most {LARGEST}")


def _check_numbers(sizes: Any, *fields: str, zero: bool = False) -> None:
    for field in fields:
        value = getattr(sizes, field)
        if type(value) not in (int, float):
            raise TypeError(f"{field} is {value!r:.40}, must be a number")
        # A comparison, unlike math.isfinite, takes integers of any size. NaN fails it.
        if not (0 < value < 1e300 or (zero and value == 0)):
            raise BadConfig(f"{field} is {value!r:.40}, must be {'' if zero else 'positive and '}finite")
