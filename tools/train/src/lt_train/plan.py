"""The plan of a run: every setting resolved and checked, before any process starts and without importing torch.

A mistake found here costs a second; found after the ranks have started it costs a queue slot. The plan travels to the ranks as
one JSON file, so all ranks run with the same settings.
"""

import dataclasses
import json
import math
from typing import Any, Self

from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, BadData
from lt_shared.manifest import Dataset, Tokenizer

VOCABULARY_MULTIPLE = 128
# Enough to notice another tokenizer's data; reading all of a large dataset would take minutes.
CHECKED_TOKENS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """How the ranks share the model. The data-parallel size is what remains of the world."""

    world_size: int
    tensor: int
    pipeline: int
    sequence: bool
    distributed_optimizer: bool

    @property
    def data(self) -> int:
        return self.world_size // (self.tensor * self.pipeline)


@dataclasses.dataclass(frozen=True)
class Optimization:
    """AdamW with a cosine schedule after a linear warm-up; iterations, not samples."""

    lr: float
    min_lr: float
    lr_warmup_iters: int
    lr_decay_iters: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run. Sizes in tokens, samples and iterations; `save` and `load` are directories.

    `start` is the checkpoint directory to start from, found after the plan was resolved; None is the beginning.
    """

    architecture: Architecture
    datasets: tuple[Dataset, ...]
    parallelism: Parallelism
    optimization: Optimization
    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    train_iters: int
    eval_iters: int
    eval_interval: int
    split: str
    bf16: bool
    seed: int
    device: str
    save: str | None
    load: str | None
    save_interval: int
    log_interval: int
    data_cache_path: str | None
    plain: bool
    start: str | None = None

    @property
    def micro_batches(self) -> int:
        """Micro batches that each data-parallel rank runs per step."""
        return self.global_batch_size // (self.micro_batch_size * self.parallelism.data)

    @property
    def padded_vocab_size(self) -> int:
        return self.architecture.padded_vocab_size(VOCABULARY_MULTIPLE, self.parallelism.tensor)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the data; `check_datasets` has made sure that there is at most one."""
        return next((dataset.tokenizer for dataset in self.datasets if dataset.tokenizer), None)

    @property
    def eod(self) -> int | None:
        return next((dataset.eod for dataset in self.datasets if dataset.eod is not None), None)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        record: dict[str, Any] = json.loads(text)
        return cls(
            **{
                **record,
                "architecture": Architecture.from_record(record["architecture"]),
                "datasets": tuple(Dataset.from_record(dataset) for dataset in record["datasets"]),
                "parallelism": Parallelism(**record["parallelism"]),
                "optimization": Optimization(**record["optimization"]),
            }
        )


def check(plan: Plan) -> None:
    """Refuse what cannot run. Raises BadConfig with the reason."""
    _check_parallelism(plan)
    _check_batches(plan)
    _check_schedule(plan)
    if plan.seq_length > plan.architecture.max_position_embeddings:
        raise BadConfig(
            f"sequence length {plan.seq_length} exceeds the model's {plan.architecture.max_position_embeddings} positions",
            "lower --seq-length or raise --max-position-embeddings",
        )


def _check_parallelism(plan: Plan) -> None:
    parallel, model = plan.parallelism, plan.architecture
    for name in ("tensor", "pipeline"):
        if getattr(parallel, name) < 1:
            raise BadConfig(f"{name} parallel size {getattr(parallel, name)} must be at least 1")
    ranks = parallel.tensor * parallel.pipeline
    if parallel.world_size % ranks:
        raise BadConfig(
            f"{parallel.world_size} ranks do not divide into tensor parallel {parallel.tensor}"
            f" x pipeline parallel {parallel.pipeline}",
            f"start a multiple of {ranks} ranks",
        )
    divisible = (
        ("attention heads", model.num_attention_heads, "tensor", parallel.tensor),
        ("query groups", model.num_query_groups, "tensor", parallel.tensor),
        ("feed-forward size", model.ffn_hidden_size, "tensor", parallel.tensor),
        ("layers", model.num_layers, "pipeline", parallel.pipeline),
    )
    for what, size, name, ways in divisible:
        if size % ways:
            raise BadConfig(f"{what} {size} not divisible by {name} parallel size {ways}", f"choose another {name} parallel size")
    if parallel.sequence and plan.seq_length % parallel.tensor:
        raise BadConfig(f"sequence length {plan.seq_length} not divisible by tensor parallel size {parallel.tensor}")
    if parallel.sequence and parallel.tensor == 1:
        raise BadConfig("sequence parallelism needs a tensor parallel size above 1", "drop --sequence-parallel")


