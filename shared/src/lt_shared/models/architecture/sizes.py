"""The sizes and features of a decoder-only transformer, and their checks. `Architecture` computes its counts from them.

A field's default is the Llama of 2023, which lacks the feature. Field names are Megatron's where Megatron has one.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Literal

from lt_shared.console import BadConfig
from lt_shared.models.architecture import experts, mamba, mixer_layers, short_convolution, side_by_side, sparse_attention
from lt_shared.models.architecture.gated_delta import GatedDelta, check_gates
from lt_shared.models.architecture.latent_attention import LatentAttention
from lt_shared.models.architecture.mamba import Mamba
from lt_shared.models.architecture.short_convolution import ShortConvolution
from lt_shared.models.architecture.side_by_side import SideBySide
from lt_shared.models.architecture.sparse_attention import SparseAttention
from lt_shared.models.rope_scaling import AnyScaling, LongRopeScaling, YarnScaling, check_counts, check_numbers

Family = Literal["gpt", "llama"]
# Where the norms of a layer are: before attention and the MLP, behind them (OLMo 2), or both (Gemma 2).
NormPlacement = Literal["pre", "post", "both"]
# The feed-forward layer's activation: SiLU, GELU by hyperbolic tangent, the square of ReLU, or gpt-oss's x * sigmoid(1.702 x),
# which clamps gates to at most 7 and up projections to between -7 and 7, and then adds 1 to the latter.
# xIELU (arXiv:2411.13010) has two learned numbers in each layer, and no gates.
Activation = Literal["silu", "gelu_tanh", "relu2", "clamped_swiglu", "xielu"]
Normalization = Literal["RMSNorm", "LayerNorm"]
# What LayerNorm multiplies and adds: both, a weight alone (Cohere), or nothing (OLMo 1).
LayerNormParameters = Literal["weight_and_bias", "weight", "none"]
CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT = 1.702, 7.0
ScoreFunction = Literal["softmax", "sigmoid"]
# Norms of queries and keys: per head, or over all heads at once (OLMo 2).
QkNorm = Literal["head", "all_heads"]
# Kinds of mixers (`lt_shared.models.architecture.mixers`).
ATTENTION, LATENT_ATTENTION, SPARSE_ATTENTION = "attention", "latent_attention", "sparse_attention"
GATED_DELTA, KIMI_DELTA = "gated_delta", "kimi_delta"
SHORT_CONVOLUTION, MAMBA, MAMBA_AND_ATTENTION = "short_convolution", "mamba", "mamba_and_attention"
# Of a layer that is an MLP alone.
NO_MIXER = "no_mixer"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One decoder-only model. Sizes are in elements; `vocab_size` is the tokenizer's, before any padding.

    Attention: `sliding_window` counts the keys that a query sees, its own key included; None means all keys. With
    `window_attn_skip_freq` n, every n-th layer has no window. `local_rotary_base` is the rotary base of the layers with a
    window if it differs from `rotary_base`; these layers then have no scaling either. With `no_rope_freq` n, every n-th layer
    rotates nothing. `softmax_scale` replaces the inverse root of the head size. `attention_sinks` gives every head a learned
    logit that takes part in the softmax and is then dropped. With `attention_output_gate`, every channel of attention's output is
    multiplied by the sigmoid of a projection. The layers of `gated_delta` and `mamba` have a recurrent state in place of
    attention, and the layers of `short_convolution` a convolution of a few tokens. With `mlp_layers`, each layer has one part:
    these layers are an MLP alone, and all others a mixer alone (Nemotron-H). With `side_by_side`, all layers have Mamba-2 and
    attention. With `sparse_attention`, an indexer chooses the tokens that each query of latent attention sees.
    `qk_layernorm_after_rope` normalizes queries and keys behind the rotation (Hunyuan). With `query_temperature_beta` b, a query
    at position p is multiplied by 1 + b log(1 + floor(p / the original positions of YaRN)) (Ministral 3).
    `add_bias_linear` gives biases to the router and to all linear layers, QKV included; `add_qkv_bias` is then False.

    The feed-forward layer multiplies `activation` of a gate by an up projection; without `gated_linear_unit` there is no gate.
    `normalization` is the kind of all norms in the Llama style; LayerNorm has the parameters `layernorm_parameters`.
    With `parallel_layers`, attention and MLP have the same input, the output of a layer's only norm (Cohere). `clip_qkv` limits
    the size of queries, keys and values before the rotation (OLMo 1).

    Experts: the layers from `moe_first_dense_layers` on have `num_experts` experts of size `moe_ffn_hidden_size`. A token goes to
    `moe_router_topk` experts and through a shared expert of size `moe_shared_expert_intermediate_size`, whose output
    `moe_shared_expert_gate` multiplies by the sigmoid of a projection. If no layer is dense, the experts' size is
    `ffn_hidden_size`, and `moe_ffn_hidden_size` is None.
    With `moe_router_pre_softmax`, probabilities are not normalised over the chosen experts. With groups, experts are chosen from
    the `moe_router_group_topk` best of `moe_router_num_groups` groups; a group's score is the sum of its best
    `moe_router_group_score_topk` experts' scores. None means Megatron's number, `moe_router_topk` // `moe_router_group_topk`.

    Multipliers: embeddings are multiplied by `embedding_multiplier`, the output of attention and MLP by `residual_multiplier`,
    and logits divided by `logits_scaling`. A soft cap c makes x into c * tanh(x / c).

    `mtp_num_layers` counts DeepSeek's multi-token prediction layers behind the last layer. `init_std` and `moe_aux_loss_coeff`
    matter for training only. `model_type` is set if transformers has several types for the same sizes.

    The constructor raises BadConfig for impossible or contradictory sizes, and TypeError for a wrong type, as a malformed file
    may have.
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
    rope_scaling: AnyScaling | None = None
    tie_embeddings: bool = False
    init_std: float = 0.02
    rotary_percent: float = 1.0
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    sliding_window: int | None = None
    num_experts: int | None = None
    moe_router_topk: int = 2
    moe_aux_loss_coeff: float = 0.0
    # A record has the fields from here on only if they differ from their defaults.
    moe_ffn_hidden_size: int | None = None
    moe_first_dense_layers: int = 0
    moe_shared_expert_intermediate_size: int | None = None
    moe_router_pre_softmax: bool = False
    moe_router_score_function: ScoreFunction = "softmax"
    moe_router_enable_expert_bias: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_group_score_topk: int | None = None
    moe_router_topk_scaling_factor: float = 1.0
    latent_attention: LatentAttention | None = None
    attention_sinks: bool = False
    window_attn_skip_freq: int | None = None
    local_rotary_base: float | None = None
    softmax_scale: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    qk_layernorm_width: QkNorm = "head"
    norm_placement: NormPlacement = "pre"
    layernorm_zero_centered_gamma: bool = False
    add_bias_linear: bool = False
    activation: Activation = "silu"
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    mtp_num_layers: int = 0
    model_type: str = ""
    no_rope_freq: int | None = None
    gated_linear_unit: bool = True
    normalization: Normalization = "RMSNorm"
    moe_shared_expert_gate: bool = False
    query_temperature_beta: float = 0.0
    qk_layernorm_after_rope: bool = False
    layernorm_parameters: LayerNormParameters = "weight_and_bias"
    parallel_layers: bool = False
    clip_qkv: float | None = None
    attention_output_gate: bool = False
    gated_delta: GatedDelta | None = None
    short_convolution: ShortConvolution | None = None
    mamba: Mamba | None = None
    mlp_layers: tuple[int, ...] = ()
    sparse_attention: SparseAttention | None = None
    side_by_side: SideBySide | None = None

    def __post_init__(self) -> None:
        sizes = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size")
        check_counts(self, *sizes, "max_position_embeddings", "moe_router_topk")
        if self.sliding_window is not None and self.sliding_window <= 0:
            raise BadConfig(f"a sliding window of {self.sliding_window} tokens sees nothing", "leave it out for full attention")
        check_counts(self, *(field for field in _OPTIONAL_COUNTS if getattr(self, field) is not None))
        check_counts(self, *(field for field in ("moe_first_dense_layers", "mtp_num_layers") if getattr(self, field) != 0))
        check_numbers(self, "norm_epsilon", "rotary_base", "rotary_percent", "moe_router_topk_scaling_factor")
        check_numbers(self, "embedding_multiplier", "residual_multiplier", "logits_scaling")
        check_numbers(self, *(field for field in _OPTIONAL_NUMBERS if getattr(self, field) is not None))
        check_numbers(self, "init_std", "moe_aux_loss_coeff", "query_temperature_beta", zero=True)
        for field in _SWITCHES:
            if type(getattr(self, field)) is not bool:
                raise TypeError(f"{field} is {getattr(self, field)!r:.40}, must be true or false")
        for field, words in _WORDS.items():
            if getattr(self, field) not in words:
                raise TypeError(f"{field} is {getattr(self, field)!r:.40}, must be {' or '.join(words)}")
        self._set_head_size()
        # A record has a list.
        object.__setattr__(self, "mlp_layers", tuple(self.mlp_layers))
        if self.num_attention_heads % self.num_query_groups:
            raise BadConfig(f"{self.num_attention_heads} attention heads do not split into {self.num_query_groups} query groups")
        if self.family == "llama" and self.rotary_channels % 2:
            raise BadConfig(f"rotary embeddings need an even head size, this one is {self.rotary_channels}")
        if self.add_bias_linear:
            # `add_bias_linear` includes the biases of queries, keys and values.
            object.__setattr__(self, "add_qkv_bias", False)
        self._check_features()
        experts.check(self)

    def _set_head_size(self) -> None:
        if self.kv_channels != 0:
            check_counts(self, "kv_channels")
            return
        if self.latent_attention:
            object.__setattr__(self, "kv_channels", self.latent_attention.query_channels)
            return
        if self.hidden_size % self.num_attention_heads:
            raise BadConfig(
                f"hidden size {self.hidden_size} is not divisible by {self.num_attention_heads} attention heads",
                "choose another number of heads or give kv_channels",
            )
        object.__setattr__(self, "kv_channels", self.hidden_size // self.num_attention_heads)

    def _check_features(self) -> None:
        """Raises BadConfig for features that exclude each other, or that have no meaning alone."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        features = [field for field in NEWER if getattr(self, field) != defaults[field]]
        if self.family == "gpt" and features:
            raise BadConfig(f"{', '.join(features)}: known in the Llama style only", "use RoPE and RMSNorm")
        scaling = self.rope_scaling
        if isinstance(scaling, LongRopeScaling) and 2 * len(scaling.short_factor) != self.rotary_channels:
            raise BadConfig(
                f"LongRoPE divides {len(scaling.short_factor)} frequencies, and {self.rotary_channels} rotated channels have "
                f"{self.rotary_channels // 2}"
            )
        if self.sliding_window is None and (self.window_attn_skip_freq or self.local_rotary_base):
            raise BadConfig("layers with another window or rotary base than the others, but no window", "give sliding_window")
        if self.query_temperature_beta and not isinstance(scaling, YarnScaling):
            raise BadConfig("a temperature of queries needs YaRN's original positions", "give a rope_scaling of type yarn")
        if self.qk_layernorm_after_rope and not self.qk_layernorm:
            raise BadConfig("norms behind the rotation, and no norms of queries and keys", "give qk_layernorm")
        self._check_layer_style()
        check_gates(self, self.num_layers, self.gated_delta)
        short_convolution.check(self, self.short_convolution)
        mixer_layers.check_single_parts(self.mlp_layers, self)
        mamba.check(self, self.mamba)
        side_by_side.check(self, self.side_by_side, self.mamba)
        sparse_attention.check(self, self.sparse_attention)
        latent = self.latent_attention
        if latent is None:
            return
        if self.kv_channels != latent.query_channels or self.num_query_groups != self.num_attention_heads:
            raise BadConfig(
                f"latent attention has a key for each of {self.num_attention_heads} heads, of {latent.query_channels} channels",
                f"not {self.num_query_groups} groups of {self.kv_channels}",
            )
        excluded: tuple[str, ...] = (
            "add_qkv_bias",
            "qk_layernorm",
            "sliding_window",
            "attention_sinks",
            "add_bias_linear",
            "attention_output_gate",
        )
        # Kimi Linear's latent attention rotates nothing.
        excluded += () if self.no_rope_freq == 1 else ("no_rope_freq",)
        excluded += () if self.gated_delta and self.gated_delta.decays_channels else ("gated_delta",)
        both = [field for field in excluded if getattr(self, field)]
        if both:
            raise BadConfig(f"latent attention with {', '.join(both)}: no model here has both")

    def _check_layer_style(self) -> None:
        """Raises BadConfig for activations and norms that no model here combines."""
        if self.gated_linear_unit == (self.activation in ("relu2", "xielu")):
            gates = "gates" if self.gated_linear_unit else "no gates"
            if self.activation != "gelu_tanh":
                raise BadConfig(f"{self.activation} with {gates}: no model here has both")
        if self.layernorm_parameters != "weight_and_bias" and self.normalization != "LayerNorm":
            raise BadConfig("layernorm_parameters of a model without LayerNorm", "give normalization LayerNorm")
        if self.parallel_layers and (self.norm_placement != "pre" or self.mtp_num_layers):
            raise BadConfig("parallel layers with norms behind them, or multi-token prediction: no model here has both")
        if self.normalization == "RMSNorm" and self.gated_linear_unit:
            return
        features = {
            "experts": self.num_experts and not self.mlp_layers,
            "multi-token prediction": self.mtp_num_layers,
            "latent attention": self.latent_attention,
        }
        with_layer_norm = {
            "norms of queries and keys": self.qk_layernorm,
            "norms behind the layers": self.norm_placement != "pre",
        }
        if self.normalization == "LayerNorm":
            features |= with_layer_norm
        both = [feature for feature, value in features.items() if value]
        if both:
            style = "LayerNorm" if self.normalization == "LayerNorm" else "an MLP without gates"
            raise BadConfig(f"{style} with {', '.join(both)}: no model here has both")

    @property
    def group_score_topk(self) -> int:
        """The number of best scores of experts that are summed into the score of their group; 0 without groups."""
        chosen = self.moe_router_group_topk
        return self.moe_router_group_score_topk or (self.moe_router_topk // chosen if chosen else 0)

    @property
    def rotary_channels(self) -> int:
        """The number of channels of a head that RoPE rotates."""
        return self.latent_attention.qk_pos_emb_head_dim if self.latent_attention else int(self.kv_channels * self.rotary_percent)

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_size(self) -> int:
        return self.num_query_groups * self.kv_channels

    @property
    def value_size(self) -> int:
        """The channels of attention's output, summed over the heads."""
        return self.num_attention_heads * self.latent_attention.v_head_dim if self.latent_attention else self.query_size

    @property
    def expert_size(self) -> int:
        """The width of an expert."""
        return self.moe_ffn_hidden_size or self.ffn_hidden_size

    def has_experts(self, layer: int) -> bool:
        """Whether the layer of this index, from 0, has experts. Multi-token prediction layers come from `num_layers` on."""
        return self.num_experts is not None and layer >= self.moe_first_dense_layers and self.has_mlp(layer)

    def has_mlp(self, layer: int) -> bool:
        """Whether the layer of this index, from 0, has an MLP or experts, beside a mixer or alone."""
        return not self.mlp_layers or layer in self.mlp_layers

    @functools.cached_property
    def mixers(self) -> Mapping[str, Sequence[int]]:
        """The layers, from 0, that have each kind of mixer; the kinds are keys of `mixers.MIXERS`."""
        latent = SPARSE_ATTENTION if self.sparse_attention else LATENT_ATTENTION
        attention = latent if self.latent_attention else ATTENTION
        delta_kind = KIMI_DELTA if self.gated_delta and self.gated_delta.decays_channels else GATED_DELTA
        parts = {delta_kind: self.gated_delta, SHORT_CONVOLUTION: self.short_convolution, MAMBA: self.mamba}
        if self.side_by_side:
            return {MAMBA_AND_ATTENTION: range(self.num_layers)}
        others = {kind: part.layers for kind, part in parts.items() if part is not None}
        others |= {NO_MIXER: self.mlp_layers} if self.mlp_layers else {}
        if not others:
            return {attention: range(self.num_layers)}
        taken = {layer for layers in others.values() for layer in layers}
        return {**others, attention: [layer for layer in range(self.num_layers) if layer not in taken]}

    def mixer(self, layer: int) -> str:
        """The kind of mixer of a layer. Multi-token prediction layers, from `num_layers` on, have the kind that is named last."""
        *first_mixers, last = self.mixers
        return next((kind for kind in first_mixers if layer in self.mixers[kind]), last)

    def places_norms(self, layer: int) -> NormPlacement:
        """Return where the norms of a layer are. Gated delta layers have them in front, whatever the attention layers have."""
        return "pre" if self.mixer(layer) in (GATED_DELTA, KIMI_DELTA) else self.norm_placement

    def layer_kind(self, layer: int) -> tuple[str, bool]:
        """Return a layer's mixer and whether it has experts. Layers with the same kind have the same tensors."""
        return self.mixer(layer), self.has_experts(layer)

    @property
    def layer_kinds(self) -> dict[tuple[str, bool], int]:
        """Return one layer per kind."""
        return {self.layer_kind(layer): layer for layer in range(self.num_layers)}

    @property
    def has_stacked_layers(self) -> bool:
        """Whether torch_dist has one tensor for all layers, as for equal layers of attention. Mamba-2 is never stacked."""
        return len(self.layer_kinds) == 1 and self.mamba is None

    def window(self, layer: int) -> int | None:
        """Return the number of keys that a query of this layer sees, its own included; None for all keys."""
        full = self.window_attn_skip_freq is not None and (layer + 1) % self.window_attn_skip_freq == 0
        return None if full else self.sliding_window

    def rotates(self, layer: int) -> bool:
        """Whether attention of the layer of this index, from 0, rotates queries and keys."""
        return self.family == "llama" and (self.no_rope_freq is None or (layer + 1) % self.no_rope_freq != 0)

    def padded_vocab_size(self, divisible_by: int = 128, tensor_parallel: int = 1) -> int:
        """Return the vocabulary size rounded up to a multiple of `divisible_by` x `tensor_parallel`, as Megatron pads it."""
        multiple = divisible_by * tensor_parallel
        return -(-self.vocab_size // multiple) * multiple

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer has a gate beside its up projection."""
        return self.family == "llama" and self.gated_linear_unit

    @property
    def has_layer_norm(self) -> bool:
        return self.family == "gpt" or self.normalization == "LayerNorm"

    @property
    def vectors_of_norm(self) -> int:
        """A norm's vectors: RMSNorm has a weight, LayerNorm also a bias, unless `layernorm_parameters` leaves it out."""
        return {"weight_and_bias": 2, "weight": 1, "none": 0}[self.layernorm_parameters] if self.has_layer_norm else 1

    @property
    def norms_of_layer(self) -> int:
        """The number of norms in the residual stream of a layer."""
        return 1 if self.parallel_layers or self.mlp_layers else 4 if self.norm_placement == "both" else 2


_FIELDS = [field.name for field in dataclasses.fields(Sizes)]
NEWER = tuple(_FIELDS[_FIELDS.index("moe_ffn_hidden_size") :])
_OPTIONAL_COUNTS = (
    *("num_experts", "sliding_window", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_router_num_groups", "moe_router_group_topk", "moe_router_group_score_topk", "window_attn_skip_freq"),
    "no_rope_freq",
)
_OPTIONAL_NUMBERS = ("local_rotary_base", "softmax_scale", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv")
_SWITCHES = (
    *("tie_embeddings", "add_qkv_bias", "qk_layernorm", "moe_router_pre_softmax", "moe_router_enable_expert_bias"),
    *("attention_sinks", "layernorm_zero_centered_gamma", "add_bias_linear", "gated_linear_unit"),
    *("moe_shared_expert_gate", "qk_layernorm_after_rope", "parallel_layers", "attention_output_gate"),
)
_WORDS = {
    "moe_router_score_function": ("softmax", "sigmoid"),
    "qk_layernorm_width": ("head", "all_heads"),
    "norm_placement": ("pre", "post", "both"),
    "activation": ("silu", "gelu_tanh", "relu2", "clamped_swiglu", "xielu"),
    "normalization": ("RMSNorm", "LayerNorm"),
    "layernorm_parameters": ("weight_and_bias", "weight", "none"),
}
