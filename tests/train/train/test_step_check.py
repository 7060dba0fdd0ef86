"""One bit that flips in one rank is found, and the rank named."""

import os
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import SMALL, losses, run, train

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_train.train import step_check
from lt_train.train.step_check import Answer

FLIPS = Path(__file__).parent.parent / "flips"
RUN = (*SMALL, "--train-iters", "5", "--seq-length", "32", "--global-batch-size", "6", "--eval-iters", "0", "--ranks", "3")
CHECKED = ("--check-replay-interval", "2")


def flipping(flip: str) -> dict[str, str]:
    return {"LT_FLIP": flip, "PYTHONPATH": os.pathsep.join([str(FLIPS), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize(
    ("flip", "said"),
    [
        # The second of the two passes of step 2, and of step 4; the weights are compared before the gradients.
        (
            "1:3:gradient",
            "computed step 2 twice, and the results differ: the gradient of decoder.layers.1.input_layernorm.weight",
        ),
        ("2:6:weight", "computed step 4 twice, and the results differ: the weight of decoder.layers.1.input_layernorm.weight"),
        # A weight that has been wrong since an earlier step: both passes agree, and two other ranks do not.
        ("0:4:held", "holds at step 4 other weights than the 2 ranks that share them"),
    ],
)
def test_a_flipped_bit_names_its_rank(flip: str, said: str, dataset: Dataset, tmp_path: Path) -> None:
    """The run ends on this machine, where --max-restarts would start it again."""
    options = (*RUN, *CHECKED, "--max-restarts", "3", "--save", str(tmp_path / "run"))
    ended = train(*options, dataset.prefix, **flipping(flip))
    assert ended.code == 76, ended.err
    (error,) = [line for line in ended.err.splitlines() if "error:" in line]
    assert f"rank {flip[0]} on {socket.gethostname()}: {said}" in error
    # For whoever looks for the cause there.
    assert (tmp_path / "run/train.log").read_text().splitlines()[-1] == error


def test_a_checked_run_has_the_same_losses(dataset: Dataset, tmp_path: Path) -> None:
    """Also with dropout, whose draws are repeated, and with reduction that overlaps the backward pass."""
    common = (*RUN, "--hidden-dropout", "0.1", "--overlap-grad-reduce", "--use-distributed-optimizer")
    for name, more in (("unchecked", ()), ("checked", CHECKED)):
        done = train(*common, *more, "--save", str(tmp_path / name), dataset.prefix)
        assert done.code == 0, done.err
    assert losses(tmp_path / "checked") == losses(tmp_path / "unchecked")
    assert len(losses(tmp_path / "checked")) == 5


def answers(*values: str, problem: str | None = None) -> list[Answer]:
    return [Answer(rank, f"n{rank}", None, ("0/0", value), (f"0/{rank}/0", "")) for rank, value in enumerate(values)]


def test_two_ranks_that_disagree_are_both_named() -> None:
    (found,) = step_check.verdict(answers("a", "b"), 7).items()
    assert found[0] == 0
    assert "no majority says whose are wrong: 0 on n0, 1 on n1" in found[1]
    assert step_check.verdict(answers("a", "a"), 7) == {}
    assert list(step_check.verdict(answers("a", "b", "b", "c"), 7)) == [0]
    assert list(step_check.verdict(answers("b", "b", "c", "b"), 7)) == [2]


@given(
    values=st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=50),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    data=st.data(),
)
def test_every_flipped_bit_changes_a_digest(values: list[float], dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.tensor(values).to(dtype)
    bits = tensor.clone().view(step_check.INTEGERS[tensor.element_size()])
    assert torch.equal(step_check.digests([tensor]), step_check.digests([tensor.clone()]))
    at = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 8 * tensor.element_size() - 2))
    bits[at] ^= 1 << bit
    assert not torch.equal(step_check.digests([tensor]), step_check.digests([bits.view(dtype)]))


def test_a_digest_goes_over_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(23, dtype=torch.float32)
    whole = step_check.digests([tensor])
    monkeypatch.setattr(step_check, "ELEMENTS", 5)
    assert torch.equal(step_check.digests([tensor]), whole)
    assert not torch.equal(step_check.digests([tensor.flip(0)]), whole)


@pytest.mark.parametrize("option", ["--use-torch-fsdp2"])
def test_what_cannot_be_checked_is_refused(option: str, dataset: Dataset) -> None:
    refused = run(*RUN, *CHECKED, option, dataset.prefix)
    assert refused.code == BadConfig.exit_code
    assert "--check-replay-interval with FSDP" in refused.err
