"""Fails when more functions of a room of lt_train take the whole RunConfig than the room may have.

A signature says what a function depends on: the settings groups that it reads, or a noun that is made once from the
configuration. RunConfig is for functions that read nearly all of it, hand it on to ranks, or make such a noun.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "tools/train/src/lt_train"
WHOLE = "RunConfig"
# The most signatures with RunConfig in each room; a room that is not listed has none.
LIMITS = {
    "checkpoint": 10,
    "cli.py": 1,
    "config": 2,
    "data": 1,
    "launch": 5,
    "models": 2,
    "planner": 5,
    "preflight": 1,
    "train": 10,
}


def signatures(path: Path) -> Iterator[str]:
    """Yield each function of the file of which a parameter's annotation names RunConfig."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg) and each.annotation]
            if any(WHOLE in ast.unparse(annotation) for annotation in annotations):
                yield f"{path}:{node.lineno}: {node.name}"


def main() -> int:
    by_room: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        by_room.setdefault(path.relative_to(SOURCE).parts[0], []).extend(signatures(path))
    counts = Counter({room: len(found) for room, found in by_room.items()})
    too_many = {room: count for room, count in counts.items() if count > LIMITS.get(room, 0)}
    for room, count in too_many.items():
        print("\n".join(by_room[room]))
        print(f"{room}: {count} signatures have {WHOLE}, {LIMITS.get(room, 0)} at most: take the settings groups that are read")
    if unknown := LIMITS.keys() - by_room.keys():
        print(f"{', '.join(sorted(unknown))}: no such room")
    if not too_many:
        print(f"{WHOLE} stands in {counts.total()} signatures")
    return 1 if too_many or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
