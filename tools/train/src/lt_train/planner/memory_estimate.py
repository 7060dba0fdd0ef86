"""What a rank will hold, estimated from the configuration before anything starts; no torch is imported.

Weights, gradients and optimizer state follow from the sizes and are exact but for the padding of buffers. Activations are those
of torch's layers, one term per tensor that the backward pass needs; what kernels and the caching allocator take besides (a few
percent, and about a gigabyte for CUDA and NCCL) is not in it. The numbers are those of the fullest rank: of the pipeline's first,
which holds the activations of the most micro batches, or its last, which has the logits; and of those that share experts the one
with the most tokens. Seven mixtures that were measured on H200 had between 0.5 GiB less and 2.1 more.
"""

import dataclasses
import math

from lt_train.config import kernels
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.memory import SWIGLU

GIB = 2**30
# Rows of the rank that gets most, beside the mean: nothing bounds them. Four ranks of Qwen3-30B-A3B held as much as with a tenth
# more in the first steps of a random model (2026-11-27); a quarter is counted.
UNEQUAL_ROUTING = 1.25
# Of a token and its expert: the number of the row in 4 bytes, and of the row the token and the expert in 8.
BYTES_OF_ROW = 20
# Of a token and any expert: the logit and the probability in float32, and whether it is chosen.
BYTES_OF_CHOICE = 9


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes on one rank. `gathered` are the whole layers that FSDP has at a time, with their gradients."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    def as_record(self) -> dict[str, int]:
        return dataclasses.asdict(self) | {"total": self.total}

    def __str__(self) -> str:
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size)
        return f"about {self.total / GIB:.2f} GiB per rank ({listed})"


def record(config: RunConfig) -> dict[str, dict[str, int]]:
    """The estimate for --dry-run."""
    return {"rank_memory_bytes": estimate(config).as_record()}


def estimate(config: RunConfig) -> Estimate:
    """The fullest rank: the pipeline's first, its last, or one of those between, which are alike."""
    ranks = {0, min(1, config.parallelism.pipeline - 1), config.parallelism.pipeline - 1}
    return max((_on_rank(config, rank) for rank in ranks), key=lambda found: found.total)


def of_ranks(config: RunConfig) -> list[Estimate]:
    """One estimate for each pipeline rank; the other ranks of a stage are alike."""
    return [_on_rank(config, rank) for rank in range(config.parallelism.pipeline)]


