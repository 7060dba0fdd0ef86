"""Run megatron-core's own GPTModel or HybridModel on the CPU in processes of its own: save and load checkpoints, compute logits.

    python megatron_model.py JOBS.json RANK WORLD_SIZE RENDEZVOUS_FILE

Each job names an architecture and what to do with it: fill the weights from the hash of their global names or `load` a
checkpoint, then `save` one, write `logits` of the given tokens, or both. megatron-core calls CUDA in places; cpu_backend answers
those, and `without_transformer_engine` what it asks of TransformerEngine.
"""

import argparse
import functools
import json
import queue
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch

from lt_train.megatron import cpu_backend

cpu_backend.install("cuda")

from groups_left import leave_groups  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.identity_op import IdentityOp  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.multi_latent_attention import MLASelfAttention  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig  # noqa: E402

from lt_shared.models import hybrid_pattern, megatron_arguments  # noqa: E402
from lt_shared.models.architecture import Architecture  # noqa: E402
from lt_shared.models.rope_scaling import YarnScaling  # noqa: E402

_OF_LATENT_ATTENTION = (
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("rope_type", "rotary_base", "rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim"),
)


def _with_channels(
    self: Any, construct: Any, *arguments: Any, k_channels: int | None = None, v_channels: int | None = None, **more: Any
) -> None:
    construct(self, *arguments, **more)
    if v_channels:
        self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def _local(self: Any, resolve: Any, submodules: Any) -> dict[str, Any]:
    resolved: dict[str, Any] = resolve(self, submodules)
    return resolved | ({"linear_q_proj": submodules.linear_q_proj} if self.config.q_lora_rank is None else {})


def without_transformer_engine() -> None:
    # torch.manual_seed describes its callers for each kind of GPU: a tenth of all that a job takes.
    torch.cuda.manual_seed = torch.default_generator.manual_seed
    # A save that is waited for needs no manager process, which would import torch once more.
    filesystem_async._results_queue = queue.Queue()
    # megatron-core 0.16's router asks whether it is None, and does not define it without TransformerEngine.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    # megatron-core 0.16's latent attention takes its guarded import for TransformerEngine, and its local attention knows heads of
    # one size only.
    multi_latent_attention.HAVE_TE = False
    # megatron-core 0.19 takes TransformerEngine's linear layer for queries without a latent, whatever the spec has.
    if hasattr(MLASelfAttention, "_resolve_qk_norm_config"):
        MLASelfAttention._resolve_qk_norm_config = functools.partialmethod(_local, MLASelfAttention._resolve_qk_norm_config)
    DotProductAttention.__init__ = functools.partialmethod(_with_channels, DotProductAttention.__init__)


