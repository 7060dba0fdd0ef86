"""The average of the weights in several layouts: by hand, saved, resumed, evaluated, and without effect on training."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stored
import synthetic
import torch
from layouts import sampled, train_all

import lt_convert
from lt_shared.console import BadConfig
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Dataset
from lt_train.kernels import split_master_weights
from lt_train.optim.fused_adamw import FusedAdamW, ParameterBuffers
from lt_train.optim.weight_average import AVERAGE, WeightAverage
from lt_train.planner import memory_estimate
from lt_train.planner.checkpoint_size import CheckpointSize

MODEL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--seq-length", "16"),
    *("--global-batch-size", "4", "--micro-batch-size", "1", "--log-interval", "1", "--eval-iters", "1", "--eval-interval", "2"),
    *("--device", "cpu", "--lr", "3e-3", "--lr-warmup-iters", "0", "--save-interval", "1", "--train-iters", "3"),
)
DECAY = 0.75
EMA = ("--ema-decay", str(DECAY))
DISTRIBUTED = ("--bf16", "--use-distributed-optimizer")
EXPERTS = ("--num-experts", "4", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "32")
LAYOUTS: dict[str, tuple[str, ...]] = sampled(
    {
        "fp32": ("--ranks", "1"),
        "distributed": (*DISTRIBUTED, "--overlap-grad-reduce", "--overlap-param-gather", "--ranks", "2"),
        "fsdp": ("--bf16", "--use-torch-fsdp2", "--ranks", "2"),
        "tensor-pipeline": (
            *DISTRIBUTED,
            *("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--ranks", "4"),
        ),
        "experts": (*EXPERTS, *DISTRIBUTED, "--expert-model-parallel-size", "2", "--ranks", "2"),
        "fp16": ("--fp16", "--initial-loss-scale", "65536", "--ranks", "1"),
    },
    "fsdp",
    "tensor-pipeline",
)
CONTINUED = [name for name in ("distributed", "fsdp") if name in LAYOUTS]
# Steps 1 and 2 in one layout, step 3 in another.
MOVES = {"fsdp-to-tensors": ("fsdp", "tensor-pipeline")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    place = tmp_path_factory.mktemp("averages")
    commands = {}
    for name, options in LAYOUTS.items():
        commands[name] = (*MODEL, *options, *EMA, dataset.prefix)
        commands[f"{name}-without"] = (*MODEL, *options, dataset.prefix)
    check(train_all(commands, place, ranks=4, saving=True))
    later = {}
    for name in CONTINUED:
        later[f"{name}-resumed"] = (*MODEL, *LAYOUTS[name], *EMA, "--load", checkpoint(place / name, 2), dataset.prefix)
    for name in CONTINUED:
        later[f"{name}-begun"] = (
            *MODEL,
            *LAYOUTS[name],
            *EMA,
            "--load",
            checkpoint(place / f"{name}-without", 2),
            dataset.prefix,
        )
    for name, (there, here) in MOVES.items():
        if there in LAYOUTS:
            later[name] = (*MODEL, *LAYOUTS[here], *EMA, "--load", checkpoint(place / there, 2), dataset.prefix)
    later["dropped"] = (*MODEL, *LAYOUTS["fsdp"], "--load", checkpoint(place / "fsdp", 2), dataset.prefix)
    check(train_all(later, place, ranks=4, saving=True))
    return place


def check(outcomes: Any) -> None:
    assert not {name: outcome.error for name, outcome in outcomes.items() if outcome.error}


def checkpoint(run: Path, step: int) -> str:
    return str(run / f"iter_{step:07d}")


def weights_and_averages(run: Path, step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The float32 weights and their averages, by the names of the weights."""
    found = stored.tensors(Path(checkpoint(run, step)))
    averages = {key.removeprefix("optimizer.state.ema."): found[key] for key in found if key.startswith("optimizer.state.ema.")}
    masters = {
        name: found.get(f"optimizer.state.param.{name}", found.get(f"optimizer.state.fp32_param.{name}", tensor))
        for name, tensor in found.items()
        if not name.startswith("optimizer.") and not name.endswith(("expert_bias", "_extra_state"))
    }
    return masters, averages


