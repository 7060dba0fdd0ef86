"""Which datasets are read, how they are split, and how often the validation part is looked at."""

import dataclasses
import math
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, BadData
from lt_shared.manifest import Dataset, Tokenizer

POSITIVE = click.IntRange(min=1)
# Enough to notice another tokenizer's data; reading all of a large dataset would take minutes.
CHECKED_TOKENS = 1_000_000

OPTIONS = console.section(
    "Data",
    click.option("--split", default="99,1,0", help="Shares of training, validation and test documents."),
    click.option("--eval-interval", type=POSITIVE, default=1000, help="Steps between evaluations; the last step always has one."),
    click.option("--eval-iters", type=click.IntRange(min=0), default=10, help="Global batches per evaluation; 0 for none."),
    click.option(
        "--data-cache-path", type=click.Path(file_okay=False), help="Where sample indices are kept; by default in SAVE."
    ),
)


@dataclasses.dataclass(frozen=True)
class Data:
    """`split` is Megatron's three shares; `eval_iters` counts global batches; `cache_path` is a directory."""

    datasets: tuple[Dataset, ...]
    split: str
    eval_iters: int
    eval_interval: int
    cache_path: str | None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the data; `check_datasets` has made sure that there is at most one."""
        return next((dataset.tokenizer for dataset in self.datasets if dataset.tokenizer), None)

    @property
    def eod(self) -> int | None:
        return next((dataset.eod for dataset in self.datasets if dataset.eod is not None), None)


def resolve(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Data:
    return Data(datasets, options["split"], options["eval_iters"], options["eval_interval"], options["data_cache_path"])


def check(data: Data) -> None:
    """Raises BadConfig when a part that is needed gets no share of the documents."""
    shares = split_shares(data.split)
    if shares[0] == 0:
        raise BadConfig(f"split {data.split} leaves no training data")
    if data.eval_iters and shares[1] == 0:
        raise BadConfig(f"split {data.split} leaves no validation data", "pass --eval-iters 0 or give validation a share")


def split_shares(split: str) -> tuple[float, float, float]:
    """Training, validation and test shares of "99,1,0", summing to 1. Raises BadConfig."""
    try:
        values = [float(part) for part in split.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 3 or any(not math.isfinite(value) or value < 0 for value in values) or sum(values) <= 0:
        raise BadConfig(f"split {split!r} is not three shares like 99,1,0")
    padded = [*values, 0.0, 0.0][:3]
    total = sum(padded)
    return padded[0] / total, padded[1] / total, padded[2] / total


def check_datasets(data: Data, vocab_size: int) -> None:
    """All files whole, enough in them for every split, all made by one tokenizer. Raises NoInput, BadData or BadConfig."""
    from lt_shared import indexed_dataset

    described: Dataset | None = None
    for dataset in data.datasets:
        reader = indexed_dataset.Reader(dataset.prefix)
        if not len(reader.tokens):
            raise BadData(f"{dataset.prefix}: the dataset has no tokens")
        if dataset.tokens is not None and dataset.tokens != len(reader.tokens):
            raise BadData(f"{dataset.prefix}: {len(reader.tokens)} tokens on disk, its manifest says {dataset.tokens}")
        largest = int(reader.tokens[:CHECKED_TOKENS].max())
        if largest >= vocab_size:
            raise BadConfig(f"{dataset.prefix}: holds token {largest}, the model's vocabulary ends at {vocab_size}")
        _check_splits(data.split, dataset.prefix, len(reader.sequence_lengths))
        if dataset.tokenizer is None:
            continue
        if described is None:
            described = dataset
        check_same_tokenizer(described.tokenizer, described.prefix, dataset.tokenizer, dataset.prefix)


def _check_splits(split: str, prefix: str, sequences: int) -> None:
    """megatron-core gives each split whole sequences and stops half-way on one that it needs and that gets none."""
    training, validation, _ = split_shares(split)
    end_of_training = round(training * sequences)
    if end_of_training == 0:
        raise BadData(f"{prefix}: {sequences} documents, none of them for training at split {split}")
    if validation and round((training + validation) * sequences) == end_of_training:
        raise BadData(
            f"{prefix}: {sequences} documents, none of them for validation at split {split}",
            "without validation: --split 1,0,0 --eval-iters 0; or give it a larger share, for example --split 9,1,0",
        )


def check_same_tokenizer(first: Tokenizer | None, first_place: str, second: Tokenizer | None, second_place: str) -> None:
    """Raises BadConfig when both tokenizers are known and differ."""
    if first and second and first.sha256 != second.sha256:
        raise BadConfig(
            f"different tokenizers: {first.name} ({first.sha256[:12]}) in {first_place},"
            f" {second.name} ({second.sha256[:12]}) in {second_place}",
            "tokenize all data with the tokenizer that the model was started with",
        )


def check_vocabulary(datasets: tuple[Dataset, ...], vocab_size: int) -> None:
    """Raises BadConfig when a dataset may hold token ids that the model has no row for."""
    for dataset in datasets:
        if dataset.vocab_size is not None and dataset.vocab_size > vocab_size:
            raise BadConfig(
                f"{dataset.prefix}: vocabulary of {dataset.vocab_size}, the model's has {vocab_size}",
                f"pass --vocab-size {dataset.vocab_size} or use the model's tokenizer",
            )
