"""DeepSeek's training: latent attention, balancing biases and multi-token prediction, in all layouts and after a restart."""

import re
from pathlib import Path

import pytest
import torch
from layouts import Outcome, plan_of, train_all
from running import BRIEF
from safetensors.torch import load_file

from lt_convert.commands.conversion import Request, convert
from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_train.models.multi_token_prediction import prediction_targets

TRAINING = (
    # An odd number of steps, which cannot move a bias to and fro.
    *(*BRIEF, "--train-iters", "3", "--eval-iters", "0"),
    *("--model", "tiny-deepseek-v3", "--num-layers", "2", "--moe-router-bias-update-rate", "0.05"),
)
# The auxiliary loss of a prediction layer changes the main model, too.
UNBALANCED = ("--moe-aux-loss-coeff", "0")
RUNS: dict[str, tuple[str, ...]] = {
    "alone": (),
    "tp2": ("--tensor-model-parallel-size", "2", "--sequence-parallel"),
    "pp2": ("--pipeline-model-parallel-size", "2"),
    "ep2": ("--ranks", "2", "--expert-model-parallel-size", "2"),
    "cp2": ("--context-parallel-size", "2"),
    "documents": ("--reset-attention-mask", "--reset-position-ids"),
    "documents-cp2": ("--reset-attention-mask", "--reset-position-ids", "--context-parallel-size", "2"),
    # Its biases are of float32 beside weights of 16 bits.
    "half": ("--bf16",),
    "half-stopped": ("--bf16", "--exit-interval", "1"),
    "half-resumed": ("--bf16", "--load", "{place}/half-stopped"),
    # The loss of the second step shows what the first has learned.
    "unpredicted": ("--mtp-num-layers", "0", *UNBALANCED, "--exit-interval", "2"),
    "unweighed": ("--mtp-loss-scaling-factor", "0", *UNBALANCED, "--exit-interval", "2"),
    "weighed": (*UNBALANCED, "--exit-interval", "2"),
    "unbalanced": ("--moe-router-bias-update-rate", "0"),
}

# With the rate at which their biases move.
EXPORTED = {"alone": 0.05, "half": 0.05, "unbalanced": 0.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepseek")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    commands = {
        name: (*TRAINING, *(option.format(place=place) for option in options), dataset.prefix) for name, options in RUNS.items()
    }
    return train_all(commands, place, 2, saving=("half-stopped", *EXPORTED))


def prediction_losses(place: Path, name: str) -> list[float]:
    return [float(found) for found in re.findall(r"mtp loss: (\S+)", (place / name / "train.log").read_text())]


@pytest.mark.parametrize(
    ("layout", "alone"), [*((name, "alone") for name in ("tp2", "pp2", "ep2", "cp2")), ("documents-cp2", "documents")]
)
def test_layouts_equal_one_rank(layout: str, alone: str, place: Path, outcomes: dict[str, Outcome]) -> None:
    """The gradient of the key's rotated part is every head's, the embedding's is that of both pipeline stages."""
    assert outcomes[layout].error is None
    assert outcomes[layout].losses == pytest.approx(outcomes[alone].losses, abs=5e-6)
    assert prediction_losses(place, layout) == pytest.approx(prediction_losses(place, alone), abs=2e-5)


def test_a_resumed_run_is_the_same(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["half-stopped"].losses | outcomes["half-resumed"].losses == outcomes["half"].losses


def test_the_loss_of_predictions_is_reported_and_weighed(place: Path, outcomes: dict[str, Outcome]) -> None:
    assert len(prediction_losses(place, "alone")) == 3
    assert prediction_losses(place, "unpredicted") == []
    # Without weight the predictions leave the main model alone; with it they do not.
    assert outcomes["unweighed"].losses["step", 2] == pytest.approx(outcomes["unpredicted"].losses["step", 2], abs=2e-6)
    assert abs(outcomes["weighed"].losses["step", 2] - outcomes["unpredicted"].losses["step", 2]) > 1e-5


def test_biases_move_by_steps_and_keep_their_precision(place: Path, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    for name, rate in EXPORTED.items():
        assert outcomes[name].error is None
        convert(Request(str(place / name), "hf", str(tmp_path / name)))
        found = load_file(tmp_path / name / "model.safetensors")
        for layer in (1, 2):
            bias = found[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"]
            assert bias.dtype == torch.float32
            steps = bias / 0.05
            torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
            assert bool(bias.any()) == (rate > 0)


def test_what_is_predicted_within_samples_and_documents() -> None:
    labels = torch.tensor([[11, 12, 13, 14, 15]])
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    found = prediction_targets(labels, torch.ones(1, 5), documents, 2, lambda part: part)
    assert [each.tolist() for each in found.labels] == [[[12, 13, 14, 15, 0]], [[13, 14, 15, 0, 0]]]
    assert [each.tolist() for each in found.masks] == [[[1, 1, 0, 1, 0]], [[1, 0, 0, 0, 0]]]
    masked = prediction_targets(labels, torch.tensor([[1.0, 0, 1, 1, 1]]), None, 1, lambda part: part)
    assert masked.masks[0].tolist() == [[0, 1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--moe-router-topk", "8"), "8 of 8 experts cannot be chosen from 2 of 4 groups"),
        (("--use-torch-fsdp2", "--ranks", "2"), "balancing biases are none"),
    ],
)
def test_what_cannot_be_computed_is_refused(options: tuple[str, ...], message: str, dataset: Dataset) -> None:
    with pytest.raises(BadConfig, match=message):
        plan_of(["--device", "cpu", "--model", "tiny-deepseek-v3", "--seq-length", "64", *options, dataset.prefix])
