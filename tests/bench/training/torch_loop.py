"""The same Llama as a bare torch training loop: what is possible without any trainer around it.

bf16 weights and gradients, float32 master weights and moments, one compiled pass for AdamW; layers compiled one by one; the head
and its cross entropy in chunks of tokens, so that the logits are never held whole.
"""

import contextlib
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lt_shared.models.architecture import Architecture
from training.attention import attention
from training.workload import Result, StepClock, Workload, peak_memory, say

LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY, CLIP = 1e-4, 0.9, 0.95, 1e-8, 0.1, 1.0
LOSS_ROWS = 8192


class Layer(torch.nn.Module):
    def __init__(self, architecture: Architecture, mix: str):
        super().__init__()
        self.architecture = architecture
        hidden, inner = architecture.hidden_size, architecture.ffn_hidden_size
        self.attention_norm = torch.nn.Parameter(torch.ones(hidden))
        self.mlp_norm = torch.nn.Parameter(torch.ones(hidden))
        self.projections = torch.nn.Linear(hidden, architecture.query_size + 2 * architecture.kv_size, bias=False)
        self.output = torch.nn.Linear(architecture.query_size, hidden, bias=False)
        self.gate_and_up = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)
        self.mix = attention(mix)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """x [b, s, hidden]; cosines and sines [s, 1, d / 2], float32."""
        sizes, batch, sequence = self.architecture, *x.shape[:2]
        normed = functional.rms_norm(x, x.shape[-1:], self.attention_norm, sizes.norm_epsilon)
        parts = self.projections(normed).view(batch, sequence, -1, sizes.kv_channels)
        query, key, value = parts.split([sizes.num_attention_heads, sizes.num_query_groups, sizes.num_query_groups], dim=2)
        mixed = self.mix(rotate(query, cosines, sines), rotate(key, cosines, sines), value)
        x = x + self.output(mixed.reshape(batch, sequence, -1))
        normed = functional.rms_norm(x, x.shape[-1:], self.mlp_norm, sizes.norm_epsilon)
        gate, up = self.gate_and_up(normed).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


class HeadLoss(torch.autograd.Function):
    """The mean cross entropy of `hidden` [n, hidden] times `weight` [vocabulary, hidden]; finds gradients in the forward pass.

    Must be the root of the backward pass: it takes the gradient of its output for one.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, scale: float, softmax: Callable[..., Any]) -> Tensor:
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
        loss = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), LOSS_ROWS):
            rows = slice(start, start + LOSS_ROWS)
            summed, gradient = softmax(hidden[rows] @ weight.t(), labels[rows], scale)
            loss += summed
            torch.mm(gradient, weight, out=hidden_gradient[rows])
            weight_gradient.addmm_(gradient.t(), hidden[rows])
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient, weight_gradient, None, None, None


def softmax_loss(logits: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The losses' sum times `scale`, and its gradient by `logits` [n, vocabulary] in their type."""
    values = logits.float()
    log_sums = values.logsumexp(dim=-1, keepdim=True)
    chosen = values.gather(1, labels[:, None])
    hits = torch.arange(logits.shape[-1], device=logits.device) == labels[:, None]
    gradient = ((values - log_sums).exp() - hits.float()) * scale
    return (log_sums - chosen).sum() * scale, gradient.to(logits.dtype)


