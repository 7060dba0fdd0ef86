"""megatron-core as it comes with TransformerEngine: what users of Megatron-LM have.

TransformerEngine's layers, attention and cross entropy, weight gradients added to float32 sums by the products themselves, the
distributed optimizer with TransformerEngine's fused Adam, and with several GPUs its overlap of communication and computation.
Nothing of lt-train takes part.
"""

import importlib
import sys
import types
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from training.workload import Result, StepClock, Workload, peak_memory, say

LEARNING_RATE = 1e-4
# As Megatron-LM's recipes for delayed scaling have it.
AMAX_HISTORY = 1024


def prepare(work: Workload) -> None:
    _provide_fused_weight_gradient()
    for name in ("models.gpt.gpt_layer_specs", "models.gpt", "distributed", "optimizer", "pipeline_parallel"):
        importlib.import_module(f"megatron.core.{name}")
    importlib.import_module("transformer_engine.pytorch")


def run(work: Workload) -> Result:
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    config = transformer_config(work)
    chunk = build(work, config)
    overlap = work.gpus > 1
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=LEARNING_RATE,
            weight_decay=0.1,
            adam_beta2=0.95,
            clip_grad=1.0,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            overlap_param_gather=overlap,
        ),
        [chunk],
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = chunk.no_sync
    schedule = get_forward_backward_func()
    batches = work.batches(seed=torch.distributed.get_rank())
    losses: list[Tensor] = []
    clock = StepClock(work)
    clock.mark()
    for _ in range(work.warmup_steps + work.steps):
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        found = schedule(
            forward_step_func=partial(forward_step, work),
            data_iterator=batches,
            model=chunk,
            num_microbatches=work.micro_batches,
            seq_length=work.shape.sequence_length,
            micro_batch_size=work.shape.micro_batch,
            forward_only=False,
        )
        optimizer.step()
        losses.append(torch.stack([entry["loss"] for entry in found]).mean())
        clock.mark()
    seconds = clock.seconds()
    values = [float(loss) for loss in losses]
    say(f"losses {values[0]:.4f} to {values[-1]:.4f}")
    count = sum(parameter.numel() for parameter in chunk.parameters())
    versions = {name: metadata.version(name) for name in ("torch", "megatron-core", "transformer-engine")}
    return Result(count, work.tokens_per_step * work.gpus, seconds, peak_memory(work.device), values, described(work), versions)


def described(work: Workload) -> str:
    parts = ["TE layers, cross entropy and Adam, fused weight gradients, distributed optimizer, gradients kept in float32"]
    if work.gpus > 1:
        parts.append("summed in float32, overlapped with the backward pass, weights gathered during the forward pass")
    if work.precision == "fp8":
        parts.append(f"fp8 hybrid, {work.settings['recipe']} scaling")
    return ", ".join(parts)


def transformer_config(work: Workload) -> Any:
    from megatron.core.transformer import TransformerConfig

    architecture = work.architecture
    fp8 = {}
    if work.precision == "fp8":
        fp8 = {"fp8": "hybrid", "fp8_recipe": work.settings["recipe"]}
        if work.settings["recipe"] == "delayed":
            fp8 |= {"fp8_amax_history_len": AMAX_HISTORY, "fp8_amax_compute_algo": "max"}
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=architecture.init_std,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        gradient_accumulation_fusion=True,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        apply_rope_fusion=True,
        masked_softmax_fusion=True,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="te",
        **fp8,
    )


def build(work: Workload, config: Any) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.transformer.module import Float16Module

    architecture = work.architecture
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=architecture.vocab_size,
        max_sequence_length=work.shape.sequence_length,
        share_embeddings_and_output_weights=architecture.tie_embeddings,
        position_embedding_type="rope",
        rotary_base=int(architecture.rotary_base),
    )
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=work.gpus > 1,
        overlap_param_gather=work.gpus > 1,
    )
    return DistributedDataParallel(config=config, ddp_config=settings, module=Float16Module(config, model.cuda()))


def forward_step(work: Workload, batches: Iterator[tuple[Tensor, Tensor]], chunk: Any) -> tuple[Tensor, Any]:
    """megatron-core's callback. The causal mask is the layers' own."""
    tokens, labels = (tensor.to(work.device, non_blocking=True) for tensor in next(batches))
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return chunk(tokens, positions, None, labels=labels), mean_loss


def mean_loss(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = losses.float().mean()
    return loss, {"loss": loss.detach()}


def _provide_fused_weight_gradient() -> None:
    """apex's module of this name, which megatron-core's output layer asks for, by torch's product that adds to float32."""

    def accumulate(rows: Tensor, gradient: Tensor, total: Tensor) -> None:
        torch.addmm(total, gradient.t(), rows, out_dtype=torch.float32, out=total)

    module = types.ModuleType("fused_weight_gradient_mlp_cuda")
    module.wgrad_gemm_accum_fp32 = accumulate  # type: ignore[attr-defined]
    sys.modules.setdefault("fused_weight_gradient_mlp_cuda", module)
