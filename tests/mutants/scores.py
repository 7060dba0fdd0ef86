"""What became of the mutants of a module: survivors as diffs, and the score.

A mutant that no test can kill, because it does the same as the module, is listed with a reason in equivalent.toml and does not
count. A listed mutant that a test kills, or that does not exist any more, is an error in the list: the list must not rot.
"""

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from operators import Mutant

LEAST_SCORE = 0.95
LIST = Path(__file__).parent / "equivalent.toml"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`by` is the test that failed; a survivor has none. `tests` is how many were tried."""

    mutant: Mutant
    status: str
    tests: int
    by: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcomes of one module's mutants."""

    module: str
    source: bytes
    outcomes: list[Outcome]
    equivalent: dict[tuple[str, str], str]

    def change(self, mutant: Mutant) -> tuple[str, str]:
        """The changed lines before and after, each as one line without indentation: how the list names a mutant."""
        before, after = self.source.decode().splitlines(), mutant.apply(self.source).decode().splitlines()
        first = next(index for index, (one, other) in enumerate(zip([*before, ""], [*after, ""], strict=False)) if one != other)
        tail = 0
        while tail < min(len(before), len(after)) - first and before[-1 - tail] == after[-1 - tail]:
            tail += 1
        return tuple(" ".join(" ".join(text[first : len(text) - tail]).split()) for text in (before, after))  # type: ignore[return-value]

    def is_equivalent(self, outcome: Outcome) -> bool:
        return outcome.status == "survived" and self.change(outcome.mutant) in self.equivalent

    def survivors(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.status == "survived" and not self.is_equivalent(one)]

    def counted(self) -> int:
        return sum(not self.is_equivalent(one) for one in self.outcomes)

    def score(self) -> float:
        return 1.0 - len(self.survivors()) / self.counted() if self.counted() else 1.0

    def stale(self) -> list[tuple[str, str]]:
        """Entries of the list that name no survivor."""
        surviving = {self.change(one.mutant) for one in self.outcomes if one.status == "survived"}
        return [entry for entry in self.equivalent if entry not in surviving]

    def diff(self, outcome: Outcome) -> str:
        before = self.source.decode().splitlines(keepends=True)
        after = outcome.mutant.apply(self.source).decode().splitlines(keepends=True)
        reason = f"{outcome.mutant.operator}, " + (f"{outcome.tests} tests" if outcome.tests else "no test executes this")
        return "".join(difflib.unified_diff(before, after, self.module, reason, n=1))

    def summary(self) -> str:
        killed = sum(one.status != "survived" for one in self.outcomes)
        late = sum(one.status == "timed out" for one in self.outcomes)
        same = sum(self.is_equivalent(one) for one in self.outcomes)
        parts = (
            f"{len(self.outcomes)} mutants, {killed} killed ({late} by time), {same} equivalent, {len(self.survivors())} survived"
        )
        return f"{self.module}: {parts}, score {self.score():.1%}"

    def to_record(self) -> dict[str, Any]:
        return {
            "module": self.module,
            "score": round(self.score(), 4),
            "mutants": [
                {
                    "line": self.source.count(b"\n", 0, one.mutant.begin) + 1,
                    "operator": one.mutant.operator,
                    "before": self.change(one.mutant)[0],
                    "after": self.change(one.mutant)[1],
                    "status": "equivalent" if self.is_equivalent(one) else one.status,
                    "tests": one.tests,
                    "killed_by": one.by or None,
                }
                for one in self.outcomes
            ],
        }


def equivalents(module: str, path: Path = LIST) -> dict[tuple[str, str], str]:
    """The listed mutants of a module, by what they change, with their reasons."""
    listed = tomllib.loads(path.read_text()).get(module, []) if path.exists() else []
    return {(one["before"], one["after"]): one["reason"] for one in listed}
