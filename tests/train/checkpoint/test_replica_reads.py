"""Ranks that need the same objects of a store ask for them once, whatever the layouts, and have what was saved."""

import json
import os
import shutil
from pathlib import Path

import pytest
import stored
import torch
from layouts import Outcome, train_all

from lt_shared.contracts.manifest import Dataset

SMALL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--vocab-size", "2048"),
    *("--num-attention-heads", "8", "--num-query-groups", "4", "--seq-length", "8", "--global-batch-size", "12"),
    *("--micro-batch-size", "1", "--lr", "3e-3", "--eval-iters", "1", "--device", "cpu", "--train-iters", "9"),
)
DP2, DP3, DP4 = (("--ranks", str(ranks)) for ranks in (2, 3, 4))
ZERO, FSDP = ("--use-distributed-optimizer",), ("--use-torch-fsdp2",)
TP2, EP2 = ("--tensor-model-parallel-size", "2", "--sequence-parallel"), ("--expert-model-parallel-size", "2")
FAMILIES = {"bf16": ("--bf16",), "experts": ("--model", "tiny-mixtral")}
SOURCES = {"bf16": (*DP2, *ZERO), "experts": (*DP4, *EP2, *ZERO)}
LAYOUTS = {
    "bf16-same": (*DP2, *ZERO),
    "bf16-whole": (*DP3,),
    "bf16-tp": (*DP4, *TP2, *ZERO),
    "bf16-fsdp": (*DP3, *FSDP),
    "experts-same": (*DP4, *EP2, *ZERO),
    "experts-pp": (*DP4, *EP2, *ZERO, "--pipeline-model-parallel-size", "2"),
}
# How often a byte is read. What is no tensor, once more by each process, which looks at it first. In another layout than the
# checkpoint's, some ranks of a group need an object of the optimizer. If each rank read alone: 1.2, 3.0, 1.8, 2.6 and 2.7 times.
MOST = {"same": 1.05, "whole": 1.05, "pp": 1.25, "fsdp": 1.25, "tp": 1.85}
BROKEN = {"bf16-unread": "the second rank cannot read", "bf16-unused": "the second rank cannot use what it has"}
# At the start of each process: writes down which bytes it asks a store for, and breaks a rank of two.
RECORDER = """
import json, os
from lt_shared.files import object_versions
from lt_shared.console import IoFailure
from lt_train.checkpoint import object_reader
read_range, read_object = object_versions.read_range, object_reader.read_object
def recorded(path, begin, end, version):
    with open(os.environ["READS"], "a") as written:
        written.write(json.dumps([path, begin, end]) + "\\n")
    if "bf16-unread" in path and os.environ["RANK"] == "1" and end - begin > 20_000:
        raise IoFailure("the second rank cannot read")
    return read_range(path, begin, end, version)
def broken(file, verify):
    if "bf16-unused" in str(getattr(file, "name", "")) and os.environ["RANK"] == "1":
        raise RuntimeError("the second rank cannot use what it has")
    return read_object(file, verify)
object_versions.read_range, object_reader.read_object = recorded, broken
"""


def family(name: str) -> str:
    return name.split("-")[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    """Runs that load from a store a copy of what those before them saved, and save it again."""
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)
    sources = {name: (*SMALL, *FAMILIES[name], *options, "--exit-interval", "1", *data) for name, options in SOURCES.items()}
    errors = {name: outcome.error for name, outcome in train_all(sources, place, 4, saving=True).items() if outcome.error}
    assert not errors, errors
    commands = {}
    for name, options in (LAYOUTS | dict.fromkeys(BROKEN, LAYOUTS["bf16-same"])).items():
        shutil.copytree(place / family(name), place / "store" / name)
        commands[name] = (*SMALL, *FAMILIES[family(name)], *options, "--load", f"local://{place}/store/{name}", *data)
    (place / "recorder").mkdir()
    (place / "recorder/sitecustomize.py").write_text(RECORDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READS", str(place / "reads"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(place / "recorder"), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("TMPDIR", str(place))
        return train_all(commands, place, 4, saving=True, steps=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_saved(layout: str, place: Path, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[layout].error is None, outcomes[layout].error
    before, after = (stored.tensors(place / name / "iter_0000001") for name in (family(layout), layout))
    assert [key for key in before if key.startswith("optimizer.state.exp_avg.") and before[key].any()]
    for key, tensor in before.items():
        found = after[key if key in after else key.replace(".state.param.", ".state.fp32_param.")]
        assert torch.equal(found, tensor), key


@pytest.mark.usefixtures("outcomes")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_that_many_ranks_need_are_read_once(layout: str, place: Path) -> None:
    checkpoint = place / "store" / layout / "iter_0000001"
    reads = [json.loads(line) for line in (place / "reads").read_text().splitlines()]
    read_bytes = sum(end - begin for path, begin, end in reads if path.startswith(f"local://{checkpoint}/"))
    ratio = read_bytes / sum(path.stat().st_size for path in checkpoint.glob("*.distcp"))
    assert 1 <= ratio <= MOST[layout.split("-")[1]], ratio


@pytest.mark.parametrize("layout", BROKEN)
def test_a_rank_that_fails_ends_all(layout: str, outcomes: dict[str, Outcome]) -> None:
    error = outcomes[layout].error
    assert error is not None and BROKEN[layout] in error
