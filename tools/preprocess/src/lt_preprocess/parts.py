"""Which datasets a merge is made of, in which order, and whether they fit together.

Parts come as prefixes, file names, glob patterns, directories, `@LIST` or a manifest on standard input. What a pattern or a
directory holds is sorted with numbers by their value: `web_2_...` comes before `web_10_...`, as the parts of Megatron's
`--partitions` and of NeMo follow each other; for the zero-padded names of lt-preprocess and datatrove that is the plain order.
"""

import glob
import os
import re
from collections.abc import Sequence

from lt_preprocess.block_reader import Shape
from lt_shared import manifest, storage
from lt_shared.console import BadData, NoInput, UsageError, warn
from lt_shared.manifest import Dataset

EXTENSIONS = (".bin", ".idx", ".json")
NAMED_PART = re.compile(r"^(.*)-(\d+)-of-(\d+)(.*)$")


def resolve(sources: Sequence[str], output_prefix: str) -> list[Dataset]:
    """The parts, in the order given.

    Raises: NoInput for a source that holds no dataset and for parts that are missing; UsageError for a part that is given twice
    or is the output; BadData for parts of several datasets.
    """
    parts: dict[str, Dataset] = {}
    by_file_name: set[str] = set()
    for source in sources:
        if source == "-" or source.startswith("@"):
            found = manifest.datasets(manifest.read([source]), "standard input" if source == "-" else source[1:])
        else:
            found = [manifest.describe(prefix) for prefix in _prefixes(source, output_prefix)]
        is_file_name = len(found) == 1 and found[0].prefix != source
        for part in found:
            place = manifest.absolute(part.prefix)
            # The shell expands web* to the files of one dataset; the dataset itself given twice is a mistake.
            if place in parts and not (is_file_name and place in by_file_name):
                raise UsageError(f"{part.prefix}: given twice")
            parts.setdefault(place, part)
            if is_file_name:
                by_file_name.add(place)
    if manifest.absolute(output_prefix) in parts:
        raise UsageError(f"{output_prefix}: is one of the parts and the output", "give the merged dataset another name")
    if any(part.weight != 1.0 for part in parts.values()):
        warn("the weights of the parts are left out: each is merged once")
    check_complete(list(parts))
    return list(parts.values())


def _prefixes(source: str, output_prefix: str) -> list[str]:
    if not storage.is_remote(source) and os.path.isdir(source):
        return _in_directory(source, output_prefix)
    if not glob.has_magic(source):
        return [_without_extension(source)]
    try:
        names = storage.expand([f"{source}.idx"])
    except NoInput:
        names = [name for name in storage.expand([source]) if name.endswith((".bin", ".idx"))]
    if not names:
        raise NoInput(f"{source}: no dataset matches", "a dataset is PREFIX.bin and PREFIX.idx")
    return sorted({_without_extension(name) for name in names}, key=natural_order)


def _in_directory(directory: str, output_prefix: str) -> list[str]:
    names = os.listdir(directory)
    output = os.path.abspath(output_prefix)
    prefixes = {os.path.join(directory, name[:-4]) for name in names if name.endswith((".bin", ".idx")) and name[0] != "."}
    prefixes |= {
        os.path.join(directory, name[1 : -len(".bin.partial")])
        for name in names
        if name.startswith(".") and name.endswith(".bin.partial")
    }
    prefixes = {prefix for prefix in prefixes if os.path.abspath(prefix) != output}
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
    """Raise NoInput when parts named NNN-of-MMM are not all there, BadData when they are of several datasets."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for prefix in prefixes:
        if match := NAMED_PART.match(prefix):
            head, number, count, tail = match.groups()
            sets.setdefault((head, count, tail), set()).add(int(number))
    for (head, count, tail), numbers in sets.items():
        first = 0 if 0 in numbers else 1
        missing = sorted(set(range(first, first + int(count))) - numbers)
        if missing:
            names = [f"{head}-{number:0{len(count)}d}-of-{count}{tail}" for number in missing]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise NoInput(f"parts are missing: {', '.join(names[:3])}{more}", "run the jobs that make them first")
    heads: dict[str, set[str]] = {}
    for head, _, tail in sets:
        heads.setdefault(head, set()).add(tail)
    for head, tails in heads.items():
        if len(tails) > 1:
            named = ", ".join(f"{head}-*{tail}" for tail in sorted(tails))
            raise BadData(f"these are parts of several datasets: {named}", "merge each by itself")


def check_alike(parts: Sequence[Dataset], shapes: Sequence[Shape]) -> Dataset:
    """What all parts have in common, as a Dataset without counts.

    Raises BadData for parts of different dtypes, tokenizers, vocabulary sizes or ends of document, and for a part that is not as
    its manifest says.
    """
    for part, shape in zip(parts, shapes, strict=True):
        for field, said, there in (
            ("documents", part.documents, shape.documents),
            ("tokens", part.tokens, shape.tokens),
            ("dtype", part.dtype, shape.dtype.name),
        ):
            if said is not None and said != there:
                raise BadData(f"{part.prefix}: {there} {field}, its manifest or sidecar says {said}", "it was made anew since")
        if shape.dtype != shapes[0].dtype:
            raise BadData(
                f"{part.prefix}: tokens are {shape.dtype}, those of {parts[0].prefix} are {shapes[0].dtype}",
                "only datasets of one tokenizer can be merged",
            )
    known = [part for part in parts if part.tokenizer is not None]
    for part in known[1:]:
        for field in ("tokenizer.sha256", "vocab_size", "eod"):
            one, other = _value(known[0], field), _value(part, field)
            if one != other:
                raise BadData(
                    f"{part.prefix}: {field} {other}, that of {known[0].prefix} is {one}",
                    "only datasets of one tokenizer can be merged",
                )
    if known and len(known) < len(parts):
        unknown = next(part.prefix for part in parts if part.tokenizer is None)
        warn(f"{unknown}: its tokenizer is not known, so that of the merged dataset is not either")
        known = []
    of_all = known[0] if known else Dataset("")
    return Dataset("", None, None, shapes[0].dtype.name, of_all.vocab_size, of_all.eod, of_all.tokenizer)


def _value(part: Dataset, field: str) -> object:
    if field == "tokenizer.sha256":
        return part.tokenizer.sha256 if part.tokenizer else None
    return getattr(part, field)
