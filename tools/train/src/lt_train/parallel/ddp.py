"""Wrap a model for data parallelism: megatron-core's gradient buffers, or FSDP."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module, MegatronModule

from lt_train.config.settings.memory import Memory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.ops import wgrad_accumulation
from lt_train.parallel.fsdp import FullySharded
from lt_train.parallel.initialization import local_tensors
from lt_train.parallel.shard_collectives import Collectives
from lt_train.process.device import CUDA

# megatron-core's default bucket size, which grows with the number of data- and context-parallel ranks.
LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_OF_A_RANK = 40_000_000, 1_000_000

Chunk: TypeAlias = DistributedDataParallel | FullySharded
# Sets the weights of a new model, in place.
Fill: TypeAlias = Callable[[Iterable[ShardedTensor]], None]


def fully_shard(
    model: MegatronModule,
    config: TransformerConfig,
    replicas: int,
    device: torch.device,
    fill: Fill,
    collectives: Collectives,
) -> FullySharded:
    """Shard `model` and fill its shards on `device`. `model` is on the meta device, because it may not fit on one rank."""
    sharded = FullySharded(config, model, config.pipeline_dtype, device, replicas, collectives)
    fill(tensor for _, tensor in sharded.tensors(torch.Tensor.detach))
    sharded.round_weights()
    return sharded


def replicate(
    model: MegatronModule,
    config: TransformerConfig,
    parallelism: Parallelism,
    memory: Memory,
    device: torch.device,
    fill: Fill,
    layer_elements: int,
) -> DistributedDataParallel:
    """Fill `model` on `device` and wrap it with gradient buffers, which data-parallel ranks reduce.

    `layer_elements` is the number of weights in a layer without its experts.
    """
    model.to(device)
    fill(local_tensors(model))
    wrapped = Float16Module(config, model) if config.bf16 or config.fp16 else model
    ranks = parallelism.data * parallelism.context
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=parallelism.distributed_optimizer,
        num_distributed_optimizer_instances=memory.replicas,
        grad_reduce_in_fp32=memory.gradient_dtype == "float32",
        overlap_grad_reduce=memory.overlap_grad_reduce,
        overlap_param_gather=memory.overlap_param_gather,
        bucket_size=memory.bucket_elements or bucket_elements(ranks, layer_elements),
        check_for_nan_in_grad=False,
        # gloo cannot average: a pass over all gradients divides them first, by its bytes 16 ms of a step of Llama 3.1 8B on two
        # H200. With one rank, NCCL would divide by 1: 5 ms of a step with 2.8 billion parameters.
        average_in_collective=device.type == CUDA and ranks > 1,
    )
    chunk = DistributedDataParallel(config=config, ddp_config=settings, module=wrapped)
    if config.gradient_accumulation_fusion:
        wgrad_accumulation.skip_clearing(chunk)
    return chunk


def bucket_elements(ranks: int, layer_elements: int) -> int:
    """Return the bucket size: a layer without its experts, or megatron-core's default for `ranks` ranks if that is larger.

    A step of Llama 3.1 8B on two H200 takes 759 ms with buckets of a layer, and 770 with megatron-core's 40 million (2026-11-22).
    """
    return max(LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_OF_A_RANK * ranks, layer_elements)


def break_cycles(chunks: list[Chunk]) -> None:
    """Break the reference cycles of `chunks`, so that their memory is freed.

    The hooks that overlap the gradient reduction refer to their chunk, and the chunk refers to autograd nodes, which hold the
    hooks. Python's garbage collector cannot traverse these nodes. A process that continues without a failed rank would hold both
    models.
    """
    for chunk in chunks:
        if isinstance(chunk, DistributedDataParallel):
            for node in chunk.grad_accs:
                # A new hook gives access to the dictionary of the node's hooks.
                node.register_hook(lambda *gradients: None).hooks_dict_ref().clear()
            chunk.grad_accs.clear()
    wgrad_accumulation.forget_buffers()


def wait_for_weights(*modules: torch.nn.Module) -> None:
    """Run the forward pre-hooks of --overlap-param-gather of modules whose weights are used without calling the modules."""
    for module in modules:
        for wait in module._forward_pre_hooks.values():
            wait(module, ())


@contextlib.contextmanager
def gathered_weights(chunks: list[Chunk]) -> Iterator[None]:
    """Gather the updated weights before the body runs. --overlap-param-gather would gather them in the next training step."""
    overlapping = [chunk for chunk in chunks if chunk.ddp_config.overlap_param_gather]
    for chunk in overlapping:
        chunk.disable_forward_pre_hook()
    yield
    for chunk in overlapping:
        chunk.enable_forward_pre_hook()


def gather_weights(chunks: list[Chunk]) -> None:
    """All-gather the weights after each rank has set its shard."""
    for chunk in chunks:
        if chunk.ddp_config.use_distributed_optimizer:
            chunk.start_param_sync(force_sync=True)
