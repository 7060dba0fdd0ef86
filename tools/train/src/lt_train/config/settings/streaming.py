"""Training data that arrives while the run trains: the streams of `lt-preprocess --stream`, and how they are shuffled.

Each line of a stream's manifest names the stream and the number of the shard. The configuration holds the first shard and the
path of the shard list, so it does not depend on how many shards exist when the run starts.
"""

import dataclasses
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lt_shared import console
from lt_shared.console import NoInput, UsageError, note
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import shard_list
from lt_shared.data.sample_order.shard_list import ShardList
from lt_shared.data.sample_order.split import split_ranges
from lt_shared.files import storage
from lt_train.process import stream_intake

POLL_SECONDS = 1.0
# Shares of the first shard. A shard is small: 1% would be too few tokens to evaluate on.
DEFAULT_SPLIT = "90,10,0"
PIPE = "pipe:"

OPTIONS = console.section(
    "Streams of data",
    click.option(
        "--shuffle-window",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Shuffle a stream within windows of whole shards with at least this many tokens; by default within each shard.",
    ),
    click.option("--tokenizer", metavar="TOKENIZER", help="Tokenize text files in DATA, as lt-preprocess does."),
    click.option("--follow", is_flag=True, help="Read @FILE, the shard list of a stream, while it grows."),
)
_LONGEST_NAME = 60
# Characters that a dataset's name must not have: separators of the pairs in a log line, and control characters of terminals.
_UNFIT = re.compile(r"[^\w./+@-]", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Streaming:
    """`lists` has one entry per dataset of the run: the location of the stream's shard list, or None for a plain dataset.

    A location is a file, a URL, or `pipe:NUMBER` for a pipe of the launcher. With `follow`, files may still grow.
    """

    lists: tuple[str | None, ...]
    window_tokens: int
    follow: bool


@dataclasses.dataclass(frozen=True)
class StreamHead(Dataset):
    """The first shard of a stream, its weight and the path of its shard list; `tokens_in_all` is set if the list is complete."""

    list: str = ""
    tokens_in_all: int | None = None


def datasets(words: Sequence[str], follow: bool) -> tuple[Dataset, ...]:
    """Return the datasets that arguments name; for a stream, its first shard. Raises as `manifest.read`."""
    if not any(map(stream_intake.is_pipe, words)) and not any(word.startswith("@") for word in words):
        return tuple(manifest.datasets(manifest.read(words), " ".join(words)))
    result: list[Dataset] = []
    plain: list[str] = []
    pipes = 0
    for word in words:
        head = _head(word, pipes, follow)
        if head is None:
            plain.append(word)
            continue
        pipes += head.list.startswith(PIPE)
        weight = float(plain.pop()) if plain and manifest.is_number(plain[-1]) else 1.0
        result += _plain(plain)
        result.append(dataclasses.replace(head, weight=weight))
        plain = []
    return (*result, *_plain(plain))


def _plain(words: Sequence[str]) -> Sequence[Dataset]:
    """Return the datasets of `words`, which name no stream. Pipes among them were opened by `_head`, which read a line."""
    if not words:
        return ()
    result: list[Dataset] = []
    names = []
    for word in words:
        if stream_intake.is_pipe(word.removeprefix("@")) or word == stream_intake.STANDARD_INPUT:
            intake = stream_intake.open_intake(word.removeprefix("@"))
            result += manifest.datasets(manifest.parse(intake.lines(), intake.name), intake.name)
        else:
            names.append(word)
    return (*result, *(manifest.datasets(manifest.read(names), " ".join(names)) if names else ()))


def _head(word: str, pipes: int, follow: bool) -> StreamHead | None:
    pipe = word.removeprefix("@")
    if stream_intake.is_pipe(pipe):
        intake = stream_intake.open_intake(pipe)
        line = intake.first_line()
        return _stream_head(shard_list.parse(line, intake.name), f"{PIPE}{pipes}") if shard_list.begins(line) else None
    if not word.startswith("@"):
        return None
    path = word[1:]
    shards = _wait_for_list(path) if follow else _read_finished_list(path)
    return None if shards is None else _stream_head(shards, manifest.absolute(path))


def _stream_head(shards: ShardList, place: str) -> StreamHead:
    tokens = sum(shard.tokens or 0 for shard in shards.shards) if shards.is_finished else None
    fields = {field.name: getattr(shards.shards[0], field.name) for field in dataclasses.fields(Dataset)}
    return StreamHead(**fields, list=place, tokens_in_all=tokens)


def _read_finished_list(path: str) -> ShardList | None:
    """Read the shard list in a file, or return None for any other manifest. Raises NoInput for an incomplete list."""
    text = storage.read_bytes(path).decode("utf-8", "surrogateescape")
    if not shard_list.begins(text.lstrip().partition("\n")[0]):
        return None
    shards = shard_list.parse(text, path)
    if not shards.is_finished:
        raise NoInput(
            f"{path}: the manifest has no end line: the stream is not finished",
            "--follow trains on it while it grows; if its producer has failed, run it again",
        )
    return shards


def _wait_for_list(path: str) -> ShardList:
    """Wait for a shard list to have a line and for the files of its first shard to be visible on this node; return the list.

    The list does not count as finished even if it has its last line, because other nodes may not see that line yet.
    """
    waiting, patience = False, shard_list.LATEST_SECONDS
    while True:
        text = storage.read_bytes(path).decode("utf-8", "surrogateescape") if storage.exists(path) else ""
        first, _, more = text.lstrip().partition("\n")
        if first and (more or text.endswith("\n")):
            if not shard_list.begins(first):
                raise UsageError(f"--follow: {path} is not the list of a stream", "lt-preprocess --stream prints one")
            shards = shard_list.parse(text, path)
            if shard_list.is_visible(shards.shards[0]) or patience <= 0:
                return ShardList(shards.shards)
            patience -= POLL_SECONDS
        if not waiting:
            note(f"{path}: waiting for the first shard")
        waiting = True
        time.sleep(POLL_SECONDS)


def list_path(place: str, run: str | None, streams: str) -> str:
    """Return the file of a shard list. A pipe's list is in the directory `run`, or in `streams` if there is no `run`."""
    if not place.startswith(PIPE):
        return place
    return str(Path(run or streams) / "streams" / f"{place.removeprefix(PIPE)}.jsonl")


def broken_path(place: str, streams: str) -> Path | None:
    """Return the file that appears when the producer at the other end of a pipe has failed."""
    return Path(streams) / f"{place.removeprefix(PIPE)}.broken" if place.startswith(PIPE) else None


def resolve_streaming(options: dict[str, Any], datasets: Sequence[Dataset]) -> Streaming | None:
    """Resolve the options, or return None if no dataset is a stream; then stream options raise UsageError."""
    lists = tuple(dataset.list if isinstance(dataset, StreamHead) else None for dataset in datasets)
    if not any(lists):
        for name in ("shuffle_window", "follow"):
            if options[name]:
                raise UsageError(
                    f"--{name.replace('_', '-')}, but no data is a stream", "lt-preprocess --stream makes one; see lt-train help"
                )
        return None
    return Streaming(lists, options["shuffle_window"] or 1, options["follow"])


def names(datasets: Sequence[Dataset], lists: Sequence[str | None] = ()) -> list[str]:
    """Return the names of the run's datasets. Streams are named after their `lists`."""
    are_streams = [place is not None for place in lists] or [isinstance(dataset, StreamHead) for dataset in datasets]
    paired = zip(datasets, are_streams, strict=True)
    return _short_names([str(dataset.stream) if is_stream else dataset.prefix for dataset, is_stream in paired])


def _short_names(prefixes: Sequence[str]) -> list[str]:
    """Name each dataset by the end of its path, as long as it takes to tell the names apart; a repeated prefix gets a number.

    `/fsx/web/part_text_document` and `/fsx/code/part_text_document` are `web/part_text_document` and `code/part_text_document`.
    """
    dataset_names = _path_ends(prefixes, 1)
    count_by_name: dict[str, int] = {}
    for place, name in enumerate(dataset_names):
        count_by_name[name] = count_by_name.get(name, 0) + 1
        if count_by_name[name] > 1:
            dataset_names[place] = f"{name}@{count_by_name[name]}"
    return dataset_names


def _path_ends(prefixes: Sequence[str], components: int) -> list[str]:
    ends = ["/".join(prefix.split("/")[-components:]) for prefix in prefixes]
    alike = {end for end in ends if len({prefix for prefix, other in zip(prefixes, ends, strict=True) if other == end}) > 1}
    if not alike:
        return [_UNFIT.sub("_", end)[-_LONGEST_NAME:] for end in ends]
    longer = _path_ends([prefix for prefix, end in zip(prefixes, ends, strict=True) if end in alike], components + 1)
    told_apart = iter(longer)
    return [next(told_apart) if end in alike else _UNFIT.sub("_", end)[-_LONGEST_NAME:] for end in ends]


def plain_datasets(datasets: Sequence[Dataset]) -> tuple[Dataset, ...]:
    """Convert stream heads to plain datasets, as the configuration stores them."""
    names = [field.name for field in dataclasses.fields(Dataset)]
    return tuple(Dataset(**{name: getattr(dataset, name) for name in names}) for dataset in datasets)


def length_options(options: dict[str, Any], datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Set the run's length to one epoch if no option sets it and the data is one complete shard list.

    Raises UsageError if nothing sets the length of a run on streams.
    """
    streams = [dataset for dataset in datasets if isinstance(dataset, StreamHead)]
    if not streams or any(options.get(name) for name in ("train_iters", "train_samples", "train_tokens", "data_schedule")):
        return options
    tokens = streams[0].tokens_in_all
    if len(datasets) > 1 or tokens is None:
        raise UsageError("how long to train on a stream is not said", "--train-tokens, --train-samples or --train-iters")
    # Consecutive samples share a token: the first token of a sample is the last token of the sample before.
    return options | {"train_tokens": max(1, tokens - _held_out_tokens(streams[0].prefix, split_of(options)) - 1)}


def split_of(options: dict[str, Any]) -> str | None:
    """Return the split of the first shard, or None if validation data is named separately."""
    separate = any(options[name] for name in ("train_data_path", "valid_data_path", "test_data_path"))
    return None if separate else options["split"] or DEFAULT_SPLIT


def _held_out_tokens(prefix: str, split: str | None) -> int:
    """Count the tokens of the first shard that are held out from training."""
    from lt_shared.data import indexed_dataset

    if split is None or storage.is_remote(prefix):
        return 0
    lengths = indexed_dataset.Reader(prefix).sequence_lengths
    training = split_ranges(split, len(lengths))[0]
    return int(lengths[training.stop :].sum())
