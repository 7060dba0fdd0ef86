"""Settings for data: the datasets, their split, and how often validation runs."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, BadData, ToolError, UsageError, note
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.data.sample_order.split import split_ranges, split_shares
from lt_shared.files import storage
from lt_train.config.settings import data_schedule, stated_tokenizer, streaming, validation_sets
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.streaming import Streaming

if TYPE_CHECKING:
    from lt_shared.data import indexed_dataset

POSITIVE = click.IntRange(min=1)
# Enough to notice another tokenizer's data. Reading a large dataset whole would take minutes.
CHECKED_TOKENS = 1_000_000
DEFAULT_SPLIT = "99,1,0"
# Options that take all words up to the next option, as in Megatron.
LISTS = ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path")

OPTIONS = console.section(
    "Data",
    click.option("--data-path", multiple=True, metavar="[WEIGHT] PREFIX ...", help="Same as DATA.", hidden=True),
    click.option("--train-data-path", multiple=True, metavar="[WEIGHT] PREFIX ...", help="Train on this data, not split."),
    click.option(
        "--valid-data-path",
        multiple=True,
        metavar="[NAME=] [WEIGHT] PREFIX ...",
        help="Validate on this data; several sets by name, each with its loss.",
    ),
    click.option("--test-data-path", multiple=True, metavar="[WEIGHT] PREFIX ...", help="Test on this data."),
    click.option("--mock-data", is_flag=True, help="Train on synthetic tokens: Megatron's, which count up."),
    click.option("--split", help=f"Split the documents: shares of training, validation, test; by default {DEFAULT_SPLIT}."),
    click.option(
        "--eval-interval", type=POSITIVE, default=1000, help="Evaluate every N steps; the last step always has an evaluation."
    ),
    click.option(
        "--eval-iters",
        type=click.IntRange(min=0),
        default=10,
        help="Set the number of global batches per evaluation; 0 for none.",
    ),
    click.option("--reset-position-ids", is_flag=True, help="Count positions from 0 after each end of a document."),
    click.option("--reset-attention-mask", is_flag=True, help="Let no token attend to an earlier document."),
    click.option("--eod-mask-loss", is_flag=True, help="Exclude the prediction after a document's end from the loss."),
    click.option(
        "--num-workers", type=click.IntRange(min=0), default=2, help="Read samples ahead in this many threads per rank."
    ),
    click.option(
        "--data-cache-path", type=click.Path(file_okay=False), help="Keep sample indices in this directory; by default in SAVE."
    ),
    click.option(
        "--object-storage-cache-path",
        type=click.Path(file_okay=False),
        help="Cache s3:// datasets in this directory of each node; required for them.",
    ),
    click.option(
        "--object-storage-cache-gib",
        type=click.FloatRange(min=0, min_open=True),
        help="Limit the cache of s3:// datasets; by default to half of the free disk.",
    ),
    *stated_tokenizer.OPTIONS,
)


@dataclasses.dataclass(frozen=True)
class Data:
    """The run's datasets. `split` is Megatron's three shares of `datasets`, or None if validation data is named separately.

    `validation_names` names the validation set of every entry of `validation_datasets`; it is empty for a single unnamed set.
    For a stream, `datasets` has the first shard, with the weight of the stream. If `datasets` is empty, tokens are synthetic.
    `eval_iters` counts global batches. `cache_path` and `object_cache_path` are directories. `object_cache_gib` limits
    `object_cache_path`; None means half of the free disk.
    """

    datasets: tuple[Dataset, ...]
    validation_datasets: tuple[Dataset, ...]
    validation_names: tuple[str, ...]
    test_datasets: tuple[Dataset, ...]
    split: str | None
    eval_iters: int
    eval_interval: int
    reset_position_ids: bool
    reset_attention_mask: bool
    eod_mask_loss: bool
    num_workers: int
    cache_path: str | None
    object_cache_path: str | None
    object_cache_gib: float | None
    streaming: Streaming | None = None

    @property
    def mock(self) -> bool:
        return not self.datasets

    @property
    def all_datasets(self) -> tuple[Dataset, ...]:
        return self.datasets + self.validation_datasets + self.test_datasets

    @property
    def names(self) -> list[str]:
        """Return the names of the training datasets."""
        return streaming.names(self.datasets, self.streaming.lists if self.streaming else [None] * len(self.datasets))

    @property
    def validation_sets(self) -> dict[str, tuple[Dataset, ...]]:
        """Return the datasets in every validation set, by name. An unnamed set has the name ""; with a split it has all data."""
        if self.split is not None:
            return {"": self.datasets}
        names = self.validation_names or ("",) * len(self.validation_datasets)
        paired = list(zip(names, self.validation_datasets, strict=True))
        return {name: tuple(dataset for other, dataset in paired if other == name) for name in names}

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the data. `check_datasets` verifies that all datasets have the same one."""
        return next((dataset.tokenizer for dataset in self.all_datasets if dataset.tokenizer), None)

    @property
    def eod(self) -> int | None:
        return next((dataset.eod for dataset in self.all_datasets if dataset.eod is not None), None)

    @property
    def is_packed(self) -> bool:
        """Whether samples may have different lengths."""
        return any(dataset.packed is not None for dataset in self.all_datasets)

    @property
    def has_loss_mask(self) -> bool:
        """Whether a mask says which tokens of a dataset count in the loss."""
        return any(dataset.loss_mask for dataset in self.all_datasets)

    @property
    def minds_documents(self) -> bool:
        return self.reset_position_ids or self.reset_attention_mask or self.eod_mask_loss


