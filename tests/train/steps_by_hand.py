"""Single optimizer steps on random tokens, two ranks in one launch: what the loop does is taken apart and looked at.

`results` starts the ranks and returns what every function below with a name in SCENARIOS found; as a program this file is one of
the ranks. Rank 0 writes the results.
"""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nursery
import torch
from groups_left import leave_groups
from layouts import plan_of
from reserved_ports import free_port
from running import environment
from sharded_kernels import peer_losses, sharded_losses
from split_layers import fused_layers

from lt_train.config import kernels
from lt_train.config.run_config import RunConfig
from lt_train.process.rank_environment import RankEnvironment

CPU = torch.device("cpu")
RANKS = 2
# Before it, torch's product of fp8 numbers on a CPU knew one scale per tensor only.
ROWWISE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
# Samples of a step, in two micro batches on each rank.
BATCH = 4
# Few tokens: torch multiplies matrices of 16 bits on a CPU at a thirtieth of the speed of those in fp32.
SIZES = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128", "--seq-length", "16"),
    *("--micro-batch-size", "1", "--global-batch-size", str(BATCH), "--train-iters", "100", "--device", "cpu"),
    *("--ranks", str(RANKS)),
)
FIRST_SCALE = 2.0**24
# Of few tokens a gradient has few dimensions, and Muon's iteration enlarges the rounding of the others.
MANY_TOKENS = ("--seq-length", "32", "--micro-batch-size", "2", "--global-batch-size", "8")


def results(place: Path, prefix: str) -> dict[str, Any]:
    """Run all scenarios; `prefix` is any dataset: nothing is read of it but its vocabulary."""
    port = free_port()
    ranks = [
        subprocess.Popen([nursery.python(), __file__, str(place), prefix, str(rank), str(port)], env=environment())
        for rank in range(RANKS)
    ]
    codes = [rank.wait(600) for rank in ranks]
    assert codes == [0] * RANKS
    return dict(json.loads((place / "results.json").read_text()))


class Run:
    """A model with its optimizer, and steps on tokens that depend on the step alone, however the ranks share them."""

    def __init__(self, prefix: str, *options: str):
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        from lt_train.checkpoint.training_state import TrainingState
        from lt_train.models import builder
        from lt_train.optim import optimizer
        from lt_train.train.forward_backward import ForwardBackward
        from lt_train.train.train_step import Stepper

        self.plan: RunConfig = plan_of([*SIZES, *options, prefix])
        leave_groups()
        sizes = self.plan.parallelism
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=sizes.tensor,
            pipeline_model_parallel_size=sizes.pipeline,
            expert_model_parallel_size=sizes.expert,
            expert_tensor_parallel_size=self.plan.expert_tensor_parallel,
        )
        model_parallel_cuda_manual_seed(self.plan.seed)
        chosen = kernels.choose(self.plan, None)
        optimization, precision, batches = self.plan.optimization, self.plan.precision, self.plan.batches
        chunks = builder.build(self.plan, chosen, CPU)
        self.state = TrainingState(chunks, *optimizer.build(optimization, precision, batches.train_samples, chosen.adamw, chunks))
        self.forward_backward = ForwardBackward(
            batches, sizes, chunks, CPU, averages_tokens=self.plan.optimization.averages_tokens
        )
        self.stepper = Stepper(self.forward_backward, optimization, precision, self.plan.skipping, self.plan.faults, self.state)

    def step(self, mask: float = 1.0) -> Any:
        """The result of a step in which the loss of every token of the last rank counts `mask` times."""
        return self.stepper.train(self._batches(mask))

    def _batches(self, mask: float) -> Iterator[dict[str, torch.Tensor]]:
        from megatron.core import parallel_state

        rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
        last = rank == ranks - 1
        shape = (self.plan.batches.micro_batch_size, self.plan.batches.seq_length)
        for number in itertools.count(rank, ranks):
            generator = torch.Generator().manual_seed(1000 * self.state.iteration + number)
            tokens = torch.randint(0, self.plan.architecture.vocab_size, (shape[0], shape[1] + 1), generator=generator)
            yield {
                "tokens": tokens[:, :-1],
                "labels": tokens[:, 1:],
                "position_ids": torch.arange(shape[1]).expand(shape),
                "loss_mask": torch.full(shape, mask if last else 1.0),
            }

    def weights(self) -> dict[str, torch.Tensor]:
        from lt_train.models.chunks import unwrap

        return {name: weight.detach().clone() for name, weight in unwrap(self.state.chunks[0]).named_parameters()}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in before if not torch.equal(before[name], after[name])]


