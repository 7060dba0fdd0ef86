"""A run's options: a TOML file that could be read in two ways is refused, and of options that exclude each other, the nearest
source's is taken: the command line, the environment, then --config.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import Result, train

from lt_train.config.options import schema

TINY = ("--model", "tiny", "--device", "cpu")
LENGTHS = {"train_iters": "20", "train_samples": "160", "train_tokens": "9000"}
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


def test_a_configuration_of_another_trainer_is_answered_with_import(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("trainer:\n  max_steps: 3\n")
    result = train("--config", str(tmp_path / "recipe.yaml"))
    assert result.code == 78
    assert result.err.endswith(f"\nhint: lt-train import {tmp_path}/recipe.yaml translates another trainer's configuration\n")


def test_a_key_of_another_trainer_is_answered_with_the_option(tmp_path: Path) -> None:
    result = planned("learning_rate = 1e-3\nepochs = 2\n", tmp_path)
    assert "hint: epochs: lt-train counts steps or tokens" in result.err and "; learning_rate: use --lr" in result.err


def test_a_slip_is_answered_with_the_nearest_option(tmp_path: Path) -> None:
    result = planned("train_iterss = 2\nseq-lenght = 3\nqzx = 1\n", tmp_path)
    assert result.err.splitlines()[-1] == "hint: seq-lenght: did you mean seq-length?; train_iterss: did you mean train-iters?"


def test_a_refused_value_is_that_of_the_file(tmp_path: Path) -> None:
    result = planned('lr = "abc"\n', tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("lt-train: error: in the file of --config: Invalid value for '--lr'")


def parameters(directory: Path, content: str, *words: str) -> dict[str, Any]:
    file = directory / "run.toml"
    file.write_text(content)
    return schema().make_context("lt-train", ["--config", str(file), *words], auto_envvar_prefix="LT_TRAIN").params


def test_a_short_run_of_a_recipe(tmp_path: Path) -> None:
    recipe = (
        "train-samples = 146484375\nlr-decay-samples = 126953125\nlr-warmup-samples = 183105\nfp16 = true\n"
        'data-path = ["/fsx/gpt2/my-gpt2_text_document"]\nvalid-data-path = ["/fsx/gpt2/held-out"]\n'
    )
    words = ["--mock-data", "--bf16", "--train-iters", "20", "--lr-decay-iters", "20", "--lr-warmup-iters", "2"]
    found = parameters(tmp_path, recipe, *words)
    assert (found["train_iters"], found["lr_decay_iters"], found["lr_warmup_iters"]) == (20, 20, 2)
    assert (found["bf16"], found["fp16"], found["mock_data"]) == (True, False, True)
    assert not any(
        found[name] for name in ("train_samples", "lr_decay_samples", "lr_warmup_samples", "data_path", "valid_data_path")
    )
    assert train("--config", str(tmp_path / "run.toml"), *TINY, *words, "--dry-run").code == 0


def test_data_on_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('data-path = ["/fsx/there"]\n')
    done = train("--config", str(file), *TINY, str(tmp_path / "here"), "--dry-run")
    assert done.code == 66
    assert "here" in done.err
    assert "/fsx/there" not in done.err


def test_a_job_has_what_the_command_line_says(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"\nfp16 = true\ntrain-samples = 1000\ndata-path = ["/fsx/there"]\n')
    done = train(
        "render",
        "slurm",
        "--nodes",
        "1",
        "--config",
        str(file),
        "--bf16",
        "--train-iters",
        "7",
        "--save",
        "/fsx/run",
        "/fsx/here",
    )
    assert done.code == 0, done.err
    assert "/fsx/here" in done.out
    for word in ("--fp16", "--train-samples", "--data-path", "/fsx/there"):
        assert word not in done.out


@pytest.mark.parametrize("words", [("--bf16", "--fp16"), ("--lr-decay-iters", "5", "--lr-decay-samples", "9")])
def test_two_of_one_source_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = train(*TINY, *words, "--mock-data", "--dry-run")
    assert (done.code, "both" in done.err) == (2, True)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(LENGTHS)), st.sampled_from(["flag", "environment", "file"]), min_size=1))
def test_a_nearer_source_excludes_the_others(tmp_path_factory: pytest.TempPathFactory, sources: dict[str, str]) -> None:
    """Of all ways to say the length of a run: those that remain are those of the nearest source, all of them."""
    content = "".join(f"{name} = {LENGTHS[name]}\n" for name, source in sources.items() if source == "file")
    flags = [name for name, source in sources.items() if source == "flag"]
    words = [word for name in flags for word in (f"--{name.replace('_', '-')}", LENGTHS[name])]
    with pytest.MonkeyPatch.context() as patch:
        for name, source in sources.items():
            if source == "environment":
                patch.setenv(f"LT_TRAIN_{name.upper()}", LENGTHS[name])
        found = parameters(tmp_path_factory.getbasetemp(), content, *words)
    nearest = next(source for source in ("flag", "environment", "file") if source in sources.values())
    kept = {name for name in LENGTHS if found[name] is not None}
    assert kept == {name for name, source in sources.items() if source == nearest}
