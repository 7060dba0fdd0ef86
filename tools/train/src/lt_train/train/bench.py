"""`lt-train bench`: measure how fast a model of this size trains here, without data, checkpoints and log files.

The training loop runs on synthetic tokens, and its clock times every step. The results are medians, because other processes slow
single steps. Rates are computed from the median time: for an even number of steps, the median of the rates would differ.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from lt_shared import console
from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Checkpoint
from lt_shared.contracts.run_log import GIB, Step
from lt_shared.models.architecture import Architecture
from lt_train.config.kernels import Kernels
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.benchmark import KIND
from lt_train.config.settings.layers import TORCH
from lt_train.config.settings.memory import Memory
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision
from lt_train.metrics.log import Log
from lt_train.metrics.step_timer import Lap
from lt_train.metrics.throughput import Speedometer
from lt_train.planner.stage_work import PipelineWork

# Two measurements with equal layers may differ in these values: the layout, and the batch sizes that it requires.
OF_LAYOUTS = (
    *("ranks", "tensor", "pipeline", "pipeline_schedule", "context", "expert", "data", "fully_sharded"),
    *("micro_batch_size", "global_batch_size"),
)


@dataclasses.dataclass(frozen=True)
class Measured:
    step: Step
    lap: Lap


class Measurement(Log):
    """A log that collects the steps instead of printing them, and prints the result at the end."""

    def __init__(self, config: RunConfig, active: bool, device_name: str, chosen: Kernels, versions: dict[str, str]):
        super().__init__(config.reporting, None, active)
        assert config.benchmark
        if config.benchmark.against:
            values = setting(
                config.architecture, config.batches, config.precision, config.parallelism, config.memory, device_name
            )
            check_against(config.architecture.num_layers, values, config.benchmark.against)
        self.config = config
        self.as_json = config.benchmark.as_json
        self.device_name = device_name
        self.software = {"kernels": chosen.record(), "versions": versions}
        self.measured: list[Measured] = []

    def line(self, text: str, brief: Sequence[str] | None = None) -> None:
        pass

    def step(self, step: Step, tokens_per_second: float, lap: Lap) -> None:
        self.measured.append(Measured(step, lap))

    def checkpoint(self, entry: Checkpoint, waited_seconds: float, seconds: float) -> None:
        raise AssertionError("a measurement saves nothing")

    def end(self) -> None:
        if not self.active:
            return
        result = summary(self.config, self.device_name, self.measured, self.software)
        if self.as_json:
            console.print_json(result)
        else:
            console.print_text(table(result))


def summary(config: RunConfig, device_name: str, steps: list[Measured], software: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a measurement. Times are in seconds; `mfu` is null if the peak of the device is unknown.

    `software` holds the `kernels` and the `versions` of packages.
    """
    assert config.benchmark
    measured = steps[config.benchmark.warmup_steps :]

    def values(value: Callable[[Measured], float | int | None]) -> list[float]:
        return [number for entry in measured if (number := value(entry)) is not None]

    step_seconds = values(lambda entry: entry.lap.step_seconds)
    median_seconds = statistics.median(step_seconds)
    architecture, batches, parallelism = config.architecture, config.batches, config.parallelism
    speedometer = Speedometer(architecture, batches, config.precision, parallelism.world_size, device_name)
    speed = speedometer.speed(batches.global_batch_size, median_seconds)
    reserved = values(lambda entry: entry.step.reserved_memory_bytes)
    result: dict[str, Any] = {
        "v": 1,
        "kind": KIND,
        "layers": architecture.num_layers,
        "parameters": architecture.parameters(),
        "flops_per_token": architecture.flops_per_token(batches.seq_length),
        **setting(architecture, batches, config.precision, parallelism, config.memory, device_name),
        **software,
        "warmup_steps": config.benchmark.warmup_steps,
        "steps": len(measured),
        "step_seconds": median_seconds,
        "fastest_step_seconds": min(step_seconds),
        "slowest_step_seconds": max(step_seconds),
        "tokens_per_second_per_gpu": speed.tokens_per_second_per_gpu,
        "tflops_per_gpu": speed.tflops_per_gpu,
        "mfu": _finite(speed.mfu),
        "memory_bytes": max(values(lambda entry: entry.step.memory_bytes)),
        "reserved_memory_bytes": max(reserved) if reserved else None,
        "losses": [_finite(entry.step.loss) for entry in steps],
        "data_share": statistics.median(values(lambda entry: entry.lap.data_seconds / entry.lap.step_seconds)),
        "loop_share": statistics.median(values(lambda entry: entry.lap.loop_seconds / entry.lap.step_seconds)),
    }
    if parallelism.pipeline > 1:
        work = PipelineWork.from_config(config)
        result |= {
            "bubble_share": work.bubble_share,
            "rank_work_shares": work.rank_shares,
            "pipeline_share_left": work.share_left,
            "pipeline_in_words": str(work),
        }
    if config.benchmark.against:
        result |= beside(result, config.benchmark.against)
    return result


