"""The training loop of one rank: megatron-core's schedules do the forward and backward passes, this file puts them together.

Every rank builds its share of the model, reads its own samples, and runs the same steps. Rank 0 reports and publishes
checkpoints.
"""

import dataclasses
import datetime
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from lt_shared import manifest
from lt_shared.run_log import CheckpointLoaded, CheckpointSaved, Evaluation, Step
from lt_train import checkpoint, data, device, model, optimizer
from lt_train.checkpoint import TrainingState
from lt_train.data import Batch
from lt_train.log import Log
from lt_train.place import Place
from lt_train.plan import Plan


def train(plan: Plan, place: Place, where: torch.device) -> None:
    """Run `plan` to its last iteration as the rank at `place`. Manifest lines of checkpoints go to stdout of rank 0."""
    _join(place, where)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan.parallelism.tensor, pipeline_model_parallel_size=plan.parallelism.pipeline
    )
    model_parallel_cuda_manual_seed(plan.seed)
    log = Log(plan.save, active=place.rank == 0)
    log.arguments(checkpoint.arguments(plan))
    wrapped = model.build(plan, where)
    adam, scheduler = optimizer.build(plan, wrapped)
    _connect(wrapped, adam)
    state = TrainingState(wrapped, adam, scheduler)
    start = _from_rank_zero(plan.start)
    if start is not None:
        checkpoint.load(Path(start), plan, state)
        log.line(CheckpointLoaded(state.iteration, str(Path(start).parent), _now()).format())
    plan = dataclasses.replace(plan, data_cache_path=data.cache_directory(plan))
    Loop(plan, state, log, where).run()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _join(place: Place, where: torch.device) -> None:
    device.communicate_on_loopback(place)
    torch.distributed.init_process_group(
        backend=device.BACKENDS[where.type],
        # The variables of `Place.environment`; torchrun adds one that says that its own store is to be used.
        init_method="env://",
        device_id=where if where.type == device.CUDA else None,
        timeout=datetime.timedelta(minutes=10),
    )


def _connect(wrapped: DistributedDataParallel, adam: Any) -> None:
    """Give the schedules their hooks: gradient scaling, the skipping of gradient reduction, and its end."""
    config = model.unwrapped(wrapped).config
    config.grad_scale_func = adam.scale_loss
    config.no_sync_func = wrapped.no_sync
    config.finalize_model_grads_func = finalize_model_grads


def _from_rank_zero(path: str | None) -> str | None:
    """The same start for all: nodes may see a shared filesystem at different moments."""
    shared = [path]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def _now() -> datetime.datetime:
    return datetime.datetime.now()


