"""The losses of a run do not depend on how the ranks share the model and the data."""

import math
from pathlib import Path

import pytest
from running import SMALL, losses, run

from lt_shared.manifest import Dataset

STEPS = 5
# All runs do the same sums in another order. In fp32 one rounding is 6e-8 of a loss near 7.6, that is 5e-7; five optimizer steps
# amplify it a little. A wrong gradient norm, a lost gradient or other data differ from the first or second step by 1e-4 and more.
TOLERANCE = 5e-6

LAYOUTS = {
    "tp2": ("--tensor-model-parallel-size", "2"),
    "tp2-sequence": ("--tensor-model-parallel-size", "2", "--sequence-parallel"),
    "pp2": ("--pipeline-model-parallel-size", "2"),
    "dp2": ("--ranks", "2"),
    "dp2-distributed": ("--ranks", "2", "--use-distributed-optimizer"),
    "tp2-pp2-sequence": (*("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--sequence-parallel"),),
}
GPT = ("--model", "gpt3-1.7b", "--num-attention-heads", "4", "--init-method-std", "0.02")


def train(directory: Path, dataset: Dataset, *options: str) -> dict[tuple[str, int], float]:
    result = run(*SMALL, "--train-iters", str(STEPS), "--lr", "1e-3", "--save", str(directory), *options, dataset.prefix)
    assert result.code == 0, result.err
    return losses(directory)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[tuple[str, int], float]:
    return train(tmp_path_factory.mktemp("single") / "run", dataset)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_llama_layouts_equal_one_rank(
    layout: str, tmp_path: Path, dataset: Dataset, single: dict[tuple[str, int], float]
) -> None:
    found = train(tmp_path / "run", dataset, *LAYOUTS[layout])
    assert found.keys() == single.keys()
    assert found == pytest.approx(single, abs=TOLERANCE)
    assert single["step", STEPS] < single["step", 1] - 0.02


def test_padding_of_the_vocabulary_does_not_change_the_losses(tmp_path: Path, dataset: Dataset) -> None:
    """2,100 tokens are padded to 2,176 rows on one rank and to 2,304 on two."""
    vocabulary = ("--vocab-size", "2100")
    alone = train(tmp_path / "alone", dataset, *vocabulary)
    split = train(tmp_path / "split", dataset, *vocabulary, *LAYOUTS["tp2"])
    assert split == pytest.approx(alone, abs=TOLERANCE)
    # Near the start all tokens are equally likely: the loss tells how many take part.
    assert alone["step", 1] == pytest.approx(math.log(2100), abs=0.02)


def test_gpt_layouts_equal_one_rank(tmp_path: Path, dataset: Dataset) -> None:
    alone = train(tmp_path / "alone", dataset, *GPT)
    split = train(tmp_path / "split", dataset, *GPT, *LAYOUTS["tp2-pp2-sequence"])
    assert split == pytest.approx(alone, abs=TOLERANCE)
