"""How many gradients ranks sum at a time."""

import pytest
from layouts import plan_of

from lt_train.parallel.ddp import bucket_elements
from lt_train.planner.rank_parameters import layer_parameters

GPUS = ("--mock-data", "--eval-iters", "0", "--device", "cpu", "--bf16", "--use-distributed-optimizer")
LAYER_OF_8B = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--model", "llama3.1-8b", "--ranks", "2"), LAYER_OF_8B),
        (("--model", "tiny", "--ranks", "2"), 40_000_000),
        (("--model", "tiny", "--ranks", "64", "--global-batch-size", "64"), 64_000_000),
    ],
    ids=["a layer", "a small model", "many ranks"],
)
def test_a_layer_and_what_many_ranks_need(options: tuple[str, ...], expected: int) -> None:
    plan = plan_of((*GPUS, *options))
    layer_elements, _ = layer_parameters(plan.architecture, plan.parallelism, plan.architecture.num_layers - 1)
    assert bucket_elements(plan.parallelism.data, layer_elements) == expected
