"""Pipeline schedules for one stage per rank: 1F1B, and zero-bubble, which computes the weight gradients in separate passes.

megatron-core's 1F1B blocks the host after every exchange with a neighbour, and the GPU idles meanwhile. Here the host never
waits: NCCL's streams send and receive, and on the GPU the next pass waits for its input. Both schedules sum gradients in the same
order as megatron-core's, so the losses are identical bit for bit. Interleaved stages use megatron-core's schedule.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.schedules import custom_backward, deallocate_output_tensor, forward_step, get_tensor_shapes
from torch import Tensor

from lt_train.config.settings.parallelism import Parallelism
from lt_train.models.chunks import unwrap
from lt_train.ops.deferred_gradients import Queue
from lt_train.parallel.ddp import Chunk
from lt_train.planner.pipeline_passes import BACKWARD, FORWARD, WEIGHTS, Pass, Work, arrives_from, order, timeline
from lt_train.train.process_groups import gradient_group

Schedule = Callable[..., list[dict[str, Tensor]]]
# The expected times assume passes of equal length and transfers that take no time.
EQUAL = Work(1.0, 1.0, 1.0)


def choose(parallel: Parallelism) -> Schedule:
    """Return the schedule for `parallel`, a function with the arguments of megatron-core's schedules."""
    if parallel.pipeline == 1 or parallel.interleaving:
        schedule: Schedule = get_forward_backward_func()
        return schedule
    return PipelineSchedule(parallel.pipeline_schedule)


@dataclasses.dataclass
class Transfers:
    """Sends and receives in one direction between this rank and its neighbours, in the order of the micro batches.

    A direction has a separate communicator (`group`), because NCCL matches sends and receives by their order.
    """

    group: Any
    source: int | None
    target: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    # At most this many tensors are in flight between two stages. If there are more, the oldest has arrived.
    most_sent: int
    received: collections.deque[tuple[Tensor, Any]] = dataclasses.field(default_factory=collections.deque)
    sent: collections.deque[tuple[Any, Tensor]] = dataclasses.field(default_factory=collections.deque)

    def post(self) -> None:
        """Start to receive the next tensor."""
        tensor = torch.empty(self.shape, dtype=self.dtype, device=torch.cuda.current_device())
        self.received.append((tensor, torch.distributed.irecv(tensor, self.source, group=self.group)))

    def take(self) -> Tensor:
        """Return the next tensor. Kernels launched from now on wait for its arrival; the host does not."""
        tensor, handle = self.received.popleft()
        handle.wait()
        return tensor

    def send(self, tensor: Tensor) -> None:
        # `deallocate_output_tensor` replaces the data of the output tensor; the detached alias keeps the memory until it is sent.
        tensor = tensor.detach()
        self.sent.append((torch.distributed.isend(tensor, self.target, group=self.group), tensor))
        while len(self.sent) > self.most_sent:
            self.sent.popleft()[0].wait()

    def finish(self) -> None:
        while self.sent:
            self.sent.popleft()[0].wait()


class PipelineSchedule:
    """Run all micro batches of a step, with the arguments of megatron-core's schedules."""

    def __init__(self, schedule: str):
        self.schedule = schedule
        group = parallel_state.get_pipeline_model_parallel_group()
        self.rank, self.ranks = group.rank(), group.size()

    def __call__(
        self,
        *,
        forward_step_func: Any,
        data_iterator: Iterator[Any],
        model: Chunk,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        forward_only: bool,
    ) -> list[dict[str, Tensor]]:
        """Return the losses of every micro batch on the last stage, and an empty list on the other stages."""
        config = unwrap(model).config
        passes, posted = _planned(self.schedule, self.rank, self.ranks, num_microbatches, forward_only)
        shape = get_tensor_shapes(
            seq_length=seq_length,
            micro_batch_size=micro_batch_size,
            decoder_seq_length=None,
            config=config,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            cp_group=parallel_state.get_context_parallel_group(),
        )[0]
        step = _Step(self.rank, self.ranks, model, config, shape, forward_only)
        run_forward = _forward(forward_step_func, data_iterator, model, num_microbatches, config, step.is_last)
        with _timed(config, "forward-backward", 1, barrier=config.barrier_with_L1_time):
            return step.run(passes, posted, run_forward)


