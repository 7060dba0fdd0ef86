"""Compute the losses of single samples with a checkpoint's weights, by forward passes of the run's model without training."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from lt_shared.console import ExitCode, Progress
from lt_shared.data.sample_order import run_order, sample_losses
from lt_shared.data.sample_order.samples import Samples, Span, Tokens
from lt_train.checkpoint import training_state
from lt_train.checkpoint.training_state import TrainingState
from lt_train.config.run_config import RunConfig
from lt_train.data.loader import Loader
from lt_train.models import builder
from lt_train.optim import optimizer
from lt_train.parallel.ddp import gathered_weights
from lt_train.process.rank_environment import RankEnvironment
from lt_train.train import kernel_trials, process_groups
from lt_train.train.forward_backward import ForwardBackward


class Chosen:
    """A subset of `samples`, selected by their numbers."""

    def __init__(self, samples: Samples, numbers: Sequence[int]):
        self._samples = samples
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Tokens:
        return self._samples[self._numbers[number]]

    def dataset(self, number: int) -> int:
        return self._samples.dataset(self._numbers[number])

    def spans(self, number: int) -> list[Span]:
        return self._samples.spans(self._numbers[number])


def score(config: RunConfig, rank_environment: RankEnvironment, device: torch.device) -> ExitCode:
    """Print the losses of the samples that `config.scoring` selects, on stdout of rank 0."""
    scoring = config.scoring
    assert scoring is not None
    trials = kernel_trials.Trials(config, device)
    process_groups.create(
        config.parallelism,
        config.expert_tensor_parallel,
        config.architecture.num_query_groups,
        config.memory,
        config.faults,
        rank_environment,
        device,
        config.digests(),
    )
    is_first = rank_environment.rank == 0
    chosen = trials.choose_kernels(is_first)
    model_parallel_cuda_manual_seed(config.seed)
    chunks = builder.build(config, chosen, device)
    optimization, precision, train_samples = config.optimization, config.precision, config.batches.length
    state = TrainingState(chunks, *optimizer.build(optimization, precision, train_samples, chosen.adamw, chunks))
    training_state.load(Path(str(config.checkpointing.start)), config, state)
    attempts = run_order.read(scoring.run)
    attempt = attempts[scoring.attempt]
    size = config.batches.global_batch_size
    numbers = list(range(scoring.first_sample, scoring.end_sample))
    padded = numbers + numbers[-1:] * (-len(numbers) % size)
    samples = Chosen(attempt.training_samples(Path(scoring.run)), padded)
    batches = Loader(config.data, config.batches, config.architecture.vocab_size, device).evaluating(samples)
    forward_backward = ForwardBackward(config.batches, config.parallelism, chunks, device, keeps_samples=True)
    for chunk in chunks:
        chunk.eval()
    with torch.no_grad(), gathered_weights(chunks), Progress("scoring", len(numbers), "samples") as progress:
        for begin in range(0, len(padded), size):
            losses = forward_backward.losses_of_samples(batches, size)
            batch_numbers = numbers[begin : begin + size]
            if is_first:
                for number, loss in zip(batch_numbers, losses, strict=False):
                    sys.stdout.write(sample_losses.line(run_order.step_of(attempts, number), number, [loss]))
                sys.stdout.flush()
                progress.advance(len(batch_numbers))
    trials.confirm()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return ExitCode.OK
