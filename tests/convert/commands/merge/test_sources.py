"""Which checkpoints the arguments of a merge mean."""

from pathlib import Path

import pytest

from lt_convert.commands.merge import sources
from lt_convert.commands.merge.sources import Chosen
from lt_shared.console import NoInput, UsageError
from lt_shared.contracts import checkpoint_layout


@pytest.mark.parametrize(
    ("word", "path", "weight"),
    [
        ("run1=0.7", "run1", 0.7),
        ("run1", "run1", None),
        ("/fsx/run=1/iter_0000010=3", "/fsx/run=1/iter_0000010", 3.0),
        ("/fsx/run=a", "/fsx/run=a", None),
        ("s3://models/a=1e-1", "s3://models/a", 0.1),
        ("s3://models/step=best", "s3://models/step=best", None),
        ("run1=-0.5", "run1", -0.5),
        ("=0.5", "=0.5", None),
        ("run1=", "run1=", None),
    ],
)
def test_a_path_and_its_weight(word: str, path: str, weight: float | None) -> None:
    assert sources.chosen([word], None) == [Chosen(path, weight)]


def test_what_is_there_is_a_path(tmp_path: Path) -> None:
    directory = tmp_path / "epoch=1-step=100"
    directory.mkdir()
    assert sources.chosen([str(directory)], None) == [Chosen(str(directory), None)]
    assert sources.chosen([f"{directory}=0.5"], None) == [Chosen(str(directory), 0.5)]


def torchtitan_run(directory: Path, complete: tuple[int, ...], incomplete: tuple[int, ...] = ()) -> Path:
    for step in (*complete, *incomplete):
        (directory / f"step-{step}").mkdir(parents=True)
        (directory / f"step-{step}" / "__0_0.distcp").write_bytes(b"")
    for step in complete:
        (directory / f"step-{step}" / ".metadata").write_bytes(b"")
    return directory


def test_the_last_complete_checkpoints_of_a_run_oldest_first(tmp_path: Path) -> None:
    run = torchtitan_run(tmp_path / "run", (5, 10, 100, 20), incomplete=(200,))
    assert [one.path for one in sources.chosen([str(run)], 3)] == [f"{run}/step-{step}" for step in (10, 20, 100)]


def test_a_run_with_too_few_is_refused(tmp_path: Path) -> None:
    run = torchtitan_run(tmp_path / "run", (5, 10), incomplete=(200,))
    with pytest.raises(NoInput, match=r"2 complete checkpoints \(step-5, step-10\), --last asks for 3"):
        sources.chosen([str(run)], 3)
    with pytest.raises(UsageError, match="--last 2 is for one run, and 2 are named"):
        sources.chosen([str(run), str(run / "step-5")], 2)
    checkpoint_layout.write_tracker(run, checkpoint_layout.RELEASE)
    assert len(sources.chosen([str(run)], 2)) == 2


def test_weights_are_given_for_all_or_for_none() -> None:
    assert sources.weigh([Chosen("a", 7), Chosen("b", 3)], None) == pytest.approx([0.7, 0.3])
    assert sources.weigh([Chosen("a", None), Chosen("b", None)], None) == [0.5, 0.5]
    assert sources.weigh([Chosen("a", None), Chosen("b", None)], "minus-sqrt") == pytest.approx([0.5**0.5, 1 - 0.5**0.5])
    with pytest.raises(UsageError, match="b: has no weight, and others have one"):
        sources.weigh([Chosen("a", 1), Chosen("b", None)], None)
    with pytest.raises(UsageError, match="--weights linear, and the checkpoints have weights of their own"):
        sources.weigh([Chosen("a", 1), Chosen("b", 1)], "linear")


def test_the_order_is_checked_as_far_as_it_is_known() -> None:
    sources.check_order([None, 10, None, 10, 20], ["a", "b", "c", "d", "e"])
    with pytest.raises(UsageError, match="b is of iteration 20, and d after it of 10"):
        sources.check_order([None, 20, None, 10], ["a", "b", "c", "d"])
