"""The decoder beside megatron-core's GPTModel: the same losses, gradients, marks of parameters, and entries of checkpoints.

Families that GPTModel cannot express stand beside transformers' in test_models.py.
"""

import json
import subprocess
from importlib.metadata import version
from typing import Any

import nursery
import pytest
import shared_groups
import stock_model
from families import compare
from running import environment

SIZES = (
    *("--mock-data", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--seq-length", "16"),
    *("--device", "cpu", "--ranks", "1", "--micro-batch-size", "2", "--global-batch-size", "2"),
)
# A vocabulary that is padded would differ: megatron-core has the padding in its softmax.
MODELS = {
    "tied": ("--model", "tiny"),
    "untied": ("--model", "tiny", "--untie-embeddings-and-output-weights"),
    "gpt": ("--model", "tiny-gpt3"),
    "window": ("--model", "tiny-mistral", "--window-size", "8"),
    "glm4-moe": ("--model", "tiny-glm4-moe", "--mtp-num-layers", "0"),
    **{name: ("--model", f"tiny-{name}") for name in ("qwen2", "qwen3", "mixtral", "qwen3-moe")},
}
if version("megatron-core").startswith("0.19"):
    WIDE = ("--use-mup", "--mup-base-hidden-size", "16", "--mup-embedding-mult", "4", "--mup-base-head-dim", "8")
    MODELS |= {"mup": (*MODELS["untied"], *WIDE), "mup-experts": (*MODELS["mixtral"], *WIDE)}
# Of the largest number: roundings of float32 in sums of other orders, as attention without a matrix of scores has them.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def differences() -> dict[str, dict[str, Any]]:
    commands = {name: [*options, "--vocab-size", "1024", *SIZES] for name, options in MODELS.items()}
    return compare(commands, stock_model.__file__)


@pytest.mark.parametrize("model", MODELS)
def test_losses_logits_and_gradients_are_those_of_megatron_core(model: str, differences: dict[str, dict[str, Any]]) -> None:
    found = differences[model]
    assert len(found["blocks"]) == 2
    assert max(found["losses"], found["logits"], *found["blocks"]) < TOLERANCE
    assert {name: error for name, error in found["gradients"].items() if error > TOLERANCE} == {}
    assert len(found["gradients"]) > 10 and found["no gradient"] == []


@pytest.mark.parametrize("model", MODELS)
def test_optimizers_and_checkpoints_see_the_same_parameters(model: str, differences: dict[str, dict[str, Any]]) -> None:
    found = differences[model]
    assert [found[name] for name in ("names", "marks", "entries")] == [[], [], []]
    assert found.get("rates", {}) == {}


def test_ranks_that_share_query_groups_compute_as_megatron_core() -> None:
    """Each rank's shards of weights, gradients and checkpoints are those of megatron-core's attention."""
    options = (*MODELS["qwen3"], *SIZES, "--vocab-size", "1024", "--num-attention-heads", "8", "--num-query-groups", "2")
    ranks = ("--tensor-model-parallel-size", "4", "--ranks", "4")
    command = [nursery.python(), shared_groups.__file__, *options, *ranks]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())
    assert result.returncode == 0, result.stderr
    differences = json.loads(result.stdout)
    assert len(differences) == 4
    for found in differences:
        assert max(found["losses"], found["logits"], *found["blocks"]) < TOLERANCE
        assert {name: error for name, error in found["gradients"].items() if error > TOLERANCE} == {}
        assert [found[name] for name in ("no gradient", "names", "marks", "entries")] == [[], [], [], []]