def spread(arguments: Sequence[str]) -> list[str]:
    """Repeat the option before every word of Megatron's lists: --data-path=1 --data-path=a for --data-path 1 a."""
    words: list[str] = []
    option = None
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in LISTS:
            option = name
            words.extend([argument] if value else [])
        elif option and (argument == "-" or not argument.startswith("-")):
            words.append(f"{option}={argument}")
        else:
            option = None
            words.append(argument)
    return words


def training_datasets(words: tuple[str, ...], options: dict[str, Any]) -> tuple[Dataset, ...]:
    """Return the datasets that DATA or its options name, none for mock data. Raises UsageError, and as `manifest.read`."""
    sources_by_option = {"DATA": words, "--data-path": options["data_path"], "--train-data-path": options["train_data_path"]}
    named = {name: tuple(value) for name, value in sources_by_option.items() if value}
    if options["mock_data"]:
        if named or options["valid_data_path"] or options["test_data_path"]:
            raise UsageError("--mock-data and other data", "choose one")
        return ()
    if len(named) != 1:
        raise UsageError(
            f"data named by {' and '.join(named)}" if named else "no DATA",
            "pass - (a manifest on standard input), @FILE, or prefixes with their weights; or --mock-data",
        )
    (sources,) = named.values()
    return streaming.datasets(sources, options["follow"])


def _read(words: tuple[str, ...]) -> tuple[Dataset, ...]:
    return tuple(manifest.datasets(manifest.read(words), " ".join(words))) if words else ()


def blend_words(datasets: tuple[Dataset, ...]) -> list[str] | None:
    """Write datasets as Megatron's lists: weight, prefix, weight, prefix ...; a single dataset without weight; None if empty."""
    if len(datasets) == 1:
        return [datasets[0].prefix]
    return [word for dataset in datasets for word in (f"{dataset.weight:g}", dataset.prefix)] or None


def changes_of_order(stored: Mapping[str, Any], current: Mapping[str, Any], consumed_samples: int = 0) -> list[str]:
    """Describe the differences between two runs' arguments, under Megatron's names, that change the order of the samples.

    Arguments that the stored run lacks do not count. Phases after `consumed_samples` may differ.
    """

    def blend(arguments: Mapping[str, Any]) -> list[str]:
        words = arguments.get("train_data_path") or arguments.get("data_path") or []
        return list(words) if len(words) > 1 else []

    def weights(arguments: Mapping[str, Any]) -> list[str]:
        return blend(arguments)[::2]

    def prefixes(arguments: Mapping[str, Any]) -> list[str]:
        return blend(arguments)[1::2]

    changes = [
        f"{name.replace('_', '-')} was {stored[name]} and is {current[name]}"
        for name in ("seed", "split", *(() if current.get("data_schedule") else ("seq_length",)))
        if name in stored and stored[name] != current[name]
    ]
    if current.get("data_schedule"):
        if data_schedule.changes(stored.get("data_schedule"), current["data_schedule"], consumed_samples):
            changes.append("phases of the data schedule that have begun were others")
    elif stored.get("data_schedule"):
        changes.append("there was a data schedule")
    elif "data_path" in stored and weights(stored) != weights(current):
        changes.append(f"the weights of the data were {weights(stored)} and are {weights(current)}")
    elif prefixes(stored) != prefixes(current) and sorted(prefixes(stored)) == sorted(prefixes(current)):
        # Only a changed order counts: a prefix that differs may be a dataset that was moved.
        changes.append(f"the data was {' '.join(prefixes(stored))} and is {' '.join(prefixes(current))}")
    return changes