def _check_batches(plan: Plan) -> None:
    for name in ("micro_batch_size", "global_batch_size", "seq_length", "train_iters", "log_interval"):
        if getattr(plan, name) < 1:
            raise BadConfig(f"{name} is {getattr(plan, name)}, must be at least 1")
    step_samples = plan.micro_batch_size * plan.parallelism.data
    if plan.global_batch_size % step_samples:
        raise BadConfig(
            f"global batch size {plan.global_batch_size} is not a multiple of micro batch size {plan.micro_batch_size}"
            f" x data parallel size {plan.parallelism.data}",
            f"use a multiple of {step_samples}",
        )


def _check_schedule(plan: Plan) -> None:
    optimization = plan.optimization
    if not 0 <= optimization.min_lr <= optimization.lr:
        raise BadConfig(f"minimum learning rate {optimization.min_lr} is not between 0 and the learning rate {optimization.lr}")
    if optimization.lr_warmup_iters >= optimization.lr_decay_iters:
        raise BadConfig(
            f"warm-up of {optimization.lr_warmup_iters} iterations is not shorter than the decay over"
            f" {optimization.lr_decay_iters} iterations",
            "lower --lr-warmup-iters",
        )
    shares = split_shares(plan.split)
    if shares[0] == 0:
        raise BadConfig(f"split {plan.split} leaves no training data")
    if plan.eval_iters and shares[1] == 0:
        raise BadConfig(f"split {plan.split} leaves no validation data", "pass --eval-iters 0 or give validation a share")


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


def check_datasets(plan: Plan) -> None:
    """All files whole, enough in them for every split, all made by one tokenizer. Raises NoInput, BadData or BadConfig."""
    from lt_shared import indexed_dataset

    described: Dataset | None = None
    for dataset in plan.datasets:
        reader = indexed_dataset.Reader(dataset.prefix)
        if not len(reader.tokens):
            raise BadData(f"{dataset.prefix}: the dataset has no tokens")
        if dataset.tokens is not None and dataset.tokens != len(reader.tokens):
            raise BadData(f"{dataset.prefix}: {len(reader.tokens)} tokens on disk, its manifest says {dataset.tokens}")
        largest = int(reader.tokens[:CHECKED_TOKENS].max())
        if largest >= plan.architecture.vocab_size:
            raise BadConfig(
                f"{dataset.prefix}: holds token {largest}, the model's vocabulary ends at {plan.architecture.vocab_size}"
            )
        _check_splits(plan, dataset.prefix, len(reader.sequence_lengths))
        if dataset.tokenizer is None:
            continue
        if described is None:
            described = dataset
        check_same_tokenizer(described.tokenizer, described.prefix, dataset.tokenizer, dataset.prefix)


def _check_splits(plan: Plan, prefix: str, sequences: int) -> None:
    """megatron-core gives each split whole sequences and stops half-way on one that it needs and that gets none."""
    training, validation, _ = split_shares(plan.split)
    end_of_training = round(training * sequences)
    if end_of_training == 0:
        raise BadData(f"{prefix}: {sequences} documents, none of them for training at split {plan.split}")
    if validation and round((training + validation) * sequences) == end_of_training:
        raise BadData(
            f"{prefix}: {sequences} documents, none of them for validation at split {plan.split}",
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
