"""Where a run starts from is found without starting it."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import SMALL, STEPS, Result, train

from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Dataset, sidecar_path


@pytest.fixture
def copy(tmp_path: Path, finished: Path) -> Path:
    return Path(shutil.copytree(finished / "one", tmp_path / "run"))


def plan(*options: str) -> dict[str, Any]:
    result = dry_run(*options)
    assert result.code == 0, result.err
    return dict(json.loads(result.out))


def dry_run(*options: str) -> Result:
    return train(*SMALL, *STEPS, "--dry-run", *options)


def test_the_newest_complete_checkpoint(copy: Path, dataset: Dataset) -> None:
    assert plan("--save", str(copy), dataset.prefix)["up_to_date"]
    newest, second, *_ = checkpoint_layout.checkpoints(copy)
    next(newest.glob("*.distcp")).unlink()
    result = dry_run("--save", str(copy), dataset.prefix)
    assert result.err.count("passing over an incomplete checkpoint") == 1
    found = json.loads(result.out)
    assert not found["up_to_date"]
    assert (found["checkpointing"]["start"], found["checkpointing"]["continues"]) == (str(second), True)


def test_no_complete_checkpoint_is_an_error(copy: Path, dataset: Dataset) -> None:
    for checkpoint in checkpoint_layout.checkpoints(copy):
        shard = next(checkpoint.glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[:100])
    before = sorted(path.name for path in copy.iterdir())
    result = dry_run("--save", str(copy), dataset.prefix)
    assert result.code == 65
    assert "none of its checkpoints is complete" in result.err
    assert sorted(path.name for path in copy.iterdir()) == before


def test_load_is_for_a_run_without_checkpoints(copy: Path, tmp_path: Path, dataset: Dataset) -> None:
    new = plan("--load", str(copy), "--save", str(tmp_path / "new"), "--train-iters", "24", dataset.prefix)
    assert new["checkpointing"]["start"] == str(copy / "iter_0000012")
    assert (new["checkpointing"]["continues"], new["up_to_date"]) == (False, False)
    own = plan("--load", str(tmp_path / "nowhere"), "--save", str(copy), dataset.prefix)
    assert own["checkpointing"]["continues"]
    absent = dry_run("--load", str(tmp_path / "nowhere"), "--save", str(tmp_path / "new"), dataset.prefix)
    assert absent.code == 66


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--keep-every", "8"), "--keep-last"),
        (("--keep-last", "1", "--keep-every", "6", "--save", "run"), "not a multiple"),
        (("--finetune",), "--load"),
        (("--no-load-optim",), "--load"),
        (("--async-save",), "--save"),
    ],
)
def test_options_that_contradict_each_other(options: tuple[str, ...], reason: str, dataset: Dataset) -> None:
    result = dry_run(*options, dataset.prefix)
    assert result.code == 78
    assert reason in result.err


def test_another_dataset_under_the_same_prefix_is_refused(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    """With the same sizes, too, where the sidecar has checksums; under a name of its own it is taken."""
    dataset = write_dataset(tmp_path / "data", documents=100)
    binary, sidecar = tmp_path / "data.bin", Path(sidecar_path(dataset.prefix))

    def record_checksums() -> None:
        files = {ending: (tmp_path / f"data.{ending}").read_bytes() for ending in ("bin", "idx")}
        checksums = {ending: [len(content), zlib.crc32(content)] for ending, content in files.items()}
        sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | {"crc32": checksums}))

    record_checksums()
    arguments = (*SMALL, "--train-iters", "4", "--save", str(tmp_path / "run"))
    assert train(*arguments, "--exit-interval", "2", dataset.prefix).code == 75
    tokens = bytearray(binary.read_bytes())
    tokens[40] ^= 1
    binary.write_bytes(tokens)
    record_checksums()
    result = train(*arguments, dataset.prefix)
    assert result.code == 65
    assert (
        f"error: {tmp_path}/data: is another dataset than the one that {tmp_path}/run/iter_0000002 was trained on" in result.err
    )
    assert f"bin_crc32 was {zlib.crc32(bytes([*tokens[:40], tokens[40] ^ 1, *tokens[41:]]))} and is" in result.err
    for ending in ("bin", "idx"):
        (tmp_path / f"data.{ending}").rename(tmp_path / f"other.{ending}")
    assert train(*arguments, str(tmp_path / "other")).code == 0


def test_an_exchanged_dataset_without_sidecar_is_refused(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    """Also one of validation alone, and of equal size."""
    training, validation = (write_dataset(tmp_path / name, documents=100) for name in ("web", "held"))
    for prefix in (training.prefix, validation.prefix):
        Path(sidecar_path(prefix)).unlink()
    data = ("--vocab-size", "2048", "--train-data-path", training.prefix, "--valid-data-path", validation.prefix)
    arguments = (*SMALL, *data, "--train-iters", "4", "--save", str(tmp_path / "run"))
    assert train(*arguments, "--exit-interval", "2").code == 75
    for name in ("web.bin", "held.bin"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(bytes([*content[:-1], content[-1] ^ 1]))
        result = train(*arguments, "--dry-run")
        assert (result.code, f"{name[:-4]}: is another dataset than the one that" in result.err) == (65, True), (name, result.err)
        (tmp_path / name).write_bytes(content)
    assert train(*arguments).code == 0


def test_a_longer_context_begins_anew_with_the_weights(copy: Path, dataset: Dataset) -> None:
    """Positions may change where a run begins at iteration 0; another size never, and a run that goes on has the same model."""
    extended = ("--rope-scaling", '{"rope_type": "yarn", "factor": 4.0}', "--max-position-embeddings", "4096")
    begun = dry_run("--load", str(copy), "--finetune", *extended, dataset.prefix)
    assert begun.code == 0
    assert "rope_scaling is {'factor': 4.0" in begun.err and "max_position_embeddings is 4096, and was 1024" in begun.err
    refused = dry_run("--load", str(copy), "--train-iters", "20", *extended, dataset.prefix)
    assert refused.code == 78 and "another architecture" in refused.err and "rope_scaling None there" in refused.err
    wider = dry_run("--load", str(copy), "--finetune", "--norm-epsilon", "1e-3", dataset.prefix)
    assert wider.code == 78 and "another architecture: norm_epsilon 1e-05 there, 0.001 here" in wider.err
