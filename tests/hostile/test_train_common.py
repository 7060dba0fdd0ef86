"""Megatron's own files beside the tensors, crafted or damaged; without run.json and checksums.json, as Megatron leaves them."""

import importlib.metadata
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from common_state import move_beside_the_tensors, store_among_the_tensors
from megatron.core.safe_globals import register_safe_globals
from packaging.version import Version
from running import SMALL, train

from lt_shared.console import BadData
from lt_train.checkpoint.object_reader import known_objects_only

SAVES_AMONG_THE_TENSORS = Version(importlib.metadata.version("megatron-core")) >= Version("0.19")
WORDS = (*SMALL, "--mock-data", "--ranks", "1", "--train-iters", "3", "--eval-iters", "0")


class Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stock") / "run"
    made = train(*WORDS, "--train-iters", "2", "--save", str(place))
    assert made.code == 0, made.err
    for name in ("run.json", "checksums.json"):
        (place / "iter_0000002" / name).unlink()
    move_beside_the_tensors(place / "iter_0000002")
    return place


def changed(**values: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "common.pt"
        torch.save(torch.load(path, weights_only=False) | values, path)

    return change


def replaced(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda directory: void((directory / name).write_bytes(content))


def void(_: object) -> None:
    return None


STATES: dict[str, dict[str, Any]] = {
    "code": {"x": Code()},
    "no number of samples": {"consumed_samples": "x"},
    "a negative number of samples": {"consumed_samples": -5},
    "other losses": {"unlogged": {"evil": 1}},
    "losses that are a list": {"unlogged": [1]},
    "arguments that are a dict": {"args": {"a": 1}},
    "a schedule that is a list": {"opt_param_scheduler": []},
    "a schedule without numbers": {"opt_param_scheduler": {"num_steps": "x"}},
}
CRAFTED: dict[str, Callable[[Path], None]] = {
    **{kind: changed(**values) for kind, values in STATES.items()},
    "a list": lambda directory: torch.save([1, 2], directory / "common.pt"),
    "cut off": lambda directory: os.truncate(directory / "common.pt", 100),
    "empty": replaced("common.pt", b""),
    "an old pickle": lambda directory: torch.save({}, directory / "common.pt", _use_new_zipfile_serialization=False),
    "no configuration": replaced("metadata.json", b"[]"),
    "another backend": replaced("metadata.json", b'{"sharded_backend": "zarr", "sharded_backend_version": 1}'),
    "two backends": replaced("metadata.json", b'{"sharded_backend": "zarr", "sharded_backend": "torch_dist"}'),
}
# Each state is tried in the place where the installed megatron-core keeps it, and in the other place what can differ there.
BESIDE = [kind for kind in CRAFTED if kind not in STATES or kind == "code" or not SAVES_AMONG_THE_TENSORS]
AMONG = [*(STATES if SAVES_AMONG_THE_TENSORS else ["code"]), "a list", "nothing in a list", "as it was"]


@pytest.mark.parametrize("kind", BESIDE)
def test_what_is_crafted_is_refused(kind: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    CRAFTED[kind](tmp_path / "run/iter_0000002")
    done = train(*WORDS, "--load", str(tmp_path / "run"), "--no-load-optim")
    assert done.code == 65, done.err
    assert "Traceback" not in done.err and "internal error" not in done.err
    assert not Path("executed").exists()


@pytest.mark.parametrize("kind", AMONG)
def test_what_is_crafted_among_the_tensors_is_refused(kind: str, run: Path, tmp_path: Path) -> None:
    """megatron-core 0.19 has the state there. 0.16 misses it in any case, and names the remedy."""
    checkpoint = shutil.copytree(run, tmp_path / "run") / "iter_0000002"
    common = torch.load(checkpoint / "common.pt", weights_only=False)
    crafted = {"a list": [1, 2], "nothing in a list": None}.get(kind, common | STATES.get(kind, {}))
    store_among_the_tensors(checkpoint, crafted)
    done = train(*WORDS, "--load", str(tmp_path / "run"), "--no-load-optim")
    assert done.code == (0 if kind == "as it was" and SAVES_AMONG_THE_TENSORS else 65), done.err
    assert "Traceback" not in done.err and "internal error" not in done.err
    assert not Path("executed").exists()


def test_the_same_without_a_change_is_trained_on(run: Path) -> None:
    done = train(*WORDS, "--load", str(run), "--no-load-optim")
    assert done.code == 0, done.err


def test_every_flipped_bit_is_found(run: Path) -> None:
    """By the checksums that torch stores, or by what contradicts itself; --no-verify reads what is still readable."""
    # megatron-core does that when it is imported, and torch forgets it with a context of its own.
    register_safe_globals()
    path = run / "iter_0000002/common.pt"
    sound, chance, found = path.read_bytes(), random.Random(0), 0
    with known_objects_only(path.parent):
        expected = torch.load(path)
    try:
        for _ in range(150):
            flipped = bytearray(sound)
            flipped[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            with known_objects_only(path.parent):
                try:
                    read = torch.load(path)
                except BadData:
                    found += 1
                    continue
            assert {name: read[name] for name in read if name != "args"} == {
                name: expected[name] for name in expected if name != "args"
            }
            assert vars(read["args"]) == vars(expected["args"])
    finally:
        path.write_bytes(sound)
    assert found > 100
