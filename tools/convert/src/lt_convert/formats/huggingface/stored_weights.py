"""The files with the weights of a Hugging Face model: which ones, and their tensors.

transformers takes `model.safetensors`, or its shards and index, and otherwise `pytorch_model.bin` or its shards and index. A
variant has its name in each file (`model.fp16.safetensors`). Without an index, numbered shards are read if all are there.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from lt_convert.containers import torch_files
from lt_convert.formats.directories import listing
from lt_convert.formats.huggingface import openai_original, safetensors_files
from lt_convert.formats.huggingface.safetensors_files import SINGLE, SLICE
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import Tensor
from lt_shared.console import BadData
from lt_shared.files import strict_json

_WORD = r"[A-Za-z0-9_]+"
_NUMBERS = r"-(?P<number>\d{5})-of-(?P<count>\d{5})"


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The names `STEM.ENDING` of weight files; a variant's name is in the group `variant` or `later`."""

    stem: str
    ending: str

    @property
    def single(self) -> re.Pattern[str]:
        return re.compile(rf"{self.stem}(\.(?P<variant>{_WORD}))?\.{self.ending}")

    @property
    def index(self) -> re.Pattern[str]:
        return re.compile(rf"{self.stem}\.{self.ending}\.index(\.(?P<variant>{_WORD}))?\.json")

    @property
    def numbered(self) -> re.Pattern[str]:
        return re.compile(rf"{self.stem}(\.(?P<variant>{_WORD}))?{_NUMBERS}(\.(?P<later>{_WORD}))?\.{self.ending}")


_SAFETENSORS, _TORCH = _Kind("model", "safetensors"), _Kind("pytorch_model", "bin")
# Mistral's own files, which transformers does not read (`consolidated`).
CONSOLIDATED = _Kind("consolidated", "safetensors")
_KINDS = (_SAFETENSORS, _TORCH)
_ALL = (*_KINDS, CONSOLIDATED)
_NUMBERED = re.compile("|".join(re.sub(r"\?P<(variant|later|number|count)>", "", kind.numbered.pattern) for kind in _ALL))


def weight_files(names: Sequence[str]) -> list[str]:
    """The files that hold the weights of a model directory with these names in it: an index, or the files with the tensors.

    They are the ones that transformers takes. Behind these, in this order: numbered files without an index, the one variant that
    is there, OpenAI's files. Empty if there are none, or if several variants are there.
    """
    for kind in _KINDS:
        slices = sorted(name for name in names if SLICE.fullmatch(name)) if kind is _SAFETENSORS else []
        chosen = of_variant(names, kind, "", before_numbered=slices)
        if chosen:
            return chosen
    for kind in _KINDS:
        of_kind = variants(names, kind)
        if len(of_kind) == 1:
            return of_variant(names, kind, of_kind[0])
        if of_kind:
            return []
    return openai_original.shards(names)


def of_variant(names: Sequence[str], kind: _Kind, variant: str, before_numbered: Sequence[str] = ()) -> list[str]:
    """The index of a variant ("" for none), or else its single file, `before_numbered`, or its numbered files."""
    for pattern in (kind.index, kind.single):
        whole = [name for name in names if (match := pattern.fullmatch(name)) and (match["variant"] or "") == variant]
        if whole:
            return whole
    if before_numbered:
        return list(before_numbered)
    matches = (match for name in sorted(names) if (match := kind.numbered.fullmatch(name)))
    return [match.string for match in matches if (match["variant"] or match["later"] or "") == variant]


def variants(names: Sequence[str], *kinds: _Kind) -> list[str]:
    """The names of the variants that a directory with these names has files of."""
    patterns = [pattern for kind in kinds or _KINDS for pattern in (kind.single, kind.index, kind.numbered)]
    groups = [match.groupdict() for name in names for pattern in patterns if (match := pattern.fullmatch(name))]
    return sorted({variant for group in groups if (variant := group["variant"] or group.get("later"))})


