"""Check the datasets: complete pairs of files, from one tokenizer, at the given paths."""

import dataclasses
import math
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
# A tenth of a second to a second, in each start of a run.
VERIFIED_BYTES = 1 << 28


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

    Each .bin is checked, too, while VERIFIED_BYTES last. --verify-data checks all of them, at the speed of the disk.
    """
    remaining_bytes = math.inf if situation.verifies_data else VERIFIED_BYTES
    for dataset in _local_datasets(situation):
        sidecar = Path(manifest.sidecar_path(dataset.prefix))
        if sidecar.is_file() and manifest.is_sealed(sidecar.read_bytes()) is False:
            yield error("changed since it was written, by its own checksum", str(sidecar), "copy the dataset again")
        recorded = manifest.recorded_checksums(dataset.prefix)
        size_bytes = recorded["bin"].size_bytes if recorded else 0
        endings = ("idx", "bin") if size_bytes <= remaining_bytes else ("idx",)
        remaining_bytes -= size_bytes if len(endings) == 2 else 0
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