def _on_rank(config: RunConfig, pipeline_rank: int) -> Estimate:
    dense, experts = _parameters(config, pipeline_rank)
    memory, parallel, half = config.memory, config.parallelism, config.precision.half
    replicas = parallel.data * parallel.context
    # Two moments and what a weight of 16 bits lacks, which is 16 bits more or a copy in float32.
    state = 8 if memory.fully_sharded or not half else 10 if kernels.fuses_adamw(config) else 12
    shards = max(1, replicas // memory.replicas) if config.shards_optimizer else 1
    of_experts = shards * parallel.tensor // (parallel.expert * config.expert_tensor_parallel)
    own = math.ceil(dense / shards) + math.ceil(experts / max(1, of_experts if shards > 1 else 1))
    whole = own if memory.fully_sharded else dense + experts
    gradient_bytes = 2 if half and memory.gradient_dtype == "bfloat16" else 4
    # With FSDP float32, and a copy in 16 bits where other ranks read it.
    weight_bytes = (6 if kernels.shares_shards(config) else 4) if memory.fully_sharded or not half else 2
    return Estimate(
        weights=whole * weight_bytes,
        gradients=whole * gradient_bytes,
        optimizer=own * state,
        gathered=_gathered(config),
        activations=_activations(config, pipeline_rank),
    )


def layer_parameters(config: RunConfig, layer: int) -> tuple[int, int]:
    """Parameters of a layer on a tensor-parallel rank: those of all ranks alike, and those of its experts."""
    model, tensor = config.architecture, config.parallelism.tensor
    vectors = model.vectors(layer, 0)
    split = model.num_attention_heads if model.attention_sinks else 0
    if model.add_qkv_bias or model.add_bias_linear or model.family == "gpt":
        split += model.query_size + 2 * model.kv_size + (model.ffn_hidden_size if model.family == "gpt" else 0)
    vectors -= split - split // tensor
    whole = _whole_projections(config)
    attention = (model.attention_weights() - whole) // tensor + whole
    if not model.has_experts(layer):
        return attention + model.mlp_weights(layer, 0) // tensor + vectors, 0
    routers = (model.num_experts or 0) * model.hidden_size
    shared = model.mlp_weights(layer, 0) - routers
    own = (model.num_experts or 0) // config.parallelism.expert
    experts = model.mlp_weights(layer, own) + model.vectors(layer, own) - model.mlp_weights(layer, 0) - model.vectors(layer, 0)
    return attention + shared // tensor + routers + vectors, experts // config.expert_tensor_parallel


def _whole_projections(config: RunConfig) -> int:
    """Weights of a layer's projections down to latents, which every tensor-parallel rank has whole."""
    model, latent = config.architecture, config.architecture.latent_attention
    return model.hidden_size * ((latent.q_lora_rank or 0) + latent.kv_lora_rank + latent.qk_pos_emb_head_dim) if latent else 0


def _parameters(config: RunConfig, pipeline_rank: int) -> tuple[int, int]:
    """Parameters of a rank before any sharding among data-parallel ranks: dense ones, and those of experts."""
    model, parallel = config.architecture, config.parallelism
    start = sum(parallel.layers_of(rank, model.num_layers) for rank in range(pipeline_rank))
    layers = [layer_parameters(config, start + each) for each in range(parallel.layers_of(pipeline_rank, model.num_layers))]
    dense, experts = sum(count for count, _ in layers), sum(count for _, count in layers)
    vocabulary = config.padded_vocab_size // parallel.tensor * model.hidden_size
    first, last = pipeline_rank == 0, pipeline_rank == parallel.pipeline - 1
    if first:
        dense += vocabulary + (0 if model.family == "llama" else model.max_position_embeddings * model.hidden_size)
    if last:
        dense += model.hidden_size * (1 if model.family == "llama" else 2)
        dense += 0 if model.tie_embeddings and first else vocabulary
        if model.mtp_num_layers:
            more = layer_parameters(config, model.num_layers)
            projection = 2 * model.hidden_size**2 + 3 * model.hidden_size
            # A copy of the embedding for them, where the first stage has it.
            dense += model.mtp_num_layers * (more[0] + projection) + (0 if first or model.tie_embeddings else vocabulary)
            experts += model.mtp_num_layers * more[1]
    return dense, experts


def _gathered(config: RunConfig) -> int:
    """With FSDP: two layers and the ends of the model in the precision of the forward pass, a layer's gradients in float32."""
    if not config.memory.fully_sharded:
        return 0
    bytes_each = 2 if config.precision.half else 4
    layer = sum(layer_parameters(config, config.architecture.num_layers - 1))
    vocabulary = config.padded_vocab_size // config.parallelism.tensor * config.architecture.hidden_size
    ends = vocabulary * (bytes_each + 4)
    return 2 * layer * bytes_each + layer * 4 + ends


def _activations(config: RunConfig, pipeline_rank: int) -> int:
    """What the forward pass keeps for the backward pass, of all micro batches that are between the two at a time."""
    parallel, recompute = config.parallelism, config.memory.recompute
    layers = parallel.layers_of(pipeline_rank, config.architecture.num_layers)
    layer, residual = _layer_activations(config), _residual_activations(config)
    is_last = pipeline_rank == parallel.pipeline - 1
    beside = config.architecture.mtp_num_layers if is_last else 0
    kept, again = layers * layer, 0
    if recompute is not None and recompute.granularity == "full":
        count = min(recompute.layers or 1, layers)
        if recompute.method == "block":
            kept, again = count * residual + (layers - count) * layer, layer
        else:
            kept, again = layers // count * residual, count * layer
    in_flight: float = min(config.micro_batches(max(config.batches.sizes)), parallel.pipeline - pipeline_rank)
    if parallel.interleaving:
        in_flight = parallel.pipeline + (parallel.pipeline - 1 - 2 * pipeline_rank) / parallel.interleaving
    # Multi-token prediction layers have two norms, a projection of both and logits of their own.
    kept_beside = beside * (layer + 4 * residual)
    last = (1 + beside) * _logits(config) if is_last else 0
    # The logits are gone when the first layer is computed again.
    passing = max(last, again + _passing(config))
    return int(kept * max(1, in_flight)) + kept_beside + passing + _deferred(config, pipeline_rank)


def _passing(config: RunConfig) -> int:
    """While a layer's experts compute backward: the tokens of all ranks that share them and their gradients, and for each row
    the gradients of SwiGLU's output and of its inputs, the output once more, and the gradient of the expert's."""
    model, parallel = config.architecture, config.parallelism
    if not kernels.groups_experts(config):
        return 0
    exchanged = 2 * parallel.expert * _residual_activations(config) if kernels.exchanges_whole_tokens(config) else 0
    width = 4 * model.expert_size + model.hidden_size * (2 if _receives_rows(config) else 1)
    return exchanged + int(_rows(config) * width) * (2 if config.precision.half else 4)


def _rows(config: RunConfig) -> float:
    """Of a layer's grouped experts on the rank that gets most: each token is one for each of its experts."""
    parallel = config.parallelism
    own = _tokens(config) // parallel.tensor * config.architecture.moe_router_topk
    return own * (UNEQUAL_ROUTING if parallel.expert > 1 else 1)


def _receives_rows(config: RunConfig) -> bool:
    """Whether grouped experts keep rows that megatron-core's dispatcher has brought; otherwise tokens, which are kept anyway."""
    return config.parallelism.expert > 1 and not kernels.exchanges_whole_tokens(config)


def _grouped_experts(config: RunConfig) -> int:
    """Bytes that a layer's grouped experts keep: the output of the first GEMM, and what says which rows are whose."""
    model, parallel = config.architecture, config.parallelism
    width = 2 * model.expert_size + (model.hidden_size if _receives_rows(config) else 0)
    tokens, experts = _tokens(config) // parallel.tensor, model.num_experts or 0
    choices = tokens * (experts * BYTES_OF_CHOICE + model.moe_router_topk * BYTES_OF_ROW)
    if kernels.exchanges_whole_tokens(config):
        # Of the tokens of all ranks, the probabilities of the own experts, and room for as many rows as there could be.
        own = experts // parallel.expert
        choices = tokens * experts * BYTES_OF_CHOICE
        choices += tokens * parallel.expert * (4 * own + min(model.moe_router_topk, own) * BYTES_OF_ROW)
    return int(_rows(config) * width) * (2 if config.precision.half else 4) + choices


def _deferred(config: RunConfig, pipeline_rank: int) -> int:
    """Operands of the GEMMs of weight gradients that a zero-bubble schedule has waiting: inputs and gradients of outputs."""
    model, parallel = config.architecture, config.parallelism
    if not parallel.defers_weight_gradients:
        return 0
    waiting = min(config.micro_batches(max(config.batches.sizes)), pipeline_rank + 1)
    attention = model.query_size + 2 * model.kv_size + model.value_size
    gate_up = 2 if model.family == "llama" else 1
    wide = (gate_up + 1) * model.expert_size + (2 * model.hidden_size if model.num_experts else 0)
    wide *= model.moe_router_topk if model.num_experts else 1
    wide += (gate_up + 1) * (model.moe_shared_expert_intermediate_size or 0) if model.num_experts else 0
    numbers = attention + wide + 4 * model.hidden_size
    numbers *= parallel.layers_of(pipeline_rank, model.num_layers)
    if pipeline_rank == parallel.pipeline - 1:
        numbers += config.padded_vocab_size + model.hidden_size
    return waiting * numbers // parallel.tensor * _tokens(config) * (2 if config.precision.half else 4)


def _tokens(config: RunConfig) -> int:
    """Tokens of a micro batch on this rank."""
    return config.batches.micro_batch_size * config.batches.seq_length // config.parallelism.context


def _residual_activations(config: RunConfig) -> int:
    """Bytes of a layer's input."""
    split = config.parallelism.tensor if config.parallelism.sequence else 1
    return _tokens(config) * config.architecture.hidden_size // split * (2 if config.precision.half else 4)


def _layer_activations(config: RunConfig) -> int:
    """Bytes that one layer keeps for a micro batch, without whole layers recomputed."""
    model, modules = config.architecture, config.memory.recomputed_modules
    llama, bytes_each = model.family == "llama", 2 if config.precision.half else 4
    fused = llama and config.layers.triton
    rotates_all = model.latent_attention is None and model.rotary_channels == model.kv_channels
    # Queries, keys and values in the projection's output; those rotated; the result of attention, and its copy for the next.
    keys_values = 2 * model.kv_size
    attention = model.query_size + keys_values
    if latent := model.latent_attention:
        keys_values = model.num_attention_heads * (latent.qk_head_dim + latent.v_head_dim)
        attention = model.query_size + keys_values + model.value_size
    # One kernel splits and rotates them, and keeps what it got only if it has norms, too.
    if llama and not (fused and rotates_all and not model.qk_layernorm):
        attention += model.query_size + model.kv_size
    attention += model.value_size * (1 if "core_attn" in modules or fused else 2)
    # The keys and values of the other context-parallel ranks.
    attention += 0 if "core_attn" in modules else (config.parallelism.context - 1) * keys_values
    # The two inputs of SwiGLU, the SiLU of one and their product; or input and output of GELU.
    wide = model.expert_size * ((3 if fused else 4) if llama else 2)
    if SWIGLU in modules:
        wide -= model.expert_size
    grouped = 0
    if "mlp" in modules or "moe" in modules:
        wide = 0
    elif model.num_experts:
        shared = (model.moe_shared_expert_intermediate_size or 0) * 4
        # Of experts that are not grouped, what each MLP keeps, their rows and outputs.
        one_by_one = model.moe_router_topk * (wide + 2 * model.hidden_size)
        grouped = _grouped_experts(config) if kernels.groups_experts(config) else 0
        wide = shared + (0 if grouped else one_by_one)
    split = (attention + wide) // config.parallelism.tensor * _tokens(config) * bytes_each
    # Inputs and outputs of both norms, and the inputs of those behind. Where norms are only behind, their outputs are not kept,
    # but the inputs of attention and MLP are.
    behind = 2 if model.norm_placement == "both" else 0
    return split + grouped + ((2 if "layernorm" in modules else 4) + behind) * _residual_activations(config)


def _logits(config: RunConfig) -> int:
    """Logits in the precision of the forward pass, twice if they are capped; without the kernels the probabilities and their
    gradient in float32 too."""
    columns = config.padded_vocab_size // config.parallelism.tensor
    copies = 0 if kernels.fuses_loss(config) else 4
    if config.architecture.final_logit_softcapping is not None:
        copies += 2 if config.precision.half else 4
    return _tokens(config) * columns * ((2 if config.precision.half else 4) + copies)