def build(
    architecture: Architecture,
    padded_vocab_size: int,
    dtype: torch.dtype,
    stage: int | None = None,
    layers: Any = None,
    hybrid: bool = False,
) -> Any:
    """The part of a model that this rank has. `stage` is the virtual pipeline stage, None without; `layers` another spec.

    A GPTModel, or a `hybrid` HybridModel.
    """
    if hybrid:
        # megatron-core 0.16 has none.
        import hybrid_stack
    llama = architecture.family == "llama"
    pipelined = parallel_state.get_pipeline_model_parallel_world_size() > 1
    latent = {**megatron_arguments.to_arguments(architecture)} if architecture.latent_attention else {}
    kind = MLATransformerConfig if latent else TransformerConfig
    dense = architecture.moe_first_dense_layers
    fields = dict(
        **{name: latent[name] for name in _OF_LATENT_ATTENTION if name in latent},
        moe_layer_freq=[0] * dense + [1] * (architecture.num_layers - dense) if dense else 1,
        moe_ffn_hidden_size=architecture.expert_size if architecture.num_experts else None,
        moe_shared_expert_intermediate_size=architecture.moe_shared_expert_intermediate_size,
        moe_shared_expert_gate=architecture.moe_shared_expert_gate,
        moe_router_score_function=architecture.moe_router_score_function,
        moe_router_enable_expert_bias=architecture.moe_router_enable_expert_bias,
        moe_router_num_groups=architecture.moe_router_num_groups,
        moe_router_group_topk=architecture.moe_router_group_topk,
        moe_router_topk_scaling_factor=architecture.moe_router_topk_scaling_factor,
        moe_router_dtype="fp32",
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels if not latent else None,
        layernorm_epsilon=architecture.norm_epsilon,
        normalization=architecture.normalization if llama else "LayerNorm",
        activation_func=_activation(architecture),
        gated_linear_unit=llama and architecture.gated_linear_unit,
        no_rope_freq=megatron_arguments.to_arguments(architecture).get("no_rope_freq"),
        add_bias_linear=not llama or architecture.add_bias_linear,
        add_qkv_bias=architecture.add_qkv_bias,
        qk_layernorm=architecture.qk_layernorm or bool(latent),
        window_size=(architecture.sliding_window - 1, 0) if architecture.sliding_window else None,
        num_moe_experts=architecture.num_experts,
        moe_router_topk=architecture.moe_router_topk,
        moe_router_pre_softmax=architecture.moe_router_pre_softmax,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        virtual_pipeline_model_parallel_size=parallel_state.get_virtual_pipeline_model_parallel_world_size(),
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        num_layers_in_first_pipeline_stage=(4 if hybrid else 2) if pipelined and stage is None else None,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        **(_gpt_oss() if architecture.attention_sinks else {}),
    )
    config = kind(**fields | (hybrid_stack.layer_fields(architecture) if hybrid else {}))
    scaling = architecture.rope_scaling
    last_stage = (config.virtual_pipeline_model_parallel_size or 1) - 1
    is_yarn = isinstance(scaling, YarnScaling) and not latent
    if is_yarn:
        arguments = megatron_arguments.to_arguments(architecture)
        # GPTModel asks for them, and the configuration does not declare them.
        vars(config).update({name: value for name, value in arguments.items() if name.startswith("yarn_")})
    if (latent or dense) and not hybrid:
        layers = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
        if latent and latent["q_lora_rank"] is None:
            # The spec has a norm of the latent that queries do not have; megatron-core 0.19 refuses it.
            for layer in layers.layer_specs:
                layer.submodules.self_attention.submodules.q_layernorm = IdentityOp
    if latent:
        scaling = None
    options: dict[str, Any] = {
        "vocab_size": padded_vocab_size,
        "max_sequence_length": architecture.max_position_embeddings,
        "pre_process": parallel_state.is_pipeline_first_stage() and not stage,
        "post_process": parallel_state.is_pipeline_last_stage() and stage in (None, last_stage),
        "parallel_output": False,
        "share_embeddings_and_output_weights": architecture.tie_embeddings,
        "position_embedding_type": ("yarn" if is_yarn else "rope") if llama else "learned_absolute",
        "rotary_base": int(architecture.rotary_base),
        "rotary_percent": architecture.rotary_percent,
        "rope_scaling": scaling is not None and not is_yarn,
        "rope_scaling_factor": scaling.factor if scaling else 8.0,
        "vp_stage": stage,
    }
    if hybrid:
        return hybrid_stack.build(config, architecture, **options)
    return GPTModel(
        config=config,
        transformer_layer_spec=layers
        or get_gpt_layer_local_spec(
            num_experts=architecture.num_experts, qk_layernorm=architecture.qk_layernorm, normalization=config.normalization
        ),
        **options,
    )


def _activation(architecture: Architecture) -> Any:
    if architecture.family != "llama" or architecture.activation == "gelu_tanh":
        return functools.partial(torch.nn.functional.gelu, approximate="tanh")
    if architecture.activation == "relu2":
        return squared_relu
    return quick_gelu if architecture.attention_sinks else torch.nn.functional.silu


def _gpt_oss() -> dict[str, Any]:
    """Its features as Megatron-LM's --enable-gpt-oss sets them; the window's size is set with that of any model."""
    return {
        "softmax_type": "learnable",
        "window_attn_skip_freq": 2,
        "glu_linear_offset": 1.0,
        "activation_func_clamp_value": 7.0,
        "expert_tensor_parallel_size": 1,
    }


def place_in_whole(tensor: ShardedTensor) -> tuple[int | slice, ...]:
    """The index of a shard in the tensor of the whole model, which megatron-core up to 0.19 had as `global_slice`."""
    axes = tensor.prepend_axis_num
    begins = zip(tensor.global_offset[axes:], tensor.local_shape, strict=True)
    return (*tensor.global_offset[:axes], *(slice(begin, begin + length) for begin, length in begins))