def resolve_data(options: dict[str, Any], datasets: tuple[Dataset, ...]) -> Data:
    """Resolve the options. `datasets` are the result of `training_datasets`."""
    separate = any(options[name] for name in ("train_data_path", "valid_data_path", "test_data_path"))
    if separate and options["split"]:
        raise UsageError("--split, but training, validation and test data are named separately", "drop --split")
    if options["mock_data"] and options["split"]:
        note("--split has no meaning for made-up data")
    sets = validation_sets.read(tuple(options["valid_data_path"]), _read)
    validation = tuple(dataset for _, set_datasets in sets for dataset in set_datasets)
    validation_names = tuple(name for name, set_datasets in sets if name for _ in set_datasets)
    test = _read(tuple(options["test_data_path"]))
    stated_tokenizer.check(options, (*datasets, *validation, *test))
    arriving = streaming.resolve_streaming(options, datasets)
    default_split = streaming.DEFAULT_SPLIT if arriving else DEFAULT_SPLIT
    return Data(
        datasets=streaming.plain_datasets(datasets),
        validation_datasets=validation,
        validation_names=validation_names,
        test_datasets=test,
        split=None if separate else "1,1,1" if options["mock_data"] else options["split"] or default_split,
        eval_iters=options["eval_iters"],
        eval_interval=options["eval_interval"],
        reset_position_ids=options["reset_position_ids"],
        reset_attention_mask=options["reset_attention_mask"],
        eod_mask_loss=options["eod_mask_loss"],
        num_workers=options["num_workers"],
        cache_path=options["data_cache_path"],
        object_cache_path=options["object_storage_cache_path"],
        object_cache_gib=options["object_storage_cache_gib"],
        streaming=arriving,
    )


def check(data: Data, vocab_size: int) -> Iterator[ToolError]:
    """Yield BadConfig if a required split has no documents, or if the data contradicts the other settings."""
    if data.split is None:
        if data.eval_iters and not data.validation_datasets:
            yield BadConfig("no validation data", "pass --eval-iters 0 or --valid-data-path")
    else:
        yield from _check_shares(data.split, data.eval_iters)
    if data.minds_documents and data.eod is None and not data.mock:
        yield BadConfig(
            "where documents end is not known: the data does not say which token ends them",
            "tokenize with lt-preprocess --append-eod, and keep the .json beside the .bin",
        )
    remote = [dataset.prefix for dataset in data.all_datasets if storage.is_remote(dataset.prefix)]
    if remote and data.object_cache_path is None:
        yield BadConfig(
            f"{remote[0]}: nowhere to keep what is read", "pass --object-storage-cache-path, a directory on a local disk"
        )
    yield from check_vocabulary(data.all_datasets, vocab_size)


def check_packed(data: Data, schedule: Schedule, seq_length: int) -> Iterator[ToolError]:
    """Yield BadConfig if phases of `seq_length` read a dataset that was packed for another sequence length."""
    drawn = set(data.datasets)
    if schedule:
        phases = [phase for phase in schedule.phases if phase.seq_length == seq_length]
        drawn = {dataset for phase in phases for dataset, weight in zip(data.datasets, phase.weights, strict=True) if weight}
    evaluated = (*data.validation_datasets, *data.test_datasets, *(data.datasets if data.split and data.eval_iters else ()))
    for dataset in dict.fromkeys(entry for entry in data.all_datasets if entry in drawn or entry in evaluated):
        if dataset.packed is not None and dataset.packed != seq_length:
            yield BadConfig(
                f"{dataset.prefix}: is packed for sequences of {dataset.packed} tokens, and is read in sequences of {seq_length}",
                f"use --seq-length {dataset.packed}, or pack it again: lt-preprocess pack --seq-length {seq_length}",
            )
        if dataset.packed is not None and dataset.eod is None:
            yield BadConfig(f"{dataset.prefix}: is packed, and its description has no end of document")


def _check_shares(split: str, eval_iters: int) -> Iterator[ToolError]:
    try:
        shares = split_shares(split)
    except BadConfig as problem:
        yield problem
        return
    if shares[0] == 0:
        yield BadConfig(f"split {split} leaves no training data")
    elif eval_iters and shares[1] == 0:
        yield BadConfig(f"split {split} leaves no validation data", "pass --eval-iters 0 or give validation a share")


