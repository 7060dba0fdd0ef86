"""The sections of the benchmark about encoders: documents to ids, and JSON lines to ids."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import corpus
import models
import peers
from measurement import CORES, FAST, GIGATOKEN, MB, MIB, OURS, Bench, in_rounds, median, percent, python, times
from report import Table

SLOW_MB_A_SECOND = 25  # more than a slow library encodes on one thread: no more text is loaded for it
TWO_KINDS = ("gpt2", "sentencepiece")


def _encode(bench: Bench, peer: str, model: models.Model, name: str, threads: int) -> dict[str, Any]:
    """One measurement by peers.py."""
    scale = bench.scale
    seconds = scale.fast_seconds if peer in FAST else scale.slow_seconds
    megabytes = scale.megabytes if peer in FAST else min(scale.megabytes, seconds * threads * SLOW_MB_A_SECOND)
    texts = str(bench.texts[name])
    task = peers.Task(peer, model.name, texts, str(bench.tokenizers), megabytes, threads, seconds)
    return python("peers.py", json.dumps(task._asdict()), environment=peers.environment(threads))


def _rate(result: dict[str, Any], clock: str, one: str = "cold") -> float:
    """MB a second of the named pass by the named clock."""
    return result[one]["text_bytes"] / MB / result[one][clock] if result[one] else 0.0


def _peers(model: models.Model, name: str = corpus.MIXED) -> tuple[str, ...]:
    """Whom to compare; the slow libraries encode mixed text only."""
    return FAST if name != corpus.MIXED else (*FAST, model.reference, "HF tokenizers")


def _differing_tokens(results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """The fast peers that made another number of tokens of the same documents."""
    ours = results[OURS][0]["cold"]
    theirs = {peer: result[0]["cold"] for peer, result in results.items() if peer in FAST}
    return [peer for peer, one in theirs.items() if one["is_whole"] and ours["is_whole"] and one["tokens"] != ours["tokens"]]


def encoders(bench: Bench) -> Table:
    """Documents to ids on one thread."""
    kinds = [(model, name) for model in bench.models.values() for name in bench.scale.corpora]
    jobs = {
        (model.label, Path(name).stem, peer): lambda model=model, name=name, peer=peer: _encode(bench, peer, model, name, 1)
        for model, name in kinds
        for peer in _peers(model, name)
    }
    results = in_rounds(jobs, bench.scale.rounds)
    table = Table(
        "Documents to ids, one thread",
        ("tokenizer", "text", "encoder", "MB read", "MB / CPU s", "MB / s", "warm MB / CPU s", "MiB", f"{OURS} is"),
        text_columns=3,
        notes=[
            "Cold: the first time over the documents in the process; warm: the second.",
            f"Slow libraries read the first documents only, for {bench.scale.slow_seconds:g} seconds.",
            "MiB: the library, the tokenizer and all it needs while encoding, without the documents. Ratios: of MB / CPU s.",
        ],
    )
    for model, name in kinds:
        label, text = model.label, Path(name).stem
        of_peer = {peer: results[label, text, peer] for peer in _peers(model, name)}
        ours = [_rate(result, "cpu_seconds") for result in of_peer[OURS]]
        for peer, found in of_peer.items():
            theirs = [_rate(result, "cpu_seconds") for result in found]
            warm = [_rate(result, "cpu_seconds", "warm") for result in found]
            table.rows.append(
                (
                    label,
                    text,
                    peer,
                    median(result["cold"]["text_bytes"] / MB for result in found),
                    median(theirs),
                    median(_rate(result, "wall_seconds") for result in found),
                    median(warm) if all(warm) else "",
                    median(result["peak_bytes"] / MIB for result in found),
                    "" if peer == OURS else times(a / b for a, b in zip(ours, theirs, strict=True)),
                )
            )
            if statistics.median(result["cold"]["cpu_seconds"] / result["cold"]["wall_seconds"] for result in found) > 1.05:
                table.notes.append(f"{peer}, {label}: used more than one core.")
        table.notes += [f"{peer}, {label}, {text}: another number of tokens." for peer in _differing_tokens(of_peer)]
    return table


def cores(bench: Bench) -> Table:
    """Documents to ids on all cores, and what each gains over one."""
    threads = {OURS: (1, CORES), GIGATOKEN: (1, CORES)}
    jobs = {
        (model.label, peer, count): lambda model=model, peer=peer, count=count: _encode(bench, peer, model, corpus.MIXED, count)
        for model in map(bench.models.__getitem__, TWO_KINDS)
        for peer in _peers(model)
        if peer in bench.scale.peers_on_all_cores
        for count in threads.get(peer, (CORES,))
    }
    results = in_rounds(jobs, bench.scale.rounds)
    table = Table(
        f"Documents to ids, {CORES} threads on {CORES} cores",
        ("tokenizer", "encoder", "MB read", "MB / s", "MB / CPU s", "over one thread", "MiB", f"{OURS} is"),
        text_columns=2,
        notes=["Mixed text, cold. Ratios are those of MB / s, wall time."],
    )
    for (label, peer, count), found in results.items():
        if count != CORES:
            continue
        ours = [_rate(result, "wall_seconds") for result in results[label, OURS, CORES]]
        theirs = [_rate(result, "wall_seconds") for result in found]
        alone = [_rate(result, "wall_seconds") for result in results.get((label, peer, 1), [])]
        table.rows.append(
            (
                label,
                peer,
                median(result["cold"]["text_bytes"] / MB for result in found),
                median(theirs),
                median(_rate(result, "cpu_seconds") for result in found),
                times(a / b for a, b in zip(theirs, alone, strict=True)) if alone else "",
                median(result["peak_bytes"] / MIB for result in found),
                "" if peer == OURS else times(a / b for a, b in zip(ours, theirs, strict=True)),
            )
        )
    return table


def lines(bench: Bench) -> Table:
    """JSON lines to ids on one thread, and the share of each stage."""
    path = bench.work / "lines.jsonl"
    size_bytes = 0
    with (bench.corpus / corpus.MIXED).open("rb") as source, path.open("wb") as target:
        for line, text in zip(source, corpus.load_texts(bench.texts[corpus.MIXED], bench.scale.megabytes), strict=False):
            target.write(line)
            size_bytes += len(text)
    size_mb = size_bytes / MB
    chosen = [bench.models[name] for name in TWO_KINDS]
    jobs = {
        (model.label, who): lambda model=model, who=who: python(
            "stages.py", who, model.name, str(bench.tokenizers), str(path), str(bench.work)
        )
        for model in chosen
        for who in FAST
    }
    results = in_rounds(jobs, bench.scale.rounds)
    stages = ("read", "parse", "encode", "assemble", "write")
    table = Table(
        "JSON lines to ids, one thread",
        ("tokenizer", "program", "MB / CPU s", f"{OURS} is", *stages),
        text_columns=2,
        notes=[
            f"{size_mb:.0f} MB of mixed text, cold. MB / CPU s: reading, parsing and encoding; gigatoken: `encode_files`.",
            "Shares: of all the CPU time of one worker and the thread that writes.",
        ],
    )
    for model in chosen:
        to_ids = {
            who: [size_mb / sum(one.get(stage, 0.0) for stage in stages[:3]) for one in results[model.label, who]] for who in FAST
        }
        ours = results[model.label, OURS]
        shares = [percent(one.get(stage, 0.0) / sum(one.values()) for one in ours) for stage in stages]
        faster = times(a / b for a, b in zip(to_ids[OURS], to_ids[GIGATOKEN], strict=True))
        table.rows.append((model.label, OURS, median(to_ids[OURS]), "", *shares))
        table.rows.append((model.label, GIGATOKEN, median(to_ids[GIGATOKEN]), faster, *([""] * len(stages))))
    return table