# Cached, because the number of micro batches changes rarely: with a ramp-up of the batch size, and for evaluations.
@functools.lru_cache(maxsize=4)
def _planned(
    schedule: str, rank: int, ranks: int, micro_batches: int, forward_only: bool
) -> tuple[list[Pass], dict[int, list[str]]]:
    """Return the passes of a rank, and the kinds of tensors that it starts to receive before each pass."""
    orders = [order(schedule, number, ranks, micro_batches) for number in range(ranks)]
    if forward_only:
        orders = [[entry for entry in passes if entry.kind == FORWARD] for passes in orders]
    return orders[rank], receives(orders, rank)


def receives(orders: list[list[Pass]], rank: int) -> dict[int, list[str]]:
    """Return the kinds of tensors that a rank starts to receive before each of its passes, by the position of the pass.

    An NCCL receive that waits for its neighbour occupies multiprocessors, which slows concurrent GEMMs. So a receive is posted
    when the neighbour is expected to send, as if all passes took equally long, and not as early as possible. Within a direction,
    receives are posted in the passes' order.
    """
    ranks = len(orders)
    times = timeline(orders, (EQUAL,) * ranks)
    kinds_by_position: dict[int, list[str]] = collections.defaultdict(list)
    local_passes = orders[rank]
    for position, entry in enumerate(local_passes):
        source = arrives_from(entry, rank, ranks, ranks)
        if source is None:
            continue
        arrival = times.ends[source[0]][source[1]]
        first = position
        while first > 0 and times.begins[rank][local_passes[first - 1]] >= arrival:
            first -= 1
        kinds_by_position[first].append(entry.kind)
    return kinds_by_position


def _forward(
    forward_step_func: Any, batches: Iterator[Any], model: Chunk, count: int, config: Any, is_last: bool
) -> Callable[[int, Tensor | None, list[dict[str, Tensor]]], Tensor]:
    def run(number: int, rows: Tensor | None, losses: list[dict[str, Tensor]]) -> Tensor:
        output: Tensor
        output, _ = forward_step(
            forward_step_func,
            batches,
            model,
            count,
            rows,
            losses,
            config,
            parallel_state.get_context_parallel_world_size(),
            is_first_microbatch=number == 0,
            current_microbatch=number,
            is_last_stage=is_last,
        )
        return output

    return run