def not_a_number(prefix: str) -> dict[str, Any]:
    """A NaN in the data of one rank, between two good steps."""
    found = {}
    for name, options in {
        "fp32": (),
        "bf16": ("--bf16",),
        "distributed": ("--bf16", "--use-distributed-optimizer"),
        "unclipped": ("--clip-grad", "0"),
    }.items():
        run = Run(prefix, *options)
        first = run.step()
        samples, before = run.state.scheduler.num_steps, run.weights()
        bad = run.step(mask=math.nan)
        skipped = changed(before, run.weights())
        kept_schedule = run.state.scheduler.num_steps == samples
        good = run.step()
        found[name] = {
            "updated": [first.updated, bad.updated, good.updated],
            "bad": [math.isnan(bad.loss), math.isfinite(bad.grad_norm)],
            "changed": skipped,
            "kept_schedule": kept_schedule,
            "good_loss": good.loss,
            "changed_later": bool(changed(before, run.weights())),
            "consumed": run.state.consumed_samples,
        }
    return found


def loss_scaling(prefix: str) -> dict[str, Any]:
    """fp16 from a loss scale that is too high, beside fp32, and with a fixed scale."""
    falling = ("--fp16", "--hysteresis", "1", "--initial-loss-scale")
    high = Run(prefix, "--lr", "1e-3", *falling, str(FIRST_SCALE), "--loss-scale-window", "3")
    steps = [high.step() for _ in range(16)]
    fixed = Run(prefix, "--lr", "1e-3", "--fp16", "--loss-scale", "1024")
    fixed_steps = [fixed.step() for _ in range(3)]
    stuck = Run(prefix, *falling, str(2.0**30), "--min-loss-scale", str(2.0**29))
    falls = [stuck.step().scale_falls for _ in range(2)]
    fp32 = Run(prefix, "--lr", "1e-3")
    return {
        "scales": [result.loss_scale for result in steps],
        "updated": [result.updated for result in steps],
        "schedule": high.state.scheduler.num_steps,
        "fixed_scales": [result.loss_scale for result in fixed_steps],
        "fixed_losses": [result.loss for result in fixed_steps],
        "fp32_losses": [fp32.step().loss for _ in fixed_steps],
        "falls": falls,
    }


def weight_decay(prefix: str) -> dict[str, Any]:
    """Steps without a gradient: what shrinks, and by how much."""
    options = ("--lr", "0.1", "--lr-decay-style", "constant", "--lr-warmup-iters", "0")
    rising = ("--start-weight-decay", "0", "--end-weight-decay", "1", "--weight-decay-incr-style", "linear")
    found: dict[str, Any] = {}
    for name, more in {"llama": (), "gpt": ("--model", "gpt3-1.7b", "--num-attention-heads", "4"), "rising": rising}.items():
        run = Run(prefix, *options, "--weight-decay", "0.5", *more)
        state = run.state
        for chunk in state.chunks:
            chunk.zero_grad_buffer()
        before = run.weights()
        factors = []
        for _ in range(2):
            state.optimizer.step()
            state.scheduler.step(increment=BATCH)
            after = run.weights()
            factors.append({key: _ratio(before[key], after[key]) for key in before})
            before = after
        found[name] = factors
    return found


