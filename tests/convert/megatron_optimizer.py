"""Train megatron-core's GPTModel or HybridModel on the CPU with its DistributedOptimizer; save one state in several of its forms.

    python megatron_optimizer.py JOBS.json RANK WORLD_SIZE RENDEZVOUS_FILE

A job has an architecture, parallel sizes, and in `save` a directory for each form of the optimizer state (`dp_reshardable` ...).
It may `load` a checkpoint after its steps, whose state is then saved: with `distributed` false, by optimizers that ranks do not
share, whose form lt-convert writes.
Gradients are drawn from the global name of a weight, so every rank has its part of the same ones; the steps are the optimizer's.
"""

import argparse
import dataclasses
import enum
import functools
import json
import queue
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import yaml

from lt_train.megatron import cpu_backend

cpu_backend.install("cuda")

import megatron_model  # noqa: E402
from groups_left import leave_groups  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel import ColumnParallelLinear  # noqa: E402
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer.identity_op import IdentityOp  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

from lt_shared.models import hybrid_pattern, megatron_arguments  # noqa: E402
from lt_shared.models.architecture import Architecture  # noqa: E402

filesystem_async._results_queue = queue.Queue()
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)


class NormedLinear(ColumnParallelLinear):  # type: ignore[misc]
    """Has the parameters of TransformerEngine's LayerNormLinear, which registers its norm first."""

    def __init__(self, input_size: int, output_size: int, **options: Any):
        super().__init__(input_size, output_size, **options)
        norm = torch.nn.Parameter(torch.ones(input_size, dtype=self.weight.dtype))
        own = {"layer_norm_weight": norm, **self._parameters}
        self._parameters.clear()
        self._parameters.update(own)


def fused_norms() -> Any:
    """The layers of a Llama with norms in the linear layers that follow, as TransformerEngine has them."""
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
    parts.sharded_state_dict_keys_map = {}
    # megatron-core 0.19 has a partial function in place of a spec.
    mlp = parts.mlp.keywords["submodules"] if isinstance(parts.mlp, functools.partial) else parts.mlp.submodules
    parts.self_attention.submodules.linear_qkv = mlp.linear_fc1 = NormedLinear
    return spec


def chunks_of(job: dict[str, Any]) -> list[DistributedDataParallel]:
    architecture = Architecture.from_record(job["architecture"])
    dtype = getattr(torch, job.get("dtype", "bfloat16"))
    stages = job.get("virtual_pipeline_parallel") or 1
    layers = fused_norms() if job.get("fused_norms") else None
    models = [
        megatron_model.build(
            architecture, job["padded_vocab_size"], dtype, stage if stages > 1 else None, layers, job.get("hybrid", False)
        )
        for stage in range(stages)
    ]
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=job.get("distributed", True),
        grad_reduce_in_fp32=True,
        overlap_grad_reduce="bucket_size" in job,
        bucket_size=job.get("bucket_size"),
    )
    for model in models:
        # As Megatron-LM's Float16Module does; without it norms of local layers are fp32.
        if not job.get("mixed"):
            model.to(dtype)
        megatron_model.fill(model)
    return [
        DistributedDataParallel(models[0].config, config, model, disable_bucketing=number > 0)
        for number, model in enumerate(models)
    ]


def set_gradients(chunk: DistributedDataParallel, step: int) -> None:
    """A part of a tensor that depends on the global name alone, however the model is cut."""
    state = chunk.module.sharded_state_dict()
    apply_factories(state)
    before = [parameter.detach().clone() for parameter in chunk.module.parameters()]
    with torch.no_grad():
        for tensor in nested_values(state):
            if isinstance(tensor, ShardedTensor):
                generator = torch.Generator().manual_seed(zlib.crc32(f"{tensor.key}{step}".encode()))
                whole = torch.randn(tensor.global_shape, generator=generator)
                tensor.data.copy_(whole[megatron_model.place_in_whole(tensor)].reshape(tensor.data.shape))
        for parameter, weight in zip(chunk.module.parameters(), before, strict=True):
            parameter.main_grad.copy_(parameter.float())
            parameter.copy_(weight)


