"""The training loop of one rank: megatron-core's schedules do the forward and backward passes, this file puts them together.

Every rank builds its share of the model, reads its own samples, and runs the same steps. Rank 0 reports and publishes
checkpoints.
"""

import datetime
import time
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from lt_shared import manifest
from lt_shared.run_log import CheckpointLoaded, CheckpointSaved, Evaluation, Step
from lt_train import checkpoint, data, device, model, optimizer
from lt_train.checkpoint import TrainingState
from lt_train.log import Log
from lt_train.place import Place
from lt_train.plan import Plan
from lt_train.step import Stepper, StepResult


def train(plan: Plan, place: Place, where: torch.device) -> None:
    """Run `plan` to its last iteration as the rank at `place`. Manifest lines of checkpoints go to stdout of rank 0."""
    _join(place, where)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan.parallelism.tensor, pipeline_model_parallel_size=plan.parallelism.pipeline
    )
    model_parallel_cuda_manual_seed(plan.seed)
    log = Log(plan.checkpointing.save, active=place.rank == 0)
    log.arguments(checkpoint.arguments(plan))
    chunks = model.build(plan, where)
    state = TrainingState(chunks, *optimizer.build(plan, chunks))
    start = _from_rank_zero(plan.checkpointing.start)
    if start is not None:
        checkpoint.load(Path(start), plan, state)
        log.line(CheckpointLoaded(state.iteration, str(Path(start).parent), _now()).format())
    Loop(plan.with_cache(data.cache_directory(plan)), state, log, where).run()
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
        self.reports = manifest.Writer(plan.reporting.plain)
        self.stepper = Stepper(plan, state, where)
        self.train_data, self.validation_data = data.build(plan)
        self.step_flops = plan.architecture.flops_per_token(plan.batches.seq_length) * plan.batches.step_tokens
        self.nan_steps = 0

    def run(self) -> None:
        plan, state = self.plan, self.state
        batches = data.batches(self.train_data, plan, self.where, state.consumed_samples)
        started, since = time.monotonic(), state.iteration
        while state.iteration < plan.batches.train_iters:
            result = self.stepper.train(batches)
            state.unlogged_losses.append(result.loss)
            self.nan_steps += result.loss != result.loss
            last = state.iteration == plan.batches.train_iters
            if last or state.iteration % plan.reporting.log_interval == 0:
                device.synchronize(self.where)
                self._report(result, (time.monotonic() - started) / (state.iteration - since))
                started, since = time.monotonic(), state.iteration
            pause = time.monotonic()
            if plan.data.eval_iters and (last or state.iteration % plan.data.eval_interval == 0):
                self._evaluate()
            if plan.checkpointing.save and (last or state.iteration % plan.checkpointing.save_interval == 0):
                self._save(result.loss)
            started += time.monotonic() - pause
        if self.log.active:
            self.reports.end()

    def _report(self, result: StepResult, step_seconds: float) -> None:
        plan, state = self.plan, self.state
        step = Step(
            step=state.iteration,
            total_steps=plan.batches.train_iters,
            consumed_samples=state.consumed_samples,
            step_seconds=step_seconds,
            tflops_per_gpu=self.step_flops / step_seconds / plan.parallelism.world_size / 1e12,
            learning_rate=state.optimizer.param_groups[0]["lr"],
            global_batch_size=plan.batches.global_batch_size,
            loss=sum(state.unlogged_losses) / len(state.unlogged_losses),
            loss_scale=1.0,
            grad_norm=result.grad_norm,
            skipped_steps=0,
            nan_steps=self.nan_steps,
            time=_now(),
        )
        self.log.step(step, tokens_per_second=plan.batches.step_tokens / step_seconds)
        state.unlogged_losses, self.nan_steps = [], 0

    def _evaluate(self) -> None:
        """Over the same `eval_iters` global batches each time, so that evaluations can be compared."""
        assert self.validation_data is not None
        batches = data.batches(self.validation_data, self.plan, self.where, 0)
        loss = self.stepper.evaluate(batches, self.plan.data.eval_iters)
        self.log.evaluation(Evaluation(self.state.iteration, loss))

    def _save(self, loss: float) -> None:
        device.release(self.where)
        directory = checkpoint.save(self.plan, self.state, loss)
        if self.log.active:
            self.log.line(CheckpointSaved(self.state.iteration, str(directory.parent), _now()).format())
            self.reports.write(manifest.Checkpoint(str(directory.absolute()), "megatron-dist", self.state.iteration, loss))