def evaluations(run: Path) -> dict[tuple[int, str], float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {(record["step"], record["split"]): record["loss"] for record in records if record["kind"] == "eval"}


def step_losses(run: Path) -> dict[int, float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if record["kind"] == "step"}


def assert_follows(before: dict[str, torch.Tensor], run: Path, step: int) -> None:
    """The averages of a step are those `before` it, moved by a quarter towards the weights."""
    weights, averages = weights_and_averages(run, step)
    assert averages.keys() == before.keys() and averages.keys() == weights.keys()
    for name, average in averages.items():
        assert average.dtype == torch.float32
        expected = DECAY * before[name].double() + (1 - DECAY) * weights[name].double()
        torch.testing.assert_close(average.double(), expected, rtol=2e-6, atol=2e-8)
        assert not torch.equal(average, weights[name]) or not weights[name].any() or weights[name].eq(1).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_step_moves_the_averages(runs: Path, name: str) -> None:
    for step in (2, 3):
        assert_follows(weights_and_averages(runs / name, step - 1)[1], runs / name, step)
    assert RunRecord.read(Path(checkpoint(runs / name, 3))).ema_decay == DECAY


@pytest.mark.parametrize("name", CONTINUED)
def test_averages_begin_with_the_weights(runs: Path, name: str) -> None:
    """Of a run that had none before: with those of the checkpoint that it continues from."""
    first, none = weights_and_averages(runs / f"{name}-without", 2)
    assert none == {}
    assert_follows(first, runs / f"{name}-begun", 3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_training_is_as_without(runs: Path, name: str) -> None:
    """Bit for bit, although the averages are evaluated in the place of the weights after steps 2 and 3."""
    with_averages, without = runs / name, runs / f"{name}-without"
    assert step_losses(with_averages) == step_losses(without)
    plain = evaluations(without)
    assert plain.items() <= evaluations(with_averages).items()
    assert {key for key in evaluations(with_averages) if key not in plain} == {(step, f"{split}-ema") for step, split in plain}
    found, expected = (stored.tensors(Path(checkpoint(run, 3))) for run in (with_averages, without))
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_resumes_its_averages(runs: Path, name: str) -> None:
    whole, resumed = runs / name, runs / f"{name}-resumed"
    found, expected = (stored.tensors(Path(checkpoint(run, 3))) for run in (resumed, whole))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    later = {key: loss for key, loss in evaluations(whole).items() if key[0] == 3}
    assert {key: loss for key, loss in evaluations(resumed).items() if key[0] == 3} == later


@pytest.mark.parametrize("name", [name for name, (there, _) in MOVES.items() if there in LAYOUTS])
def test_another_layout_continues_the_averages(runs: Path, name: str) -> None:
    assert_follows(weights_and_averages(runs / MOVES[name][0], 2)[1], runs / name, 3)


def test_a_run_without_the_option_drops_the_averages(runs: Path) -> None:
    assert weights_and_averages(runs / "dropped", 3)[1] == {}
    assert RunRecord.read(Path(checkpoint(runs / "dropped", 3))).ema_decay is None
    assert step_losses(runs / "dropped") == {3: step_losses(runs / "fsdp")[3]}


def test_the_evaluated_loss_is_that_of_the_averages(runs: Path, dataset: Dataset) -> None:
    """A run that loads the averages as its weights, and changes nothing, evaluates to the same loss."""
    converted = Path(lt_convert.convert(runs / "fsdp", runs / "converted", "megatron-dist", ema=True, dtype="float32").path)
    averages = weights_and_averages(runs / "fsdp", 3)[1]
    assert all(torch.equal(tensor, averages[name]) for name, tensor in stored.tensors(converted).items())
    still = (
        "--lr",
        "1e-30",
        "--min-lr",
        "0",
        "--weight-decay",
        "0",
        "--train-iters",
        "2",
        "--finetune",
        "--ranks",
        "1",
        "--bf16",
    )
    command = (*MODEL, *still, "--load", str(converted.parent), dataset.prefix)
    check(train_all({"still": command}, runs / "evaluated", ranks=1))
    found = evaluations(runs / "evaluated" / "still")[2, "validation"]
    averaged, trained = (evaluations(runs / "fsdp")[3, split] for split in ("validation-ema", "validation"))
    assert found == pytest.approx(averaged, rel=2e-4)
    assert abs(found - averaged) < abs(found - trained) / 5


def test_split_weights_on_a_gpu_are_joined_for_the_average() -> None:
    """FusedAdamW keeps a float32 weight as a bfloat16 and its low bits: exchanging them twice restores every bit."""
    torch.manual_seed(1)
    wholes = [torch.randn(7), torch.randn(3, 5)]
    buffers = []
    for whole in wholes:
        flat = whole.view(-1)
        weight, low_bits = flat.bfloat16(), torch.empty(flat.shape, dtype=torch.int16)
        split_master_weights.split(flat, weight, low_bits)
        master = torch.nn.Parameter(torch.zeros(1).expand(whole.shape))
        buffers.append(ParameterBuffers(master, weight, low_bits, torch.zeros(flat.shape), True, None))
    inner = FusedAdamW([{"params": [entry.master for entry in buffers], "lr": 1e-3}], buffers, [])
    optimizer: Any = SimpleNamespace(optimizer=inner)
    average = WeightAverage(DECAY, optimizer, [])
    average.begin()
    for entry, whole in zip(buffers, wholes, strict=True):
        assert torch.equal(inner.state[entry.master][AVERAGE], whole)
    moved = [whole + 1 for whole in wholes]
    for entry, whole in zip(buffers, moved, strict=True):
        split_master_weights.split(whole.view(-1), entry.weight, entry.low_bits)  # type: ignore[arg-type]
    average.update()
    expected = [DECAY * whole + (1 - DECAY) * new for whole, new in zip(wholes, moved, strict=True)]
    with average.applied():
        for entry, whole in zip(buffers, expected, strict=True):
            torch.testing.assert_close(entry.weight.float(), whole.view(-1).bfloat16().float())
    for entry, new, whole in zip(buffers, moved, expected, strict=True):
        assert torch.equal(split_master_weights.joined(entry.weight, entry.low_bits), new.view(-1))  # type: ignore[arg-type]
        torch.testing.assert_close(inner.state[entry.master][AVERAGE], whole)


def test_the_plan_counts_the_averages() -> None:
    options = ("--mock-data", "--bf16", "--use-distributed-optimizer", "--ranks", "4")
    plain, averaged = synthetic.plan(*options), synthetic.plan(*options, *EMA)
    parameters = plain.architecture.parameters(plain.padded_vocab_size)
    memory = [memory_estimate.estimate(plan).fullest_rank.optimizer for plan in (plain, averaged)]
    assert memory[1] - memory[0] == parameters
    sizes = [CheckpointSize.from_config(plan).total for plan in (plain, averaged)]
    assert sizes[1] - sizes[0] == 4 * parameters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--save", "run", "--no-save-optim", "--mock-data"), "checkpoints have the average in the optimizer's state"),
        (("--valid-data-path", "a=", "data", "a-ema=", "data"), "loss of the averaged weights on a is called a-ema"),
    ],
)
def test_refused_settings(options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.write(tmp_path / "data", [30] * 40)
    data = () if "--mock-data" in options else ("--train-data-path", "data")
    with pytest.raises(BadConfig, match=message):
        synthetic.plan(*options, *data, *EMA)
