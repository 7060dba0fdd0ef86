"""The options of muP: what they make of a model, and what is refused."""

from typing import Any

import pytest
from layouts import plan_of

from lt_shared.console import BadConfig
from lt_shared.models import huggingface
from lt_shared.models.megatron_arguments import from_arguments
from lt_train.config.megatron_arguments import run_arguments
from lt_train.config.run_config import RunConfig

SIZES = ("--mock-data", "--seq-length", "64", "--device", "cpu", "--train-iters", "2", "--ranks", "1")
WIDE = ("--use-mup", "--mup-base-hidden-size", "32")


def resolved(*options: str, model: str = "tiny") -> RunConfig:
    return plan_of([*SIZES, "--model", model, *options])


def test_a_llama_becomes_a_granite() -> None:
    """Four times the base width, with heads of 32 channels."""
    config = resolved(*WIDE, "--mup-embedding-mult", "8", "--mup-base-head-dim", "16")
    model = config.architecture
    assert (model.embedding_multiplier, model.softmax_scale, model.logits_scaling) == (8.0, 0.125, 4.0)
    assert config.optimization.width_multiplier == 4
    assert huggingface.model_type(model) == "granite"
    assert huggingface.model_type(resolved().architecture) == "llama"


def test_multipliers_of_the_model_stay_factors() -> None:
    base = resolved(model="tiny-granite").architecture
    model = resolved(*WIDE, "--mup-embedding-mult", "0.5", model="tiny-granite").architecture
    assert (model.embedding_multiplier, model.logits_scaling) == (base.embedding_multiplier / 2, base.logits_scaling * 4)
    assert model.softmax_scale == base.softmax_scale is not None
    latent = resolved(*WIDE, model="tiny-deepseek-v2").architecture
    assert (latent.softmax_scale, latent.logits_scaling) == (None, 4.0)


@pytest.mark.parametrize("model", ["tiny", "tiny-granite", "tiny-gemma2"])
def test_checkpoints_name_the_options_and_what_they_result_in(model: str) -> None:
    config = resolved(*WIDE, "--mup-embedding-mult", "0.5", model=model)
    arguments = run_arguments(config)
    assert arguments["use_mup"] and arguments["mup_base_hidden_size"] == 32
    assert "use_mup" not in run_arguments(resolved(model=model))
    assert from_arguments(arguments, config.architecture.name) == config.architecture


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        (("--mup-base-hidden-size", "32"), "tiny", "--mup-base-hidden-size has no effect"),
        ((*WIDE, "--mup-attn-scale-power", "0.5"), "tiny-deepseek-v2", "latent attention has a scale of its own"),
        ((*WIDE, "--mup-base-head-dim", "16"), "tiny-granite", "tiny-granite has a scale of its own"),
        (WIDE, "tiny-gpt3", "--use-mup for a model with learned positions"),
    ],
)
def test_what_has_no_effect_is_refused(options: tuple[str, ...], model: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message) as refused:
        resolved(*options, model=model)
    remedy: Any = refused.value.hint
    assert remedy in ("add --use-mup", "drop them", "use RoPE and RMSNorm")