class Loop:
    """The steps from a state's iteration to the plan's last."""

    def __init__(self, plan: Plan, state: TrainingState, log: Log, where: torch.device):
        self.plan = plan
        self.state = state
        self.log = log
        self.where = where
        self.reports = manifest.Writer(plan.plain)
        self.run_schedule = get_forward_backward_func()
        self.train_data, self.validation_data = data.build(plan)
        self.step_flops = plan.architecture.flops_per_token(plan.seq_length) * plan.global_batch_size * plan.seq_length
        self.nan_steps = 0

    def run(self) -> None:
        plan, state = self.plan, self.state
        batches = data.batches(self.train_data, plan, self.where, state.iteration * plan.global_batch_size)
        started, since = time.monotonic(), state.iteration
        while state.iteration < plan.train_iters:
            loss, grad_norm = self._step(batches)
            state.iteration += 1
            state.unlogged_losses.append(loss)
            if state.iteration % plan.log_interval == 0 or state.iteration == plan.train_iters:
                device.synchronize(self.where)
                seconds = (time.monotonic() - started) / (state.iteration - since)
                self._report(sum(state.unlogged_losses) / len(state.unlogged_losses), grad_norm, seconds)
                state.unlogged_losses, started, since = [], time.monotonic(), state.iteration
            pause = time.monotonic()
            last = state.iteration == plan.train_iters
            if plan.eval_iters and (last or state.iteration % plan.eval_interval == 0):
                self._evaluate()
            if plan.save and (last or state.iteration % plan.save_interval == 0):
                self._save(loss)
            started += time.monotonic() - pause
        if self.log.active:
            self.reports.end()

    def _step(self, batches: Iterator[Batch]) -> tuple[float, float | None]:
        """One optimizer step. Returns the mean loss over the global batch (nats per token) and the gradient norm."""
        plan, state = self.plan, self.state
        state.model.zero_grad_buffer()
        state.optimizer.zero_grad()
        losses = self._pass(batches, forward_only=False)
        updated, grad_norm, _ = state.optimizer.step()
        if updated:
            state.scheduler.step(increment=plan.global_batch_size)
        loss = self._mean(losses)
        self.nan_steps += loss != loss
        return loss, grad_norm

    def _pass(self, batches: Iterator[Batch], forward_only: bool) -> list[dict[str, torch.Tensor]]:
        """All micro batches of one step through the pipeline; the last stage gets the losses."""
        plan = self.plan
        losses: list[dict[str, torch.Tensor]] = self.run_schedule(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[self.state.model],
            num_microbatches=plan.micro_batches,
            seq_length=plan.seq_length,
            micro_batch_size=plan.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def _mean(self, losses: list[dict[str, torch.Tensor]]) -> float:
        """The mean of the micro batches' losses over all data-parallel ranks, known to every rank afterwards."""
        parallel = self.plan.parallelism
        total = torch.zeros(1, dtype=torch.float64, device=self.where)
        if losses and parallel_state.get_tensor_model_parallel_rank() == 0:
            total += torch.stack([entry["lm loss"] for entry in losses]).double().mean() / parallel.data
        torch.distributed.all_reduce(total)
        return float(total.item())

    def _report(self, loss: float, grad_norm: float | None, step_seconds: float) -> None:
        plan, state = self.plan, self.state
        step = Step(
            step=state.iteration,
            total_steps=plan.train_iters,
            consumed_samples=state.iteration * plan.global_batch_size,
            step_seconds=step_seconds,
            tflops_per_gpu=self.step_flops / step_seconds / plan.parallelism.world_size / 1e12,
            learning_rate=state.optimizer.param_groups[0]["lr"],
            global_batch_size=plan.global_batch_size,
            loss=loss,
            loss_scale=1.0,
            grad_norm=grad_norm,
            skipped_steps=0,
            nan_steps=self.nan_steps,
            time=_now(),
        )
        self.log.step(step, tokens_per_second=plan.global_batch_size * plan.seq_length / step_seconds)
        self.nan_steps = 0

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Mean loss over the same `eval_iters` global batches each time, so that evaluations can be compared."""
        plan = self.plan
        assert self.validation_data is not None
        self.state.model.eval()
        batches = data.batches(self.validation_data, plan, self.where, 0)
        losses = [self._mean(self._pass(batches, forward_only=True)) for _ in range(plan.eval_iters)]
        self.state.model.train()
        self.log.evaluation(Evaluation(self.state.iteration, sum(losses) / len(losses)))

    def _save(self, loss: float) -> None:
        device.release(self.where)
        directory = checkpoint.save(self.plan, self.state, loss)
        if self.log.active:
            self.log.line(CheckpointSaved(self.state.iteration, str(directory.parent), _now()).format())
            self.reports.write(manifest.Checkpoint(str(directory.absolute()), "megatron-dist", self.state.iteration, loss))


def forward_step(batches: Iterator[Batch], wrapped: DistributedDataParallel) -> tuple[torch.Tensor, Any]:
    """megatron-core's callback: one micro batch through this stage, and the function that turns the output into a loss."""
    batch = next(batches)
    output = wrapped(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(mean_loss, batch["loss_mask"])


def mean_loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The mean over the tokens that count; `mask` and `losses` are [b, s]."""
    loss = (losses.float() * mask).sum() / mask.sum().clamp(min=1)
    # The schedule divides `loss` in place by the number of micro batches: the report needs its own copy.
    return loss, {"lm loss": loss.detach().clone()}
