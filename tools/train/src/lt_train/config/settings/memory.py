"""Settings for memory and sharding: gradients, FSDP2's weights, recomputed activations."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.models.architecture import Architecture
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision

POSITIVE = click.IntRange(min=1)
# lt-train recomputes SwiGLU in the epilogue of a GEMM (--swiglu-impl) or with the cast to fp8.
SWIGLU = "swiglu"
RECOMPUTE_MODULES = ("core_attn", "mlp", "moe", SWIGLU)
# Modules that megatron-core recomputes only with TransformerEngine.
LAYERNORM = "layernorm"

OPTIONS = console.section(
    "Sharding and memory",
    click.option(
        "--use-torch-fsdp2", is_flag=True, help="Shard weights, gradients and optimizer state over data-parallel ranks."
    ),
    click.option(
        "--num-distributed-optimizer-instances",
        type=POSITIVE,
        default=1,
        help="Keep this many replicas of the sharded state (HSDP): each is sharded over fewer ranks, so that collectives"
        " stay within a node.",
    ),
    click.option("--overlap-grad-reduce", is_flag=True, help="Reduce gradients over ranks during the backward pass."),
    click.option("--overlap-param-gather", is_flag=True, help="All-gather weights during the forward pass."),
    click.option(
        "--ddp-bucket-size",
        type=POSITIVE,
        help="Set the number of gradients in one overlapped collective; by default a layer's (experts apart), at least"
        " 40 million.",
    ),
    click.option("--grad-reduce-in-bf16", is_flag=True, help="Accumulate and reduce gradients in bfloat16 instead of float32."),
    click.option(
        "--accumulate-allreduce-grads-in-fp32",
        is_flag=True,
        help="Accumulate and reduce gradients in float32. Default, except for bfloat16 on one rank with one micro batch"
        " per step.",
    ),
    click.option("--recompute-activations", is_flag=True, help="Same as --recompute-granularity selective.", hidden=True),
    click.option(
        "--recompute-granularity",
        type=click.Choice(["full", "selective"]),
        help="Recompute in the backward pass: whole layers, or the modules of --recompute-modules.",
    ),
    click.option(
        "--recompute-method",
        type=click.Choice(["uniform", "block"]),
        help="Select layers for full: recompute all in groups that keep one input each (uniform), or a rank's first"
        " layers (block).",
    ),
    click.option(
        "--recompute-num-layers",
        type=POSITIVE,
        help="Set the number of layers in a group (uniform), or of recomputed layers (block).",
    ),
    click.option(
        "--recompute-modules", help="Select modules for selective: core_attn, mlp, moe, swiglu; separate by spaces or commas."
    ),
    click.option(
        "--cpu-offloading-num-layers",
        type=click.IntRange(min=0),
        default=0,
        hidden=True,
        help="Refused: lt-train's layers keep no activations in host memory.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Recompute:
    """`granularity` is full, with `method` and `layers`, or selective, with `modules`."""

    granularity: str
    method: str | None
    layers: int | None
    modules: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Memory:
    """`replicas` counts copies of the sharded state. If `bucket_elements` is None, `parallel.ddp` chooses the bucket size."""

    fully_sharded: bool
    replicas: int
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    bucket_elements: int | None
    gradient_dtype: str
    recompute: Recompute | None

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        return self.recompute.modules if self.recompute else ()

    def arguments(self) -> dict[str, Any]:
        """Return the settings under Megatron's argument names."""
        recompute = self.recompute
        return {
            "use_torch_fsdp2": self.fully_sharded,
            "num_distributed_optimizer_instances": self.replicas,
            "overlap_grad_reduce": self.overlap_grad_reduce,
            "overlap_param_gather": self.overlap_param_gather,
            "ddp_bucket_size": self.bucket_elements,
            "accumulate_allreduce_grads_in_fp32": self.gradient_dtype == "float32",
            "grad_reduce_in_bf16": self.gradient_dtype == "bfloat16",
            "recompute_granularity": recompute.granularity if recompute else None,
            "recompute_method": recompute.method if recompute else None,
            "recompute_num_layers": recompute.layers if recompute else None,
            "recompute_modules": list(recompute.modules) if recompute else None,
        }


