"""Train megatron-core's own GPTModel on the CPU with its DistributedOptimizer, and save one state in several of its forms.

    python megatron_optimizer.py JOBS.json RANK WORLD_SIZE RENDEZVOUS_FILE

A job has an architecture, parallel sizes, and in `save` a directory for each form of the optimizer state (`dp_reshardable` ...).
Gradients are drawn from the global name of a weight, so every rank has its part of the same ones; the steps are the optimizer's.
"""

import argparse
import json
import queue
import sys
import zlib
from pathlib import Path
from typing import Any

import torch

from lt_train.runtime import cpu_backend

cpu_backend.install("cuda")

import megatron_model  # noqa: E402
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

from lt_shared import megatron_arguments  # noqa: E402
from lt_shared.architecture import Architecture  # noqa: E402

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
    parts.self_attention.submodules.linear_qkv = parts.mlp.submodules.linear_fc1 = NormedLinear
    return spec


def chunks_of(job: dict[str, Any]) -> list[DistributedDataParallel]:
    architecture = Architecture.from_record(job["architecture"])
    dtype = getattr(torch, job.get("dtype", "bfloat16"))
    stages = job.get("virtual_pipeline_parallel") or 1
    layers = fused_norms() if job.get("fused_norms") else None
    models = [
        megatron_model.build(architecture, job["padded_vocab_size"], dtype, stage if stages > 1 else None, layers)
        for stage in range(stages)
    ]
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
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
                tensor.data.copy_(whole[tensor.global_slice()].reshape(tensor.data.shape))
        for parameter, weight in zip(chunk.module.parameters(), before, strict=True):
            parameter.main_grad.copy_(parameter.float())
            parameter.copy_(weight)


def save(chunks: list[DistributedDataParallel], optimizer: Any, form: str, directory: str, job: dict[str, Any]) -> None:
    architecture = Architecture.from_record(job["architecture"])
    metadata = {"distrib_optim_sharding_type": form, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    state: dict[str, Any] = {
        f"model{number}": chunk.module.sharded_state_dict(metadata=metadata) for number, chunk in enumerate(chunks)
    }
    state["optimizer"] = optimizer.sharded_state_dict(dict(state), metadata=metadata)
    dtype = chunks[0].module.config.params_dtype
    arguments = megatron_arguments.to_arguments(architecture) | {
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
    common = {"args": argparse.Namespace(**arguments), "iteration": job["steps"], "checkpoint_version": 3.0}
    Path(directory).mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save({**state, **common}, directory, content_metadata=metadata)


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
        lr=1e-2, bf16=job.get("dtype", "bfloat16") == "bfloat16", use_distributed_optimizer=True, adam_beta2=0.95, clip_grad=0.0
    )
    optimizer = get_megatron_optimizer(config, chunks)
    for step in range(job["steps"]):
        for chunk in chunks:
            set_gradients(chunk, step)
        optimizer.step()
    for form, directory in job["save"].items():
        save(chunks, optimizer, form, directory, job)
    parallel_state.destroy_model_parallel()


def main() -> None:
    jobs, rank, world_size, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=int(world_size))
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
