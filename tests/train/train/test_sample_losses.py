"""Losses of single samples: logged while training, and computed from a checkpoint."""

import json
from pathlib import Path

import pytest
from layouts import Outcome, train_all
from running import SMALL, losses, train

from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import sample_losses

BATCH = 4
STEPS = (
    *(*SMALL, "--seq-length", "32", "--global-batch-size", str(BATCH), "--train-iters", "6", "--save-interval", "3"),
    *("--lr", "1e-3", "--eval-iters", "0", "--split", "1,0,0"),
)
LOGGING = (*STEPS, "--log-sample-loss")


def logged(directory: Path) -> dict[int, float]:
    return sample_losses.read(directory, range(1000))


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """With options that whoever scores has no use for."""
    directory = tmp_path_factory.mktemp("sample-losses") / "run"
    local = ("--save-local", str(directory.parent / "local"), "--save-local-interval", "2")
    result = train(*LOGGING, *local, "--ranks", "1", "--save", str(directory), dataset.prefix)
    assert result.code == 0, result.err
    return directory


def test_their_mean_is_the_loss_of_the_step(one_rank: Path) -> None:
    lines = [json.loads(line) for line in (one_rank / sample_losses.FILE).read_text().splitlines()]
    assert [(line["step"], line["first_sample"], len(line["losses"])) for line in lines] == [
        (step, BATCH * (step - 1), BATCH) for step in range(1, 7)
    ]
    for line in lines:
        assert sum(line["losses"]) / BATCH == pytest.approx(losses(one_rank)["step", line["step"]], rel=1e-6)
        assert len(set(line["losses"])) == BATCH


def test_lines_that_were_cut_off_are_left_out(one_rank: Path, tmp_path: Path) -> None:
    first, *others = (one_rank / sample_losses.FILE).read_text().splitlines(keepends=True)
    (tmp_path / sample_losses.FILE).write_text("".join([f"{first[:30]}\n", *others, first[:40]]))
    assert logged(tmp_path) == {sample: loss for sample, loss in logged(one_rank).items() if sample >= BATCH}


LAYOUTS = {
    "data": ("--ranks", "2"),
    "tensor": ("--ranks", "2", "--tensor-model-parallel-size", "2", "--sequence-parallel"),
    "pipeline": ("--ranks", "2", "--pipeline-model-parallel-size", "2"),
    "context": ("--ranks", "2", "--context-parallel-size", "2"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    """The first two steps of the same run in other layouts, and without the option."""
    short = ("--exit-interval", "2", dataset.prefix)
    runs = {name: (*LOGGING, *layout, *short) for name, layout in LAYOUTS.items()}
    return train_all(runs | {"unlogged": (*STEPS, "--ranks", "1", *short)}, place, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_logs_the_same(layout: str, one_rank: Path, place: Path, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[layout].error is None, outcomes[layout].error
    expected = {sample: loss for sample, loss in logged(one_rank).items() if sample < 2 * BATCH}
    assert logged(place / layout) == pytest.approx(expected, rel=1e-4)


def test_a_run_without_the_option_writes_none_and_learns_the_same(
    one_rank: Path, place: Path, outcomes: dict[str, Outcome]
) -> None:
    expected = losses(one_rank)
    assert outcomes["unlogged"].losses == {key: expected[key] for key in (("step", 1), ("step", 2))}
    assert not (place / "unlogged" / sample_losses.FILE).exists()


@pytest.mark.parametrize("more", [(), ("--ranks", "2", "--tensor-model-parallel-size", "2")])
def test_the_checkpoint_before_gives_what_was_logged(more: tuple[str, ...], one_rank: Path) -> None:
    """Step 4 was trained with the weights of checkpoint 3."""
    result = train("score", str(one_rank), "--step", "4", *more)
    assert result.code == 0, result.err
    found = sample_losses.parse([line.encode() for line in result.out.splitlines()], range(1000), "score")
    assert list(found) == list(range(4 * BATCH))
    of_step = {sample: loss for sample, loss in found.items() if sample >= 3 * BATCH}
    expected = {sample: loss for sample, loss in logged(one_rank).items() if 3 * BATCH <= sample < 4 * BATCH}
    assert of_step == pytest.approx(expected, rel=1e-5)
    # Other weights have trained on the samples before.
    assert found[0] < logged(one_rank)[0] - 0.01


def test_samples_and_checkpoints_by_name(one_rank: Path) -> None:
    result = train("score", str(one_rank), "--samples", "21-23", "--checkpoint", str(one_rank / "iter_0000003"))
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [(line["first_sample"], line["step"]) for line in lines] == [(21, 6), (22, 6), (23, 6)]


def test_what_cannot_be_scored(one_rank: Path, tmp_path: Path) -> None:
    for arguments, code, message in (
        ((str(one_rank), "--step", "2"), 66, "no checkpoint was saved before step 2"),
        ((str(one_rank), "--step", "9"), 65, "the run has steps 1 to 6"),
        ((str(one_rank), "--samples", "20-24"), 65, "the run has samples 0 to 23"),
        ((str(tmp_path), "--step", "2"), 66, "data-order.jsonl: no such file"),
        ((str(one_rank),), 2, "Give --step or --samples"),
        ((str(one_rank), "--step", "4", "--no-such-option"), 2, "No such option"),
    ):
        result = train("score", *arguments)
        assert (result.code, message in result.err) == (code, True), result.err
