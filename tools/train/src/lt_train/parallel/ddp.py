"""The model's wrapper for data parallelism: how its gradients, and with FSDP its weights, are shared among ranks."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module, MegatronModule

from lt_train.config.run_config import RunConfig
from lt_train.ops import wgrad_accumulation
from lt_train.parallel.fsdp import FullySharded
from lt_train.parallel.initialization import clear, initialize, tensors_of
from lt_train.parallel.shard_collectives import Collectives
from lt_train.planner.rank_parameters import layer_parameters
from lt_train.runtime.device import CUDA

# megatron-core's own rule, by all data- and context-parallel ranks.
LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_OF_A_RANK = 40_000_000, 1_000_000

Chunk: TypeAlias = DistributedDataParallel | FullySharded


def building(run_config: RunConfig) -> contextlib.AbstractContextManager[object]:
    """Where the model is built. With FSDP, a rank cannot hold what it would have without: there, tensors get no memory yet."""
    return torch.device("meta") if run_config.memory.fully_sharded else contextlib.nullcontext()


def wrap(
    run_config: RunConfig, config: TransformerConfig, model: MegatronModule, device: torch.device, collectives: Collectives
) -> Chunk:
    """`model`, on its device, initialised and wrapped; `collectives` are FSDP's. Its weights are zero where a checkpoint will be
    loaded."""
    memory = run_config.memory
    if memory.fully_sharded:
        dtype = getattr(torch, run_config.precision.dtype)
        sharded = FullySharded(config, model, dtype, device, memory.replicas, collectives)
        _fill(run_config, (tensor for _, tensor in sharded.tensors(torch.Tensor.detach)))
        sharded.round_weights()
        return sharded
    model.to(device)
    _fill(run_config, tensors_of(model))
    wrapped = Float16Module(config, model) if run_config.precision.half else model
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=run_config.parallelism.distributed_optimizer,
        num_distributed_optimizer_instances=memory.replicas,
        grad_reduce_in_fp32=memory.gradient_dtype == "float32",
        overlap_grad_reduce=memory.overlap_grad_reduce,
        overlap_param_gather=memory.overlap_param_gather,
        bucket_size=memory.bucket_elements or bucket_elements(run_config),
        check_for_nan_in_grad=False,
        # gloo cannot; a pass over all gradients divides them first: 16 ms of a step of Llama 3.1 8B on two H200, by the bytes.
        # For one rank alone, NCCL would divide them by 1: 5 ms of a step of 2.8 billion parameters.
        average_in_collective=device.type == CUDA and run_config.parallelism.data * run_config.parallelism.context > 1,
    )
    chunk = DistributedDataParallel(config=config, ddp_config=settings, module=wrapped)
    if config.gradient_accumulation_fusion:
        wgrad_accumulation.leave_uncleared(chunk)
    return chunk


def _fill(run_config: RunConfig, tensors: Iterable[ShardedTensor]) -> None:
    if run_config.checkpointing.start is None:
        initialize(tensors, run_config.architecture, run_config.seed)
    else:
        clear(tensors)


def bucket_elements(run_config: RunConfig) -> int:
    """A layer at a time, without its experts, or megatron-core's size where that is more.

    Of Llama 3.1 8B on two H200 a step takes 759 ms so, and 770 with megatron-core's 40 million (2026-11-22).
    """
    dense, _ = layer_parameters(run_config.architecture, run_config.parallelism, run_config.architecture.num_layers - 1)
    ranks = run_config.parallelism.data * run_config.parallelism.context
    return max(LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_OF_A_RANK * ranks, dense)


def release(chunks: list[Chunk]) -> None:
    """Let the memory of `chunks` be freed once nothing refers to them.

    The hooks that overlap the reduction of gradients refer to their chunk, and it to autograd's nodes, which have the hooks:
    Python's collector does not see through these nodes. A process that goes on without another rank would have both models.
    """
    for chunk in chunks:
        if isinstance(chunk, DistributedDataParallel):
            for node in chunk.grad_accs:
                # A new hook comes into the dictionary of the others.
                node.register_hook(lambda *gradients: None).hooks_dict_ref().clear()
            chunk.grad_accs.clear()
    wgrad_accumulation.forget()


def wait_for_weights(*modules: torch.nn.Module) -> None:
    """Run the hooks of --overlap-param-gather, which would run if the modules were called."""
    for module in modules:
        for wait in module._forward_pre_hooks.values():
            wait(module, ())


@contextlib.contextmanager
def gathered(chunks: list[Chunk]) -> Iterator[None]:
    """Wait until every rank has all new weights, which with --overlap-param-gather otherwise arrive in the next training step."""
    overlapping = [chunk for chunk in chunks if chunk.ddp_config.overlap_param_gather]
    for chunk in overlapping:
        chunk.disable_forward_pre_hook()
    yield
    for chunk in overlapping:
        chunk.enable_forward_pre_hook()


def gather(chunks: list[Chunk]) -> None:
    """Let every rank have the weights of which it has only set its own part."""
    for chunk in chunks:
        if chunk.ddp_config.use_distributed_optimizer:
            chunk.start_param_sync(force_sync=True)
