"""Bytes that the forward pass keeps for the backward pass: a term per tensor that torch's autograd saves."""

import dataclasses
import functools

from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import NO_MIXER
from lt_train.config.settings.memory import SWIGLU, Recompute
from lt_train.config.settings.parallelism import Parallelism
from lt_train.planner.mixer_costs import COSTS, Setting

# Rows of the rank that receives the most, divided by the mean. The router does not bound this ratio. In the first steps of a
# random model, four ranks of Qwen3-30B-A3B held as much as with a ratio of 1.1 (2026-11-27); the estimate takes 1.25.
UNEQUAL_ROUTING = 1.25
# Per token and chosen expert: 4 bytes for the row's index, 8 each for the row's token and the row's expert.
BYTES_OF_ROW = 20
# Per token and expert, chosen or not: the logit and the probability in float32, and a flag for chosen experts.
BYTES_OF_CHOICE = 9


@dataclasses.dataclass(frozen=True)
class Activations:
    """The activations of a run's ranks, in bytes.

    A step has at most `micro_batches` micro batches of `tokens` tokens on a rank; an activation takes `number_bytes` bytes. The
    flags name kernels that keep fewer activations: `fuses_layers` means Triton's kernels, `fuses_loss` makes no float32 copy of
    the logits, `groups_experts`, `exchanges_whole_tokens` and `has_delta_kernels` are defined in `lt_train.config.kernels`.
    """

    model: Architecture
    parallel: Parallelism
    recompute: Recompute | None
    micro_batches: int
    tokens: int
    number_bytes: int
    fuses_layers: bool
    fuses_loss: bool
    groups_experts: bool
    exchanges_whole_tokens: bool
    has_delta_kernels: bool = False

    def bytes_on_rank(self, pipeline_rank: int) -> int:
        """Return the bytes of the micro batches in flight on a pipeline rank, between their forward and backward pass."""
        parallel, recompute = self.parallel, self.recompute
        mixers = [self.model.mixer(layer) for layer in parallel.layer_numbers(pipeline_rank, self.model.num_layers)]
        layer_bytes = [self._layer_bytes_by_mixer[mixer] for mixer in mixers]
        is_last = pipeline_rank == parallel.pipeline - 1
        mtp_layers = self.model.mtp_num_layers if is_last else 0
        kept_bytes, recomputed_bytes = sum(layer_bytes), 0
        if recompute is not None and recompute.granularity == "full":
            count = min(recompute.layers or 1, len(layer_bytes))
            if recompute.method == "block":
                kept_bytes, recomputed_bytes = count * self.residual_bytes + sum(layer_bytes[count:]), max(layer_bytes[:count])
            else:
                kept_bytes = len(layer_bytes) // count * self.residual_bytes
                recomputed_bytes = max(sum(layer_bytes[first : first + count]) for first in range(0, len(layer_bytes), count))
        in_flight: float = min(self.micro_batches, parallel.pipeline - pipeline_rank)
        if parallel.interleaving:
            in_flight = parallel.pipeline + (parallel.pipeline - 1 - 2 * pipeline_rank) / parallel.interleaving
        # A multi-token prediction layer adds two norms, a projection of their outputs, and logits.
        mtp_layer_bytes = self._layer_bytes_by_mixer[self.model.mixer(self.model.num_layers)] if mtp_layers else 0
        mtp_bytes = mtp_layers * (mtp_layer_bytes + 4 * self.residual_bytes)
        logit_bytes = (1 + mtp_layers) * self._logit_bytes() if is_last else 0
        # The logits are gone when the first layer is computed again.
        mixer_numbers = max((COSTS[mixer].recomputed(self.model, self._mixer_setting) for mixer in mixers), default=0)
        mixer_bytes = 4 * mixer_numbers // parallel.tensor * self.tokens
        transient_bytes = max(logit_bytes, recomputed_bytes + max(self._expert_backward_bytes(), mixer_bytes))
        return int(kept_bytes * max(1, in_flight)) + mtp_bytes + transient_bytes + self._deferred_gradient_bytes(pipeline_rank)

    @functools.cached_property
    def residual_bytes(self) -> int:
        """Bytes of a layer's input, the residual stream, for a micro batch."""
        split = self.parallel.tensor if self.parallel.sequence else 1
        return self.tokens * self.model.hidden_size // split * self.number_bytes

    @functools.cached_property
    def _layer_bytes_by_mixer(self) -> dict[str, int]:
        """Map each kind of mixer to the bytes that its layer keeps for a micro batch, without recomputation."""
        model = self.model
        mixers = {model.mixer(layer) for layer in range(model.num_layers + model.mtp_num_layers)}
        return {mixer: self._layer_bytes(mixer) for mixer in mixers}

    def _layer_bytes(self, mixer: str) -> int:
        model, modules = self.model, self.recompute.modules if self.recompute else ()
        expert_bytes = 0
        mlp_width = self._mlp_width()
        if "mlp" in modules or "moe" in modules or not self._has_mlp(mixer):
            mlp_width = 0
        elif model.num_experts:
            shared_width = (model.moe_shared_expert_intermediate_size or 0) * 4
            # Without grouped GEMMs each expert keeps its MLP's activations, its rows and its outputs.
            one_by_one_width = model.moe_router_topk * (mlp_width + 2 * model.hidden_size)
            expert_bytes = self._grouped_expert_bytes() if self.groups_experts else 0
            mlp_width = shared_width + (0 if expert_bytes else one_by_one_width)
        split_bytes = (self._mixer_width(mixer) + mlp_width) // self.parallel.tensor * self.tokens * self.number_bytes
        # Inputs and outputs of the two norms, and the inputs of norms behind the sublayers. If a block has norms only behind the
        # sublayers, their outputs are not kept, but the inputs of attention and MLP are.
        output_norm_inputs = 2 if model.norm_placement == "both" else 0
        norm_outputs = (2 if "layernorm" in modules else 4) // (2 if model.parallel_layers or model.mlp_layers else 1)
        # A clamp keeps its input, the queries, keys and values.
        clamped = 0 if model.clip_qkv is None else (model.query_size + 2 * model.kv_size) * self.tokens * self.number_bytes
        split_bytes += clamped // self.parallel.tensor
        return split_bytes + expert_bytes + (norm_outputs + output_norm_inputs) * self.residual_bytes

    def _has_mlp(self, mixer: str) -> bool:
        """Whether the layers with this kind of mixer have an MLP, too, or are an MLP alone."""
        return not self.model.mlp_layers or mixer == NO_MIXER

    def _mixer_width(self, mixer: str) -> int:
        """Numbers per token that a mixer keeps, on all tensor-parallel ranks together."""
        return COSTS[mixer].activations(self.model, self._mixer_setting)

    @property
    def _mixer_setting(self) -> Setting:
        recomputes_core = self.recompute is not None and "core_attn" in self.recompute.modules
        parallel = self.parallel
        return Setting(self.fuses_layers, recomputes_core, parallel.context, parallel.tensor, self.has_delta_kernels)

    def _mlp_width(self) -> int:
        """Return the numbers per token that an MLP or an expert keeps: input and output of GELU, or four for SwiGLU.

        SwiGLU keeps its two inputs, the SiLU of the gate, and the product.
        """
        is_gated = self.model.is_gated
        count = (3 if is_gated and self.fuses_layers else 4) if is_gated else 2
        is_recomputed = self.recompute is not None and SWIGLU in self.recompute.modules
        return self.model.expert_size * (count - is_recomputed)

    def _expert_backward_bytes(self) -> int:
        """Return the peak bytes of the backward pass of a layer's experts.

        The peak has the tokens of the ranks that share the experts, with gradients, and for each row the gradients of SwiGLU's
        output and inputs, the recomputed output, and the gradient of the expert's output.
        """
        if not self.groups_experts:
            return 0
        exchanged = 2 * self.parallel.expert * self.residual_bytes if self.exchanges_whole_tokens else 0
        width = 4 * self.model.expert_size + self.model.hidden_size * (2 if self._receives_rows else 1)
        return exchanged + int(self._expert_rows * width) * self.number_bytes

    def _grouped_expert_bytes(self) -> int:
        """Return the bytes that a layer's grouped experts keep: the output of the first GEMM, and the indices of the rows."""
        model, ranks = self.model, self.parallel.expert
        width = 2 * model.expert_size + (model.hidden_size if self._receives_rows else 0)
        tokens, experts = self.tokens // self.parallel.tensor, model.num_experts or 0
        choices = tokens * (experts * BYTES_OF_CHOICE + model.moe_router_topk * BYTES_OF_ROW)
        if self.exchanges_whole_tokens:
            # The local experts' probabilities for all ranks' tokens, and index buffers for the largest possible number of rows.
            local_experts = experts // ranks
            choices = tokens * experts * BYTES_OF_CHOICE
            choices += tokens * ranks * (4 * local_experts + min(model.moe_router_topk, local_experts) * BYTES_OF_ROW)
        return int(self._expert_rows * width) * self.number_bytes + choices

    @property
    def _expert_rows(self) -> float:
        """Rows of a layer's grouped experts on the rank that receives the most. A token makes a row for each of its experts."""
        mean = self.tokens // self.parallel.tensor * self.model.moe_router_topk
        return mean * (UNEQUAL_ROUTING if self.parallel.expert > 1 else 1)

    @property
    def _receives_rows(self) -> bool:
        """Whether grouped experts keep the rows that megatron-core's dispatcher sends.

        Otherwise they read the tokens, which the layer keeps anyway.
        """
        return self.parallel.expert > 1 and not self.exchanges_whole_tokens

    def _deferred_gradient_bytes(self, pipeline_rank: int) -> int:
        """Return the bytes of inputs and output gradients that a zero-bubble schedule keeps for its delayed weight gradients."""
        model, parallel = self.model, self.parallel
        if not parallel.defers_weight_gradients:
            return 0
        waiting = min(self.micro_batches, pipeline_rank + 1)
        gate_up = 2 if model.is_gated else 1
        mlp_width = (gate_up + 1) * model.expert_size + (2 * model.hidden_size if model.num_experts else 0)
        mlp_width *= model.moe_router_topk if model.num_experts else 1
        mlp_width += (gate_up + 1) * (model.moe_shared_expert_intermediate_size or 0) if model.num_experts else 0
        mixers = [model.mixer(layer) for layer in parallel.layer_numbers(pipeline_rank, model.num_layers)]
        parts_width = 4 * model.hidden_size // (2 if model.mlp_layers else 1)
        numbers = sum(COSTS[mixer].operands(model) + mlp_width * self._has_mlp(mixer) + parts_width for mixer in mixers)
        if pipeline_rank == parallel.pipeline - 1:
            numbers += parallel.padded_vocab_size(model) + model.hidden_size
        return waiting * numbers // parallel.tensor * self.tokens * self.number_bytes

    def _logit_bytes(self) -> int:
        """Return the bytes of the logits.

        The logits have the precision of the forward pass and are kept twice if they are capped. Without the fused loss, 4 bytes
        per logit are added for a float32 copy.
        """
        columns = self.parallel.padded_vocab_size(self.model) // self.parallel.tensor
        copies = 0 if self.fuses_loss else 4
        if self.model.final_logit_softcapping is not None:
            copies += self.number_bytes
        return self.tokens * columns * (self.number_bytes + copies)
