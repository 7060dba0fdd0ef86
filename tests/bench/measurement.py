"""What the sections of the benchmark share: how much is measured, rounds, and how figures are written."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import corpus
import models
import peers

MB, MIB = 10**6, 1 << 20
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lt-bench"
CORES = len(os.sched_getaffinity(0))
OURS, GIGATOKEN = "lt-preprocess", "gigatoken"
FAST = (OURS, GIGATOKEN)

Key = TypeVar("Key", bound=tuple[object, ...])
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured.

    The first `megabytes` of each corpus are encoded; a slow library stops after `slow_seconds`, the others after `fast_seconds`.
    `copies`: how often the mixed corpus is repeated, by the number of workers, to see what memory a longer input takes.
    """

    sections: tuple[str, ...]
    rounds: int
    corpora: tuple[str, ...]
    megabytes: float
    slow_seconds: float
    fast_seconds: float
    peers_on_all_cores: tuple[str, ...]
    with_slow_script: bool
    copies: Mapping[int, tuple[int, ...]]


FULL = Scale(
    sections=("encoders", "cores", "lines", "programs", "memory", "compilation", "ids"),
    rounds=3,
    corpora=(corpus.MIXED, corpus.ENGLISH),
    megabytes=60,
    slow_seconds=2,
    fast_seconds=15,
    peers_on_all_cores=tuple(peers.PEERS),
    with_slow_script=True,
    copies={1: (1, 5), CORES: (1, 5, 25)},
)
QUICK = Scale(
    sections=("encoders", "cores", "programs"),
    rounds=1,
    corpora=(corpus.MIXED,),
    megabytes=20,
    slow_seconds=1,
    fast_seconds=5,
    peers_on_all_cores=FAST,
    with_slow_script=False,
    copies={CORES: (1, 2)},
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all sections need. `texts` has the documents of each corpus, `work` is an empty directory."""

    scale: Scale
    corpus: Path
    work: Path
    tokenizers: Path
    models: Mapping[str, models.Model]
    texts: Mapping[str, Path]
    megatron: Path | None


def say(message: str) -> None:
    print(f"bench: {message}", file=sys.stderr, flush=True)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def times(values: Iterable[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.2f}x" if middle < 10 else f"{middle:.0f}x"


def median(values: Iterable[float]) -> str:
    return number(statistics.median(values))


def in_rounds(jobs: Mapping[Key, Callable[[], Result]], rounds: int) -> dict[Key, list[Result]]:
    """Run all jobs one after the other, in each round; the results of each, by round."""
    results: dict[Key, list[Result]] = {key: [] for key in jobs}
    for number in range(rounds):
        for key, job in jobs.items():
            say(f"round {number + 1} of {rounds}: {', '.join(map(str, key))}")
            results[key].append(job())
    return results


def percent(shares: Iterable[float]) -> str:
    return f"{100 * statistics.median(shares):.1f}%"


def python(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run a script beside this one; what its last line of JSON says."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    finished = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(finished.stdout.splitlines()[-1])
