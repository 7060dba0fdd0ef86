"""Build the decoder of a run on this rank: its shard of the layers and heads, initialized and wrapped for data parallelism.

The order is: megatron-core's configuration (`transformer_config.py`), the linear layers, the pattern of the blocks, and a wrapped
`Decoder` for each pipeline stage of the rank.
"""

from collections.abc import Callable
from functools import partial

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from lt_shared.models.architecture import Architecture
from lt_train.config.kernels import GROUPED_BY_QUACK, GROUPED_FP8, PEER_MEMORY, Kernels, exchanges_whole_tokens
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import Layers
from lt_train.config.settings.memory import Memory, Recompute
from lt_train.config.settings.precision import ALL_GEMMS, Precision
from lt_train.models.decoder import Decoder, Stage
from lt_train.models.embedding import Embedding
from lt_train.models.fp8_linear import Fp8Linears
from lt_train.models.linear import Linears, OverlappedLinears
from lt_train.models.mixers import rope
from lt_train.models.multi_token_prediction import PredictionLayers
from lt_train.models.output import OutputLayer
from lt_train.models.pattern import ExpertKernels, Pattern
from lt_train.models.transformer_config import transformer_config
from lt_train.ops import expert_rows, wgrad_accumulation
from lt_train.ops.expert_mlp import Operations
from lt_train.ops.fp8_casts import Fp8Output, TritonCasts
from lt_train.ops.fp8_grouped_gemm import Fp8GroupedGemms
from lt_train.ops.grouped_gemm import QuackGroupedGemms, TorchGroupedGemms
from lt_train.ops.row_exchange import Exchange
from lt_train.parallel import ddp
from lt_train.parallel.ddp import Chunk
from lt_train.parallel.exchange import choose_exchange
from lt_train.parallel.initialization import clear, initialize
from lt_train.parallel.peer_buffers import SymmetricBuffer
from lt_train.parallel.shard_collectives import Collectives
from lt_train.planner.rank_parameters import layer_parameters
from lt_train.process.device import CUDA


def build(run_config: RunConfig, kernels: Kernels, device: torch.device) -> list[Chunk]:
    """Build the model of this rank, one chunk per pipeline stage. The weights are zero if a checkpoint will be loaded."""
    architecture, batches, layers = run_config.architecture, run_config.batches, run_config.layers
    precision, parallelism, memory = run_config.precision, run_config.parallelism, run_config.memory

    config = transformer_config(run_config, device)
    if config.gradient_accumulation_fusion:
        wgrad_accumulation.accumulate_in_gemms()

    exchange = choose_exchange(parallelism, batches, architecture.hidden_size, kernels)
    pattern = Pattern(
        config,
        architecture,
        kernels,
        ExpertKernels(
            operations=_expert_operations(layers, kernels) if kernels.groups_experts else None,
            exchanges=exchanges_whole_tokens(run_config),
            routes_in_bfloat16=precision.bf16 and device.type == CUDA,
            routes_by_kernel=kernels.groups_experts and layers.triton,
            routing=run_config.routing,
        ),
        _linears(config, precision, kernels, exchange),
        exchange,
        _angles(architecture, batches.seq_length, device),
        _local_angles(architecture, device),
        layers.triton,
        passes_tensors=_recomputes_layers(memory.recompute),
    )
    decoder = partial(
        _decoder,
        pattern,
        vocab_size=run_config.padded_vocab_size,
        z_loss_coeff=run_config.optimization.z_loss_coeff,
        fp8_losses=_fp8_losses(precision),
        adds_embedding_gradient=_adds_embedding_gradient(config, layers, precision, memory),
        prediction_linears=_prediction_linears(config, precision, kernels, exchange),
    )

    has_checkpoint = run_config.checkpointing.start is not None
    width, seed = run_config.optimization.width_multiplier, run_config.seed
    fill = clear if has_checkpoint else partial(initialize, architecture=architecture, seed=seed, width_multiplier=width)
    stages = [Stage.of_rank(number) for number in range(parallelism.interleaving or 0)] or [Stage.of_rank(None)]
    if memory.fully_sharded:
        # The whole model has no memory here. FSDP allocates this rank's shards only.
        with torch.device("meta"):
            models = [decoder(stage) for stage in stages]
        collectives = _shard_collectives(layers, kernels)
        return [ddp.fully_shard(model, config, memory.replicas, device, fill, collectives) for model in models]
    # A layer's weights without experts are the default size of a gradient bucket.
    layer_elements, _ = layer_parameters(architecture, parallelism, architecture.num_layers - 1)
    return [ddp.replicate(decoder(stage), config, parallelism, memory, device, fill, layer_elements) for stage in stages]


def _linears(config: TransformerConfig, precision: Precision, kernels: Kernels, exchange: Exchange) -> Linears:
    """Return the builder of the blocks' linear layers."""
    if precision.fp8_format:
        return Fp8Linears(config, precision, kernels, exchange)
    return OverlappedLinears(config, exchange) if _overlaps(config, kernels) else Linears(config)


