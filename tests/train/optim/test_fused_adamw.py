"""A fused AdamW step: its numbers against torch's AdamW behind torch's clipping, and its order."""

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lt_train.kernels import split_master_weights
from lt_train.optim import fused_adamw
from lt_train.optim.fused_adamw import FusedAdamW, ParameterBuffers, ShardBuffers

SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SHAPES = ((5, 7), (11,))


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    """The process group of one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


class Stock:
    """torch's clipping and AdamW; a step whose gradients' norm is not finite is left out."""

    def __init__(self, weights: list[torch.Tensor], clip_grad: float):
        self.weights = [torch.nn.Parameter(weight.clone()) for weight in weights]
        self.optimizer = torch.optim.AdamW(self.weights, **SETTINGS)
        self.clip_grad = clip_grad

    def step(self, gradients: list[torch.Tensor]) -> float:
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.clip_grad or math.inf)
        if norm.isfinite():
            self.optimizer.step()
        return float(norm)


class Fused:
    """The same by `fused_adamw.step`, with one of megatron-core's optimizers for each weight, as experts have their own."""

    def __init__(self, weights: list[torch.Tensor], clip_grad: float, dtype: torch.dtype, group: Any):
        self.clip_grad = clip_grad
        self.buffers = [self.buffers_of(weight, dtype) for weight in weights]
        self.inner = [
            SimpleNamespace(
                optimizer=FusedAdamW([{"params": [buffers.master], **SETTINGS}], [buffers], []),
                get_grad_stats_parallel_group=lambda: group,
            )
            for buffers in self.buffers
        ]

    def buffers_of(self, weight: torch.Tensor, dtype: torch.dtype) -> ParameterBuffers:
        master, flat, low_bits = torch.nn.Parameter(weight.clone()), weight.clone().view(-1), None
        if dtype == torch.bfloat16:
            whole, flat, low_bits = flat, flat.bfloat16(), torch.empty(flat.shape, dtype=torch.int16)
            split_master_weights.split(whole, flat, low_bits)
        return ParameterBuffers(master, flat, low_bits, torch.zeros(flat.shape), True, None)

    def step_with_ready_grads(self) -> None:
        for outer in self.inner:
            outer.optimizer.step()

    def step(self, gradients: list[torch.Tensor]) -> Callable[[], float]:
        for buffers, gradient in zip(self.buffers, gradients, strict=True):
            buffers.gradient.copy_(gradient.view(-1))
        return fused_adamw.step(self, self.inner, self.clip_grad)  # type: ignore[arg-type]

    def weights(self) -> list[torch.Tensor]:
        return [
            own.weight if own.low_bits is None else split_master_weights.joined(own.weight, own.low_bits) for own in self.buffers
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip_grad", [1.0, 0.3, 0.0])
def test_steps_equal_stock_clipping_and_adamw(clip_grad: float, dtype: torch.dtype, group: Any) -> None:
    """Norms far above, a little above and below the limit, and some that are not finite, which no later step may notice."""
    torch.manual_seed(1)
    weights = [torch.randn(shape) for shape in SHAPES]
    stock, fused = Stock(weights, clip_grad), Fused(weights, clip_grad, dtype, group)
    for scale in (100.0, 0.4, math.nan, 1e-3, math.inf, math.nan, 1.7, 1e-4, 30.0):
        gradients = [torch.randn(shape) / 7 * scale for shape in SHAPES]
        norm = stock.step(gradients)
        outcome = fused.step(gradients)
        torch.testing.assert_close(outcome(), norm, equal_nan=True, rtol=1e-5, atol=0)
        for found, expected, shape in zip(fused.weights(), stock.weights, SHAPES, strict=True):
            torch.testing.assert_close(found.view(shape), expected.detach(), atol=2e-6, rtol=2e-6)


class Bucket:
    """Notes the weights at the moment they are sent."""

    def __init__(self, weights: list[torch.Tensor], seen: list[list[bool]]):
        self.weights, self.seen = weights, seen

    def start_param_sync(self) -> None:
        self.seen.append([bool(weight.eq(1).all()) for weight in self.weights])


def test_weights_of_a_bucket_are_sent_before_those_of_the_next_are_updated() -> None:
    weights = [torch.ones(3) for _ in range(3)]
    seen: list[list[bool]] = []
    last, first, empty = (Bucket(weights, seen) for _ in range(3))
    masters = [torch.nn.Parameter(weight) for weight in weights]
    buffers = [
        ParameterBuffers(master, weight, None, torch.ones(3), True, bucket)
        for master, weight, bucket in zip(masters, weights, (last, first, first), strict=True)
    ]
    FusedAdamW([{"params": masters, "lr": 0.1}], buffers, [first, empty, last]).step()
    unchanged, changed = True, False
    assert seen == [[unchanged, changed, changed], [unchanged, changed, changed], [changed] * 3]


def test_the_gradient_of_a_shard_is_that_of_the_last_backward_pass(group: Any) -> None:
    """FSDP makes a new tensor in each step; a shard without one stays as it is, as do its moments."""
    weights = [torch.ones(2), torch.ones(3)]
    shards = [torch.nn.Parameter(weight.clone()) for weight in weights]
    adamw = FusedAdamW([{"params": shards, **SETTINGS}], [ShardBuffers(shard, True) for shard in shards], [])
    stock = Stock(weights[:1], 0.3)
    optimizer = SimpleNamespace(optimizer=adamw, get_grad_stats_parallel_group=lambda: group, step_with_ready_grads=adamw.step)
    for scale in (3.0, 0.1, -2.0):
        gradient = torch.tensor([1.0, 2.0]) * scale
        shards[0].main_grad = gradient.clone()  # type: ignore[attr-defined]
        norm = stock.step([gradient])
        assert fused_adamw.step(optimizer, [optimizer], 0.3)() == pytest.approx(norm)  # type: ignore[arg-type, list-item]
        torch.testing.assert_close(shards[0], stock.weights[0], atol=2e-6, rtol=2e-6)
    assert shards[1].eq(1).all()
    assert not adamw.state[shards[1]]


def test_the_norm_is_that_of_all_shards(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank, whose shards have the same gradients, in each optimizer's group: all of them are those of one model."""
    groups = []

    def add_equal_rank(tensor: torch.Tensor, group: Any) -> None:
        groups.append(group)
        tensor.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", add_equal_rank)
    weights, gradients = [torch.zeros(2) for _ in range(2)], [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 12.0])]
    fused = Fused(weights, 1.0, torch.float32, group)
    assert fused.step(gradients)() == pytest.approx(math.sqrt(2 * (3**2 + 4**2 + 12**2)))
    assert groups == [group, group]