def fill(model: GPTModel) -> None:
    """Give every weight the slice of a tensor that depends on its global name alone, however the model is cut."""
    state = model.sharded_state_dict()
    apply_factories(state)
    with torch.no_grad():
        for tensor in nested_values(state):
            if isinstance(tensor, ShardedTensor):
                generator = torch.Generator().manual_seed(zlib.crc32(tensor.key.encode()))
                whole = torch.randn(tensor.global_shape, generator=generator) * 0.1 + ("norm" in tensor.key)
                part = whole[place_in_whole(tensor)].reshape(tensor.data.shape)
                tensor.data.copy_(part)


def save(model: GPTModel, job: dict[str, Any]) -> None:
    """Save as stock Megatron does, with an optimizer tensor and a byte item that are no part of the model."""
    architecture = Architecture.from_record(job["architecture"])
    rank = torch.distributed.get_rank()
    state = model.sharded_state_dict()
    moment = torch.ones(1, 4)
    state["moment"] = ShardedTensor.from_rank_offsets(
        "optimizer.state.exp_avg.decoder.final_layernorm.weight", moment, (0, rank, torch.distributed.get_world_size())
    )
    state["rng"] = ShardedObject("rng_state", [torch.get_rng_state()], (1,), (0,), replica_id=rank)
    arguments = megatron_arguments.to_arguments(architecture)
    if job.get("hybrid"):
        arguments = hybrid_pattern.from_decoder(arguments, architecture)
    arguments |= {
        "padded_vocab_size": job["padded_vocab_size"],
        "params_dtype": model.config.params_dtype,
        "attention_backend": model.config.attention_backend,
    }
    common = {"args": argparse.Namespace(**arguments), "iteration": 20, "checkpoint_version": 3.0}
    Path(job["save"]).mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save({**state, **common}, job["save"])


def save_legacy(model: GPTModel, job: dict[str, Any]) -> None:
    """This rank's file as Megatron-LM writes it without dist_checkpointing."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    sizes = {"tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(), "transformer_impl": "local"}
    arguments = megatron_arguments.to_arguments(Architecture.from_record(job["architecture"])) | sizes
    arguments |= {"padded_vocab_size": job["padded_vocab_size"], "params_dtype": model.config.params_dtype}
    place = Path(job["legacy"], "iter_0000020", f"mp_rank_{rank:02d}")
    place.mkdir(parents=True)
    state = {"args": argparse.Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 20}
    torch.save({**state, "model": model.state_dict_for_save_checkpoint()}, place / "model_optim_rng.pt")
    Path(job["legacy"], "latest_checkpointed_iteration.txt").write_text("20")


def load(model: GPTModel, directory: str) -> None:
    loaded = dist_checkpointing.load({"model": model.sharded_state_dict()}, directory)
    missing, unexpected = model.load_state_dict(loaded["model"], strict=False)
    assert not [key for key in (*missing, *unexpected) if "_extra_state" not in key], (missing, unexpected)


def logits(model: GPTModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logits float32 [batch, position, vocabulary] of tokens int64 [batch, position], on the last pipeline rank."""
    length = tokens.shape[1]
    positions = torch.arange(length).expand_as(tokens)
    mask = torch.ones(1, 1, length, length).tril() < 0.5
    model.eval()
    with torch.no_grad():
        if not model.pre_process:
            hidden = torch.empty(length, tokens.shape[0], model.config.hidden_size)
            torch.distributed.recv(hidden, parallel_state.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(hidden)
        result = model(tokens, positions, mask).float()
        if not model.post_process:
            torch.distributed.send(result.detach().contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
        return result


def run(job: dict[str, Any]) -> None:
    architecture = Architecture.from_record(job["architecture"])
    # Megatron splits no experts that have biases among tensor-parallel ranks.
    experts = {"expert_tensor_parallel_size": 1} if architecture.add_bias_linear else {}
    parallel_state.initialize_model_parallel(job.get("tensor_parallel", 1), job.get("pipeline_parallel", 1), **experts)
    megatron_random.model_parallel_cuda_manual_seed(1)
    dtype = getattr(torch, job.get("dtype", "float32"))
    model = build(architecture, job["padded_vocab_size"], dtype, hybrid=job.get("hybrid", False))
    if "load" in job:
        load(model, job["load"])
    else:
        fill(model)
    if "save" in job:
        save(model, job)
    if "legacy" in job:
        save_legacy(model, job)
    if "logits" in job:
        found = logits(model, torch.tensor(job["tokens"])).detach().numpy()
        if model.post_process and parallel_state.get_tensor_model_parallel_rank() == 0:
            numpy.save(job["logits"], found)
    leave_groups()


def main() -> None:
    jobs, rank, world_size, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=int(world_size))
    without_transformer_engine()
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
