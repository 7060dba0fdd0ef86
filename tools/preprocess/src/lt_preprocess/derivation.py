"""What a dataset that was made from finished datasets remembers of its origin.

Its sidecar has the manifest line, as that of a tokenized one, the tokenizing options that its sources share, and a `derivation`:
the command, the sources (sizes and modification times, so that a changed one is noticed) and the command's options. A later
run of the same command on the same sources has nothing to do.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from lt_preprocess import __version__
from lt_preprocess.block_reader import BlockReader
from lt_shared import manifest, storage
from lt_shared.console import BadData, NoInput, warn
from lt_shared.indexed_dataset import bin_path, idx_path
from lt_shared.manifest import Dataset

SIDECAR_VERSION = 2


@dataclasses.dataclass(frozen=True)
class Derivation:
    """`options` are those that change the result; `sources` are fingerprints."""

    command: str
    options: dict[str, Any]
    sources: list[dict[str, Any]]

    @classmethod
    def of(cls, command: str, options: dict[str, Any], sources: Sequence[Dataset]) -> "Derivation":
        """Raises NoInput when a file of a source is missing."""
        return cls(command, options, [fingerprint(source.prefix) for source in sources])


def fingerprint(prefix: str) -> dict[str, Any]:
    """What tells that a dataset was replaced or changed."""
    pair = {name: storage.fingerprint(path) for name, path in (("bin", bin_path(prefix)), ("idx", idx_path(prefix)))}
    return {"prefix": manifest.absolute(prefix), **pair}


def read_sidecar(prefix: str) -> dict[str, Any] | None:
    """The sidecar as it is, or None when there is none. Raises BadData for one that is not a JSON object."""
    path = manifest.sidecar_path(prefix)
    if not storage.exists(path):
        return None
    try:
        record = json.loads(storage.read_bytes(path))
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}", "delete it to use the dataset without it") from None
    if not isinstance(record, dict):
        raise BadData(f"{path}: not a dataset description", "delete it to use the dataset without it")
    return record


def tokenizing_options(prefix: str) -> dict[str, Any]:
    """The options that the sources were tokenized with, as far as the sidecar knows."""
    options = (read_sidecar(prefix) or {}).get("options")
    return options if isinstance(options, dict) else {}


def shared_options(sources: Sequence[Dataset]) -> dict[str, Any]:
    """The tokenizing options that all sources have in common. Warns where some end their documents and others do not."""
    found = [tokenizing_options(source.prefix) for source in sources]
    endings = {options["append_eod"] for options in found if "append_eod" in options}
    if len(endings) > 1:
        warn("some of the datasets were made with --append-eod and some without")
    return {key: value for key, value in found[0].items() if all(key in one and one[key] == value for one in found[1:])}


def sidecar(dataset: Dataset, derivation: Derivation, options: dict[str, Any]) -> tuple[str, bytes]:
    """Path and content of the sidecar."""
    record = {
        "v": SIDECAR_VERSION,
        "dataset": manifest.record_of(dataset),
        "options": options,
        "derivation": dataclasses.asdict(derivation),
        "made_by": {"lt-preprocess": __version__},
    }
    return manifest.sidecar_path(dataset.prefix), (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def finished(prefix: str, derivation: Derivation) -> Dataset | None:
    """The dataset that an earlier run of the same command on the same sources left whole, or None."""
    try:
        record = read_sidecar(prefix)
        if record is None or record.get("derivation") != dataclasses.asdict(derivation):
            return None
        found = manifest.describe(prefix)
        with BlockReader(prefix) as reader:
            same = (reader.documents, reader.tokens, reader.dtype.name) == (found.documents, found.tokens, found.dtype)
    except (BadData, NoInput):
        return None
    return found if same else None