def _ratio(before: torch.Tensor, after: torch.Tensor) -> float:
    """How much of a tensor is left; zeros, as in new biases, stay what they are."""
    size = float(before.double().norm())
    return float(after.double().norm()) / size if size else float(torch.equal(before, after))


def schedules(prefix: str) -> dict[str, list[float]]:
    """Learning rates before each step."""
    common = ("--lr", "1", "--min-lr", "0.1", "--lr-warmup-iters", "10", "--lr-warmup-init", "0.05")
    found = {}
    for style, more in {
        "cosine": (),
        "linear": ("--lr-decay-iters", "80"),
        "constant": (),
        "inverse-square-root": (),
        "WSD": ("--lr-wsd-decay-style", "linear", "--lr-wsd-decay-iters", "20"),
    }.items():
        scheduler = Run(prefix, *common, "--lr-decay-style", style, *more).state.scheduler
        rates = []
        for _ in range(100):
            rates.append(scheduler.optimizer.param_groups[0]["lr"])
            scheduler.step(increment=BATCH)
        found[style] = rates
    return found


def repeated(prefix: str) -> dict[str, Any]:
    """The same run twice, and with another seed."""

    def losses(*options: str) -> list[float]:
        run = Run(prefix, *options)
        return [run.step().loss for _ in range(3)]

    return {"first": losses(), "second": losses(), "other": losses("--seed", "7")}


def width_transfer(prefix: str) -> dict[str, Any]:
    """Deviations of the initial weights, their largest change in one step by matrix, and sizes after some steps by width."""
    plain = ("--lr", "0.01", "--lr-warmup-iters", "0", "--weight-decay", "0", "--clip-grad", "0", "--lr-decay-style", "constant")
    transfer = ("--use-mup", "--mup-base-hidden-size", "16")
    steps = {}
    for name, options in {"mup": (*plain, *transfer, "--use-distributed-optimizer"), "plain": plain}.items():
        run = Run(prefix, *options, "--untie-embeddings-and-output-weights")
        before = run.weights()
        run.step()
        after = run.weights()
        steps[name] = {
            weight: [float(before[weight].std()), float((after[weight] - before[weight]).abs().max())] for weight in before
        }
    sizes = {
        name: {width: _sizes_after_steps(prefix, width, *plain, *options) for width in (32, 128)}
        for name, options in {"mup": (*transfer, "--mup-base-head-dim", "16"), "plain": ()}.items()
    }
    return {"steps": steps, "sizes": sizes}


