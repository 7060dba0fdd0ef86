"""Training and validation samples through megatron-core's GPTDataset, in an order that depends only on the seed.

Sample `i` of the run goes to step `i // global_batch_size`; within a micro batch across the data-parallel ranks each rank takes a
contiguous part, as Megatron's sampler does. A step's samples so are the same for every data-parallel size, and resuming at any
step needs no more than the step's number.
"""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from lt_shared import manifest
from lt_train.plan import Plan
from lt_train.settings.data import split_shares

Batch = dict[str, torch.Tensor]


def build(plan: Plan) -> tuple[GPTDataset, GPTDataset | None]:
    """The training and validation datasets. The sample index is built once, by rank 0, and cached beside the run."""
    prefixes = [dataset.prefix for dataset in plan.data.datasets]
    weights = [dataset.weight for dataset in plan.data.datasets] if len(prefixes) > 1 else None
    shares = split_shares(plan.data.split)
    config = GPTDatasetConfig(
        random_seed=plan.seed,
        sequence_length=plan.batches.seq_length,
        blend=(prefixes, weights),
        split=",".join(str(share) for share in shares),
        path_to_cache=plan.data.cache_path,
        tokenizer=_tokenizer(plan),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    # megatron-core asserts on a split that has documents and is asked for no samples.
    sizes = [
        plan.batches.train_iters * plan.batches.global_batch_size,
        max(1, plan.data.eval_iters * plan.batches.global_batch_size),
        1,
    ]
    train, validation, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return train, validation


def _tokenizer(plan: Plan) -> Any:
    """What GPTDataset asks of a tokenizer: the vocabulary size, the end-of-document id, and a name for its cache key."""
    identity = plan.data.tokenizer.sha256 if plan.data.tokenizer else manifest.absolute(plan.data.datasets[0].prefix)
    return SimpleNamespace(
        vocab_size=plan.architecture.vocab_size,
        eod=plan.data.eod,
        unique_identifiers={"sha256": identity},
    )


def batches(dataset: GPTDataset, plan: Plan, device: torch.device, first_sample: int) -> Iterator[Batch]:
    """This rank's micro batches from `first_sample` on: int64 tokens, labels, position_ids, float loss_mask, each [b, s]."""
    rank = parallel_state.get_data_parallel_rank()
    ranks = parallel_state.get_data_parallel_world_size()
    size = plan.batches.micro_batch_size
    start = first_sample + rank * size
    while start + size <= len(dataset):
        samples = [dataset[start + offset] for offset in range(size)]
        yield {
            key: torch.stack([torch.as_tensor(sample[key]) for sample in samples]).to(device)
            for key in ("tokens", "labels", "position_ids", "loss_mask")
        }
        start += size * ranks


def cache_directory(plan: Plan) -> str | None:
    """Where sample indices are kept: as asked, else in the run's directory, else beside the data (megatron-core's default)."""
    if plan.data.cache_path or not plan.checkpointing.save:
        return plan.data.cache_path
    return os.path.join(plan.checkpointing.save, "data-cache")
