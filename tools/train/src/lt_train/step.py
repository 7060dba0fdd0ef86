"""One training step of a rank: all its micro batches through megatron-core's pipeline schedule, then the optimizer."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from lt_train import model
from lt_train.checkpoint import TrainingState
from lt_train.data import Batch
from lt_train.plan import Plan


@dataclasses.dataclass(frozen=True)
class StepResult:
    """`loss` is the mean over the global batch in nats per token, the same on every rank; a skipped step has not `updated`."""

    loss: float
    grad_norm: float | None
    updated: bool


class Stepper:
    """Runs steps and evaluations on the model of `state`."""

    def __init__(self, plan: Plan, state: TrainingState, where: torch.device):
        self.plan = plan
        self.state = state
        self.where = where
        self.run_schedule = get_forward_backward_func()
        self._connect()

    def _connect(self) -> None:
        """Give the schedules their hooks: gradient scaling, the skipping of gradient reduction, and its end."""
        chunks = self.state.chunks
        config = model.unwrapped(chunks[0]).config
        config.grad_scale_func = self.state.optimizer.scale_loss
        config.no_sync_func = chunks[0].no_sync
        config.finalize_model_grads_func = finalize_model_grads

    def train(self, batches: Iterator[Batch]) -> StepResult:
        """One optimizer step over a global batch; moves the schedule on unless the step was skipped."""
        state = self.state
        for chunk in state.chunks:
            chunk.zero_grad_buffer()
        state.optimizer.zero_grad()
        losses = self._pass(batches, forward_only=False)
        updated, grad_norm, _ = state.optimizer.step()
        samples = self.plan.batches.global_batch_size
        if updated:
            state.scheduler.step(increment=samples)
        state.iteration += 1
        state.consumed_samples += samples
        return StepResult(self._mean(losses), grad_norm, updated)

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch], global_batches: int) -> float:
        """The mean loss over `global_batches`."""
        for chunk in self.state.chunks:
            chunk.eval()
        losses = [self._mean(self._pass(batches, forward_only=True)) for _ in range(global_batches)]
        for chunk in self.state.chunks:
            chunk.train()
        return sum(losses) / len(losses)

    def _pass(self, batches: Iterator[Batch], forward_only: bool) -> list[dict[str, torch.Tensor]]:
        """All micro batches of one step through the pipeline; the last stage gets the losses."""
        plan = self.plan
        losses: list[dict[str, torch.Tensor]] = self.run_schedule(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=self.state.chunks,
            num_microbatches=plan.micro_batches,
            seq_length=plan.batches.seq_length,
            micro_batch_size=plan.batches.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def _mean(self, losses: list[dict[str, torch.Tensor]]) -> float:
        """The mean of the micro batches' losses over all data-parallel ranks, known to every rank afterwards."""
        total = torch.zeros(1, dtype=torch.float64, device=self.where)
        if losses and parallel_state.get_tensor_model_parallel_rank() == 0:
            total += torch.stack([entry["lm loss"] for entry in losses]).double().mean() / self.plan.parallelism.data
        torch.distributed.all_reduce(total)
        return float(total.item())


def forward_step(batches: Iterator[Batch], chunk: DistributedDataParallel) -> tuple[torch.Tensor, Any]:
    """megatron-core's callback: one micro batch through this stage, and the function that turns the output into a loss."""
    batch = next(batches)
    output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(mean_loss, batch["loss_mask"])


def mean_loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean over the tokens that count; `mask` and `losses` are [b, s]."""
    loss = (losses.float() * mask).sum() / mask.sum().clamp(min=1)
    # The schedule divides `loss` in place by the number of micro batches: the report needs its own copy.
    return loss, {"lm loss": loss.detach().clone()}
