"""megatron-core trains on what the dataset commands make: its GPTDataset sees the documents in their new order."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

from lt_preprocess.datasets import merge, shuffle, split
from lt_shared.data import indexed_dataset

EOD = 0
SEQUENCE_LENGTH = 16


class _Tokenizer:
    """What GPTDataset asks of a tokenizer."""

    eod = EOD
    pad = EOD
    vocab_size = 1000
    unique_identifiers = OrderedDict(name="test")


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Two datasets of Megatron's builder."""
    prefixes = []
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        builder = IndexedDatasetBuilder(str(tmp_path / f"{name}.bin"), dtype=np.uint16)
        for _ in range(60):
            tokens = [*random.integers(1, 1000, random.integers(1, 30)).tolist(), EOD]
            builder.add_document(torch.tensor(tokens), [len(tokens)])
        builder.finalize(str(tmp_path / f"{name}.idx"))
        prefixes.append(str(tmp_path / name))
    return prefixes


def training_tokens(prefix: str, cache: Path) -> list[int]:
    """All tokens that one epoch of training sees, sorted: the order of samples is Megatron's own."""
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQUENCE_LENGTH,
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=_Tokenizer(),  # type: ignore[arg-type]
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low_level = GPTDataset.build_low_level_dataset(prefix, config)
    documents = np.arange(len(low_level.document_indices) - 1, dtype=np.int32)
    dataset = GPTDataset(low_level, prefix, documents, None, Split.train, config)
    return sorted(token for sample in dataset for token in sample["tokens"].tolist())


def test_gpt_dataset_reads_the_results(tmp_path: Path, parts: list[str]) -> None:
    merged = merge.build(merge.plan(parts, str(tmp_path / "merged")))
    shuffled = shuffle.build(shuffle.plan(merged.prefix, str(tmp_path / "shuffled"), 0))
    pieces = split.build(split.plan(shuffled.prefix, str(tmp_path / "piece"), "8,2", None, 0))
    for made in (merged, shuffled, *pieces):
        available = np.bincount(indexed_dataset.Reader(made.prefix).tokens, minlength=1000)
        seen = np.bincount(training_tokens(made.prefix, tmp_path / "cache"), minlength=1000)
        assert bool((seen <= available).all())
        assert seen.sum() == (available.sum() - 1) // SEQUENCE_LENGTH * SEQUENCE_LENGTH
