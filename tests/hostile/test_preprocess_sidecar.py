"""A flipped bit in the description of a dataset is found by lt-preprocess verify and by lt-train's preflight."""

import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lt_preprocess.datasets import verification
from lt_preprocess.datasets.provenance import Derivation, sidecar
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset, Tokenizer
from lt_shared.data import indexed_dataset
from lt_train.preflight import dataset_checks

FLIPS = 400


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    prefix = str(tmp_path / "data")
    made = Dataset(prefix, 40, 400, "uint16", 2048, 2047, Tokenizer("gpt2", "0" * 64, "/tokenizer"), 1.0)
    with indexed_dataset.Writer(prefix, np.uint16) as writer:
        for number in range(40):
            writer.append_document(np.array([*range(number, number + 9), 2047]))
        crc32 = writer.complete()
        writer.publish(sidecar(made, crc32, Derivation("merge", {}, []), {"append_eod": True}))
    return made


def findings(dataset: Dataset) -> int:
    return len(verification.verify(Dataset(dataset.prefix)).findings)


def preflight(dataset: Dataset) -> int:
    given = SimpleNamespace(mock=False, all_datasets=[dataset])
    situation = SimpleNamespace(need=lambda name: given, verifies_data=False, lacks_data=False)
    return len(list(dataset_checks.checksums(situation)))  # type: ignore[arg-type]


def test_every_flipped_bit_is_found(dataset: Dataset, record_property: object) -> None:
    path = Path(manifest.sidecar_path(dataset.prefix))
    sound, chance = path.read_bytes(), random.Random(5)
    assert (findings(dataset), preflight(dataset)) == (0, 0)
    seal = sound.index(b'"own_crc32"')
    for _ in range(FLIPS):
        flipped = bytearray(sound)
        position = chance.randrange(len(sound))
        flipped[position] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        # Without its own checksum the rest is as it was.
        assert findings(dataset) or position >= seal, (position, bytes(flipped[position - 20 : position + 20]))
    path.write_bytes(sound.replace(b'"vocab_size": 2048', b'"vocab_size": 3072'))
    assert (findings(dataset), preflight(dataset)) == (1, 1)


def test_the_key_of_the_checksum_is_found_missing(dataset: Dataset) -> None:
    path = Path(manifest.sidecar_path(dataset.prefix))
    path.write_bytes(
        path.read_bytes().replace(b'"own_crc32"', b'"own_crc3r"').replace(b'"append_eod": true', b'"append_eod": false')
    )
    assert findings(dataset) == 1


def test_older_descriptions_have_none(dataset: Dataset, tmp_path: Path) -> None:
    path = Path(manifest.sidecar_path(dataset.prefix))
    older = path.read_bytes()[: path.read_bytes().index(b',\n  "own_crc32"')] + b"\n}\n"
    path.write_bytes(older)
    assert (findings(dataset), preflight(dataset)) == (0, 0)
    shutil.rmtree(tmp_path)