def read_model(directory: str, files: Files) -> dict[str, Tensor]:
    """All tensors of a model in one file, in shards with an index or without one, or in slices.

    Raises BadData for a missing or damaged file.
    """
    names = listing(directory)
    return read_files(directory, weight_files(names), names, files)


def read_files(directory: str, stored: Sequence[str], names: Sequence[str], files: Files) -> dict[str, Tensor]:
    """All tensors of the files `stored`, an index or the files themselves; `names` are those in the directory.

    Raises BadData for a missing or damaged file.
    """
    if stored and SLICE.fullmatch(stored[0]):
        return safetensors_files.joined_slices(directory, stored, files)
    if stored and _NUMBERED.fullmatch(stored[0]):
        _check_all_numbered(directory, stored)
    if len(stored) != 1 or not stored[0].endswith(".json"):
        return _joined(directory, stored or [SINGLE], files)
    index = f"{directory}/{stored[0]}"
    weight_map = _weight_map(index, files)
    shards = sorted(set(weight_map.values()))
    single = stored[0].removesuffix(".index.json") if stored[0].endswith(".index.json") else ""
    if single in names and shards != [single]:
        raise BadData(
            f"{directory}: has a {single} and a {stored[0]} of other files, which may be two models",
            "remove the one that is not meant: transformers would load the single file",
        )
    tensors = _joined(directory, shards, files)
    # transformers takes each tensor from the file that the index names, and none that it does not name.
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].files not in ([], [f"{directory}/{shard}"]):
            raise BadData(f"{directory}/{shard}: has no {name}, which the index promises")
    unknown = sorted(set(tensors) - set(weight_map))
    if unknown:
        raise BadData(f"{index}: does not name {unknown[0]}, which is in {tensors[unknown[0]].files[0].rpartition('/')[2]}")
    return tensors


def _weight_map(index: str, files: Files) -> Mapping[str, str]:
    """Read an index, which maps tensors to files. Raises BadData if it is malformed or names a file outside of its directory."""
    try:
        weight_map = dict(strict_json.loads(files.read(index, 0, files.size_bytes(index)))["weight_map"])
        shards = sorted(set(weight_map.values()))
        outside = [name for name in shards if "/" in name or "\0" in name or name in ("", ".", "..")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{index}: not an index of {_ending(index)} files: {error}") from None
    if outside:
        raise BadData(f"{index}: names a file outside the directory: {outside[0]!r}")
    return weight_map


def _ending(index: str) -> str:
    return index.rpartition("/")[2].split(".")[1]


def _check_all_numbered(directory: str, stored: Sequence[str]) -> None:
    """Raises BadData where files without an index are not all there, or are of two models."""
    kind = next(kind for kind in _ALL if kind.numbered.fullmatch(stored[0]))
    matches = [match for name in stored if (match := kind.numbered.fullmatch(name))]
    counts = {int(match["count"]) for match in matches}
    missing = sorted(set(range(1, max(counts) + 1)) - {int(match["number"]) for match in matches})
    if len(counts) > 1 or len(matches) != max(counts):
        what = f"number {missing[0]} of {max(counts)} is missing" if missing else f"{len(matches)} files of {max(counts)}"
        raise BadData(
            f"{directory}: shards without a {kind.stem}.{kind.ending}.index.json, and {what}: {', '.join(stored[:3])}", INCOMPLETE
        )


def _joined(directory: str, shards: Sequence[str], files: Files) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        shard_tensors = _reader(shard)(f"{directory}/{shard}", files)
        repeated = sorted(set(shard_tensors) & set(tensors))
        if repeated:
            raise BadData(f"{directory}/{shard}: {repeated[0]} is in another shard too")
        tensors |= shard_tensors
    return tensors


def _reader(name: str) -> Callable[[str, Files], dict[str, Tensor]]:
    return torch_files.read_state_dict if name.endswith((".bin", ".pth")) else safetensors_files.read_file