class Model(torch.nn.Module):
    def __init__(self, architecture: Architecture, mix: str):
        super().__init__()
        self.architecture = architecture
        self.embedding = torch.nn.Embedding(architecture.vocab_size, architecture.hidden_size)
        self.layers = torch.nn.ModuleList(Layer(architecture, mix) for _ in range(architecture.num_layers))
        self.norm = torch.nn.Parameter(torch.ones(architecture.hidden_size))
        self.head = self.embedding.weight
        if not architecture.tie_embeddings:
            self.head = torch.nn.Parameter(torch.empty_like(self.embedding.weight))
        for weight in (weight for weight in self.parameters() if weight.dim() > 1):
            torch.nn.init.normal_(weight, std=architecture.init_std)

    def forward(self, tokens: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """tokens [b, s]; returns [b * s, hidden]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, *rotation)
        return functional.rms_norm(x, x.shape[-1:], self.norm, self.architecture.norm_epsilon).flatten(0, 1)


def rotation(architecture: Architecture, sequence: int, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines [s, 1, d / 2]. Without the scaling of Llama 3.1, which changes no shape."""
    size = architecture.kv_channels
    frequencies = architecture.rotary_base ** (-torch.arange(0, size, 2, device=device).float() / size)
    angles = torch.outer(torch.arange(sequence, device=device).float(), frequencies)[:, None]
    return angles.cos(), angles.sin()


class AdamW:
    """One pass over weight, gradient, master weight and both moments of each parameter, after clipping by the norm of all."""

    def __init__(self, parameters: list[torch.nn.Parameter], compiled: Callable[..., Any]):
        self.parameters = parameters
        self.masters = [parameter.detach().to(torch.float32, copy=True).view(-1) for parameter in parameters]
        self.means = [torch.zeros_like(master) for master in self.masters]
        self.squares = [torch.zeros_like(master) for master in self.masters]
        self.count = torch.zeros((), device=self.masters[0].device)
        self.update = compiled(update, dynamic=True)

    @torch.no_grad()
    def step(self) -> None:
        gradients = [parameter.grad.view(-1) for parameter in self.parameters if parameter.grad is not None]
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
        clip = (CLIP / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
        self.count += 1
        for parameter, gradient, *state in zip(self.parameters, gradients, self.masters, self.means, self.squares, strict=True):
            decay = WEIGHT_DECAY if parameter.dim() > 1 else 0.0
            self.update(parameter.view(-1), gradient, *state, clip, self.count, decay)
            parameter.grad = None


def update(
    weight: Tensor, gradient: Tensor, master: Tensor, mean: Tensor, square: Tensor, clip: Tensor, count: Tensor, decay: float
) -> None:
    gradient = gradient.float() * clip
    mean.lerp_(gradient, 1 - BETA1)
    square.lerp_(gradient * gradient, 1 - BETA2)
    size = (mean / (1 - BETA1**count)) / ((square / (1 - BETA2**count)).sqrt() + EPSILON)
    master.sub_(LEARNING_RATE * (size + decay * master))
    weight.copy_(master)


def prepare(work: Workload) -> None:
    """Imports what torch.compile and flash-attn-4 import when they are first used."""
    names = ["torch._dynamo", "torch._inductor.compile_fx"]
    names += ["flash_attn.cute.interface"] if work.settings["attention"] == "flash4" else []
    names += ["torchao.float8"] if work.precision == "fp8" else []
    for name in names:
        importlib.import_module(name)


def run(work: Workload) -> Result:
    on_gpu = work.device == "cuda"
    torch.manual_seed(1)
    if on_gpu:
        # Every layer compiles the same code; the optimizer sees as many lengths as there are kinds of weights.
        torch._dynamo.config.cache_size_limit = 64
    compiled = torch.compile if on_gpu else (lambda function, **options: function)
    architecture, mix = work.architecture, work.settings["attention"] if on_gpu else "any"
    with torch.device(work.device), default_dtype(torch.bfloat16):
        model = Model(architecture, mix)
    if work.precision == "fp8":
        _use_float8(model)
    if on_gpu:
        for layer in model.layers:
            layer.compile(dynamic=False)
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, compiled)
    softmax = compiled(softmax_loss, dynamic=False)
    angles = rotation(architecture, work.shape.sequence_length, work.device)
    batches = work.batches()
    losses: list[Tensor] = []
    clock = StepClock(work)
    clock.mark()
    for _ in range(work.warmup_steps + work.steps):
        total = torch.zeros((), device=work.device)
        for _ in range(work.micro_batches):
            tokens, labels = (tensor.to(work.device, non_blocking=True) for tensor in next(batches))
            hidden = model(tokens, angles)
            loss = HeadLoss.apply(hidden, model.head, labels.reshape(-1), 1 / work.tokens_per_step, softmax)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
        clock.mark()
    seconds = clock.seconds()
    found = [float(loss) for loss in losses]
    if not all(map(math.isfinite, found)):
        raise ArithmeticError(f"losses {found}")
    say(f"losses {found[0]:.4f} to {found[-1]:.4f}")
    settings = f"{mix} attention, layers and AdamW compiled, cross entropy in chunks of {LOSS_ROWS} tokens"
    if work.precision == "fp8":
        settings += ", torchao float8 tensorwise"
    count = sum(parameter.numel() for parameter in parameters)
    return Result(count, work.tokens_per_step, seconds, peak_memory(work.device), found, settings, {"torch": torch.__version__})


def _use_float8(model: Model) -> None:
    """torchao's float8 training, a scale for each tensor, in the layers' matrix products."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(model.layers, config=Float8LinearConfig.from_recipe_name("tensorwise"))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)
