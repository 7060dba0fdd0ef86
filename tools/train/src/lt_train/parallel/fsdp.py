"""Fully sharded data parallelism: each data-parallel rank keeps its rows of every weight, gradient and moment (ZeRO-3).

torch's fully_shard gathers one layer at a time in the precision of the forward pass and returns its gradients as float32
shards, summed and divided by the number of ranks. A rank keeps 16 bytes per parameter, divided by the ranks, and one or two
gathered layers. Unlike the distributed optimizer, FSDP gathers the weights once more in every micro batch's backward pass. With
several replicas (HSDP), a replica's ranks together have the whole model, and gradients are also reduced across replicas.

megatron-core's own wrapper of fully_shard keeps weights and gradients in bfloat16, saves only shapes divisible by the ranks, and
assumes a CUDA mesh; its megatron_fsdp needs CUDA and saves in another format. Here, the optimizer and megatron-core's gradient
hooks see plain local tensors, and checkpoints have the distributed optimizer's format: a run may resume with either.
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

# Arguments that make torch's named_parameters yield all parameters by name. torch's parameters() passes `recurse`.
ALL_PARAMETERS = {"prefix": "", "recurse": True, "remove_duplicate": True}


class FullySharded(_BaseDataParallel):  # type: ignore[misc]
    """Replace the parameters of a model built on the meta device by their local shards, in float32.

    The forward and backward pass and the weights in checkpoints have type `dtype`.
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
        # Embedding and loss are views of a kernel's output. No code changes them in place, so torch's warning does not apply.
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
        self.sharded: dict[str, Any] = dict(model.named_parameters())  # DTensor parameters
        self.shards: dict[str, torch.nn.Parameter] = {}
        for name, parameter in self.sharded.items():
            shard = torch.nn.Parameter(parameter.to_local().detach())
            for target in (parameter, shard):
                vars(target).update(marks[name])
            self.shards[name] = shard
        self._dtensor_by_shard = {shard: self.sharded[name] for name, shard in self.shards.items()}
        self.collectives = ShardCollectives(model, self.mesh.get_group(self.mesh.ndim - 1), dtype, collectives)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.collectives.gathering is not None:
            self.collectives.gathering.refresh()
        return super().forward(*inputs, **options)

    def rounded(self, shard: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the 16-bit copy of `shard` that other ranks read, or None if they do not."""
        return self.collectives.rounded(self._dtensor_by_shard[shard])

    def parts(self, shards: Iterable[torch.nn.Parameter]) -> list[UpdatedPart]:
        """Divide `shards` into the parts that AdamW updates in turn. Empty if ranks do not read each other's shards."""
        return self.collectives.parts({shard: self._dtensor_by_shard[shard] for shard in shards})

    @torch.no_grad()
    def round_weights(self) -> None:
        """Round the shards to `dtype`, because in all other layouts the master weights begin from rounded weights."""
        for shard in self.shards.values():
            shard.copy_(shard.to(self.dtype))

    def forget_gathered(self) -> None:
        """Discard gathered weights and 16-bit copies after the shards have been set."""
        if self.collectives.gathering is not None:
            self.collectives.gathering.forget()
            return
        # The root's weights stay gathered after an evaluation, which has no backward pass.
        for unit in self.module.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the shards as plain tensors, for the optimizer and megatron-core's gradient hooks."""
        refuse_unknown("Module.named_parameters", arguments, options, neutral=ALL_PARAMETERS)
        return iter(self.shards.items())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Reduce gradients within a replica only. The last micro batch, outside, reduces them across replicas (HSDP), too."""
        root = self.module
        assert isinstance(root, FSDPModule)
        root.set_requires_all_reduce(False)
        try:
            yield
        finally:
            root.set_requires_all_reduce(True)

    def finish_grad_sync(self, *unused: Any, **options: Any) -> None:
        """Set every shard's `main_grad` to its local gradient, which the backward pass has reduced."""
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
        """Yield slices of `value(shard)` for all shards, or for `shards`, as checkpoint tensors with names unique on the rank.

        `value` returns a tensor of the shard's shape. It is cut at the borders of the model's tensors.
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
        """Return the weights for a checkpoint, in `dtype`. Loading fills these tensors; `load_state_dict` copies from them."""
        # The metadata is `CONTENT_METADATA`, which says how megatron-core's optimizers write.
        refuse_unknown(
            "MegatronModule.sharded_state_dict", arguments, options, ("metadata",), {"prefix": "", "sharded_offsets": ()}
        )
        weights = self.tensors(lambda shard: shard.detach().to(self.dtype))
        return {name: flat_shards.for_checkpoint(tensor) for name, tensor in weights}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, torch.Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
        """Copy the loaded tensors of `sharded_state_dict` to the shards. Returns no missing and no unexpected names."""
        for name, tensor in self.tensors(torch.Tensor.detach):
            tensor.data.copy_(weights[name].view(tensor.local_shape))
        self.forget_gathered()
        return [], []


class ShardOptimizer(FP32Optimizer):  # type: ignore[misc]
    """Optimizer of the shards of the experts, or of the other shards.

    Checkpoints have the form and the names that megatron-core's DistributedOptimizer writes, one optimizer for one optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: OptimizerConfig, init_state: Any, chunk: FullySharded):
        super().__init__(optimizer, config, init_state)
        self.chunk = chunk
        # The ranks that together hold one copy of the model reduce the gradient norm.
        self.grad_stats_parallel_group = parallel_state.get_intra_distributed_optimizer_instance_group()
        self.tp_group = parallel_state.get_tensor_model_parallel_group()
        self.loaded: dict[torch.nn.Parameter, torch.Tensor] = {}

    def update_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the optimizer that updates the shards."""
        self.optimizer = optimizer

    def sharded_state_dict(
        self, model_sharded_state_dict: Any, is_loading: bool = False, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self.optimizer.state
        local_shards = [shard for group in self.optimizer.param_groups for shard in group["params"]]
        weights = {shard: shard.detach().clone() if is_loading else shard.detach() for shard in local_shards}
        self.loaded = weights if is_loading else {}
        values = {"param": weights}
        for name in sorted({name for moments in state.values() for name in moments} - {"step"}):
            values[name] = {shard: state[shard][name] for shard in weights}
        saved = {
            name: {
                key: flat_shards.for_checkpoint(tensor, f"optimizer.state.{name}.")
                for key, tensor in self.chunk.tensors(value_by_shard.__getitem__, weights)
            }
            for name, value_by_shard in values.items()
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
        """Copy the loaded weights to the shards and set the step. Moments were loaded in place; the schedule sets the rates."""
        for shard, weights in self.loaded.items():
            shard.copy_(weights)
        self.chunk.forget_gathered()
        self.loaded = {}
        step = max(float(group["step"]) for group in state_dict["optimizer"]["param_groups"])
        for moments in self.optimizer.state.values():
            if "step" in moments:
                moments["step"].fill_(step)


def _mesh(device: torch.device, replicas: int) -> DeviceMesh:
    """Return the mesh of data-parallel ranks: [shards], or with HSDP [replicas, shards]."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    if replicas == 1:
        return DeviceMesh.from_group(group, device.type)
    within = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
    among = parallel_state.get_inter_distributed_optimizer_instance_group()
    ranks = torch.tensor(torch.distributed.get_process_group_ranks(group)).view(replicas, -1)
    return DeviceMesh.from_group([among, within], device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _shard(model: MegatronModule, mesh: DeviceMesh, dtype: torch.dtype, device: torch.device) -> dict[str, dict[str, Any]]:
    """Allocate and shard one unit after the other. Maps the name of a parameter to its megatron-core attributes.

    A tied embedding is used at both ends of the model and stays gathered, as do the parameters outside all units. The output
    layer stays gathered from the forward to the backward pass, which begins with it. No backward pass reads an embedding.
    """
    # `GradientSums` receives 16-bit gradients and returns float32 sums.
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
            # Set the order explicitly, because recomputation disturbs the order that torch records.
            unit.set_modules_to_backward_prefetch(previous)
            previous = [unit]
    # The root prefetches, not the output layer: the fused loss may use the output weight without calling the layer.
    model.set_modules_to_backward_prefetch(previous)
    if not model.share_embeddings_and_output_weights:
        model.embedding.set_unshard_in_backward(False)
    if device.type == CPU:
        model.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    return marks


def _materialize(unit: torch.nn.Module, device: torch.device) -> None:
    """Allocate the unit's parameters that are still on the meta device, and copy megatron-core's attributes to them."""
    module: Any
    for module in unit.modules():
        attributes = {name: vars(value) for name, value in module.named_parameters(recurse=False) if value.is_meta}
        for name, marks in attributes.items():
            parameter = torch.nn.Parameter(torch.empty_like(getattr(module, name), device=device))
            setattr(module, name, parameter)
            vars(parameter).update(marks)