def _fp8_losses(precision: Precision) -> Callable[..., Tensor] | None:
    """Return the function that computes the output layer's losses with GEMMs in fp8, None if the layer stays in 16 bits."""
    if precision.fp8_output_proj is None:
        return None
    from lt_train.ops.fp8_linear_cross_entropy import output_losses

    # The layer's scales are one per tensor or token, whatever the recipe of the blocks.
    casts = TritonCasts(kernels_write_amax=precision.fp8_recipe == "tensorwise")
    return partial(output_losses, settings=Fp8Output(casts, casts_logits=precision.fp8_output_proj == ALL_GEMMS))


def _prediction_linears(config: TransformerConfig, precision: Precision, kernels: Kernels, exchange: Exchange) -> Linears:
    """Return the builder of the prediction layers' linear layers, which stay in 16 bits if the blocks multiply in fp8."""
    return Linears(config) if precision.fp8_format else _linears(config, precision, kernels, exchange)


def _overlaps(config: TransformerConfig, kernels: Kernels) -> bool:
    """Return whether the collectives of tensor parallelism overlap with GEMMs."""
    return kernels.collectives == PEER_MEMORY and config.tensor_model_parallel_size > 1


def _decoder(
    pattern: Pattern,
    stage: Stage,
    vocab_size: int,
    z_loss_coeff: float,
    fp8_losses: Callable[..., Tensor] | None,
    adds_embedding_gradient: bool,
    prediction_linears: Linears,
) -> Decoder:
    """Build the decoder of a pipeline stage. `vocab_size` includes the padding."""
    config, architecture, kernels, exchange = pattern.config, pattern.architecture, pattern.kernels, pattern.exchange
    blocks = pattern.blocks(stage)
    embedding, output_layer, predictions = None, None, None
    has_table = stage.is_first or (stage.is_last and bool(architecture.mtp_num_layers))
    is_tied = architecture.tie_embeddings and has_table and stage.is_last
    if has_table:
        embedding = Embedding(config, architecture, vocab_size, stage.is_first and adds_embedding_gradient, is_tied)
    if stage.is_last:
        overlaps = _overlaps(config, kernels)
        output_layer = OutputLayer(
            config, architecture, vocab_size, not is_tied, kernels.cross_entropy, z_loss_coeff, exchange, overlaps, fp8_losses
        )
        if architecture.mtp_num_layers:
            numbers = range(architecture.num_layers + 1, architecture.num_layers + 1 + architecture.mtp_num_layers)
            prediction_blocks = [pattern.prediction_block(number, prediction_linears) for number in numbers]
            predictions = PredictionLayers(config, prediction_blocks)
    return Decoder(config, architecture, blocks, stage, embedding, output_layer, predictions, pattern.angles)


def _angles(architecture: Architecture, seq_length: int, device: torch.device) -> rope.Angles | None:
    """Return the RoPE angles, None without RoPE and for latent attention, which computes its angles itself."""
    if architecture.family != "llama" or architecture.latent_attention:
        return None
    return rope.Angles(rope.inverse_frequencies(architecture, seq_length).to(device))


def _local_angles(architecture: Architecture, device: torch.device) -> rope.Angles | None:
    """Return the RoPE angles of layers with a window, None unless these layers have a separate base."""
    if not architecture.local_rotary_base:
        return None
    return rope.Angles(rope.local_inverse_frequencies(architecture).to(device))


def _recomputes_layers(recompute: Recompute | None) -> bool:
    return recompute is not None and recompute.granularity == "full"


def _adds_embedding_gradient(config: TransformerConfig, layers: Layers, precision: Precision, memory: Memory) -> bool:
    """Return whether a kernel adds the embedding's gradient to the buffer.

    The kernel is not deterministic: it adds the rows of a token in an order that varies.
    """
    if not layers.triton or precision.deterministic:
        return False
    is_sharded = memory.fully_sharded and precision.half
    return is_sharded or bool(config.gradient_accumulation_fusion)


def _shard_collectives(layers: Layers, kernels: Kernels) -> Collectives:
    buffer = SymmetricBuffer if kernels.collectives == PEER_MEMORY else None
    if not layers.triton:
        return Collectives(buffer=buffer)
    from lt_train.kernels.gradient_sums import sum_parts

    return Collectives(sum_parts, buffer)


def _expert_operations(layers: Layers, kernels: Kernels) -> Operations:
    if not layers.triton:
        return Operations(TorchGroupedGemms(), expert_rows)
    from lt_train.kernels import expert_rows as by_triton

    gemms = QuackGroupedGemms() if kernels.experts in GROUPED_BY_QUACK else TorchGroupedGemms()
    if kernels.experts != GROUPED_FP8:
        return Operations(gemms, by_triton)
    from lt_train.kernels import fp8_rows

    return Operations(Fp8GroupedGemms(gemms, fp8_rows), by_triton)
