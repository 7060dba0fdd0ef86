"""megatron-core's AdamW and its schedule: linear warm-up, cosine decay, no weight decay on norms and biases."""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from lt_train.plan import Plan


def build(plan: Plan, chunks: list[DistributedDataParallel]) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """The optimizer of this rank and the schedule that sets its learning rates; the schedule counts samples."""
    settings = plan.optimization
    config = OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        clip_grad=settings.clip_grad,
        bf16=plan.precision.bf16,
        params_dtype=getattr(torch, plan.precision.dtype),
        use_distributed_optimizer=plan.parallelism.distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(config, chunks)
    batch = plan.batches.global_batch_size
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_iters * batch,
        lr_decay_steps=settings.lr_decay_iters * batch,
        lr_decay_style="cosine",
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=plan.batches.train_iters * batch,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
    )
    return optimizer, scheduler


def _inner(optimizer: MegatronOptimizer) -> list[MegatronOptimizer]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def torch_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """The torch optimizers inside, which hold the state tensors."""
    return [inner.optimizer for inner in _inner(optimizer)]


def create_state(optimizer: MegatronOptimizer) -> None:
    """Make the empty AdamW state that megatron-core expects to be there before it loads a checkpoint into it.

    The distributed optimizer also expects torch's step counter among the tensors of a checkpoint, which it never saves there: a
    parameter's present state stands in for what the checkpoint does not hold.
    """
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                state: dict[str, Any] = inner.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
    for outer in _inner(optimizer):
        if isinstance(outer, DistributedOptimizer):
            _keep_absent_state(outer)


def _keep_absent_state(optimizer: DistributedOptimizer) -> None:
    restore = optimizer._set_main_param_and_optimizer_states

    def restore_present(parameter: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        restore(parameter, {**optimizer._get_main_param_and_optimizer_states(parameter), **tensors})

    optimizer._set_main_param_and_optimizer_states = restore_present


def separate_steps(optimizer: MegatronOptimizer) -> None:
    """Give every parameter its own step counter.

    megatron-core restores one tensor object for all of them; torch's AdamW then counts it up once per parameter, so bias
    correction drifts and the losses after a resume differ without any message.
    """
    for inner in torch_optimizers(optimizer):
        for state in inner.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()
