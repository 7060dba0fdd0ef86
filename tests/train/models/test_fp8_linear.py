"""fp8 with torch's layers and the kernels: what is known of a tensor's amax, and where weight gradients go."""

import pytest
import torch
from fp8_training import ADDING, BY_KERNELS, ITERATIONS, LAYERS, MICRO_BATCHES, READING, Found, train
from torch import Tensor

from lt_train.kernels import amax_reduction, swiglu
from lt_train.models import fp8_linear
from lt_train.ops import fp8_casts, wgrad_accumulation

EXPERTS = ("--num-experts", "4", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "32")
ONCE = ("--train-iters", "1")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """In bf16 the buffers of gradients are of 16 bits, unless they are named `float32`."""
    in_bf16, in_fp32 = "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"
    runs = {
        "usual": ("", in_bf16),
        "reading": (READING, in_bf16),
        "adding": (ADDING, in_bf16),
        "float32": ("", in_fp32),
        "whole MLP": ("", in_bf16, "--recompute-granularity", "selective", "--recompute-modules", "mlp,swiglu", *ONCE),
        "recomputing": ("", in_bf16, "--recompute-granularity", "selective", "--recompute-modules", "swiglu"),
        "experts": ("", in_bf16, *EXPERTS, *ONCE),
    }
    return train(tmp_path_factory.mktemp("fp8"), {name: (way, *BY_KERNELS, *more) for name, (way, *more) in runs.items()})


def test_noted_numbers_train_as_those_read_do(found: dict[str, Found]) -> None:
    usual, reading = found["usual"], found["reading"]
    assert usual.losses == reading.losses
    # Of the inputs and output gradients of a layer's four GEMMs the kernels write all but what attention gives linear_proj.
    gemms = LAYERS * ITERATIONS * MICRO_BATCHES
    assert usual.read == gemms * (4 + 1)
    assert reading.read == gemms * (4 + 8)


def test_recomputing_swiglu_changes_nothing(found: dict[str, Found]) -> None:
    usual, recomputing = found["usual"], found["recomputing"]
    assert (recomputing.losses, recomputing.norms) == (usual.losses, usual.norms)
    steps = LAYERS * ITERATIONS * MICRO_BATCHES
    assert (usual.recomputed, recomputing.recomputed) == (0, steps)
    # The four weights' transposes, and that of what attention keeps.
    assert usual.cast_transpose == recomputing.cast_transpose == steps * (4 + 1)


def test_experts_are_grouped_and_in_16_bits(found: dict[str, Found]) -> None:
    """Of the weights only attention's two are cast, and of what attention keeps the transpose."""
    assert found["experts"].cast_transpose == LAYERS * MICRO_BATCHES * (2 + 1)


def test_a_recomputed_mlp_makes_swiglu_again_by_itself(found: dict[str, Found]) -> None:
    assert len(found["whole MLP"].losses) == 1
    assert found["whole MLP"].recomputed == 0


@pytest.mark.parametrize("buffers", ["usual", "float32"])
def test_gradients_in_their_buffers_are_those_added(buffers: str, found: dict[str, Found]) -> None:
    assert found[buffers].norms == pytest.approx(found["adding"].norms, rel=0.02)


