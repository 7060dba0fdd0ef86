"""Fully sharded data parallelism: each data-parallel rank keeps its rows of every weight, gradient and moment (ZeRO-3).

torch's fully_shard gathers one layer at a time in the precision of the forward pass and returns its gradients as float32 shards,
summed and divided by the number of ranks. What stays on a rank are 16 bytes per parameter, divided by the ranks, and a gathered
layer or two. The price beside the distributed optimizer is another gathering of the weights in the backward pass, for each micro
batch. With several replicas (HSDP), the ranks of each replica together have the whole model, and gradients are also reduced
across replicas.

megatron-core's own wrapper of fully_shard keeps weights and gradients in bfloat16, saves only shapes that the ranks divide, and
takes its mesh for CUDA's; its megatron_fsdp does not run without CUDA and saves in a format of its own. Here, the optimizer and
megatron-core's gradient hooks see plain local tensors, and checkpoints are those of the distributed optimizer: a run may resume
with either.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.data_parallel_base import _BaseDataParallel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lt_train.megatron.upstream import refuse_unknown
from lt_train.parallel import flat_shards
from lt_train.parallel.shard_collectives import Collectives, ShardCollectives, UpdatedPart
from lt_train.process.device import CPU

# With which torch's modules yield all parameters by their own names. torch's `parameters` passes `recurse`.
ALL_PARAMETERS = {"prefix": "", "recurse": True, "remove_duplicate": True}


class FullySharded(_BaseDataParallel):  # type: ignore[misc]
    """A model built on the meta device, its parameters replaced by this rank's shards of them, in float32.

    `dtype` is that of the forward and backward pass and of the weights in checkpoints.
    """

    def __init__(
        self,
        config: TransformerConfig,
        model: MegatronModule,
        dtype: torch.dtype,
        device: torch.device,
        replicas: int,
        collectives: Collectives,
    ):
        super().__init__(config=config, module=model)
        # Embedding and loss are views of what a kernel wrote, which nothing changes in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
        self.ddp_config = DistributedDataParallelConfig()
        self.dtype = dtype
        self.slices = {
            name: flat_shards.flat_slices(entry)
            for name, entry in model.sharded_state_dict().items()
            if isinstance(entry, flat_shards.Entry) and entry.data is not None
        }
        self.mesh = _mesh(device, replicas)
        marks = _shard(model, self.mesh, dtype, device)
        self.sharded: dict[str, Any] = dict(model.named_parameters())  # of torch's DTensor
        self.shards: dict[str, torch.nn.Parameter] = {}
        for name, parameter in self.sharded.items():
            shard = torch.nn.Parameter(parameter.to_local().detach())
            for target in (parameter, shard):
                vars(target).update(marks[name])
            self.shards[name] = shard
        self._of_shard = {shard: self.sharded[name] for name, shard in self.shards.items()}
        self.collectives = ShardCollectives(model, self.mesh.get_group(self.mesh.ndim - 1), dtype, collectives)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.collectives.gathering is not None:
            self.collectives.gathering.refresh()
        return super().forward(*inputs, **options)

    def rounded(self, shard: torch.nn.Parameter) -> torch.Tensor | None:
        """The copy of `shard` in 16 bits that other ranks read, if they do."""
        return self.collectives.rounded(self._of_shard[shard])

    def parts(self, shards: Iterable[torch.nn.Parameter]) -> list[UpdatedPart]:
        """The order in which AdamW is to update `shards`, where ranks read each other's."""
        return self.collectives.parts({shard: self._of_shard[shard] for shard in shards})

    @torch.no_grad()
    def round_weights(self) -> None:
        """To numbers of `dtype`, from which the master weights of all other layouts begin."""
        for shard in self.shards.values():
            shard.copy_(shard.to(self.dtype))

    def forget_gathered(self) -> None:
        """The shards have been set."""
        if self.collectives.gathering is not None:
            self.collectives.gathering.forget()

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The shards, as plain tensors: what the optimizer updates and megatron-core's gradient hooks look at."""
        refuse_unknown("Module.named_parameters", arguments, options, neutral=ALL_PARAMETERS)
        return iter(self.shards.items())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are reduced within a replica for each micro batch, and across replicas (HSDP) only for the last."""
        root = self.module
        assert isinstance(root, FSDPModule)
        root.set_requires_all_reduce(False)
        try:
            yield
        finally:
            root.set_requires_all_reduce(True)

    def finish_grad_sync(self, *unused: Any, **options: Any) -> None:
        """The backward pass has summed the gradients: show each shard its own."""
        refuse_unknown("DistributedDataParallel.finish_grad_sync", unused, options, neutral={"force_all_reduce": False})
        for name, parameter in self.sharded.items():
            if parameter.grad is not None:
                self.shards[name].main_grad = parameter.grad.to_local()  # type: ignore[attr-defined]

    def zero_grad_buffer(self) -> None:
        for name, parameter in self.sharded.items():
            parameter.grad = None
            vars(self.shards[name]).pop("main_grad", None)

    def tensors(
        self, value: Callable[[torch.nn.Parameter], torch.Tensor], shards: Collection[torch.nn.Parameter] | None = None
    ) -> Iterator[tuple[str, ShardedTensor]]:
        """`value` of every shard, or of `shards`, a tensor of its shape, cut at the borders of the model's own tensors and placed
        among them.

        With each comes a name that is its own on this rank.
        """
        ranks, rank = self.mesh.size(-1), self.mesh.get_local_rank(self.mesh.ndim - 1)
        for name, slices in self.slices.items():
            if shards is not None and self.shards[name] not in shards:
                continue
            data = value(self.shards[name])
            whole = self.sharded[name].shape
            # As torch.chunk divides: the last ranks may have fewer rows, or none.
            first = rank * math.ceil(whole[0] / ranks) * math.prod(whole[1:])
            for number, tensor in enumerate(flat_shards.cut(slices, data.view(-1), first)):
                yield f"{name}.{number}", tensor

    def sharded_state_dict(self, *arguments: Any, **options: Any) -> dict[str, ShardedTensor]:
        """The weights for a checkpoint, in `dtype`. Loading fills these tensors; `load_state_dict` takes them over."""
        # The metadata is `CONTENT_METADATA`, which says how megatron-core's optimizers write.
        refuse_unknown(
            "MegatronModule.sharded_state_dict", arguments, options, ("metadata",), {"prefix": "", "sharded_offsets": ()}
        )
        weights = self.tensors(lambda shard: shard.detach().to(self.dtype))
        return {name: flat_shards.for_checkpoint(tensor) for name, tensor in weights}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, torch.Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
        """Take over what was loaded into the tensors of `sharded_state_dict`; returns the names of missing and surplus ones."""
        for name, tensor in self.tensors(torch.Tensor.detach):
            tensor.data.copy_(weights[name].view(tensor.local_shape))
        self.forget_gathered()
        return [], []


class ShardOptimizer(FP32Optimizer):  # type: ignore[misc]
    """The optimizer of shards, those of experts or all others.

    Its checkpoints have the form and the names of megatron-core's DistributedOptimizer's, of which there are as many.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: OptimizerConfig, init_state: Any, chunk: FullySharded):
        super().__init__(optimizer, config, init_state)
        self.chunk = chunk
        # The norm of the gradients is over the ranks that together have one copy of the model.
        self.grad_stats_parallel_group = parallel_state.get_intra_distributed_optimizer_instance_group()
        self.tp_group = parallel_state.get_tensor_model_parallel_group()
        self.loaded: dict[torch.nn.Parameter, torch.Tensor] = {}

    def update_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer` update the shards."""
        self.optimizer = optimizer

    def sharded_state_dict(
        self, model_sharded_state_dict: Any, is_loading: bool = False, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self.optimizer.state
        own = [shard for group in self.optimizer.param_groups for shard in group["params"]]
        weights = {shard: shard.detach().clone() if is_loading else shard.detach() for shard in own}
        self.loaded = weights if is_loading else {}
        values = {"param": weights}
        for name in sorted({name for moments in state.values() for name in moments} - {"step"}):
            values[name] = {shard: state[shard][name] for shard in weights}
        saved = {
            name: {
                key: flat_shards.for_checkpoint(tensor, f"optimizer.state.{name}.")
                for key, tensor in self.chunk.tensors(of_shards.__getitem__, weights)
            }
            for name, of_shards in values.items()
        }
        step = max((float(moments["step"]) for moments in state.values() if "step" in moments), default=0.0)
        groups = [
            {key: value for key, value in group.items() if key != "params"} | {"step": step}
            for group in self.optimizer.param_groups
        ]
        return {
            "optimizer": {"param_groups": groups},
            "param_state": saved,
            "param_state_sharding_type": "fully_reshardable",
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the weights and the step; the moments were loaded in place. Rates are set by the schedule."""
        for shard, weights in self.loaded.items():
            shard.copy_(weights)
        self.chunk.forget_gathered()
        self.loaded = {}
        step = max(float(group["step"]) for group in state_dict["optimizer"]["param_groups"])
        for moments in self.optimizer.state.values():
            if "step" in moments:
                moments["step"].fill_(step)


def _mesh(device: torch.device, replicas: int) -> DeviceMesh:
    """The ranks with the same tensor and pipeline parallel part of the model: [shards], or with HSDP [replicas, shards]."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    if replicas == 1:
        return DeviceMesh.from_group(group, device.type)
    within = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
    among = parallel_state.get_inter_distributed_optimizer_instance_group()
    ranks = torch.tensor(torch.distributed.get_process_group_ranks(group)).view(replicas, -1)
    return DeviceMesh.from_group([among, within], device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _shard(model: MegatronModule, mesh: DeviceMesh, dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, Any]]:
    """Give memory to one unit after the other and keep this rank's rows of it; returns megatron-core's marks on each parameter.

    A tied embedding is used at both ends of the model and stays gathered with what belongs to no unit; the output layer stays
    gathered from the forward to the backward pass, which begins with it. No backward pass reads an embedding.
    """
    # Of 16 bits, `GradientSums` makes float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, cast_forward_inputs=False)
    ends = [] if model.share_embeddings_and_output_weights else [model.embedding, model.output_layer]
    previous: list[FSDPModule] = []
    marks: dict[str, dict[str, Any]] = {}
    for unit in [*ends, *model.decoder.layers, model]:
        _materialize(unit, device)
        for name, parameter in model.named_parameters():
            if not parameter.is_meta:
                marks.setdefault(name, vars(parameter))
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=unit not in (model, model.output_layer))
        if unit in model.decoder.layers:
            # Recomputation would disturb the order that torch finds out by itself.
            unit.set_modules_to_backward_prefetch(previous)
            previous = [unit]
    # Not by the output layer, in whose place the loss may multiply by its weight.
    model.set_modules_to_backward_prefetch(previous)
    if not model.share_embeddings_and_output_weights:
        model.embedding.set_unshard_in_backward(False)
    if device.type == CPU:
        model.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    return marks


def _materialize(unit: torch.nn.Module, device: torch.device) -> None:
    """Allocate the unit's parameters that are still on the meta device, with megatron-core's marks on them."""
    module: Any
    for module in unit.modules():
        attributes = {name: vars(value) for name, value in module.named_parameters(recurse=False) if value.is_meta}
        for name, marks in attributes.items():
            parameter = torch.nn.Parameter(torch.empty_like(getattr(module, name), device=device))
            setattr(module, name, parameter)
            vars(parameter).update(marks)
