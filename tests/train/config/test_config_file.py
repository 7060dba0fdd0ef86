"""A run's options in a TOML file: what could be read in two ways is refused."""

from pathlib import Path

import pytest
from running import Result, train

REFUSED = {
    "two spellings": ('seq-length = 64\nseq_length = 128\n', "seq-length and seq_length are the same option"),
    "two names": ("num-layers = 2\nlayers = 3\n", "num-layers and layers are the same option"),
    "a slip": ("lerning-rate = 1\ntrain-iterss = 2\n", "unknown options: lerning-rate, train-iterss"),
    "another file": ('config = "/etc/passwd"\n', "unknown options: config"),
    "a zero byte": ('save = "a\\u0000b"\n', "save has a zero byte in it"),
    "a table": ("[model]\nlayers = 3\n", "model"),
    "no TOML": ("layers: 3\n", "not TOML"),
}  # fmt: skip


def planned(content: str, directory: Path) -> Result:
    file = directory / "run.toml"
    file.write_text(content)
    return train("--config", str(file), "--model", "tiny", "--mock-data", "--dry-run")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_ambiguous_is_refused(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    result = planned(content, tmp_path)
    assert result.code == 78, result.err
    assert message in result.err
    assert len(result.err.splitlines()) <= 2


def test_a_slip_is_answered_with_the_nearest_option(tmp_path: Path) -> None:
    result = planned("train_iterss = 2\nseq-lenght = 3\nqzx = 1\n", tmp_path)
    assert result.err.splitlines()[-1] == "hint: seq-lenght: did you mean seq-length?; train_iterss: did you mean train-iters?"


def test_a_refused_value_is_that_of_the_file(tmp_path: Path) -> None:
    result = planned('lr = "abc"\n', tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("lt-train: error: in the file of --config: Invalid value for '--lr'")
