"""Options of other trainers are answered with lt-train's own."""

import re

import pytest
from running import train

from lt_train.config.foreign_options import FOREIGN_OPTIONS
from lt_train.config.options import schema

OPTIONS = {spelling for parameter in schema().params for spelling in parameter.opts}


def test_the_table_names_lt_trains_options_alone() -> None:
    named = {option for remedy in FOREIGN_OPTIONS.values() for option in re.findall(r"--[a-z0-9-]+", remedy)}
    assert len(named) > 30
    assert named - OPTIONS == set()
    assert {f"--{name}" for name in FOREIGN_OPTIONS} & OPTIONS == set()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--dtype", "bf16"], "use --bf16, --fp16 or --fp8-recipe; without one of them float32"),
        (["--precision=bf16"], "use --bf16, --fp16 or --fp8-recipe; without one of them float32"),
        (["--learning_rate", "1e-3"], "use --lr"),
        (["--training.seq_len", "8192"], "use --seq-length"),
        (["--epochs", "3"], "lt-train counts steps or tokens, not epochs: --train-iters 1000 for steps"),
        (["--batch-size", "8"], "use --micro-batch-size for the samples of a device"),
    ],
)
def test_a_foreign_option_is_answered_with_ours(words: list[str], hint: str) -> None:
    done = train(*words)
    assert done.code == 2
    assert done.err.startswith(f"lt-train: error: lt-train has no option {words[0].partition('=')[0]}\nhint: {hint}")


def test_an_unknown_option_is_answered_by_click() -> None:
    assert "No such option '--bf61'" in train("--bf61").err
