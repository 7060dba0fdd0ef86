"""The datasets that a command works on, the parts of a merge in their order, and whether parts fit together.

Parts come as prefixes, file names, glob patterns, directories, `@LIST` or a manifest on standard input. The matches of a
pattern and the files of a directory are sorted with numbers by their value: `web_2_...` comes before `web_10_...`, the order of
the parts of Megatron's `--partitions` and of NeMo; for the zero-padded names of lt-preprocess and datatrove this is the plain
order.
"""

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Sequence

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.block_reader import BlockReader, Shape
from lt_shared.console import BadData, NoInput, UsageError, warn
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import bin_path
from lt_shared.files import storage

EXTENSIONS = (".bin", ".idx", ".json")
SHARD_NAME = re.compile(r"^(?P<head>.*)-(?P<number>\d+)-of-(?P<count>\d+)(?P<tail>.*)$")
PART_NAME = re.compile(r"^(?P<head>.*)-part(?P<number>\d{5,})(?P<tail>_.*)$")


def parts_of_merge(sources: Sequence[str], output_prefix: str) -> list[Dataset]:
    """The parts, in the order given.

    Raises: NoInput for a source that holds no dataset and for parts that are missing; UsageError for a part that is given twice
    or is the output; BadData for parts of several datasets.
    """
    parts: dict[str, Dataset] = {}
    by_file_name: set[str] = set()
    for source in sources:
        if source == "-" or source.startswith("@"):
            listed_parts = manifest.datasets(manifest.read([source]), "standard input" if source == "-" else source[1:])
        else:
            listed_parts = [_described(prefix) for prefix in _prefixes(source, output_prefix)]
        is_file_name = len(listed_parts) == 1 and listed_parts[0].prefix != source
        for part in listed_parts:
            path = _resolved_path(part.prefix)
            # The shell expands web* to both files of a dataset; naming a dataset twice is a mistake.
            if path in parts and not (is_file_name and path in by_file_name):
                raise UsageError(f"{_also_named(part.prefix, parts[path].prefix)}: given twice")
            parts.setdefault(path, part)
            if is_file_name:
                by_file_name.add(path)
    for part in parts.values():
        check_not_the_source(part.prefix, output_prefix)
    if any(part.weight != 1.0 for part in parts.values()):
        warn("the weights of the parts are left out: each is merged once")
    check_complete([manifest.absolute(part.prefix) for part in parts.values()])
    return list(parts.values())


def check_not_the_source(prefix: str, output_prefix: str) -> None:
    """Raise UsageError if the output would replace one of its sources."""
    if _resolved_path(prefix) == _resolved_path(output_prefix):
        raise UsageError(f"{_also_named(output_prefix, prefix)}: is both read and written", "give the output another name")


def _resolved_path(prefix: str) -> str:
    """Resolve links and `..` in the path of the dataset's .bin, so that two names for a dataset compare equal."""
    return prefix if storage.is_remote(prefix) else os.path.realpath(bin_path(prefix))


def _also_named(prefix: str, other: str) -> str:
    return prefix if manifest.absolute(prefix) == manifest.absolute(other) else f"{prefix} (which is {other})"


def listed(sources: Sequence[str], lenient: bool = False) -> list[Dataset]:
    """The datasets that arguments, `@FILE` and `-` name. With `lenient`, a prefix whose sidecar is malformed is not looked up."""
    datasets: list[Dataset] = []
    for source in sources:
        if source == "-" or source.startswith("@"):
            datasets.extend(manifest.datasets(manifest.read([source]), source))
        else:
            prefix = _without_extension(source)
            datasets.append(Dataset(prefix) if lenient else _described(prefix))
    return datasets


def _described(prefix: str) -> Dataset:
    """Describe a dataset from its sidecar. Raises BadData if a field of the sidecar is malformed."""
    provenance.read_sidecar(prefix)
    return manifest.describe(prefix)


def single(source: str) -> tuple[Dataset, Shape]:
    """The one dataset that a command works on, given as a prefix, `@FILE` or `-`.

    Raises: UsageError for a manifest of several, BadData for a dataset that is malformed or not as its sidecar says.
    """
    datasets = listed([source])
    if len(datasets) > 1:
        raise UsageError(f"{source}: {len(datasets)} datasets, this command works on one", "name its prefix, or merge them first")
    return measured(datasets[0])