def resolve_memory(options: dict[str, Any], batches: Batches, parallel: Parallelism, precision: Precision) -> Memory:
    if options["grad_reduce_in_bf16"] and options["accumulate_allreduce_grads_in_fp32"]:
        raise UsageError("--grad-reduce-in-bf16 and --accumulate-allreduce-grads-in-fp32", "pass one")
    if options["cpu_offloading_num_layers"]:
        raise BadConfig(
            f"--cpu-offloading-num-layers {options['cpu_offloading_num_layers']}: megatron-core offloads the activations of"
            " TransformerEngine's layers alone, which lt-train does not have",
            "use --recompute-granularity full, or selective",
        )
    # One GEMM computes the whole gradient of a weight, so bfloat16 loses nothing by accumulation.
    alone = max(batches.sizes) == batches.micro_batch_size and parallel.data == parallel.context == 1
    suffices = alone and precision.bf16 and not (options["use_torch_fsdp2"] or options["accumulate_allreduce_grads_in_fp32"])
    return Memory(
        fully_sharded=options["use_torch_fsdp2"],
        replicas=options["num_distributed_optimizer_instances"],
        overlap_grad_reduce=options["overlap_grad_reduce"],
        overlap_param_gather=options["overlap_param_gather"],
        bucket_elements=options["ddp_bucket_size"],
        gradient_dtype="bfloat16" if options["grad_reduce_in_bf16"] or suffices else "float32",
        recompute=_recompute(options),
    )


def _recompute(options: dict[str, Any]) -> Recompute | None:
    """Resolve the options of recomputation. Raises UsageError for options that the granularity does not have."""
    granularity = options["recompute_granularity"]
    modules, method, layers = options["recompute_modules"], options["recompute_method"], options["recompute_num_layers"]
    if options["recompute_activations"]:
        if granularity == "full":
            raise UsageError(
                "--recompute-activations is short for --recompute-granularity selective, and full is asked for beside it;"
                " Megatron-LM would quietly take selective",
                "drop --recompute-activations to recompute whole layers",
            )
        granularity = "selective"
    if granularity != "selective" and modules:
        raise UsageError("--recompute-modules without selective recomputation", "pass --recompute-granularity selective")
    if granularity != "full" and (method or layers):
        raise UsageError(
            "--recompute-method and --recompute-num-layers without full recomputation", "pass --recompute-granularity full"
        )
    if granularity is None:
        return None
    if granularity == "full":
        return Recompute("full", method or "uniform", layers or 1, ())
    chosen = tuple((modules or "core_attn").replace(",", " ").split())
    unknown = [module for module in chosen if module not in (*RECOMPUTE_MODULES, LAYERNORM)]
    if unknown:
        raise UsageError(f"--recompute-modules {' '.join(unknown)}: unknown", f"choose from {', '.join(RECOMPUTE_MODULES)}")
    return Recompute("selective", None, None, chosen)


def without_model_sizes(memory: Memory) -> Memory:
    """Return `memory` without recomputed modules, which some models do not have."""
    recompute = memory.recompute and dataclasses.replace(memory.recompute, modules=())
    return dataclasses.replace(memory, recompute=recompute)


def check(
    memory: Memory,
    parallel: Parallelism,
    model: Architecture,
    precision: Precision,
    optimization: Optimization,
) -> Iterator[ToolError]:
    """Yield BadConfig for memory settings that exclude each other or the layout."""
    if memory.fully_sharded:
        yield from _check_fully_sharded(memory, parallel, precision, optimization)
        yield from _check_sharded_model(model)
    elif memory.overlap_param_gather and not (parallel.distributed_optimizer and memory.overlap_grad_reduce):
        yield BadConfig(
            "--overlap-param-gather all-gathers what the distributed optimizer shards, in the buckets of the gradients",
            "pass --use-distributed-optimizer --overlap-grad-reduce too",
        )
    if memory.gradient_dtype == "bfloat16" and not precision.bf16:
        yield BadConfig(f"--grad-reduce-in-bf16 with weights in {precision.dtype}", "pass --bf16 too")
    if memory.replicas > 1:
        yield from _check_replicas(memory, parallel, model)
    if memory.recompute:
        yield from _check_recompute(memory.recompute, parallel, model)


