"""-q and -v: what a run says on stderr; train.log has all of it in any case."""

from pathlib import Path

import pseudo_terminal
import pytest
from running import SMALL, environment, quick_command, train

from lt_shared.contracts.manifest import Dataset


def own_lines(error: str) -> list[str]:
    """Without what torch and megatron-core warn of when they are imported, which depends on the installation."""
    return [line for line in error.splitlines() if line.startswith(("lt-train", " [", "  ", "--")) and "Evict" not in line]


def test_quiet_says_only_what_is_wrong(tmp_path: Path, dataset: Dataset) -> None:
    done = train("-q", *SMALL, "--train-iters", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    assert own_lines(done.err) == []
    assert done.out.count("\n") == 2
    assert "iteration        2/       2 |" in (tmp_path / "run/train.log").read_text()
    done = train("--quiet", *SMALL, "--train-iters", "1", dataset.prefix)
    assert own_lines(done.err) == ["lt-train: warning: no --save: the trained model will be lost when the run ends"]


@pytest.mark.parametrize("word", ["-v", "--verbose"])
def test_verbose_shows_the_lines_of_the_log_on_a_terminal(word: str, tmp_path: Path, dataset: Dataset) -> None:
    command = quick_command(word, *SMALL, "--train-iters", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    done = pseudo_terminal.run(command, columns=250, environment=environment())
    assert done.code == 0
    for line in (tmp_path / "run/train.log").read_text().splitlines():
        assert line in done.shown
    assert "time left" not in done.shown
    assert "lt-train: took " in done.shown
