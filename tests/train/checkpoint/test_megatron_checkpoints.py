"""A checkpoint without lt-train's record describes its model in Megatron-LM's arguments: shapes tell no other arithmetic."""

from pathlib import Path
from typing import Any

import pytest
from running import SMALL, train

from lt_shared.console import BadConfig
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Dataset
from lt_shared.files.checksums import FileChecksums
from lt_shared.models import megatron_arguments
from lt_shared.models.presets import preset
from lt_train.checkpoint import resume
from lt_train.config.settings.checkpointing import Checkpointing

TINY = preset("tiny")
# Each argument with another value than TINY's, and words of the refusal.
OTHERS: dict[str, tuple[Any, str]] = {
    "rotary_base": (500000, "rotary_base 500000"),
    "norm_epsilon": (1e-3, "norm_epsilon 0.001 there, 1e-05 here"),
    "rotary_interleaved": (True, "rotary_interleaved"),
    "squared_relu": (True, "squared_relu"),
    "use_rope_scaling": (True, "rope_scaling"),
    "rotary_seq_len_interpolation_factor": (4, "rotary_seq_len_interpolation_factor"),
    "rotary_percent": (0.5, "rotary"),
    "window_size": ((4, 0), "sliding_window 5 there, None here"),
    "softmax_type": ("learnable", "attention_sinks True there, False here"),
    "no_rope_freq": (2, "no_rope_freq 2 there, None here"),
    "apply_layernorm_1p": (True, "layernorm_zero_centered_gamma True there, False here"),
}


def settings(**changes: Any) -> Checkpointing:
    """Of a run that loads `start` and is not the run that saved it."""
    made: Any = object.__new__(Checkpointing)
    for name, value in {
        "finetune": False,
        "start": "there",
        "save": "here",
        "load": "there",
        "continues": False,
        **changes,
    }.items():
        object.__setattr__(made, name, value)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", OTHERS)
def test_another_arithmetic_is_refused_by_name(name: str) -> None:
    value, words = OTHERS[name]
    arguments = megatron_arguments.to_arguments(TINY) | {name: value}
    with pytest.raises(BadConfig, match=words):
        resume.check_arguments(TINY, arguments, settings(), "there")


@pytest.mark.parametrize("name", ["tiny", "tiny-gemma2", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-mixtral", "tiny-glm4-moe"])
def test_the_same_model_is_taken(name: str) -> None:
    """With a vocabulary that Megatron did not store, and positions that RoPE does not count."""
    model = preset(name)
    arguments = megatron_arguments.to_arguments(model)
    arguments |= {"vocab_size": None, "padded_vocab_size": 2048, "max_position_embeddings": 64}
    assert resume.check_arguments(model, arguments, settings(), "there") == []


def test_arguments_that_are_not_known_are_told() -> None:
    arguments = megatron_arguments.to_arguments(TINY) | {"attention_of_tomorrow": True}
    (remark,) = resume.check_arguments(TINY, arguments, settings(), "there")
    assert "attention_of_tomorrow" in remark


def test_without_a_models_arguments_nothing_is_compared() -> None:
    assert resume.check_arguments(TINY, {"seed": 1}, settings(), "there") == []


def test_a_run_that_begins_anew_may_have_other_positions(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = megatron_arguments.to_arguments(TINY) | {"rotary_base": 500000}
    resume.check_arguments(TINY, arguments, settings(finetune=True), "there")
    assert "rotary_base is 10000.0, and was 500000" in capsys.readouterr().err


def test_ranks_do_not_train_such_a_checkpoint(dataset: Dataset, tmp_path: Path) -> None:
    command = (*SMALL, "--train-iters", "2", "--eval-iters", "0", dataset.prefix)
    saved = train(*command, "--save", str(tmp_path / "theirs"), "--norm-epsilon", "1e-3")
    assert saved.code == 0, saved.err
    checkpoint = checkpoint_layout.resolve_checkpoint_directory(tmp_path / "theirs")
    (checkpoint / checkpoint_layout.RECORD).unlink()
    (checkpoint / FileChecksums.NAME).unlink()
    loading = ("--load", str(tmp_path / "theirs"), "--finetune", "--save", str(tmp_path / "new"))
    refused = train(*command, *loading)
    assert refused.code == 78, refused.err
    assert "another architecture: norm_epsilon 0.001 there, 1e-05 here" in refused.err
    taken = train(*command, *loading, "--norm-epsilon", "1e-3")
    assert taken.code == 0, taken.err
    # Its weights, that is: an optimizer state and a position in the data would be lost without a word.
    renamed = checkpoint.rename(tmp_path / "best")
    loading = ("--load", str(renamed), "--save", str(tmp_path / "renamed"), "--norm-epsilon", "1e-3")
    refused = train(*command, *loading)
    assert refused.code == 78, refused.err
    assert "is the checkpoint of iteration 2, which its name does not say" in refused.err
    taken = train(*command, *loading, "--finetune")
    assert taken.code == 0, taken.err