class PlainCasts(fp8_casts.TorchCasts):
    """Without torch.compile."""

    def cast(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return fp8_casts._scaled(tensor, dtype, self.rowwise)

    def cast_transpose(self, tensor: Tensor, amax: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cast, factor = fp8_casts._scaled(tensor.t(), dtype, self.rowwise)
        return cast.contiguous(), factor

    def cast_and_transpose(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return *self.cast(tensor, None, dtype), *self.cast_transpose(tensor, None, dtype)


@pytest.fixture
def gemms(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """In place of torch's, which has no rows' scales on a CPU before 2.12; the dtypes of those that wrote into what they got."""
    written = []

    def gemm(
        left: Tensor, right: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype, out: Tensor | None, **_: bool
    ):
        result = ((left.float() * scale_a) @ (right.float() * scale_b)).to(out_dtype)
        if out is None:
            return result
        assert out.dtype == out_dtype
        written.append(out_dtype)
        return out.copy_(result)

    monkeypatch.setattr(torch, "_scaled_mm", gemm)
    return written


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("way", ["triton", "tensorwise", "rowwise"])
def test_the_first_gemm_of_a_step_overwrites_and_others_add(dtype: torch.dtype, way: str, gemms: list[torch.dtype]) -> None:
    torch.manual_seed(0)
    casts = fp8_casts.TritonCasts() if way == "triton" else PlainCasts(way == "rowwise")
    amax_reduction.enable(False)
    rows, gradients = torch.randn(2, 16, 1, 48, dtype=torch.bfloat16), torch.randn(2, 16, 1, 32, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(torch.randn(32, 48, dtype=torch.bfloat16))

    def backward(number: int, fused: bool) -> None:
        fp8 = fp8_linear.Fp8(fp8_linear.E5M2, casts, None)
        buffer = weight.main_grad if fused else None
        output = fp8.multiply(rows[number], weight, buffer, fp8_linear.TransposeSaved)
        output.backward(gradients[number])

    expected = []
    for number in range(2):
        weight.grad = None
        backward(number, False)
        assert weight.grad is not None
        expected.append(weight.grad.clone())
    assert not gemms
    weight.grad_added_to_main_grad = False
    weight.main_grad = torch.full((32, 48), 99, dtype=dtype)
    for _ in range(2):
        wgrad_accumulation._reset([], {weight.main_grad.data_ptr(): weight.main_grad})
        for number in range(2):
            weight.grad = None
            backward(number, True)
            assert weight.grad_added_to_main_grad
        torch.testing.assert_close(weight.main_grad.float(), (expected[0] + expected[1]).float(), rtol=1e-2, atol=0.1)
    assert gemms == ([] if (way, dtype) == ("rowwise", torch.float32) else [dtype] * 2)


def of_a_gemm(
    source: type[fp8_linear.Source], rows: Tensor, weight: torch.nn.Parameter, noting: bool, casts: fp8_casts.Casts
) -> tuple[list[Tensor], list[Tensor]]:
    """The output and the gradients of its sum's squares; what is kept for the backward pass."""
    kept: list[Tensor] = []
    amax_reduction.enable(noting)
    rows = rows.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        gated = swiglu.swiglu(rows) if source is fp8_linear.TransposeSaved else rows
        output = fp8_linear.Fp8(fp8_linear.E5M2, casts, None).multiply(gated, weight, None, source)
    return [output, *torch.autograd.grad(output.square().sum(), (rows, weight))], kept


@pytest.mark.parametrize(("recipe", "sizes", "noting"), [
    ("tensorwise", (150, 80, 32), True), ("tensorwise", (150, 80, 32), False), ("blockwise", (128, 256, 128), False)
])  # fmt: skip
def test_swiglu_is_cast_again_for_its_weights_gradient_and_not_kept(
    recipe: str, sizes: tuple[int, int, int], noting: bool, gemms: list[torch.dtype]
) -> None:
    torch.manual_seed(0)
    count, width, outputs = sizes
    rows = torch.randn(2, count, 2 * width, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(torch.randn(outputs, width, dtype=torch.bfloat16))
    casts = fp8_casts.choose(recipe, by_triton=True)
    expected, kept_before = of_a_gemm(fp8_linear.TransposeSaved, rows, weight, noting, casts)
    found, kept = of_a_gemm(fp8_linear.GateUpSaved, rows, weight, noting, casts)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert any(tensor.dtype == fp8_linear.E4M3 for tensor in kept_before)
    assert not any(tensor.dtype == fp8_linear.E4M3 for tensor in kept)
    amax_reduction.enable(False)
