"""How fast lt-convert is beside `cp -r` of the same bytes and beside TorchTitan's own scripts.

    nox -s bench -- convert                  # Llama 3.2 1B and a GPT-3 of that size in bf16; 25 GB on the disk of --work
    nox -s bench -- convert --quick          # models of 50 MB, without limits: does it run?
    nox -s bench -- convert --warm           # without the rounds from a cold disk and TorchTitan's scripts

In every round each command runs once from a cold disk, after the page cache was dropped (as root; otherwise the sources' pages
are given up), and once with the source in the page cache. The copy phase is what lt-convert says it took to read, permute, hash
and write; the way to the disk begins beside it. The whole command also starts Python, plans and syncs what it wrote, which cp
leaves to the kernel: hence cp with a sync after it. With the source in the page cache, cp runs directly before each command,
and the order of the commands differs between rounds: a new page costs a virtual machine up to three times as much after a
pause, when the host has taken the free pages back. Exit code 1 when a limit is missed.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import page_cache
import processes
import report

from lt_convert.formats import huggingface as huggingface_format
from lt_convert.tensors.tensor import zeros
from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_shared.models import huggingface, presets
from lt_shared.models.architecture import Architecture

BINARIES = Path(sys.executable).parent
TORCHTITAN = Path(__file__).with_name("torchtitan_conversion.py")
CP, CP_SYNC = "cp -r", "cp -r, then sync"
COPY_LIMIT, WHOLE_LIMIT, PERMUTED_LIMIT, TORCHTITAN_FACTOR, PEAK_MIB = 1.2, 1.5, 2.0, 5.0, 512
# Of the copy phase, with the source in the page cache: by the limit from a cold disk.
WARM_LIMITS = {COPY_LIMIT: 1.15, PERMUTED_LIMIT: 1.6}
# MB and MB/s: the seconds in the line have one digit after the point.
_COPY_PHASE = re.compile(r"convert: ([\d.,]+)/[\d.,]+ MB \(100%\), ([\d.,]+) MB/s in")


@dataclasses.dataclass(frozen=True)
class Job:
    """A command that makes `out` of `source`. `model` names the model whose `cp` it is compared with."""

    name: str
    model: str
    source: Path
    command: tuple[str | Path, ...]
    copy_limit: float | None = None
    peer: str | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    copy_seconds: float | None
    usage: processes.Usage


def write_model(directory: Path, architecture: Architecture) -> Path:
    """A model of random bf16 weights, one safetensors file, a tensor at a time."""
    generator = np.random.default_rng(0)
    shapes = families.family_of(architecture).canonical(Model(architecture, architecture.vocab_size))
    plan = huggingface_format.file("model.safetensors", {name: zeros("bfloat16", shape) for name, shape in shapes.items()})
    directory.mkdir()
    with (directory / plan.name).open("wb") as file:
        for segment in plan.segments:
            if isinstance(segment, bytes):
                file.write(segment)
                continue
            left = segment.size_bytes // 2
            while left:
                count = min(left, 1 << 24)
                values = generator.standard_normal(count, dtype=np.float32) * np.float32(0.02)
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                left -= count
    (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, "bfloat16")))
    return directory


def run(job: Job, out: Path, warm: bool) -> Measured:
    shutil.rmtree(out, ignore_errors=True)
    if warm:
        page_cache.fill(job.source)
    else:
        page_cache.drop(job.source)
    with tempfile.NamedTemporaryFile("r") as messages:
        words = " ".join(f"'{word}'" for word in job.command)
        usage = processes.run(["sh", "-c", f"exec {words} 2>{messages.name}" if len(job.command) > 1 else str(job.command[0])])
        phases = [[float(number.replace(",", "")) for number in numbers] for numbers in _COPY_PHASE.findall(messages.read())]
    shutil.rmtree(out)
    return Measured(phases[-1][0] / phases[-1][1] if phases else None, usage)


def convert(source: Path, to: str, out: Path, *options: str) -> tuple[str | Path, ...]:
    return (BINARIES / "lt-convert", source, "--to", to, "-o", out, "--plain", *options)


def prepare(source: Path, to: str, made: Path, *options: str) -> Path:
    processes.run(convert(source, to, made, *options))
    return made


def copies(model: str, source: Path, out: Path) -> Iterator[Job]:
    yield Job(CP, model, source, (f"cp -r '{source}' '{out}'",))
    yield Job(CP_SYNC, model, source, (f"cp -r '{source}' '{out}' && find '{out}' -type f -exec sync {{}} +",))


def jobs(work: Path, llama: Architecture, gpt: Architecture, with_torchtitan: bool) -> list[Job]:
    """Every source is made here, once."""
    out = work / "out"
    hf, gpt_hf = write_model(work / "llama", llama), write_model(work / "gpt", gpt)
    dist, titan = prepare(hf, "megatron-dist", work / "dist"), prepare(hf, "torchtitan", work / "titan")
    parallel = ("--target-tensor-parallel-size", "2")
    legacy, gpt_dist = (
        prepare(hf, "megatron-legacy", work / "legacy", *parallel),
        prepare(gpt_hf, "megatron-dist", work / "gpt-dist"),
    )
    made = [
        *copies("llama", hf, out),
        Job("hf -> megatron-dist", "llama", hf, convert(hf, "megatron-dist", out), COPY_LIMIT),
        Job("megatron-dist -> hf", "llama", dist, convert(dist, "hf", out), COPY_LIMIT),
        Job("hf -> torchtitan", "llama", hf, convert(hf, "torchtitan", out), COPY_LIMIT, "TorchTitan's from_hf"),
        Job("torchtitan -> hf", "llama", titan, convert(titan, "hf", out), COPY_LIMIT, "TorchTitan's to_hf"),
        Job("megatron-dist -> torchtitan", "llama", dist, convert(dist, "torchtitan", out), COPY_LIMIT),
        Job("torchtitan -> megatron-dist", "llama", titan, convert(titan, "megatron-dist", out), COPY_LIMIT),
        Job("hf -> legacy, TP 2", "llama", hf, convert(hf, "megatron-legacy", out, *parallel), PERMUTED_LIMIT),
        Job("legacy, TP 2 -> hf", "llama", legacy, convert(legacy, "hf", out), PERMUTED_LIMIT),
        *copies("gpt", gpt_hf, out),
        Job("GPT: hf -> megatron-dist", "gpt", gpt_hf, convert(gpt_hf, "megatron-dist", out), PERMUTED_LIMIT),
        Job("GPT: megatron-dist -> hf", "gpt", gpt_dist, convert(gpt_dist, "hf", out), PERMUTED_LIMIT),
    ]
    if with_torchtitan:
        script: tuple[str | Path, ...] = (sys.executable, TORCHTITAN)
        config = hf / "config.json"
        made.append(Job("TorchTitan's from_hf", "llama", hf, (*script, "from_hf", config, hf, out)))
        made.append(Job("TorchTitan's to_hf", "llama", titan, (*script, "to_hf", config, titan, out)))
    return made


def medians(results: Mapping[Job, list[Measured]], job: Job) -> tuple[float | None, float, float]:
    """Seconds of the copy phase and of the whole command, and MiB at the peak."""
    copy = [one.copy_seconds for one in results[job] if one.copy_seconds is not None]
    whole = statistics.median(one.usage.wall_seconds for one in results[job])
    return statistics.median(copy) if copy else None, whole, max(one.usage.peak_bytes for one in results[job]) / 2**20


def ratio(measured: list[Measured], base: list[Measured], copy_phase: bool) -> float:
    """The median over the rounds: what slows the machine slows both commands of a round."""
    pairs = zip(measured, base, strict=True)
    return statistics.median(
        ((one.copy_seconds or 0.0) if copy_phase else one.usage.wall_seconds) / other.usage.wall_seconds for one, other in pairs
    )


def table(results: Mapping[Job, list[Measured]], title: str) -> tuple[report.Table, list[str]]:
    """The figures, and which limits were missed."""
    made = report.Table(
        title, ("command", "copy s", "whole s", "copy : cp", "whole : cp", "whole : cp+sync", "peak MiB", "TorchTitan : ours"), 1
    )
    by_name = {(job.name, job.model): job for job in results}
    missed = []
    for job in results:
        copy, whole, peak = medians(results, job)
        cells = ["", "", ""]
        factor = ""
        if job.copy_limit is not None:
            cp, synced = by_name[CP, job.model], by_name[CP_SYNC, job.model]
            measured = results[job]
            ratios = [
                ratio(measured, results[cp], True),
                ratio(measured, results[cp], False),
                ratio(measured, results[synced], False),
            ]
            cells = [f"{value:.2f}" for value in ratios]
            whole_limit = WHOLE_LIMIT if job.copy_limit == COPY_LIMIT else PERMUTED_LIMIT
            if ratios[0] > job.copy_limit:
                missed.append(f"{job.name}: the copy phase takes {ratios[0]:.2f} times cp, at most {job.copy_limit} was expected")
            if ratios[2] > whole_limit:
                missed.append(f"{job.name}: takes {ratios[2]:.2f} times cp and sync, at most {whole_limit} was expected")
            if peak > PEAK_MIB:
                missed.append(f"{job.name}: takes {peak:.0f} MiB, at most {PEAK_MIB} was expected")
        if job.peer and (job.peer, job.model) in by_name:
            times = 1 / ratio(results[job], results[by_name[job.peer, job.model]], False)
            factor = f"{times:.1f}"
            if times < TORCHTITAN_FACTOR:
                missed.append(
                    f"{job.name}: {job.peer} takes {times:.1f} times as long, at least {TORCHTITAN_FACTOR} was expected"
                )
        label = f"GPT: {job.name}" if job.model == "gpt" and job.copy_limit is None else job.name
        made.rows.append((label, "" if copy is None else f"{copy:.1f}", f"{whole:.1f}", *cells, f"{peak:.0f}", factor))
    return made, missed


def warm_table(
    results: Mapping[Job, list[Measured]], copied_before: Mapping[Job, list[Measured]], title: str
) -> tuple[report.Table, list[str]]:
    """The figures with the source in the page cache, and which limits were missed. `copied_before` has the cp before each job."""
    columns = ("command", "copy s", "whole s", "copy : cp", "at most", "whole : cp+sync")
    measured, missed = report.Table(title, columns, 1), []
    by_name = {(job.name, job.model): job for job in results}
    for job in results:
        copy, whole, _ = medians(results, job)
        cells = ["", "", ""]
        if job.copy_limit is not None:
            limit = WARM_LIMITS[job.copy_limit]
            of_copy = ratio(results[job], copied_before[job], True)
            of_whole = ratio(results[job], results[by_name[CP_SYNC, job.model]], False)
            cells = [f"{of_copy:.2f}", f"{limit}", f"{of_whole:.2f}"]
            if of_copy > limit:
                missed.append(f"{job.name}, page cache warm: the copy takes {of_copy:.2f} times cp, at most {limit} was expected")
        label = f"GPT: {job.name}" if job.model == "gpt" and job.copy_limit is None else job.name
        measured.rows.append((label, "" if copy is None else f"{copy:.2f}", f"{whole:.2f}", *cells))
    return measured, missed


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure lt-convert beside cp and TorchTitan's scripts.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="models of 50 MB, without limits")
    parser.add_argument("--warm", action="store_true", help="measure with the sources in the page cache only")
    parser.add_argument("--without-torchtitan", action="store_true", help="leave TorchTitan's scripts out, which take minutes")
    parser.add_argument("--work", type=Path, help="directory with room for 25 GB")
    parser.add_argument("--markdown", type=Path, help="file in which the table between the markers is replaced")
    arguments = parser.parse_args()
    llama = presets.preset("llama3.2-1b")
    gpt = dataclasses.replace(presets.preset("gpt3-1.7b"), num_layers=18)
    if arguments.quick:
        llama = dataclasses.replace(llama, num_layers=4, hidden_size=512, ffn_hidden_size=2048, num_attention_heads=8,
                                    num_query_groups=4, kv_channels=64, vocab_size=16000)  # fmt: skip
        gpt = dataclasses.replace(gpt, num_layers=4, hidden_size=512, ffn_hidden_size=2048, num_attention_heads=8,
                                  num_query_groups=8, kv_channels=64, vocab_size=16000)  # fmt: skip
    with tempfile.TemporaryDirectory(dir=arguments.work, prefix="bench-convert-") as place:
        work = Path(place)
        planned = jobs(work, llama, gpt, not (arguments.without_torchtitan or arguments.warm))
        cold: dict[Job, list[Measured]] = {job: [] for job in ([] if arguments.warm else planned)}
        peers = {job.peer for job in planned}
        warm: dict[Job, list[Measured]] = {job: [] for job in planned if job.name not in peers}
        cp = {job.model: job for job in planned if job.name == CP}
        copied_before: dict[Job, list[Measured]] = {job: [] for job in warm}
        size = (work / "llama" / "model.safetensors").stat().st_size
        for number in range(arguments.rounds):
            for results in (cold, warm):
                for job in random.Random(number).sample(list(results), len(results)):
                    print(f"bench: round {number + 1} of {arguments.rounds}: {job.name}", file=sys.stderr, flush=True)
                    if results is warm and job.copy_limit is not None:
                        copied_before[job].append(run(cp[job.model], work / "out", warm=True))
                    results[job].append(run(job, work / "out", results is warm))
    cache = "dropped before each command" if os.geteuid() == 0 else "given up by hints before each command"
    title = f"{llama.name} in bf16, {size / 1e9:.2f} GB, {{}}: medians of {arguments.rounds} rounds"
    made, missed = table(cold, title.format("cold"))
    made.notes.append(f"{report.machine()} Page cache {cache}.")
    of_warm, missed_warm = warm_table(warm, copied_before, title.format("page cache warm"))
    of_warm.notes.append(report.machine())
    missed += missed_warm
    tables = [of_warm] if arguments.warm else [made, of_warm]
    for each_table in tables:
        print(each_table.plain())
        print(each_table.markdown())
    if arguments.markdown:
        report.write_markdown(arguments.markdown, "\n".join(each_table.markdown() for each_table in tables))
    for line in [] if arguments.quick else missed:
        print(line)
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
