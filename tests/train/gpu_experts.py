"""The kernels of expert layers on a GPU beside torch's operations there: `python tests/train/gpu_experts.py`.

Not a part of the test session, which runs without a GPU. The order of rows and what is spread must be equal; the gradient of
SwiGLU, and RoPE's with norms of queries and keys, close to torch's. Then their times at the sizes of Qwen3-30B-A3B and Mixtral
8x7B, in bytes by the second, where a copy on an H200 reaches 4.2 TB/s, and beside them those of what they replace. Fails when a
result differs.
"""

import sys
from collections.abc import Iterator

import torch
from gpu_fp8 import error, taken
from torch import Tensor

from lt_train.kernels import expert_rows, rotary
from lt_train.ops import expert_rows as by_torch
from lt_train.ops.expert_mlp import RowOperations

# Of results in bfloat16.
CLOSE = 1e-2
TOKENS = 16384
# Experts, experts of a token, hidden size, size of an expert, heads, groups of heads, and whether these have norms.
MODELS = {"Qwen3-30B-A3B": (128, 8, 2048, 768, 32, 4, True), "Mixtral 8x7B": (8, 2, 4096, 14336, 32, 8, False)}
SIZE = 128


def main() -> int:
    torch.manual_seed(0)
    failed = []
    for model, sizes in MODELS.items():
        for name, difference, limit in differences(*sizes):
            is_right = difference <= limit
            print(f"{model}, {name:50} {difference:9.1e}" + ("" if is_right else f"  ABOVE {limit}"), flush=True)
            if not is_right:
                failed.append(f"{model}, {name}")
    print(f"failed: {', '.join(failed) or 'none'}", flush=True)
    for model, sizes in MODELS.items():
        for name, milliseconds, rate in speeds(*sizes):
            print(f"{model}, {name:50} {milliseconds:8.3f} ms {rate}", flush=True)
    return 1 if failed else 0


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def routing(experts: int, chosen: int) -> Tensor:
    scores = torch.randn(TOKENS, experts, device="cuda") + torch.randn(experts, device="cuda")
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(chosen).indices, True)


