"""Check the datasets: complete pairs of files, from one tokenizer, at the given paths."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from lt_shared.console import NoInput, ToolError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import storage
from lt_shared.files.checksums import crc32_of_path
from lt_train.config.settings.data import check_datasets, check_same_tokenizer
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, of

NAMED = 3


def files(situation: Situation) -> Iterator[Finding]:
    """Each dataset alone: its .bin and .idx fit each other and the manifest, and its documents suffice for the split."""
    given = situation.need("data")
    for dataset in _local_datasets(situation):
        part = "validation" if dataset in given.validation_datasets else "test" if dataset in given.test_datasets else None
        alone = dataclasses.replace(
            given,
            datasets=(dataset,),
            validation_datasets=(),
            validation_names=(),
            test_datasets=(),
            split=None if part else given.split,
        )
        try:
            check_datasets(alone, situation.need("architecture").vocab_size)
        except NoInput as problem:
            yield error(str(problem), dataset.prefix, _elsewhere(dataset) or problem.hint or "check the path")
        except ToolError as problem:
            yield of(problem, dataset.prefix)


def checksums(situation: Situation) -> Iterator[Finding]:
    """Each sidecar is as it was written, and each .idx has the checksum in it.

    With --verify-data each .bin as well, at the speed of the disk.
    """
    endings = ("idx", "bin") if situation.verifies_data else ("idx",)
    for dataset in _local_datasets(situation):
        sidecar = Path(manifest.sidecar_path(dataset.prefix))
        if sidecar.is_file() and manifest.is_sealed(sidecar.read_bytes()) is False:
            yield error("changed since it was written, by its own checksum", str(sidecar), "copy the dataset again")
        recorded = manifest.recorded_checksums(dataset.prefix)
        for ending in endings if recorded else ():
            path = Path(f"{dataset.prefix}.{ending}")
            if recorded and path.is_file() and recorded[ending] != (path.stat().st_size, crc32_of_path(path)):
                what = "its checksum is another than its sidecar says"
                yield error(what, str(path), "copy it again, or run its lt-preprocess command again")


def _local_datasets(situation: Situation) -> list[Dataset]:
    given = situation.need("data")
    if given.mock:
        raise NotChecked("the data cannot be read" if situation.lacks_data else "the data is made up")
    return [dataset for dataset in given.all_datasets if not storage.is_remote(dataset.prefix)]


def _elsewhere(dataset: Dataset) -> str | None:
    """Datasets beside or below the missing one: the prefix of lt-preprocess -o gets the name of the JSON key added."""
    folder = Path(dataset.prefix).parent
    found = sorted({*folder.glob("*.idx"), *folder.glob("*/*.idx")})[:NAMED] if folder.is_dir() else []
    return f"near it: {', '.join(str(path.with_suffix('')) for path in found)}" if found else None


def tokenizers(situation: Situation) -> Iterator[Finding]:
    """All datasets are of the first one's tokenizer."""
    known = [dataset for dataset in situation.need("data").all_datasets if dataset.tokenizer]
    for dataset in known[1:]:
        try:
            check_same_tokenizer(known[0].tokenizer, known[0].prefix, dataset.tokenizer, dataset.prefix)
        except ToolError as problem:
            yield of(problem, dataset.prefix)
