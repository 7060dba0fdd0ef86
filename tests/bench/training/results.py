"""Figures of a session and the tables made of them."""

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

from report import Table

from lt_shared.models.architecture import Architecture
from lt_shared.models.peak_flops import HALF, peak_flops
from lt_shared.models.presets import preset
from training.contenders import CONTENDERS, OUR_MODULE
from training.workload import SHAPES

GIB = 1 << 30
COLUMNS = ("contender", "micro batch", "tokens/s/GPU", "TFLOP/s", "MFU", "peak GiB", "share of the roofline")


def architecture_of(shape: str) -> Architecture:
    architecture = preset(SHAPES[shape].model)
    return dataclasses.replace(architecture, num_layers=SHAPES[shape].layers or architecture.num_layers)


def merged(sessions: list[dict[str, Any]]) -> dict[str, Any]:
    """Several files as one; of two floors of a shape the later."""
    found = dict(sessions[-1])
    for key in ("losses", "measurements", "skipped"):
        found[key] = [entry for session in sessions for entry in session[key]]
    found["floors"] = {shape: floor for session in sessions for shape, floor in session["floors"].items()}
    found["has_failed"] = any(session.get("has_failed") for session in sessions)
    return found


def figures(found: dict[str, Any], record: dict[str, Any]) -> dict[str, float | None]:
    """Of one measurement: step seconds, tokens/s and TFLOP/s of a GPU, MFU against the peak in bf16, share of the roofline."""
    shape = record["shape"]
    seconds = statistics.median(record["step_seconds"])
    tokens = record["tokens_per_step"] / record["gpus"] / seconds
    flops = tokens * architecture_of(shape).flops_per_token(SHAPES[shape].sequence_length)
    floor = found["floors"].get(shape, {}).get(f"{record['precision']}_seconds")
    mfu = flops / peak_flops(found["device"], HALF)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tflops": flops / 1e12,
        "mfu": mfu if mfu == mfu else None,
        "gib": record["memory_bytes"] / GIB,
        "floor": floor / seconds if floor else None,
    }


def line(found: dict[str, Any], record: dict[str, Any]) -> str:
    """A measurement for the terminal."""
    shown = cells(found, [record])
    labels = ("micro batch", "tokens/s/GPU", "TFLOP/s", "MFU", "GiB", "of the floor")
    parts = [f"{value} {label}" for value, label in zip(shown[1:], labels, strict=True) if value]
    seconds = figures(found, record)["seconds"] or 0.0
    return f"{record['contender']}, {record['shape']}: {', '.join(parts)}; {seconds * 1e3:.1f} ms; {record['settings']}"


def cells(found: dict[str, Any], records: list[dict[str, Any]]) -> list[str]:
    """A row; of several rounds the medians."""

    def median(name: str) -> float | None:
        values = [value for record in records if (value := figures(found, record)[name]) is not None]
        return statistics.median(values) if values else None

    shown = [("tokens", "{:,.0f}"), ("tflops", "{:,.1f}"), ("mfu", "{:.1%}"), ("gib", "{:.1f}"), ("floor", "{:.1%}")]
    numbers = ["" if (value := median(name)) is None else form.format(value) for name, form in shown]
    return [records[0]["contender"], str(records[0]["micro_batch"]), *numbers]


def tables(found: dict[str, Any]) -> list[Table]:
    """One for each shape and number of GPUs, in the order of measurement."""
    kinds = dict.fromkeys((record["shape"], record["gpus"]) for record in found["measurements"])
    made = []
    for shape, gpus in kinds:
        mine = [record for record in found["measurements"] if (record["shape"], record["gpus"]) == (shape, gpus)]
        made.append(_table(found, shape, gpus, mine))
    if made:
        made[-1].notes += _closing_notes(found)
        made[-1].items += _settings(found)
    return made


def _table(found: dict[str, Any], shape: str, gpus: int, mine: list[dict[str, Any]]) -> Table:
    sizes, architecture = SHAPES[shape], architecture_of(shape)
    devices = found["device"] if gpus == 1 else f"{gpus} x {found['device']}"
    title = (
        f"{sizes.model}, {architecture.num_layers} layers, {sizes.sequence_length:,} tokens a sample, "
        f"{sizes.samples * sizes.sequence_length:,} a step and GPU; {devices}"
    )
    made = Table(title, COLUMNS, 1)
    for key in dict.fromkeys((record["contender"], record["micro_batch"]) for record in mine):
        made.rows.append(cells(found, [record for record in mine if (record["contender"], record["micro_batch"]) == key]))
    if floor := found["floors"].get(shape):
        fp8 = f", with layers in fp8 {floor['fp8_seconds'] * 1e3:.0f} ms" if floor["fp8_seconds"] else ""
        made.notes.append(
            f"Kernel roofline: {floor['bf16_seconds'] * 1e3:.0f} ms{fp8}; a GEMM of 8192 x 8192 x 8192 ran at "
            f"{floor['square_tflops']:.0f} TFLOP/s, a copy at {floor['copy_tb_per_second']:.2f} TB/s."
        )
    made.notes += [*_ratios(found, mine), *_scaling(found, shape, gpus)]
    return made


def _ratios(found: dict[str, Any], mine: list[dict[str, Any]]) -> Iterator[str]:
    """In each precision, lt-train's fastest beside the fastest settings of each of the others."""
    for precision in dict.fromkeys(record["precision"] for record in mine):
        speeds: dict[str, list[float]] = {}
        for record in mine:
            if record["precision"] == precision:
                speeds.setdefault(record["contender"], []).append(figures(found, record)["tokens"] or 0.0)
        fastest: dict[str, str] = {}
        for name in sorted(speeds, key=lambda name: statistics.median(speeds[name])):
            fastest[CONTENDERS[name].module] = name
        ours = fastest.pop(OUR_MODULE, None)
        if ours and fastest:
            speed = statistics.median(speeds[ours])
            beside = ", ".join(f"{speed / statistics.median(speeds[name]):.3f}x {name}" for name in fastest.values())
            yield f"{ours} trains {beside}."


def _scaling(found: dict[str, Any], shape: str, gpus: int) -> list[str]:
    """Tokens/s of a GPU among `gpus` beside one alone, of each contender that was measured with both."""
    if gpus == 1:
        return []
    notes = []
    for name in dict.fromkeys(record["contender"] for record in found["measurements"]):
        speeds = {
            count: max((figures(found, record)["tokens"] or 0.0) for record in records)
            for count in (1, gpus)
            if (records := [r for r in found["measurements"] if (r["contender"], r["shape"], r["gpus"]) == (name, shape, count)])
        }
        if len(speeds) == 2:
            notes.append(f"{name} keeps {speeds[gpus] / speeds[1]:.1%} of its speed on one GPU.")
    return notes


def _closing_notes(found: dict[str, Any]) -> list[str]:
    versions: dict[str, str] = {}
    for record in found["measurements"]:
        versions |= record["versions"]
    used = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    differences = ", ".join(f"{entry['contender']} {entry['difference']:.1e}" for entry in found["losses"])
    steps = max((entry["steps"] for entry in found["losses"]), default=0)
    return [
        f"{found['date']}, {used}. Medians; TFLOP/s and MFU count attention's causal half, MFU against the peak in bf16.",
        *([f"Losses of {steps} steps differ from those in fp32 by at most: {differences}."] if steps else []),
    ]


def _settings(found: dict[str, Any]) -> list[str]:
    """Of each contender; those on several GPUs apart."""
    settings = dict.fromkeys((record["contender"], record["settings"]) for record in found["measurements"])
    return [f"{name}: {text}." for name, text in settings]