def beside(result: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Compare a measurement with an `other`.

    If the numbers of layers differ, return the seconds per layer. Otherwise the layouts differ: return the relative speed, and
    the relative speed after the pipeline's bubble and unequal stages are taken off the other's speed.
    """
    if result["layers"] != other["layers"]:
        return {"layer_seconds": (result["step_seconds"] - other["step_seconds"]) / (result["layers"] - other["layers"])}
    share = result["tokens_per_second_per_gpu"] / other["tokens_per_second_per_gpu"]
    pipeline_share = result.get("pipeline_share_left", 1.0) / other.get("pipeline_share_left", 1.0)
    return {
        "speed_share": share,
        "left_tokens_per_second_per_gpu": pipeline_share * other["tokens_per_second_per_gpu"],
        "left_share": share / pipeline_share,
    }


def setting(
    architecture: Architecture,
    batches: Batches,
    precision: Precision,
    parallelism: Parallelism,
    memory: Memory,
    device_name: str,
) -> dict[str, Any]:
    """Return the values that two measurements must share, except the layout, if one is compared with the other."""
    sizes = architecture.to_record()
    del sizes["num_layers"]
    return {
        "model": architecture.name,
        "architecture": sizes,
        "seq_length": batches.seq_length,
        "micro_batch_size": batches.micro_batch_size,
        "global_batch_size": batches.global_batch_size,
        "dtype": precision.dtype,
        "fp8_format": precision.fp8_format,
        "fp8_recipe": precision.fp8_recipe if precision.fp8_format else None,
        "recompute": dataclasses.asdict(memory.recompute) if memory.recompute else None,
        "device": device_name,
        # Earlier versions could measure TransformerEngine's layers, too.
        "transformer_impl": TORCH,
        "ranks": parallelism.world_size,
        "tensor": parallelism.tensor,
        "pipeline": parallelism.pipeline,
        "pipeline_schedule": parallelism.schedule if parallelism.pipeline > 1 else None,
        "context": parallelism.context,
        "expert": parallelism.expert,
        "data": parallelism.data,
        "fully_sharded": memory.fully_sharded,
    }


def check_against(layers: int, values: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise BadConfig unless `other` has the same settings, except for the number of layers or the layout.

    This measurement has `layers` layers, and `values` are its `setting`.
    """
    other_layers = other.get("layers") != layers
    names = values if other_layers else values.keys() - set(OF_LAYOUTS)
    differences = [
        text for name in values if name in names for text in _differences(name, values[name], other.get(name, "unknown"))
    ]
    if not other_layers and all(other.get(name) == values[name] for name in OF_LAYOUTS):
        differences.append(f"{other['layers']} layers in both, and the same layout")
    if differences:
        raise BadConfig(
            f"--against: not the same measurement with another number of layers, or another layout: {'; '.join(differences)}",
            "measure both with the same options but --num-layers, or but those of the layout and of the batch",
        )


def _differences(name: str, value: Any, other: Any) -> list[str]:
    """Describe how two values differ; for objects, how their fields differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        return [text for field in {**value, **other} for text in _differences(field, value.get(field), other.get(field))]
    # `other` comes from JSON, which has no tuples.
    is_same = json.loads(json.dumps(value)) == json.loads(json.dumps(other))
    return [] if is_same else [f"{name} {other}, here {value}"]


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def table(result: dict[str, Any]) -> str:
    """Format the result of a measurement for people."""
    reserved = result["reserved_memory_bytes"]
    dtype = f"fp8 {result['fp8_format']}" if result["fp8_format"] else result["dtype"]
    batch = f"{result['global_batch_size']} x {result['seq_length']} tokens, micro batch {result['micro_batch_size']}, {dtype}"
    sizes = [f"{name} {result[name]}" for name in ("tensor", "pipeline", "context", "expert", "data") if result[name] > 1]
    layout = ", ".join(sizes or ["one rank"]) + (", fully sharded" if result["fully_sharded"] else "")
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    rows = {
        "model": f"{result['model']}, {result['layers']} layers, {result['parameters']:,} parameters",
        "batch": batch,
        "ranks": f"{result['ranks']} x {result['device']}: {layout}",
        "software": versions,
        "kernels": ", ".join(f"{part.replace('_', ' ')} {name}" for part, name in result["kernels"].items()),
        "step": f"{result['step_seconds'] * 1e3:,.1f} ms, the median of {result['steps']}"
        f" ({result['fastest_step_seconds'] * 1e3:,.1f} to {result['slowest_step_seconds'] * 1e3:,.1f})",
        "tokens/s/GPU": f"{result['tokens_per_second_per_gpu']:,.0f}",
        "TFLOP/s/GPU": f"{result['tflops_per_gpu']:,.4g}",
        "MFU": "N/A" if result["mfu"] is None else f"{result['mfu']:.1%}",
        "memory": f"{result['memory_bytes'] / GIB:.2f} GiB" + (f", {reserved / GIB:.2f} reserved" if reserved else ""),
        "waiting for data": f"{result['data_share']:.2%} of a step",
        "loop": f"{result['loop_share']:.2%} of a step in its own Python",
    }
    if "pipeline_in_words" in result:
        rows["pipeline"] = result["pipeline_in_words"]
    if "speed_share" in result:
        rows["--against"] = f"{result['speed_share']:.1%} of its tokens/s/GPU"
        if "pipeline_in_words" in result:
            pipeline_speed = f"{result['left_tokens_per_second_per_gpu']:,.0f}, which bubble and stages leave"
            rows["--against"] += f", {result['left_share']:.1%} of the {pipeline_speed}"
    if "layer_seconds" in result:
        rows["layer"] = f"{result['layer_seconds'] * 1e3:,.2f} ms, forward, backward and update"
        if result["layer_seconds"] <= 0:
            rows["layer"] += ": more layers took no longer, the machine is too busy to say"
    width = max(map(len, rows))
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows.items())
