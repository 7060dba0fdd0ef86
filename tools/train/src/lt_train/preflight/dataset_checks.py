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
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, error_finding

SUGGESTED = 3


def files(situation: Situation) -> Iterator[Finding]:
    """Check every dataset alone: its .bin and .idx fit each other and the manifest, and its documents suffice for the split."""
    data = situation.need("data")
    for dataset in _local_datasets(situation):
        is_training = dataset not in data.validation_datasets and dataset not in data.test_datasets
        single = dataclasses.replace(
            data,
            datasets=(dataset,),
            validation_datasets=(),
            validation_names=(),
            test_datasets=(),
            split=data.split if is_training else None,
        )
        try:
            check_datasets(single, situation.need("architecture").vocab_size)
        except NoInput as problem:
            yield error(str(problem), dataset.prefix, _suggest_datasets(dataset) or problem.hint or "check the path")
        except ToolError as problem:
            yield error_finding(problem, dataset.prefix)


def checksums(situation: Situation) -> Iterator[Finding]:
    """Check every sidecar against its own checksum, and every .idx against the checksum in its sidecar.

    --verify-data also checks every .bin, at the speed of the disk.
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
                problem_text = "its checksum is another than its sidecar says"
                yield error(problem_text, str(path), "copy it again, or run its lt-preprocess command again")


def _local_datasets(situation: Situation) -> list[Dataset]:
    data = situation.need("data")
    if data.mock:
        raise NotChecked("the data cannot be read" if situation.lacks_data else "the data is made up")
    return [dataset for dataset in data.all_datasets if not storage.is_remote(dataset.prefix)]


def _suggest_datasets(dataset: Dataset) -> str | None:
    """Name the datasets next to or below a missing one: lt-preprocess appends the name of the JSON key to the prefix of -o."""
    folder = Path(dataset.prefix).parent
    indexes = sorted({*folder.glob("*.idx"), *folder.glob("*/*.idx")})[:SUGGESTED] if folder.is_dir() else []
    return f"near it: {', '.join(str(path.with_suffix('')) for path in indexes)}" if indexes else None


def tokenizers(situation: Situation) -> Iterator[Finding]:
    """Check that all datasets have the first dataset's tokenizer."""
    datasets = [dataset for dataset in situation.need("data").all_datasets if dataset.tokenizer]
    for dataset in datasets[1:]:
        try:
            check_same_tokenizer(datasets[0].tokenizer, datasets[0].prefix, dataset.tokenizer, dataset.prefix)
        except ToolError as problem:
            yield error_finding(problem, dataset.prefix)
