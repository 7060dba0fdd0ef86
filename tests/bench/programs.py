"""The sections of the benchmark that run whole programs, and the comparison of ids."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import corpus
import end_to_end
import exactness
from end_to_end import FAST_SCRIPT, SLOW_SCRIPT, Outcome
from measurement import CORES, MB, MIB, OURS, Bench, in_rounds, median, say, times
from report import Table

ZSTD_LEVEL = 3


def _text_mb(bench: Bench) -> float:
    return sum(map(len, corpus.load_texts(bench.texts[corpus.MIXED]))) / MB


def _compressed(bench: Bench) -> Path:
    import zstandard

    path = bench.work / f"{corpus.MIXED}.zst"
    if not path.is_file():
        with (bench.corpus / corpus.MIXED).open("rb") as source, path.open("wb") as target:
            zstandard.ZstdCompressor(ZSTD_LEVEL).copy_stream(source, target)
    return path


def _few_lines(bench: Bench) -> Path:
    path = bench.work / "few.jsonl"
    with (bench.corpus / corpus.MIXED).open("rb") as source, path.open("wb") as target:
        target.writelines(itertools.islice(source, 50))
    return path


def programs(bench: Bench) -> Table:
    """Files of JSON lines to durable datasets, beside Megatron-LM's scripts."""
    gpt2 = bench.models["gpt2"]
    plain, compressed = bench.corpus / corpus.MIXED, _compressed(bench)
    end_to_end.lt_preprocess([_few_lines(bench)], gpt2, CORES, bench.work)  # compiles, if that is not done yet
    ours = f"{OURS}, {CORES} workers"
    jobs: dict[tuple[str, str], Callable[[], Outcome]] = {
        (ours, "plain"): lambda: end_to_end.lt_preprocess([plain], gpt2, CORES, bench.work),
        (f"{OURS}, 1 worker", "plain"): lambda: end_to_end.lt_preprocess([plain], gpt2, 1, bench.work),
        (ours, "zstd"): lambda: end_to_end.lt_preprocess([compressed], gpt2, CORES, bench.work),
    }
    once: dict[tuple[str, str], Callable[[], Outcome]] = {}
    for script in end_to_end.scripts(bench.megatron) if bench.megatron else ():
        if script.name == FAST_SCRIPT:
            for kind, path in (("plain", plain), ("zstd", compressed)):
                jobs[script.name, kind] = lambda script=script, path=path: end_to_end.megatron(
                    script, path, gpt2, CORES, bench.work
                )
        elif bench.scale.with_slow_script:
            once[script.name, "plain"] = lambda script=script: end_to_end.megatron(script, plain, gpt2, CORES, bench.work)
    results = in_rounds(jobs, bench.scale.rounds) | in_rounds(once, 1)

    size_mb = _text_mb(bench)
    table = Table(
        "Files to datasets: GPT-2, start-up included",
        ("program", "input", "wall s", "CPU s", "MB / s", "MiB", f"{OURS} is"),
        text_columns=2,
        notes=[f"Mixed text, {size_mb:.0f} MB, the files in the page cache. MiB: all processes of the program together."],
    )
    tokens = results[ours, "plain"][0].tokens_sha256
    for (program, kind), found in results.items():
        reference = [one.usage.wall_seconds for one in results[ours, kind]]
        seconds = [one.usage.wall_seconds for one in found]
        slower = [theirs / mine for theirs, mine in zip(seconds, reference, strict=False)]
        table.rows.append(
            (
                program,
                kind,
                median(seconds),
                median(one.usage.cpu_seconds for one in found),
                median(size_mb / one for one in seconds),
                median(one.usage.peak_bytes / MIB for one in found),
                "" if program == ours else times(slower),
            )
        )
        if any(one.tokens_sha256 != tokens for one in found):
            table.notes.append(f"{program}, {kind}: its tokens differ from those of {ours}.")
    alone = [one.usage.wall_seconds for one in results[f"{OURS}, 1 worker", "plain"]]
    both = [one.usage.wall_seconds for one in results[ours, "plain"]]
    table.notes.append(f"{CORES} workers are {times(a / b for a, b in zip(alone, both, strict=True))} as fast as one.")
    if once:
        table.notes.append(f"{SLOW_SCRIPT} ran once.")
    if bench.megatron is None:
        table.notes.append("Megatron-LM's scripts are left out: --megatron DIR names a checkout.")
    elif (version := end_to_end.megatron_version(bench.megatron)) is not None:
        table.notes.append(f"The scripts run with megatron-core {version}.")
    return table


def memory(bench: Bench) -> Table:
    """The most memory that the program takes, for longer and longer input."""
    table = Table(
        f"Memory of {OURS}",
        ("tokenizer", "workers", "input GB", "MiB", "wall s", "MB / s"),
        text_columns=1,
        notes=["Mixed text, repeated: one file named again and again. MB / s: of JSON lines."],
    )
    plain = bench.corpus / corpus.MIXED
    size_bytes = plain.stat().st_size
    for workers, all_copies in bench.scale.copies.items():
        for copies in all_copies:
            with tempfile.TemporaryDirectory(dir=bench.work) as name:
                paths = [Path(name) / f"{number}.jsonl" for number in range(copies)]
                for path in paths:
                    path.symlink_to(plain.resolve())
                say(f"memory: {copies} copies, {workers} workers")
                usage = end_to_end.lt_preprocess(paths, bench.models["gpt2"], workers, bench.work).usage
            input_bytes = size_bytes * copies
            table.rows.append(
                (
                    bench.models["gpt2"].label,
                    str(workers),
                    f"{input_bytes / 1e9:.1f}",
                    median([usage.peak_bytes / MIB]),
                    median([usage.wall_seconds]),
                    median([input_bytes / MB / usage.wall_seconds]),
                )
            )
    return table


def compilation(bench: Bench) -> Table:
    """What the first run of all takes longer, while numba compiles."""
    table = Table("The first run compiles", ("tokenizer", "first run s", "later runs s"), text_columns=1)
    few = _few_lines(bench)
    for name in ("gpt2", "sentencepiece"):
        model = bench.models[name]
        with tempfile.TemporaryDirectory(dir=bench.work) as cache:
            say(f"compilation: {name}")
            runs = [end_to_end.lt_preprocess([few], model, CORES, bench.work, {"NUMBA_CACHE_DIR": cache}) for _ in range(2)]
        table.rows.append((model.label, *(median([run.usage.wall_seconds]) for run in runs)))
    return table


def ids(bench: Bench) -> Table:
    """Every document's ids beside those of the library that defines them."""
    table = Table(
        "Ids of all documents of the mixed corpus",
        ("tokenizer", "reference", "documents", "MB", "documents that differ"),
        text_columns=2,
    )
    for model in bench.models.values():
        say(f"ids: {model.name}")
        found = exactness.compare(model, bench.texts[corpus.MIXED], CORES)
        row = (f"{found.documents:,}", f"{found.text_bytes / MB:.0f}", f"{len(found.different):,}")
        table.rows.append((model.label, model.reference, *row))
        if found.different:
            table.has_failed = True
            table.notes.append(f"{model.label}: the first that differ are number {', '.join(map(str, found.different[:10]))}.")
    return table