def _check_fully_sharded(
    memory: Memory, parallel: Parallelism, precision: Precision, optimization: Optimization
) -> Iterator[ToolError]:
    if parallel.distributed_optimizer or memory.overlap_grad_reduce or memory.overlap_param_gather:
        yield BadConfig(
            "--use-torch-fsdp2 shards the optimizer and overlaps communication by itself",
            "drop --use-distributed-optimizer, --overlap-grad-reduce and --overlap-param-gather",
        )
    if precision.fp16:
        yield BadConfig("--use-torch-fsdp2 has no loss scaling", "use --bf16, or --use-distributed-optimizer")
    if memory.gradient_dtype == "bfloat16":
        yield BadConfig("--use-torch-fsdp2 keeps gradients in float32 shards", "drop --grad-reduce-in-bf16")
    if parallel.pipeline > 1:
        yield BadConfig(
            "--use-torch-fsdp2 would gather every layer again for each micro batch of a pipeline",
            "use --use-distributed-optimizer with pipeline parallelism, or tensor parallelism with --use-torch-fsdp2",
        )
    if parallel.expert > 1:
        yield BadConfig(
            "--use-torch-fsdp2 shards every weight over the same ranks, and expert-parallel ranks have different experts",
            "drop --expert-model-parallel-size, or use --use-distributed-optimizer",
        )
    if optimization.optimizer not in ("adam", "sgd"):
        yield BadConfig(f"{optimization.optimizer} needs whole matrices, --use-torch-fsdp2 shards them by rows")


def _check_sharded_model(model: Architecture) -> Iterator[ToolError]:
    instead = "use --use-distributed-optimizer"
    if model.moe_router_enable_expert_bias:
        yield BadConfig("--use-torch-fsdp2 shards weights, and a router's balancing biases are none", instead)
    if model.activation == "xielu":
        yield BadConfig("--use-torch-fsdp2 shards weights, and xIELU's constants are none", instead)
    if model.mtp_num_layers:
        yield BadConfig("--use-torch-fsdp2 knows no multi-token prediction layers", f"{instead}, or --mtp-num-layers 0")


def _check_replicas(memory: Memory, parallel: Parallelism, model: Architecture) -> Iterator[ToolError]:
    if not (memory.fully_sharded or parallel.distributed_optimizer):
        yield BadConfig(
            "--num-distributed-optimizer-instances without sharded state",
            "pass --use-torch-fsdp2 or --use-distributed-optimizer too",
        )
    ranks = parallel.data * parallel.context
    if ranks % memory.replicas:
        yield BadConfig(f"{ranks} data-parallel ranks do not divide into {memory.replicas} replicas of the sharded optimizer")
    # Experts with biases are whole on each tensor-parallel rank.
    alike = ranks * (parallel.tensor if model.add_bias_linear else 1) // parallel.expert
    if parallel.expert > 1 and alike % memory.replicas:
        yield BadConfig(
            f"{alike} ranks with the same experts do not divide into {memory.replicas} replicas of the sharded optimizer",
            "lower --expert-model-parallel-size",
        )


def _check_recompute(recompute: Recompute, parallel: Parallelism, model: Architecture) -> Iterator[ToolError]:
    wrong, right = ("mlp", "moe") if model.num_experts else ("moe", "mlp")
    if wrong in recompute.modules:
        kind = "experts" if model.num_experts else "no experts"
        yield BadConfig(f"--recompute-modules {wrong}: the layers of {model.name} have {kind}", f"recompute {right}")
    if LAYERNORM in recompute.modules:
        yield BadConfig(
            "--recompute-modules layernorm: megatron-core recomputes the norms of TransformerEngine's layers alone, which"
            " lt-train does not have",
            f"leave layernorm out, or recompute {right}, which is more",
        )
    if recompute.method == "uniform":
        for size in parallel.layers_of_stages(model.num_layers):
            if size % (recompute.layers or 1):
                yield BadConfig(
                    f"--recompute-num-layers {recompute.layers}: a stage's {size} layers do not divide into such groups",
                    "choose a divisor, or --recompute-method block",
                )
