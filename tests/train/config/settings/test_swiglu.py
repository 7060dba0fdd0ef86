"""Where SwiGLU cannot be computed inside the matrix products, making it again there is refused before anything starts."""

import pytest
from click.testing import CliRunner

from lt_train.commands.plan_layout import command

AGAIN = ("--recompute-granularity", "selective", "--recompute-modules", "swiglu,swiglu")
PLAN = (
    "--model",
    "llama3-8b",
    "--bf16",
    "--gpu",
    "h200-141gb",
    "--seq-length",
    "8192",
    "--swiglu-in",
    "products",
    *AGAIN,
)


def planned(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, [*PLAN, *options])
    return result.exit_code, result.output + str(result.exception)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        (("--use-torch-fsdp2",), "--use-torch-fsdp2"),
        (("--tensor-model-parallel-size", "2"), "tensor parallel size 2"),
        (("--fp8-format", "hybrid", "--fp8-recipe", "rowwise"), "--fp8-recipe rowwise"),
        (("--fp8-format", "hybrid", "--swiglu-in", "kernel", "--kernels", "torch"), "--kernels torch"),
        (("--fp8-format", "hybrid", "--swiglu-in", "kernel", "--transformer-impl", "te"), "--transformer-impl te"),
        (("--fp8-format", "hybrid", "--model", "mixtral-8x7b"), "experts"),
        (("--model", "mixtral-8x7b"), "experts"),
        (("--model", "gpt3-1.7b", "--seq-length", "2048"), "a model without SwiGLU"),
        (("--ffn-hidden-size", "14340"), "multiples of 8"),
        (("--swiglu-in", "kernel"), "a kernel of its own"),
        (("--transformer-impl", "te"), "--swiglu-in products is for torch layers"),
        (("--transformer-impl", "te", "--swiglu-in", "auto"), "not for --transformer-impl te"),
        (("--gpu", "a100-80gb"), "needs a Hopper GPU: its compute capability is 8.0, 9.0 is needed"),
        (("--gpu", "b200-180gb"), "needs a Hopper GPU: its compute capability is 10.0"),
    ],
)
def test_obstacles(options: tuple[str, ...], obstacle: str) -> None:
    code, said = planned(*options)
    assert code
    assert obstacle in said


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--fp8-format", "hybrid"),
        ("--fp8-format", "e4m3", "--tensor-model-parallel-size", "2"),
        ("--fp8-format", "hybrid", "--gpu", "b200-180gb"),
    ],
)
def test_nothing_in_the_way(options: tuple[str, ...]) -> None:
    code, said = planned(*options)
    assert code == 0, said