def differences(
    experts: int, chosen: int, hidden: int, inner: int, heads: int, groups: int, norms: bool
) -> Iterator[tuple[str, float, float]]:
    whole = routing(experts, chosen)
    for name, routing_map in (("all experts", whole), ("half of the experts", whole[:, : experts // 2].contiguous())):
        rows = int(routing_map.sum())
        (borders, known), (expected_borders, _) = (each.count_rows(routing_map) for each in (expert_rows, by_torch))
        token, expert, places = expert_rows.order_rows(routing_map, chosen, known)
        expected = by_torch.order_rows(routing_map, chosen, known)
        found = borders, token[:rows], expert[:rows], places
        wanted = expected_borders, expected[0][:rows], expected[1][:rows], expected[2]
        yield f"order of rows, {name}", float(not all(map(torch.equal, found, wanted))), 0
        tokens = normal(TOKENS, hidden)
        spread = expert_rows.spread_rows(tokens, places, token[:rows])
        yield f"rows of tokens, {name}", float(not torch.equal(spread, tokens[token[:rows]])), 0
        numbers = tokens.view(torch.uint8)
        spread = expert_rows.spread_rows(numbers, places, token[:rows])
        yield f"rows of 8 bits, {name}", float(not torch.equal(spread, numbers[token[:rows]])), 0
    gradient, gate_up, weights = normal(4099, inner), normal(4099, 2 * inner), torch.rand(4099, device="cuda")
    parts = zip(
        ("gate and up", "probabilities", "output"),
        expert_rows.weighted_swiglu_gradient(gradient, gate_up, weights, None, None),
        by_torch._weighted_swiglu_gradient(gradient, gate_up, weights, None),
        strict=True,
    )
    for name, one, other in parts:
        yield f"gradient of SwiGLU, {name}", error(one, other), CLOSE
    mixed, cosines, sines, slopes, of_heads = projection(heads, groups, norms)
    (query, key, value), inputs = split(mixed, cosines, sines, groups, of_heads)
    gradients = torch.autograd.grad((query, key, value), inputs, slopes)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    results = by_formula(exact[0], cosines.double(), sines.double(), groups, exact[1:])
    for number, (one, other) in enumerate(
        zip(gradients, torch.autograd.grad(results, exact, [slope.double() for slope in slopes]), strict=True)
    ):
        yield f"gradient of RoPE, {number}", error(one, other), CLOSE


def projection(heads: int, groups: int, norms: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor], rotary.HeadNorms | None]:
    sequence, batch = TOKENS // 4, 4
    angles = torch.rand(sequence, SIZE // 2, device="cuda")
    slopes = [normal(batch, sequence, count, SIZE).transpose(0, 1) for count in (heads, groups, groups)]
    weights = [(1 + 0.1 * torch.randn(SIZE, device="cuda")).bfloat16().requires_grad_() for _ in range(2)]
    mixed = normal(sequence, batch, (heads + 2 * groups) * SIZE).requires_grad_()
    return mixed, angles.cos(), angles.sin(), slopes, rotary.HeadNorms(*weights, 1e-6) if norms else None


def split(
    mixed: Tensor, cosines: Tensor, sines: Tensor, groups: int, norms: rotary.HeadNorms | None
) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor]]:
    """The heads, and what has a gradient."""
    return rotary.split_and_rotate(mixed, cosines, sines, groups, SIZE, norms), [mixed, *(norms[:2] if norms else ())]


def by_formula(mixed: Tensor, cosines: Tensor, sines: Tensor, groups: int, weights: list[Tensor]) -> list[Tensor]:
    parts = mixed.view(*mixed.shape[:2], groups, -1, SIZE)
    query, key, value = parts[..., :-2, :].flatten(2, 3), parts[..., -2, :], parts[..., -1, :]
    found = []
    for number, part in enumerate((query, key)):
        if weights:
            part = part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights[number]
        first, second = part.chunk(2, -1)
        cosine, sine = cosines[:, None, None], sines[:, None, None]
        found.append(torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1))
    return [*found, value]


def speeds(
    experts: int, chosen: int, hidden: int, inner: int, heads: int, groups: int, norms: bool
) -> Iterator[tuple[str, float, str]]:
    routing_map, tokens = routing(experts, chosen), normal(TOKENS, hidden)
    for kind, operations in (("kernels", expert_rows), ("torch", by_torch)):
        yield f"order of rows by {kind}", *taken(0, ordered, operations, routing_map, chosen)
    token, _, places = ordered(expert_rows, routing_map, chosen)
    moved = 2 * (1 + chosen) * tokens.numel()
    yield "rows of tokens, spread", *taken(moved, expert_rows.spread_rows, tokens, places, token)
    yield "rows of tokens, gathered", *taken(moved, tokens.index_select, 0, token)
    yield "sums of rows", *taken(moved, expert_rows.sum_rows, expert_rows.spread_rows(tokens, places, token), places)
    rows = TOKENS * chosen
    operands = normal(rows, inner), normal(rows, 2 * inner), torch.rand(rows, device="cuda"), None, None
    yield "gradient of SwiGLU", *taken(12 * rows * inner, expert_rows.weighted_swiglu_gradient, *operands)
    del operands
    mixed, cosines, sines, slopes, of_heads = projection(heads, groups, norms)
    results, inputs = split(mixed, cosines, sines, groups, of_heads)
    moved = (6 if norms else 4) * mixed.numel()
    yield "gradient of RoPE", *taken(moved, lambda: torch.autograd.grad(results, inputs, slopes, retain_graph=True))


def ordered(operations: RowOperations, routing_map: Tensor, chosen: int) -> tuple[Tensor, Tensor, Tensor]:
    _, known = operations.count_rows(routing_map)
    return operations.order_rows(routing_map, chosen, known)


if __name__ == "__main__":
    sys.exit(main())