def measured(dataset: Dataset) -> tuple[Dataset, Shape]:
    """The dataset with its true counts. Raises BadData for one that is malformed or not as its manifest or sidecar says."""
    with BlockReader(dataset.prefix) as reader:
        shape = reader.shape
    check_alike([dataset], [shape])
    return dataclasses.replace(dataset, documents=shape.documents, tokens=shape.tokens, dtype=shape.dtype.name), shape


def _prefixes(source: str, output_prefix: str) -> list[str]:
    if not storage.is_remote(source) and os.path.isdir(source):
        return _in_directory(source, output_prefix)
    if not glob.has_magic(source):
        return [_without_extension(source)]
    try:
        names = storage.expand([f"{source}.idx"])
    except NoInput:
        names = [name for name in storage.expand([source]) if name.endswith((".bin", ".idx"))]
    names = [name for name in names if not indexed_dataset.is_mask(_without_extension(name))]
    if not names:
        raise NoInput(f"{source}: no dataset matches", "a dataset is PREFIX.bin and PREFIX.idx")
    return sorted({_without_extension(name) for name in names}, key=natural_order)


def _in_directory(directory: str, output_prefix: str) -> list[str]:
    names = os.listdir(directory)
    output = _resolved_path(output_prefix)
    prefixes = {os.path.join(directory, name[:-4]) for name in names if name.endswith((".bin", ".idx")) and name[0] != "."}
    prefixes |= {
        os.path.join(directory, name[1 : -len(".bin.partial")])
        for name in names
        if name.startswith(".") and name.endswith(".bin.partial")
    }
    prefixes = {prefix for prefix in prefixes if _resolved_path(prefix) != output and not indexed_dataset.is_mask(prefix)}
    if not prefixes:
        raise NoInput(f"{directory}: no dataset in this directory", "a dataset is PREFIX.bin and PREFIX.idx")
    for prefix in sorted(prefixes, key=natural_order):
        for extension in (".bin", ".idx"):
            if not os.path.exists(prefix + extension):
                raise NoInput(
                    f"{prefix}{extension}: missing, this part is not finished", "finish it, or delete what is left of it"
                )
    return sorted(prefixes, key=natural_order)


