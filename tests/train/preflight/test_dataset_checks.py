import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import assembled
from situations import MODEL, said, situation

from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_train.config.draft import Draft
from lt_train.preflight import dataset_checks
from lt_train.preflight.check_interface import Situation

REAL = tuple(word for word in MODEL if word != "--mock-data")


def of(*prefixes: str) -> Situation:
    return Situation(Draft(vars(assembled([*REAL, "--split", "1,0,0", *prefixes]))), None, {})


def test_every_dataset_is_looked_at(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    (tmp_path / "gpt2").mkdir()
    whole = write_dataset(tmp_path / "gpt2/my-gpt2_text_document", documents=20).prefix
    cut = write_dataset(tmp_path / "cut", documents=20).prefix
    Path(f"{cut}.bin").write_bytes(Path(f"{cut}.bin").read_bytes()[:-2])
    assert not said(dataset_checks.files, of(whole))
    # A manifest is written with the name that the other step uses.
    missing = str(tmp_path / "gpt2_text_document")
    good = of(whole, cut)
    assert good.config
    renamed = dataclasses.replace(good.config.data.datasets[0], prefix=missing)
    plan = dataclasses.replace(
        good.config, data=dataclasses.replace(good.config.data, datasets=(renamed, good.config.data.datasets[1]))
    )
    found = said(dataset_checks.files, dataclasses.replace(good, draft=Draft(vars(plan))))
    assert len(found) == 2
    assert f"near it: {cut}, {whole}" in found[0]
    assert f"{cut}.bin" in found[1]


def test_tokenizers(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    one = write_dataset(tmp_path / "one", documents=20).prefix
    other = write_dataset(tmp_path / "other", documents=20, sha256="0" * 64).prefix
    assert not said(dataset_checks.tokenizers, of(one, one))
    assert "different tokenizers" in said(dataset_checks.tokenizers, of(one, other))[0]


def test_made_up_data(tmp_path: Path) -> None:
    assert said(dataset_checks.files, situation(tmp_path)) == ["not checked: the data is made up"]


@pytest.mark.parametrize("is_large", [False, True])
def test_checksums(
    is_large: bool, tmp_path: Path, write_dataset: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of lt-preprocess's sidecar, as zlib computes them; a flipped bit keeps the sizes."""
    if is_large:
        monkeypatch.setattr(dataset_checks, "VERIFIED_BYTES", 100)
    prefix = write_dataset(tmp_path / "one", documents=20).prefix
    sidecar = Path(manifest.sidecar_path(prefix))
    paths = {ending: Path(f"{prefix}.{ending}") for ending in ("bin", "idx")}
    record = json.loads(sidecar.read_bytes()) if sidecar.exists() else {"v": manifest.SIDECAR_VERSION}
    crc32 = {ending: [path.stat().st_size, zlib.crc32(path.read_bytes())] for ending, path in paths.items()}
    sidecar.write_text(json.dumps(record | {"crc32": crc32}))
    all_of_it = dataclasses.replace(of(prefix), verifies_data=True)
    assert not said(dataset_checks.checksums, of(prefix)) and not said(dataset_checks.checksums, all_of_it)
    for ending, path in paths.items():
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[-3] ^= 4
        path.write_bytes(damaged)
        found = said(dataset_checks.checksums, all_of_it)
        assert len(found) == 1 and f"{path}: its checksum is another" in found[0]
        assert len(said(dataset_checks.checksums, of(prefix))) == (ending == "idx" or not is_large)
        path.write_bytes(before)
    sidecar.unlink()
    assert not said(dataset_checks.checksums, all_of_it)
