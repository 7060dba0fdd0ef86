"""The shape of a decoder-only transformer: one dataclass, exact parameter count, FLOPs per token.

Two styles share it: GPT-3 style (learned positions, LayerNorm, GELU, biases) and Llama style (RoPE, RMSNorm, a gated feed-forward
layer, grouped queries). All other families are Llama style with features: a window, norms of queries and keys, experts, latent
attention. `sizes` has the fields; `mixers` and `mlps` have the parts of a layer. `presets` holds the named shapes; `huggingface`
and `megatron_arguments` translate to other projects' configurations.
"""

import dataclasses
from typing import Any, Self

from lt_shared.console import BadConfig
from lt_shared.models import rope_scaling as scalings
from lt_shared.models.architecture import flops, mlps
from lt_shared.models.architecture.gated_delta import GatedDelta
from lt_shared.models.architecture.latent_attention import LatentAttention
from lt_shared.models.architecture.mamba import Mamba
from lt_shared.models.architecture.mixers import MIXERS
from lt_shared.models.architecture.short_convolution import ShortConvolution
from lt_shared.models.architecture.side_by_side import SideBySide
from lt_shared.models.architecture.sizes import NEWER, Sizes
from lt_shared.models.architecture.sparse_attention import SparseAttention
from lt_shared.models.rope_scaling import RopeScaling


@dataclasses.dataclass(frozen=True)
class Architecture(Sizes):
    """One decoder-only model. The constructor raises as `Sizes`."""

    def mixer_weights(self, layer: int) -> int:
        """Weights of the mixer of a layer that are factors of a GEMM."""
        return MIXERS[self.mixer(layer)].weights(self)

    def mlp_weights(self, layer: int, experts: int) -> int:
        """Weights of the MLP of a layer, or of its router, its shared expert and `experts` of its experts."""
        return mlps.weights(self, layer, experts)

    def vectors(self, layer: int, experts: int) -> int:
        """Biases, norms and sinks of a layer, with the biases of `experts` of its experts."""
        norms = self.norms_of_layer * self.hidden_size * self.vectors_of_norm
        return norms + MIXERS[self.mixer(layer)].vectors(self) + mlps.biases(self, layer, experts)

    def layer_parameters(self, layer: int, experts: int) -> int:
        """Parameters of a layer, with `experts` of its experts."""
        return self.mixer_weights(layer) + self.mlp_weights(layer, experts) + self.vectors(layer, experts)

    def parameters(self, vocab_size: int | None = None) -> int:
        """Exact number of parameters, with `vocab_size` rows in the embedding (default: unpadded).

        As published: without multi-token prediction layers (`mtp_parameters`) and the router's balancing biases, which no
        gradient changes.
        """
        return self._parameters(vocab_size or self.vocab_size, self.num_experts or 0)

    def active_parameters(self, vocab_size: int | None = None) -> int:
        """Exact number of parameters used for one token, counting only the experts that the token is routed to."""
        return self._parameters(vocab_size or self.vocab_size, self.moe_router_topk)

    def mtp_parameters(self) -> int:
        """Exact number of parameters of the multi-token prediction layers: three norms, a projection, a layer each."""
        layer = self.layer_parameters(self.num_layers, self.num_experts or 0)
        return self.mtp_num_layers * (layer + 3 * self.hidden_size + 2 * self.hidden_size**2)

    def _parameters(self, vocab_size: int, experts: int) -> int:
        final_norm = self.hidden_size * self.vectors_of_norm
        positions = 0 if self.family == "llama" else self.max_position_embeddings * self.hidden_size
        vocabulary = vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        layers = sum(self.layer_parameters(layer, experts) for layer in range(self.num_layers))
        return layers + final_norm + positions + vocabulary

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the FLOPs per token in a training step, forward and backward, without recomputation (`flops`)."""
        return flops.per_token(self, sequence_length)

    def to_record(self) -> dict[str, Any]:
        """Return a JSON object for `from_record`. Older versions read it if the model uses no field that is new to them."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        record = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in NEWER or getattr(self, name) != defaults[name]
        }
        if isinstance(self.rope_scaling, RopeScaling):
            del record["rope_scaling"]["rope_type"]
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        if not isinstance(record, dict):
            raise BadConfig(f"architecture is malformed: {type(record).__name__} instead of an object")
        field_names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(record) - field_names)
        if unknown:
            raise BadConfig(f"architecture has unknown fields: {', '.join(unknown)}", "it was written by a newer version")
        kinds: dict[str, Any] = {"latent_attention": LatentAttention, "gated_delta": GatedDelta}
        kinds |= {"short_convolution": ShortConvolution, "mamba": Mamba, "sparse_attention": SparseAttention}
        kinds["side_by_side"] = SideBySide
        scaling = record.get("rope_scaling")
        try:
            parts = {
                "rope_scaling": scalings.from_record(scaling) if scaling else None,
                **{name: kind(**record[name]) if record.get(name) else None for name, kind in kinds.items()},
            }
            return cls(**{**record, **parts})
        except TypeError as error:
            raise BadConfig(f"architecture is incomplete or malformed: {error}") from None