def _without_extension(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension in EXTENSIONS else name


def natural_order(prefix: str) -> list[tuple[int, int, str]]:
    """A sort key that takes numbers by their value."""
    return [(0, int(word), word) if word.isdigit() else (1, 0, word) for word in re.findall(r"[0-9]+|[^0-9]+", prefix)]


def check_complete(prefixes: Sequence[str]) -> None:
    """Raise NoInput when shards (`-I-of-N`) or parts (`-partK`) are not all there, BadData when they are of several runs."""
    shards = _complete_parts(prefixes)
    sets: dict[tuple[str, str, str], dict[int, list[str]]] = {}
    for name, of_shard in shards.items():
        if match := SHARD_NAME.match(name):
            sets.setdefault((match["head"], match["count"], match["tail"]), {})[int(match["number"])] = of_shard
    _check_one_set(sets)
    for (head, count, tail), numbers in sets.items():
        first = int(0 not in numbers and int(count) in numbers)  # lt-preprocess numbers from 0, some tools from 1
        missing = sorted(set(range(first, first + int(count))) - numbers.keys())
        _refuse_missing([f"{head}-{number:0{len(count)}d}-of-{count}{tail}" for number in missing])
        _check_one_run([prefix for number in sorted(numbers) for prefix in numbers[number]])


def _check_one_set(sets: Iterable[tuple[str, str, str]]) -> None:
    of_heads: dict[str, list[tuple[str, str]]] = {}
    for head, count, tail in sets:
        of_heads.setdefault(head, []).append((count, tail))
    for head, shards in of_heads.items():
        if len({tail for _, tail in shards}) > 1:
            named = ", ".join(sorted({f"{head}-*{tail}" for _, tail in shards}))
            raise BadData(f"these are parts of several datasets: {named}", "merge each by itself")
        if len(shards) > 1:
            named = ", ".join(sorted(f"{head}-*-of-{count}{tail}" for count, tail in shards))
            raise BadData(f"these are shards of several runs: {named}", "merge each by itself, or delete those of an earlier run")


def _complete_parts(prefixes: Sequence[str]) -> dict[str, list[str]]:
    """Names without the part numbers of --max-shard-size, each with its parts in order; raises when these do not fit together."""
    whole: dict[str, list[str]] = {prefix: [prefix] for prefix in prefixes if not PART_NAME.match(prefix)}
    sets: dict[tuple[str, str], dict[int, str]] = {}
    for prefix in prefixes:
        if match := PART_NAME.match(prefix):
            sets.setdefault((match["head"], match["tail"]), {})[int(match["number"])] = prefix
    for (head, tail), parts in sets.items():
        last = max(parts)
        _refuse_missing([f"{head}-part{number:05d}{tail}" for number in range(last) if number not in parts])
        in_order = [parts[number] for number in sorted(parts)]
        _check_one_run(in_order)
        for prefix in in_order[:-1]:
            if _is_last(prefix):
                raise BadData(
                    f"{in_order[-1]}: is of another run: {prefix} was the last part of its run",
                    "delete the parts after it, which an earlier run left",
                )
        if _is_last(parts[last]) is False:
            _refuse_missing([f"{head}-part{last + 1:05d}{tail}"])
        whole.setdefault(head + tail, []).extend(in_order)
    return whole


def _is_last(prefix: str) -> bool | None:
    """Whether its sidecar says so, None when it says nothing."""
    part = (provenance.read_sidecar(prefix) or {}).get("part") or {}
    is_last: bool | None = part.get("is_last")
    return is_last


def _check_one_run(prefixes: Sequence[str]) -> None:
    """Raise BadData if the sidecars of two parts record different inputs, tokenizers or options."""
    run_of_prefix = [(prefix, (provenance.read_sidecar(prefix) or {}).get("run")) for prefix in prefixes]
    recorded_runs = [(prefix, run) for prefix, run in run_of_prefix if run is not None]
    for prefix, run in recorded_runs[1:]:
        if run != recorded_runs[0][1]:
            raise BadData(
                f"{prefix}: was not made from the same inputs, tokenizer and options as {recorded_runs[0][0]}",
                "make all shards and parts with one command",
            )


def _refuse_missing(names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise NoInput(f"parts are missing: {', '.join(names[:3])}{more}", "run the jobs that make them first")


def check_alike(parts: Sequence[Dataset], shapes: Sequence[Shape]) -> Dataset:
    """What all parts have in common, as a Dataset without counts.

    Raises BadData for parts of different dtypes, tokenizers, vocabulary sizes or ends of document, and for a part that is not as
    its manifest says.
    """
    for part, shape in zip(parts, shapes, strict=True):
        for field, stored, measured in (
            ("documents", part.documents, shape.documents),
            ("tokens", part.tokens, shape.tokens),
            ("dtype", part.dtype, shape.dtype.name),
        ):
            if stored is not None and stored != measured:
                raise BadData(
                    f"{part.prefix}: {measured} {field}, its manifest or sidecar says {stored}", "it was made again since"
                )
        if shape.dtype != shapes[0].dtype:
            raise BadData(
                f"{part.prefix}: tokens are {shape.dtype}, those of {parts[0].prefix} are {shapes[0].dtype}",
                "only datasets of one tokenizer can be merged",
            )
    for part in parts:
        if part.packed != parts[0].packed:
            raise BadData(
                f"{part.prefix}: {_packing(part)}, {parts[0].prefix} {_packing(parts[0])}",
                "merge first, and pack the whole",
            )
        if bool(part.loss_mask) != bool(parts[0].loss_mask):
            raise BadData(
                f"{part.prefix}: {_masking(part)}, {parts[0].prefix} {_masking(parts[0])}",
                "a run blends both: name both as its data",
            )
    identified = [part for part in parts if part.tokenizer is not None]
    for part in identified[1:]:
        for field in ("tokenizer.sha256", "vocab_size", "eod"):
            one, other = _value(identified[0], field), _value(part, field)
            if one != other:
                raise BadData(
                    f"{part.prefix}: {field} {other}, that of {identified[0].prefix} is {one}",
                    "only datasets of one tokenizer can be merged",
                )
    if identified and len(identified) < len(parts):
        unknown = next(part.prefix for part in parts if part.tokenizer is None)
        warn(f"{unknown}: its tokenizer is not known, so the merged dataset does not name one")
        identified = []
    of_all = identified[0] if identified else Dataset("")
    dtype, packed = shapes[0].dtype.name, parts[0].packed
    return Dataset(
        "", None, None, dtype, of_all.vocab_size, of_all.eod, of_all.tokenizer, packed=packed, loss_mask=parts[0].loss_mask
    )


def _packing(part: Dataset) -> str:
    return "is not packed" if part.packed is None else f"is packed for sequences of {part.packed} tokens"


def _masking(part: Dataset) -> str:
    return "has a loss mask" if part.loss_mask else "has no loss mask"


def _value(part: Dataset, field: str) -> object:
    if field == "tokenizer.sha256":
        return part.tokenizer.sha256 if part.tokenizer else None
    return getattr(part, field)
