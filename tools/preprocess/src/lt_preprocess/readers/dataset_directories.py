"""Directories of a dataset whose description says which files it has, and in which order.

`save_to_disk` of `datasets` writes state.json, mosaicml-streaming and litdata write index.json. The order of names differs from
the order there from the eleventh directory of merged shards on, and only the description tells that a file is missing.
"""

import json
from collections.abc import Sequence
from typing import Any

from lt_preprocess.readers import litdata, mds
from lt_shared.console import BadData, NoInput
from lt_shared.files import storage

_STATE, _SPLITS, _INDEX = "state.json", "dataset_dict.json", "index.json"


def in_described_order(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the sorted files of a directory into those that descriptions list, in their order, and files of no such dataset.

    Raises: NoInput for a file that is listed and missing, BadData for a malformed description, a file of another size, and a
    dataset of several splits, whose test split nobody wants among the training data.
    """
    by_directory = {path.rpartition("/")[0]: path for path in files if path.rpartition("/")[2] in (_STATE, _INDEX, _SPLITS)}
    listed: list[str] = []
    described: list[str] = []
    for directory in sorted(by_directory):
        if any(directory.startswith(f"{outer}/") for outer in described):
            continue
        names = _listed(directory, files)
        if names is not None:
            described.append(directory)
            listed += names
    others = [path for path in files if not any(path.startswith(f"{directory}/") for directory in described)]
    return listed, [path for path in others if path.rpartition("/")[2] != _SPLITS]


def _listed(directory: str, files: Sequence[str]) -> list[str] | None:
    """Return the paths of the files that a description in a directory lists; None if it has no such description."""
    present = set(files)
    if f"{directory}/{_SPLITS}" in present:
        _check_one_split(directory)
    if f"{directory}/{_STATE}" in present:
        record = _read(f"{directory}/{_STATE}")
        if isinstance(record.get("_data_files"), list):
            if record.get("_indices_data_files"):
                raise BadData(f"{directory}/{_STATE}: a selection of rows, as old versions wrote it", "save_to_disk it again")
            return _present(directory, _STATE, [[(str(file["filename"]), None)] for file in record["_data_files"]], present)
    if f"{directory}/{_INDEX}" in present:
        record = _read(f"{directory}/{_INDEX}")
        mds_names = mds.listed_files(record)
        names = litdata.listed_files(record) if mds_names is None else mds_names
        if names == []:
            raise BadData(f"{directory}/{_INDEX}: lists no files", "was the dataset written to its end?")
        return None if names is None else _present(directory, _INDEX, names, present)
    return None


def _present(directory: str, index: str, shards: list[list[tuple[str, int | None]]], present: set[str]) -> list[str]:
    """Return a path for each shard, which may be there under several names."""
    paths = []
    for names in shards:
        paths_there = [(f"{directory}/{name}", size_bytes) for name, size_bytes in names if f"{directory}/{name}" in present]
        if not paths_there:
            raise NoInput(f"{directory}/{names[0][0]}: no such file, but {index} lists it", "copy the directory again")
        path, size_bytes = paths_there[0]
        if size_bytes is not None and storage.size_bytes(path) != size_bytes:
            raise BadData(f"{path}: {storage.size_bytes(path):,} bytes, {index} says {size_bytes:,}", "copy the file again")
        paths.append(path)
    return paths


def _check_one_split(directory: str) -> None:
    splits = _read(f"{directory}/{_SPLITS}").get("splits")
    if isinstance(splits, list) and len(splits) > 1:
        names = ", ".join(map(str, splits))
        raise BadData(f"{directory}: a dataset of {len(splits)} splits: {names}", f"name a split: {directory}/{splits[0]}")


def _read(path: str) -> dict[str, Any]:
    try:
        record = json.loads(storage.read_record(path))
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}", "copy the directory again") from None
    return record if isinstance(record, dict) else {}