class _Step:
    """A global batch on a rank, with the inputs and outputs of micro batches that await their backward pass (`pending`)."""

    def __init__(self, rank: int, ranks: int, model: Chunk, config: Any, shape: tuple[int, ...], forward_only: bool):
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        self.model, self.config, self.forward_only = model, config, forward_only
        group = parallel_state.get_pipeline_model_parallel_group()
        previous_rank = None if self.is_first else torch.distributed.get_global_rank(group, rank - 1)
        next_rank = None if self.is_last else torch.distributed.get_global_rank(group, rank + 1)
        self.transfers = {
            FORWARD: Transfers(group, previous_rank, next_rank, shape, config.pipeline_dtype, ranks),
            BACKWARD: Transfers(gradient_group(), next_rank, previous_rank, shape, config.pipeline_dtype, ranks),
        }
        self.losses: list[dict[str, Tensor]] = []
        self.pending: collections.deque[tuple[Tensor | None, Tensor]] = collections.deque()
        self.queue = Queue()

    def run(
        self,
        passes: list[Pass],
        posted: dict[int, list[str]],
        forward: Callable[[int, Tensor | None, list[dict[str, Tensor]]], Tensor],
    ) -> list[dict[str, Tensor]]:
        """Run all passes and return the losses.

        Gradients are reduced for the last micro batch: during its backward pass, or with zero-bubble during its weight pass.
        """
        splits = any(entry.kind == WEIGHTS for entry in passes)
        backwards = [position for position, entry in enumerate(passes) if entry.kind == BACKWARD]
        last_backward = backwards[-1] if backwards else -1
        with contextlib.ExitStack() as unsynchronized:
            unsynchronized.enter_context(self.config.no_sync_func())
            reduction: _Reduction | None = None
            for position, entry in enumerate(passes):
                for kind in posted.get(position, ()):
                    self.transfers[kind].post()
                if position == last_backward and not splits:
                    unsynchronized.close()
                if entry.kind == FORWARD:
                    self._forward(entry.micro_batch, forward)
                elif entry.kind == BACKWARD:
                    self._backward(splits)
                else:
                    if position > last_backward and reduction is None:
                        unsynchronized.close()
                        reduction = _Reduction(self.model, self.queue)
                    self._weights(reduction)
        for transfers in self.transfers.values():
            transfers.finish()
        if not self.forward_only:
            self.config.finalize_model_grads_func([self.model], None)
        return self.losses

    def _forward(self, number: int, forward: Callable[[int, Tensor | None, list[dict[str, Tensor]]], Tensor]) -> None:
        rows = None
        if not self.is_first:
            with _timed(self.config, "forward-recv", 2):
                rows = self.transfers[FORWARD].take()
            rows.requires_grad_(not self.forward_only)
        output = forward(number, rows, self.losses)
        if not self.is_last:
            with _timed(self.config, "forward-send", 2):
                self.transfers[FORWARD].send(output)
        if not self.forward_only:
            self.pending.append((rows, output))
            deallocate_output_tensor(output, self.config.deallocate_pipeline_outputs)

    def _backward(self, defers: bool) -> None:
        """Run the backward pass of the oldest pending micro batch."""
        rows, output = self.pending.popleft()
        gradient = None
        if self.is_last:
            output = self.config.grad_scale_func(output) if self.config.grad_scale_func else output
        else:
            with _timed(self.config, "backward-recv", 2):
                gradient = self.transfers[BACKWARD].take()
        collecting = self.queue.collect_micro_batch() if defers else contextlib.nullcontext()
        with _timed(self.config, "backward-compute", 2), collecting:
            if self.config.deallocate_pipeline_outputs:
                custom_backward(output, gradient)
            else:
                torch.autograd.backward(output, gradient)
        if rows is not None:
            assert rows.grad is not None
            with _timed(self.config, "backward-send", 2):
                self.transfers[BACKWARD].send(rows.grad)

    def _weights(self, reduction: "_Reduction | None") -> None:
        with _timed(self.config, "backward-compute", 2):
            self.queue.compute(reduction.completed if reduction else None)


class _Reduction:
    """Mark gradients as ready in megatron-core's buckets (--overlap-grad-reduce) when their deferred weight GEMM has run.

    megatron-core's own gradient hooks cannot do so, because they have already run in the backward pass.
    """

    def __init__(self, model: Chunk, queue: Queue):
        self.model = model
        self.waiting: dict[int, Any] = {}
        if not model.ddp_config.overlap_grad_reduce:
            return
        for parameter in model.parameters():
            if parameter not in model.param_to_bucket_group:
                continue
            address = parameter.main_grad.data_ptr()
            if queue.is_waiting(address):
                self.waiting[address] = parameter
            else:
                self._ready(parameter)

    def completed(self, address: int) -> None:
        if address in self.waiting:
            self._ready(self.waiting.pop(address))

    def _ready(self, parameter: Any) -> None:
        self.model.param_to_bucket_group[parameter].register_grad_ready(parameter)


@contextlib.contextmanager
def _timed(config: Any, name: str, level: int, **settings: Any) -> Iterator[None]:
    if config.timers is not None:
        config.timers(name, log_level=level).start(**settings)
    yield
    if config.timers is not None:
        config.timers(name).stop()
