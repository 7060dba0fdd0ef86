"""Measures how often `lt-monitor tail-cause` is right on samples/causes: `nox -s causes [-- --json] [-- --part test]`.

A log of the corpus is a reduction of a public one. Its formats, codes and numbers are real, its paths, names and comments are
not. labels.tsv says of each log what a reader of its source concluded before lt-monitor saw the log: all causes and restart
decisions that are defensible, the best first. Repositories are divided into two parts by a hash of their names, so that rules
written for the development part are tried on logs of other projects.
"""

import argparse
import collections
import csv
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lt_monitor.runs.faults import tail_cause
from lt_monitor.runs.faults.advice import Action

CORPUS = Path(__file__).parent / "samples/causes"
SEPARATOR = "=====> "
DECISIONS = {
    Action.AGAIN: "again",
    Action.WITHOUT_NODE: "other-node",
    Action.STOP: "stop",
    # A script does not start a job again whose cause is unknown: exit code 1.
    Action.UNKNOWN: "stop",
    Action.NONE: "none",
}
STATES = ("failed", "cancelled", "running", "done")


@dataclasses.dataclass(frozen=True)
class Label:
    """`causes` and `decisions` are all defensible ones, the best first; `evidence` is a part of the line that shows the cause."""

    name: str
    source: str
    state: str
    causes: tuple[str, ...]
    decisions: tuple[str, ...]
    evidence: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    note: str

    @property
    def repository(self) -> str:
        return "/".join(self.source.partition("#")[0].split("/")[:2])


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What lt-monitor says about the log of `label`; `cause` is `none` if it reports no fault."""

    label: Label
    cause: str
    decision: str
    line: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]

    @property
    def is_cause_right(self) -> bool:
        return self.cause in self.label.causes

    @property
    def is_decision_right(self) -> bool:
        return self.decision in self.label.decisions

    @property
    def is_false_alarm(self) -> bool:
        return self.label.causes == ("none",) and self.cause != "none"

    @property
    def is_evidence_right(self) -> bool:
        return self.label.evidence in self.line


def part_of(repository: str) -> str:
    """Return the part of the corpus that a repository's logs belong to."""
    first_digit = hashlib.sha256(repository.lower().encode()).hexdigest()[0]
    return "test" if int(first_digit, 16) % 2 else "development"


def read_part(directory: Path, part: str) -> list[tuple[Label, str]]:
    """Return the labels and logs of a part of the corpus, in the order of the labels. A part without files is empty."""
    if not (directory / f"labels.{part}.tsv").exists():
        return []
    logs = {}
    for entry in f"\n{(directory / f'logs.{part}.txt').read_text()}".split(f"\n{SEPARATOR}")[1:]:
        name, _, text = entry.partition("\n")
        logs[name] = text if text.endswith("\n") else f"{text}\n"
    with open(directory / f"labels.{part}.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    labels = [
        Label(
            name=row["name"],
            source=row["source"],
            state=row["state"],
            causes=tuple(row["causes"].split(",")),
            decisions=tuple(row["decisions"].split(",")),
            evidence=row["evidence"],
            nodes=tuple(filter(None, row["nodes"].split(","))),
            ranks=tuple(map(int, filter(None, row["ranks"].split(",")))),
            note=row["note"],
        )
        for row in rows
    ]
    assert [label.name for label in labels] == list(logs), "each log has one label, in the same order"
    return [(label, logs[label.name]) for label in labels]


def judge(entries: Iterable[tuple[Label, str]]) -> list[Verdict]:
    """Return what lt-monitor says about each log."""
    verdicts = []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "slurm-1.out"
        for label, text in entries:
            log.write_text(text)
            cause = tail_cause.tail_cause([str(log)])
            line = f"{cause.text or ''}\n{cause.message}"
            verdicts.append(
                Verdict(label, cause.fault or "none", DECISIONS[cause.action], line, tuple(cause.nodes), tuple(cause.ranks))
            )
    return verdicts


def figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the accuracies as percentages, the misses, and precision and recall per cause and per restart decision."""
    failures = [verdict for verdict in verdicts if verdict.label.causes != ("none",)]
    with_evidence = [verdict for verdict in failures if verdict.is_cause_right]
    with_node = [verdict for verdict in failures if verdict.label.nodes]
    return {
        "logs": len(verdicts),
        "states": {state: sum(verdict.label.state == state for verdict in verdicts) for state in STATES},
        "repositories": len({verdict.label.repository for verdict in verdicts}),
        "causes": percentage(sum(verdict.is_cause_right for verdict in failures), len(failures)),
        "decisions": percentage(sum(verdict.is_decision_right for verdict in verdicts), len(verdicts)),
        "false_alarms": sum(verdict.is_false_alarm for verdict in verdicts),
        "missed": sum(verdict.cause == "none" and not verdict.is_cause_right for verdict in failures),
        "evidence": percentage(sum(verdict.is_evidence_right for verdict in with_evidence), len(with_evidence)),
        "nodes": percentage(sum(verdict.nodes == verdict.label.nodes for verdict in with_node), len(with_node)),
        "by_cause": precision_and_recall(
            [(verdict.label.causes[0], verdict.cause, verdict.is_cause_right) for verdict in verdicts]
        ),
        "by_decision": precision_and_recall(
            [(verdict.label.decisions[0], verdict.decision, verdict.is_decision_right) for verdict in verdicts]
        ),
    }


def percentage(count: int, total: int) -> float | None:
    return round(100 * count / total, 1) if total else None


def precision_and_recall(triples: Sequence[tuple[str, str, bool]]) -> dict[str, dict[str, Any]]:
    """Return precision and recall of each name among `(expected, reported, right)`, the most frequent first.

    A report of a name that is defensible, but not the best, counts as right for both names.
    """
    expected = collections.Counter(name for name, _, _ in triples)
    reported = collections.Counter(name for _, name, _ in triples)
    precise = collections.Counter(name for _, name, is_right in triples if is_right)
    recalled = collections.Counter(name for name, _, is_right in triples if is_right)
    return {
        name: {
            "logs": expected[name],
            "reported": reported[name],
            "precision": percentage(precise[name], reported[name]),
            "recall": percentage(recalled[name], expected[name]),
        }
        for name in sorted({*expected, *reported}, key=lambda name: (-expected[name], name))
    }


def table(values: dict[str, Any]) -> str:
    """Return the figures as text."""
    states = ", ".join(f"{count} {state}" for state, count in values["states"].items())
    lines = [
        f"{values['logs']} logs of {values['repositories']} repositories: {states}",
        f"right: causes {values['causes']}%, restart decisions {values['decisions']}%, evidence {values['evidence']}%, "
        f"nodes {values['nodes']}%; missed {values['missed']}, false alarms {values['false_alarms']}",
    ]
    for title, key in (("cause", "by_cause"), ("decision", "by_decision")):
        lines.append(f"\n{title:22}{'logs':>6}{'reported':>10}{'precision':>11}{'recall':>8}")
        lines += [
            f"{name:22}{row['logs']:6}{row['reported']:10}{_shown(row['precision']):>11}{_shown(row['recall']):>8}"
            for name, row in values[key].items()
        ]
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value}%"


def main() -> None:
    parser = argparse.ArgumentParser(description="measure how often lt-monitor names the cause of a failure")
    parser.add_argument("--part", choices=("development", "test", "all"), default="all", help="logs to measure (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--misses", action="store_true", help="print each log whose cause or decision is wrong")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="directory with the corpus (default: samples/causes)")
    arguments = parser.parse_args()
    parts = ("development", "test") if arguments.part == "all" else (arguments.part,)
    verdicts = {part: judge(read_part(arguments.corpus, part)) for part in parts}
    if arguments.json:
        print(json.dumps({part: figures(judged) for part, judged in verdicts.items() if judged}))
        return
    for part, judged in verdicts.items():
        if judged:
            print(f"{part}: {table(figures(judged))}\n")
        for verdict in judged if arguments.misses else ():
            if not (verdict.is_cause_right and verdict.is_decision_right):
                expected = f"{'|'.join(verdict.label.causes)} {'|'.join(verdict.label.decisions)}"
                reported = f"{verdict.cause} {verdict.decision}"
                print(f"{verdict.label.name}: expected {expected}, got {reported}: {verdict.line.splitlines()[-1][:110]}")


if __name__ == "__main__":
    main()