def check_datasets(data: Data, vocab_size: int) -> None:
    """Check that all dataset files are complete, have documents for every split, and come from one tokenizer.

    Raises NoInput, BadData or BadConfig. Remote datasets are checked later, after their indices have been copied.
    """
    from lt_shared.data import indexed_dataset

    described: Dataset | None = None
    for dataset in data.all_datasets:
        if not storage.is_remote(dataset.prefix):
            reader = indexed_dataset.Reader(dataset.prefix, remote=True)
            _check_tokens(dataset, reader.tokens, vocab_size)
            _check_mask(dataset, reader)
            if data.split is not None:
                _check_splits(data, dataset.prefix, len(reader.sequence_lengths))
            if dataset.packed is not None and reader.sequence_lengths.max() > dataset.packed + 1:
                raise BadData(f"{dataset.prefix}: is packed for {dataset.packed} tokens and has longer sequences")
            if data.minds_documents and dataset.packed is None and reader.tokens[-1] != data.eod:
                raise BadConfig(
                    f"{dataset.prefix}: its documents do not end with token {data.eod}, so that their boundaries do not show",
                    "tokenize with lt-preprocess --append-eod",
                )
        if data.minds_documents and dataset.eod != data.eod:
            raise BadConfig(f"{dataset.prefix}: documents end with token {dataset.eod}, others with {data.eod}")
        if dataset.tokenizer is None:
            continue
        if described is None:
            described = dataset
        check_same_tokenizer(described.tokenizer, described.prefix, dataset.tokenizer, dataset.prefix)


def _check_tokens(dataset: Dataset, tokens: Any, vocab_size: int) -> None:
    if not len(tokens):
        raise BadData(f"{dataset.prefix}: the dataset has no tokens")
    if dataset.tokens is not None and dataset.tokens != len(tokens):
        raise BadData(f"{dataset.prefix}: {len(tokens)} tokens on disk, its manifest says {dataset.tokens}")
    largest = int(tokens[:CHECKED_TOKENS].max())
    if largest >= vocab_size:
        raise BadConfig(f"{dataset.prefix}: holds token {largest}, the model's vocabulary ends at {vocab_size}")


def _check_mask(dataset: Dataset, reader: "indexed_dataset.Reader") -> None:
    from lt_shared.data import indexed_dataset

    if dataset.loss_mask:
        mask = indexed_dataset.open_mask(dataset.prefix, reader).tokens
        # Usually the first block ends the search; a whole mask has a byte a token.
        if not any(mask[start : start + CHECKED_TOKENS].any() for start in range(0, len(mask), CHECKED_TOKENS)):
            raise BadData(f"{dataset.prefix}: its loss mask counts no token", "lt-preprocess --train-on chooses what counts")
    elif indexed_dataset.has_mask(dataset.prefix) and not storage.exists(manifest.sidecar_path(dataset.prefix)):
        raise BadData(
            f"{dataset.prefix}: a loss mask lies beside it, and its description is missing",
            f"put {manifest.sidecar_path(dataset.prefix)} back, or delete the mask to train on all tokens",
        )


def _check_splits(data: Data, prefix: str, sequences: int) -> None:
    """Check that every required split gets at least one whole sequence."""
    assert data.split is not None
    shares = split_shares(data.split)
    are_required = (True, bool(data.eval_iters and shares[1]), bool(data.eval_iters and shares[2]))
    names = ("training", "validation", "test")
    for name, is_required, documents in zip(names, are_required, split_ranges(data.split, sequences), strict=True):
        if is_required and not documents:
            raise BadData(
                f"{prefix}: {sequences} documents, none of them for {name} at split {data.split}",
                "without validation: --split 1,0,0 --eval-iters 0; or give it a larger share, for example --split 9,1,0",
            )


def check_same_tokenizer(first: Tokenizer | None, first_place: str, second: Tokenizer | None, second_place: str) -> None:
    """Raise BadConfig if both tokenizers are known and differ."""
    if first and second and first.sha256 != second.sha256:
        raise BadConfig(
            f"different tokenizers: {first.name} ({first.sha256[:12]}) in {first_place},"
            f" {second.name} ({second.sha256[:12]}) in {second_place}",
            "tokenize all data with the tokenizer that the model was started with",
        )


def check_vocabulary(datasets: tuple[Dataset, ...], vocab_size: int) -> Iterator[ToolError]:
    """Yield BadConfig if a dataset may hold token ids beyond the model's vocabulary."""
    for dataset in datasets:
        if dataset.vocab_size is not None and dataset.vocab_size > vocab_size:
            yield BadConfig(
                f"{dataset.prefix}: vocabulary of {dataset.vocab_size}, the model's has {vocab_size}",
                f"pass --vocab-size {dataset.vocab_size} or use the model's tokenizer",
            )
