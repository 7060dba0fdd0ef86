"""Training goes on after a conversion as if there had been none: with lt-train, with TorchTitan, and across the two."""

import dataclasses
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import nursery
import pytest

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import torchtitan
from lt_convert.formats.checkpoint import OptimizerState, Source
from lt_convert.formats.megatron import torch_dist
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

GROUPED = Architecture("grouped", "llama", 3, 30, 90, 6, 3, 251, 64, kv_channels=6)
RUN = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--num-query-groups", "2"),
    *("--vocab-size", "250", "--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "4", "--mock-data"),
    *("--train-iters", "6", "--save-interval", "4", "--lr", "1e-2", "--lr-warmup-iters", "2", "--bf16"),
    *("--eval-iters", "0", "--log-interval", "1", "--device", "cpu", "--ranks", "1"),
)
DISTRIBUTED = "--use-distributed-optimizer"
# TorchTitan's schedule in torchtitan_model.py: half of 1e-2 in the first of two warm-up steps.
FIRST_RATE, WEIGHT_DECAY, BETAS = 5e-3, 0.1, (0.9, 0.95)


def train(run: Path, *options: str) -> None:
    command = [nursery.python(), "-m", "lt_train", *RUN, *options, "--save", run]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def losses(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where everything is.

    `megatron`: six steps of lt-train with a checkpoint after the fourth, which became `as-titan`, then `back` (fp32) and
    `back-bf16`; lt-train went on with both. `titan/step-N`: TorchTitan's, of which step 3 became `titan-megatron`, then
    `titan-back`; TorchTitan went on with it, and saved `as-titan` again in `again`.
    """

    root: Path

    def record(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.root / f"{name}.json").read_text()))


@pytest.fixture(scope="module")
def runs(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("optimizer")
    # Not in one of the threads below, with which it would end.
    nursery.python()

    def job(name: str, steps: int, **more: Any) -> dict[str, Any]:
        return {"architecture": GROUPED.to_record(), "steps": steps, "losses": str(root / f"{name}.json"), **more}

    titans = [job(f"titan-{steps}", steps, save=str(root / "titan")) for steps in (0, 1, 3, 6)]
    with ThreadPoolExecutor() as pool:
        for done in (
            pool.submit(ranks, "torchtitan_model.py", titans),
            pool.submit(train, root / "megatron", DISTRIBUTED),
        ):
            done.result()
    fill_padding(root / "megatron" / "iter_0000004")
    as_titan = convert(root / "megatron" / "iter_0000004", "torchtitan", root / "as-titan", verify=False)
    convert(as_titan, "megatron-dist", root / "back")
    convert(as_titan, "megatron-dist", root / "back-bf16", dtype="bfloat16")
    write_configuration(root / "titan" / "config.json")
    convert(root / "titan" / "step-3", "megatron-dist", root / "titan-megatron")
    convert(root / "titan-megatron", "torchtitan", root / "titan-back")
    with Files() as files:
        theirs = torchtitan.open_source(str(as_titan), files).model.architecture
    loaded = {"folder": str(root / "none"), "model_only": False}
    again = job("again", 0, load=str(as_titan), save=str(root / "again"), **loaded) | {"architecture": theirs.to_record()}
    with ThreadPoolExecutor() as pool:
        for done in (
            pool.submit(ranks, "torchtitan_model.py", [job("went-on", 3, load=str(root / "titan-back"), **loaded), again]),
            pool.submit(train, root / "back", DISTRIBUTED),
            pool.submit(train, root / "back-bf16"),
        ):
            done.result()
    return Runs(root)


def fill_padding(directory: Path) -> None:
    """lt-train leaves the rows that pad the vocabulary, and their moments, at zero; Megatron-LM does not."""
    with Files() as files:
        source = torch_dist.open_source(str(directory), files)
        for moments in state_of(source).tensors.values():
            view = moments["padding.model.embed_tokens.weight"].chunks[0].view
            assert view is not None
            with open(view.file, "r+b") as file:
                file.seek(view.offset_bytes)
                file.write(numpy.full(view.shape, 0.5, numpy.float32).tobytes())


def write_configuration(path: Path) -> None:
    path.write_text(json.dumps(huggingface.to_config(GROUPED, "float32")))


def opened(directory: Path, files: Files) -> Source:
    format_module = torchtitan if not (directory / "metadata.json").is_file() else torch_dist
    return format_module.open_source(str(directory), files)


def values(tensors: Any, files: Files) -> dict[str, bytes]:
    return {name: blocks.read(tensor, files).tobytes() for name, tensor in tensors.items()}


def state_of(source: Source) -> OptimizerState:
    assert source.optimizer is not None
    return source.optimizer


@pytest.mark.parametrize("name", ["back", "back-bf16"])
def test_lt_train_goes_on_with_the_same_losses(runs: Runs, name: str) -> None:
    expected, found = losses(runs.root / "megatron"), losses(runs.root / name)
    assert set(found) == {5, 6}
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-6)


def test_torchtitan_goes_on_with_the_same_losses(runs: Runs) -> None:
    expected, found = runs.record("titan-6"), runs.record("went-on")
    # Where a tensor lies in memory decides which of MKL's loops computes it: the last bit of a loss may differ (8e-8 of 5.6).
    assert found["losses"] == pytest.approx(expected["losses"][3:], rel=3e-7)
    counters = ("step", "tokens", "rates")
    assert [found[key] for key in counters] == [expected[key] for key in counters]


def test_torchtitan_takes_up_the_state_of_lt_train(runs: Runs) -> None:
    """It loads every key that it has, counts on, and saves the same values again."""
    assert runs.record("again")["step"] == 4
    assert runs.record("again")["tokens"] == 4 * 4 * 64
    shutil.copy(runs.root / "as-titan" / "run.json", runs.root / "again" / "step-4")
    with Files() as files:
        ours, theirs = opened(runs.root / "as-titan", files), opened(runs.root / "again" / "step-4", files)
        assert values(real(ours.tensors), files) == values(theirs.tensors, files)
        for kind in ("exp_avg", "exp_avg_sq"):
            assert values(real(state_of(ours).tensors[kind]), files) == values(state_of(theirs).tensors[kind], files)
        assert (state_of(theirs).step, state_of(theirs).hyperparameters["betas"]) == (4, (0.9, 0.95))
        assert state_of(theirs).hyperparameters["lr"] == state_of(ours).hyperparameters["lr"] > 0


def real(tensors: Any) -> dict[str, Tensor]:
    """Without the rows that pad the vocabulary."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("padding.")}


def test_nothing_is_lost_on_the_way(runs: Runs) -> None:
    """Weights are those that Megatron's optimizer keeps in fp32; rows that pad the vocabulary and their moments come back."""
    with Files() as files:
        first = opened(runs.root / "megatron" / "iter_0000004", files)
        for name in ("back", "back-bf16"):
            last = opened(runs.root / name / "iter_0000004", files)
            kept = values(state_of(first).tensors["param"], files)
            fp32 = last.tensors if name == "back" else state_of(last).tensors["param"]
            assert values(fp32, files) == kept
            for kind in ("exp_avg", "exp_avg_sq"):
                found = values(state_of(last).tensors[kind], files)
                assert found == values(state_of(first).tensors[kind], files)
                assert any(found["padding.model.embed_tokens.weight"])
            assert (state_of(last).step, last.iteration) == (4, 4)
            assert state_of(last).hyperparameters["lr"] == state_of(first).hyperparameters["lr"]
        assert values(real(last.tensors), files) == values(real(first.tensors), files)


def test_moments_belong_to_their_weights(runs: Runs) -> None:
    """TorchTitan's first step, done again with the canonical moments, gives the canonical weights."""
    with Files() as files:
        before, after = (opened(runs.root / "titan" / f"step-{step}", files) for step in (0, 1))
        moments = state_of(after).tensors
        for name in after.tensors:
            old, new, first, second = (
                blocks.read(tensors[name], files).view(numpy.float32).astype(numpy.float64)
                for tensors in (before.tensors, after.tensors, moments["exp_avg"], moments["exp_avg_sq"])
            )
            update = first / (1 - BETAS[0]) / (numpy.sqrt(second / (1 - BETAS[1])) + 1e-8)
            expected = old * (1 - FIRST_RATE * WEIGHT_DECAY) - FIRST_RATE * update
            assert numpy.abs(new - expected).max() < 1e-6, name
            assert numpy.abs(new - old).max() > 1e-3, name


def test_without_the_optimizer_weights_are_a_release(runs: Runs, tmp_path: Path) -> None:
    path = convert(runs.root / "titan" / "step-3", "megatron-dist", tmp_path / "run", optimizer=False)
    assert path == tmp_path / "run" / "release"
    with Files() as files:
        assert opened(path, files).optimizer is None


@pytest.mark.parametrize(("to", "optimizer"), [("hf", True), ("torchtitan", True), ("torchtitan", False)])
def test_a_run_with_muon_gives_its_weights(
    to: str, optimizer: bool, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other format has a form for its momentum."""
    run = trained_with_muon(runs.root / "back" / "iter_0000004", tmp_path / "run")
    found = convert(run, to, tmp_path / "found", optimizer=optimizer)
    expected = convert(runs.root / "back" / "iter_0000004", to, tmp_path / "expected", optimizer=False)
    assert ("its optimizer is Muon" in capsys.readouterr().err) == (to == "torchtitan" and optimizer)
    assert len(written(found)) > 10
    assert written(found) == written(expected)


def written(result: Path) -> dict[str, str]:
    """The SHA-256 of every tensor."""
    files = json.loads((result / "lt-convert.json").read_text())["files"].values()
    return {name: digest for file in files for _, _, digest, name, _ in file.get("pieces", ()) if name}


def trained_with_muon(checkpoint: Path, copy: Path) -> Path:
    """A copy with the keys that megatron-core's Muon stores: a momentum for each matrix of the decoder in place of moments."""
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns("run.json", "checksums.json"))
    metadata = pickle.loads((copy / ".metadata").read_bytes())
    for table in (metadata.state_dict_metadata, metadata.storage_data):
        for key in list(table):
            name = key if isinstance(key, str) else key.fqn
            if "optimizer.state" in name and ".linear_" in name and name.endswith("weight"):
                entry, renamed = table.pop(key), name.replace("exp_avg", "momentum_buffer")
                if "exp_avg_sq" not in name:
                    table[renamed if isinstance(key, str) else type(key)(renamed, key.offset, key.index)] = entry
    (copy / ".metadata").write_bytes(pickle.dumps(metadata))
    return copy