def save(chunks: list[DistributedDataParallel], optimizer: Any, form: str, directory: str, job: dict[str, Any]) -> None:
    metadata = {"distrib_optim_sharding_type": form, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    trainer = job.get("trainer", "megatron-lm")
    prefix = "module." if trainer == "nemo" else ""
    state: dict[str, Any] = {
        f"model{number}": chunk.module.sharded_state_dict(prefix=prefix, metadata=metadata) for number, chunk in enumerate(chunks)
    }
    moments = optimizer.sharded_state_dict(dict(state), metadata=metadata)
    state["optimizer"] = [moments] if trainer == "nemo" else moments
    Path(directory).mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save({**state, **beside(chunks, job)}, directory, content_metadata=metadata)
    if torch.distributed.get_rank() == 0 and trainer != "megatron-lm":
        write_configuration(chunks[0].module.config, Path(directory), job)


def load(chunks: list[DistributedDataParallel], optimizer: Any, directory: str) -> None:
    """Load weights and optimizer state."""
    metadata = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
    model = {f"model{number}": chunk.module.sharded_state_dict(metadata=metadata) for number, chunk in enumerate(chunks)}
    moments = optimizer.sharded_state_dict(dict(model), is_loading=True, metadata=metadata)
    loaded = dist_checkpointing.load({**model, "optimizer": moments}, directory)
    for number, chunk in enumerate(chunks):
        missing, unexpected = chunk.module.load_state_dict(loaded[f"model{number}"], strict=False)
        assert not [key for key in (*missing, *unexpected) if "_extra_state" not in key], (missing, unexpected)
    optimizer.load_state_dict(loaded["optimizer"])


def save_as_fsdp(chunk: DistributedDataParallel, optimizer: Any, directory: str, job: dict[str, Any]) -> None:
    """The state dicts that Megatron-LM gives DCP for `--ckpt-format fsdp_dtensor`; Megatron-FSDP itself needs CUDA."""
    (inner,) = optimizer.chained_optimizers
    model: dict[str, Any] = {}
    moments: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for name, parameter in chunk.module.named_parameters():
        group, place = inner.model_param_group_index_map[parameter]
        main = inner.optimizer.param_groups[group]["params"][place]
        state = inner.optimizer.state[main]
        own = {kind: state[kind].reshape(parameter.shape) for kind in ("exp_avg", "exp_avg_sq")}
        whole = main.detach().reshape(parameter.shape)
        gated = chunk.module.config.gated_linear_unit and "linear_fc1.weight" in name
        for half, suffix in enumerate(("_w", "_v") if gated else ("",)):
            parts = 2 if gated else 1
            model[f"module.{name}{suffix}"] = whole.chunk(parts)[half].clone()
            moments[f"module.module.{name}{suffix}"] = {kind: each.chunk(parts)[half].clone() for kind, each in own.items()} | {
                "step": state["step"]
            }
        settings = {key: value for key, value in inner.optimizer.param_groups[group].items() if key != "params"}
        groups[f"module.module.{name}"] = settings
    stored = {
        **beside([chunk], job),
        "model": model,
        "optimizer": {"state": moments, "param_to_group_meta": groups},
        "opt_param_scheduler": {"num_steps": 24},
    }
    Path(directory).mkdir(parents=True, exist_ok=True)
    torch.distributed.checkpoint.save(stored, checkpoint_id=directory)
    if job.get("trainer") == "bridge":
        write_configuration(chunk.module.config, Path(directory), job)


def beside(chunks: list[DistributedDataParallel], job: dict[str, Any]) -> dict[str, Any]:
    """What each trainer stores beside the tensors: Megatron-LM alone its arguments."""
    if job.get("trainer") == "nemo":
        return {"global_step": job["steps"], "epoch": 0, "pytorch-lightning_version": "2.5.0", "loops": {"fit_loop": {}}}
    if job.get("trainer") == "bridge":
        return {"iteration": job["steps"], "checkpoint_version": 3.0}
    dtype = chunks[0].module.config.params_dtype
    architecture = Architecture.from_record(job["architecture"])
    arguments = megatron_arguments.to_arguments(architecture)
    if job.get("hybrid"):
        arguments = hybrid_pattern.from_decoder(arguments, architecture)
    arguments |= {
        "padded_vocab_size": job["padded_vocab_size"],
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "transformer_impl": "transformer_engine" if job.get("fused_norms") else "local",
        "tensor_model_parallel_size": job.get("tensor_parallel", 1),
        "pipeline_model_parallel_size": job.get("pipeline_parallel", 1),
        "virtual_pipeline_model_parallel_size": job.get("virtual_pipeline_parallel"),
        "expert_model_parallel_size": job.get("expert_parallel", 1),
        "consumed_train_samples": 24,
        "seq_length": 64,
    }
    return {"args": argparse.Namespace(**arguments), "iteration": job["steps"], "checkpoint_version": 3.0}


def write_configuration(config: Any, directory: Path, job: dict[str, Any]) -> None:
    """All fields of the model's TransformerConfig, whichever this megatron-core has, and Megatron-Bridge's and NeMo's own."""
    architecture = Architecture.from_record(job["architecture"])
    fields = {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    fields |= {"bias_activation_fusion": True, "transformer_impl": job.get("transformer_impl", "local")}
    of_model = {
        "share_embeddings_and_output_weights": architecture.tie_embeddings,
        "position_embedding_type": "rope" if architecture.family == "llama" else "learned_absolute",
        "rotary_base": architecture.rotary_base,
        "rotary_percent": 1.0,
        "seq_length": architecture.max_position_embeddings,
        "vocab_size": architecture.vocab_size,
        "seq_len_interpolation_factor": None,
        **job.get("fields", {}),
    }
    if job["trainer"] == "nemo":
        model = {"_target_": "nemo.collections.llm.gpt.model.llama.LlamaModel"}
        config_class = {"_target_": "nemo.collections.llm.gpt.model.llama.Llama31Config8B"}
        context = directory.parent / "context"
        context.mkdir()
        (context / "model.yaml").write_text(yaml.safe_dump(model | {"config": config_class | fields | of_model}))
        return
    model = {"_target_": job.get("target", "megatron.bridge.models.gpt_provider.GPTModelProvider")}
    model |= of_model | ({"transformer": fields} if job.get("nested") else fields)
    container = {"_target_": "megatron.bridge.training.config.ConfigContainer", "model": model, "train": {"train_iters": 3}}
    (directory / "run_config.yaml").write_text(yaml.safe_dump(container))
    counters = {"step": job["steps"], "consumed_train_samples": 24, "consumed_valid_samples": 0}
    torch.save({name: torch.tensor(count) for name, count in counters.items()}, directory / "train_state.pt")
    torch.save({"step": torch.tensor(job["steps"])}, directory.parent / "latest_train_state.pt")


def plain(value: Any) -> Any:
    """As both write what YAML has no word for: the name of what is imported, and whether it is called."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", "_call_": True, "_args_": [value.value]}
    if isinstance(value, functools.partial):
        called = f"{value.func.__module__}.{value.func.__qualname__}"
        return {"_target_": called, "_partial_": True, "_args_": [plain(each) for each in value.args], **value.keywords}
    named = value if hasattr(value, "__qualname__") else type(value)
    return {
        "_target_": str(value) if isinstance(value, torch.dtype) else f"{named.__module__}.{named.__qualname__}",
        "_call_": False,
    }


def run(job: dict[str, Any]) -> None:
    parallel_state.initialize_model_parallel(
        job.get("tensor_parallel", 1),
        job.get("pipeline_parallel", 1),
        job.get("virtual_pipeline_parallel"),
        expert_model_parallel_size=job.get("expert_parallel", 1),
    )
    megatron_random.model_parallel_cuda_manual_seed(1)
    chunks = chunks_of(job)
    config = OptimizerConfig(
        lr=1e-2,
        bf16=job.get("dtype", "bfloat16") == "bfloat16",
        use_distributed_optimizer=job.get("distributed", True),
        adam_beta2=0.95,
        clip_grad=0.0,
    )
    optimizer = get_megatron_optimizer(config, chunks)
    for step in range(job["steps"]):
        for chunk in chunks:
            set_gradients(chunk, step)
        optimizer.step()
    if "load" in job:
        load(chunks, optimizer, job["load"])
    for form, directory in job["save"].items():
        if form == "fsdp_dtensor":
            save_as_fsdp(chunks[0], optimizer, directory, job)
        else:
            save(chunks, optimizer, form, directory, job)
    leave_groups()


def main() -> None:
    jobs, rank, world_size, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=int(world_size))
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