def _sizes_after_steps(prefix: str, width: int, *options: str) -> list[float]:
    """Root mean squares of the change of the last block's output and of the logits, by five steps on the same tokens."""
    from lt_train.models.chunks import unwrap

    heads = ("--kv-channels", "16", "--num-attention-heads", str(width // 16), "--num-query-groups", str(width // 16))
    run = Run(prefix, "--hidden-size", str(width), "--ffn-hidden-size", str(2 * width), *heads, *options)
    model = unwrap(run.state.chunks[0])
    tokens = torch.randint(run.plan.architecture.vocab_size, (1, 16), generator=torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    model.decoder.layers[-1].register_forward_hook(
        lambda module, inputs, output: seen.append(output[0] if isinstance(output, tuple) else output)
    )

    @torch.no_grad()
    def outputs() -> list[torch.Tensor]:
        seen.clear()
        logits = model(tokens, torch.arange(16).expand_as(tokens), None)
        return [seen[0].clone(), logits[..., : run.plan.architecture.vocab_size].clone()]

    before = outputs()
    for _ in range(5):
        run.step()
    return [float((new - old).square().mean().sqrt()) for old, new in zip(before, outputs(), strict=True)]


def token_average(prefix: str) -> dict[str, Any]:
    """The first step if the tokens of the last rank count 1, 0 and 0.5 times: its loss and the norm of its gradients."""
    options = {"micro batches": (), "tokens": ("--calculate-per-token-loss",)}
    steps = {}
    for name, words in options.items():
        for mask in (1.0, 0.0, 0.5):
            step = Run(prefix, *words).step(mask)
            steps[f"{name} {mask}"] = [step.loss, step.grad_norm]
    return steps


def expert_routing(prefix: str) -> dict[str, Any]:
    """The largest differences between a router's gradients, or a layer's dropped tokens, and the formulas of the papers.

    Each rank has two micro batches of two sequences, whose last tokens prefer the first expert.
    """
    found: dict[str, Any] = {}
    for kind in ("aux_loss", "seq_aux_loss", "global_aux_loss"):
        run, router = _router(prefix, "--moe-router-load-balancing-type", kind, "--moe-aux-loss-coeff", "0.5")
        inputs = _router_inputs(router)
        found[kind] = _difference(_router_gradient(router, inputs), _balancing_gradient(router, inputs, kind, 0.5))
    run, router = _router(prefix, "--moe-z-loss-coeff", "0.25", "--moe-aux-loss-coeff", "0")
    inputs = _router_inputs(router)
    weight = router.weight.detach().clone().requires_grad_()
    for tokens in inputs:
        (0.25 * (tokens @ weight.t()).logsumexp(-1).square().mean()).backward()
    assert weight.grad is not None
    found["z_loss"] = _difference(_router_gradient(router, inputs), weight.grad)
    for policy in ("probs", "position"):
        run, router = _router(prefix, "--moe-expert-capacity-factor", "1", "--moe-token-drop-policy", policy)
        layer = run.state.chunks[0].module.decoder.layers[0].mlp
        tokens = _router_inputs(router)[0]
        found[f"drop {policy}"] = _difference(layer(tokens)[0], _capped(layer, tokens, policy))
    return found


def _router(prefix: str, *options: str) -> tuple[Run, Any]:
    # Two layers, as all models here: megatron-core 0.19 keeps the losses of layers in a table of the first size that it sees.
    run = Run(prefix, "--model", "tiny-mixtral", *options)
    chunk: Any = run.state.chunks[0]
    return run, chunk.module.decoder.layers[0].mlp.router


def _router_inputs(router: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    inputs = [torch.randn(8, 2, router.weight.shape[1], generator=generator) for _ in range(2)]
    for tokens in inputs:
        tokens[4:] += router.weight[0].detach() * 100
    return inputs


def _router_gradient(router: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The gradient from the router's own losses alone."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    # Steps before and after this one scale the losses by the number of micro batches.
    MoEAuxLossAutoScaler.main_loss_backward_scale = None
    gradients = [torch.autograd.grad((router(tokens)[0] * 0).sum(), router.weight)[0] for tokens in inputs]
    MoEAuxLossAutoScaler.main_loss_backward_scale = None
    return torch.stack(gradients).sum(0)


def _balancing_gradient(router: Any, inputs: list[torch.Tensor], kind: str, coefficient: float) -> torch.Tensor:
    """Switch Transformers' loss (arXiv 2101.03961), with the counts of a micro batch, a sequence, or all tokens so far."""
    weight = router.weight.detach().clone().requires_grad_()
    experts, topk, all_counts = len(weight), router.topk, torch.zeros(len(weight))
    for tokens in inputs:
        probabilities = (tokens @ weight.t()).softmax(-1)
        counts = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(topk).indices, 1)
        if kind == "seq_aux_loss":
            share, mean = counts.mean(0) / topk, probabilities.mean(0)
        else:
            share, mean = counts.mean((0, 1)) / topk, probabilities.mean((0, 1))
        if kind == "global_aux_loss":
            both = counts.sum((0, 1))
            torch.distributed.all_reduce(both)
            all_counts += both
            share = all_counts / all_counts.sum()
        # The gradient is a mean over ranks: with counts of all ranks, a rank adds the mean over its tokens, too.
        loss = experts * (share.detach() * mean).sum(-1).mean()
        (coefficient * loss).backward()
    return weight.grad  # type: ignore[return-value]


def _capped(layer: Any, tokens: torch.Tensor, policy: str) -> torch.Tensor:
    """The layer's output if each expert computes as many tokens as its even share."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    logits = flat @ layer.router.weight.t()
    values, chosen = logits.topk(layer.router.topk)
    probabilities = torch.zeros_like(logits).scatter(1, chosen, values.softmax(-1))
    capacity = len(flat) * layer.router.topk // logits.shape[1]
    output = torch.zeros_like(flat)
    for expert in range(logits.shape[1]):
        users = probabilities[:, expert].nonzero().flatten()
        order = users if policy == "position" else users[probabilities[users, expert].argsort(descending=True)]
        rows = order[:capacity]
        gate, up = (flat[rows] @ layer.experts.linear_fc1.weight[expert].t()).chunk(2, dim=-1)
        hidden = torch.nn.functional.silu(gate) * up @ layer.experts.linear_fc2.weight[expert].t()
        output[rows] += probabilities[rows, expert].unsqueeze(1) * hidden
    assert (probabilities > 0).sum(0).max() > capacity, "no expert has too many tokens"
    return output.view(tokens.shape)


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((actual - expected).abs().max() / expected.abs().max()).detach())


def z_loss(prefix: str) -> dict[str, Any]:
    """Losses and gradients with the z-loss, against the formula; on one rank and on two that have half of the columns each.

    The output layer's weight is the identity: logits are the hidden states, and have their gradient.
    """
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig

    from lt_shared.models.presets import preset
    from lt_train.models.output import OutputLayer
    from lt_train.ops.row_exchange import OneRank

    size, results = 12, {}
    architecture = dataclasses.replace(preset("tiny"), hidden_size=size, vocab_size=size)
    for ranks in (1, RANKS):
        leave_groups()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
        config = TransformerConfig(
            num_layers=1, hidden_size=size, num_attention_heads=2, tensor_model_parallel_size=ranks, use_cpu_initialization=True
        )
        layer = OutputLayer(config, architecture, size, True, "torch", 0.1, OneRank())
        first = parallel_state.get_tensor_model_parallel_rank() * size // ranks
        with torch.no_grad():
            layer.weight.copy_(torch.eye(size)[first : first + size // ranks])
        generator = torch.Generator().manual_seed(3)
        whole = torch.randn(5, 2, size, generator=generator, dtype=torch.float32).requires_grad_()
        labels = torch.randint(0, size, (2, 5), generator=generator)
        hidden_states = whole.detach().clone().requires_grad_()
        losses = layer(hidden_states, labels)
        weights = torch.rand(2, 5, generator=generator)
        (losses * weights).sum().backward()
        expected = torch.nn.functional.cross_entropy(whole.permute(1, 2, 0), labels, reduction="none")
        ((expected + 0.1 * whole.logsumexp(-1).t().square()) * weights).sum().backward()
        results[f"{ranks} ranks"] = {
            "loss": float((losses - expected).detach().abs().max()),
            "gradient": float((hidden_states.grad - whole.grad).abs().max()),
            "size": float(whole.grad.abs().max()),
        }
    return results


def overlapped(prefix: str) -> dict[str, Any]:
    """Losses with linear layers that exchange rows themselves, by gloo in place of symmetric memory, and with megatron-core's."""
    from megatron.core import parallel_state

    from lt_train.models import builder
    from lt_train.models.linear import OverlappedColumnLinear, OverlappedRowLinear
    from lt_train.ops.row_exchange import SharedRows

    options = ("--tensor-model-parallel-size", "2", "--sequence-parallel", "--bf16", "--add-qkv-bias", "--lr", "1e-2")

    def losses() -> tuple[list[float], int]:
        run = Run(prefix, *options)
        modules = [module for chunk in run.state.chunks for module in chunk.modules()]
        overlapping = [module for module in modules if isinstance(module, OverlappedColumnLinear | OverlappedRowLinear)]
        return [run.step().loss for _ in range(3)], len(overlapping)

    expected, none = losses()
    choose, choose_exchange = kernels.choose, builder.choose_exchange
    kernels.choose = lambda *run: dataclasses.replace(choose(*run), collectives=kernels.PEER_MEMORY)
    builder.choose_exchange = lambda *_: SharedRows(parallel_state.get_tensor_model_parallel_group())
    try:
        found, overlapping = losses()
    finally:
        kernels.choose, builder.choose_exchange = choose, choose_exchange
    return {"expected": expected, "found": found, "overlapping": [none, overlapping]}


def fp8_products(prefix: str) -> dict[str, Any]:
    """The relative errors of a feed-forward layer in fp8 against fp32; alone, split, and with sequence parallelism."""
    found = {}
    for recipe in ("tensorwise", *(("rowwise",) if ROWWISE else ())):
        for form in ("e4m3", "hybrid"):
            for layout, (ranks, sequence) in {"alone": (1, False), "tp2": (RANKS, False), "tp2-sp": (RANKS, True)}.items():
                found[f"{recipe} {form} {layout}"] = _feed_forward(recipe, form, ranks, sequence)
    for form in ("e4m3", "hybrid"):
        for collectives in ("torch", "symmetric-memory"):
            found[f"triton {form} {collectives}"] = _feed_forward("tensorwise", form, RANKS, True, collectives)
    return found


def _feed_forward(recipe: str, form: str, ranks: int, sequence: bool, collectives: str | None = None) -> dict[str, float]:
    from types import SimpleNamespace

    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig

    from lt_train.models.fp8_linear import Fp8Linears
    from lt_train.ops.row_exchange import SharedRows

    leave_groups()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    rank = parallel_state.get_tensor_model_parallel_rank()
    config = TransformerConfig(
        num_layers=1,
        hidden_size=64,
        num_attention_heads=2,
        tensor_model_parallel_size=ranks,
        sequence_parallel=sequence,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    generator = torch.Generator().manual_seed(5)
    up = torch.randn(96, 64, generator=generator).bfloat16()
    down = torch.randn(64, 96, generator=generator).bfloat16()
    tokens = torch.randn(16, 2, 64, generator=generator).bfloat16()
    slope = torch.randn(16, 2, 64, generator=generator).bfloat16()
    precision = SimpleNamespace(fp8_format=form, fp8_recipe=recipe)
    casts = "torch" if collectives is None else "triton"
    chosen = SimpleNamespace(fp8_cast=casts, recomputes_swiglu=False, collectives=collectives)
    exchange = SharedRows(parallel_state.get_tensor_model_parallel_group())
    linears = Fp8Linears(config, precision, chosen, exchange)
    column, row = linears.column(64, 96, bias=False), linears.row(96, 64, bias=False)
    width = 96 // ranks
    column.weight.data.copy_(up[rank * width : (rank + 1) * width])
    row.weight.data.copy_(down[:, rank * width : (rank + 1) * width])
    share = slice(rank * 16 // ranks, (rank + 1) * 16 // ranks) if sequence else slice(None)
    mine = tokens[share].clone().requires_grad_()
    output = row(column(mine)[0])[0]
    output.backward(slope[share])
    exact = [tensor.float().requires_grad_() for tensor in (tokens, up, down)]
    expected = exact[0] @ exact[1].t() @ exact[2].t()
    expected.backward(slope.float())
    return {
        "output": _error(output, expected[share]),
        "input gradient": _error(mine.grad, exact[0].grad[share]),
        "up gradient": _error(column.weight.grad, exact[1].grad[rank * width : (rank + 1) * width]),
        "down gradient": _error(row.weight.grad, exact[2].grad[:, rank * width : (rank + 1) * width]),
    }


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def muon(prefix: str) -> dict[str, Any]:
    """Losses under Muon, of both ranks' data and of one model split between them; or why it cannot be. The same of `experts`."""
    from lt_shared.console import BadConfig

    def losses(*options: str) -> list[float]:
        run = Run(prefix, *options, *MANY_TOKENS, "--lr", "1e-2")
        return [run.step().loss for _ in range(3)]

    def losses_of_experts(*options: str) -> list[float]:
        run = Run(prefix, "--model", "tiny-mixtral", "--num-layers", "2", "--optimizer", "muon", "--lr", "2e-3", *options)
        return [run.step().loss for _ in range(3)]

    try:
        data_parallel = losses("--optimizer", "muon")
    except BadConfig as error:
        return {"refused": str(error)}
    tensor_parallel = losses("--optimizer", "muon", "--tensor-model-parallel-size", "2")
    experts = {
        "grouped": losses_of_experts(),
        "one by one": losses_of_experts("--tensor-model-parallel-size", "2", "--sequence-parallel"),
        "on two ranks": losses_of_experts("--expert-model-parallel-size", "2"),
        "on two stages": losses_of_experts("--pipeline-model-parallel-size", "2"),
    }
    experts_alone = ("--model", "tiny-mixtral", "--num-layers", "1", "--optimizer", "muon", "--lr", "2e-3")
    errors = expert_updates(Run(prefix, *experts_alone, *MANY_TOKENS))
    trained = {"dp2": data_parallel, "tp2": tensor_parallel, "adam": losses(), "experts": experts}
    return {"refused": None, "errors": errors, **trained}


def expert_updates(run: Run) -> list[float]:
    """How far a step's update of each expert's matrices is from that of its own momentum alone."""
    from emerging_optimizers.orthogonalized_optimizers.muon_utils import newton_schulz

    (part,) = (part for part in run.state.optimizer.chained_optimizers if part.get_parameters()[0].dim() == 3)
    # The first step warms up from a learning rate of zero.
    run.step()
    before, group = run.weights(), dict(part.optimizer.param_groups[0])
    run.step()
    errors = []
    for name, weight in run.weights().items():
        if ".experts." not in name:
            continue
        (momentum,) = (state["momentum_buffer"] for p, state in part.optimizer.state.items() if torch.equal(p, weight))
        found = before[name] * (1 - group["lr"] * group["weight_decay"]) - weight
        for one, update in zip(momentum, found, strict=True):
            expected = newton_schulz(one, 5) * max(one.shape) ** 0.5 * group["lr"]
            errors.append(_error(update, expected))
    return errors


def sharded(prefix: str) -> dict[str, Any]:
    return sharded_losses(partial(Run, prefix))


def peers(prefix: str) -> dict[str, Any]:
    return peer_losses(partial(Run, prefix))


SCENARIOS: tuple[Callable[[str], Any], ...] = (
    not_a_number,
    loss_scaling,
    weight_decay,
    schedules,
    repeated,
    z_loss,
    token_average,
    width_transfer,
    expert_routing,
    fused_layers,
    overlapped,
    fp8_products,
    muon,
    sharded,
    peers,
)


def main(place: str, prefix: str, rank: str, port: str) -> None:
    from lt_train.launch import worker as rank_module
    from lt_train.process import device, rendezvous

    here = RankEnvironment(int(rank), int(rank), RANKS, RANKS, "127.0.0.1", int(port), "test")
    os.environ.update(here.variables())
    rank_module.silence_warnings()
    device.prepare(device.CPU, here)
    device.communicate_on_loopback(here)
    torch.distributed.init_process_group("gloo")
    with rendezvous.share_gloo_devices():
        found = {scenario.__name__: scenario(prefix) for scenario in SCENARIOS}
    if here.rank == 0:
        (Path(place) / "results.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
