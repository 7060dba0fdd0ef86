"""Situations for the checks of lt-train preflight: a made-up machine below a directory."""

from collections.abc import Callable, Iterator
from pathlib import Path

from layouts import assembled

from lt_train.config.cluster import GPUS, Cluster
from lt_train.config.draft import Draft
from lt_train.preflight.check_interface import Finding, NotChecked, Situation

MODEL = ("--model", "tiny", "--mock-data", "--device", "cpu", "--eval-iters", "0")


def situation(
    root: Path, *options: str, nodes: int = 1, gpu: str | None = None, image: str | None = None, **variables: str
) -> Situation:
    """Of a run of the tiny model on this machine, whose files lie below `root`; `gpu` on a cluster elsewhere."""
    cluster = Cluster(GPUS[gpu] if gpu else None, nodes, 8)
    return Situation(Draft(vars(assembled([*MODEL, *options]))), cluster, variables, gpu is not None, image, root)


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def said(check: Callable[[Situation], Iterator[Finding]], where: Situation) -> list[str]:
    """Findings as text; a check without an object says so in one."""
    try:
        return [str(finding) for finding in check(where)]
    except NotChecked as reason:
        return [f"not checked: {reason}"]
