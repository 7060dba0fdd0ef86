"""Fails if a file of a package has more than 400 lines, or a room (a folder of a package) has no docstring.

A file that outgrows 400 lines has two subjects: a reader who knows the field should find each subject by the name of a file.
A room has as many files as its subject needs.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [*(ROOT / "tools").glob("*/src/*"), ROOT / "shared/src/lt_shared"]
MOST_LINES = 400


def problems(package: Path) -> Iterator[str]:
    for room in sorted({path.parent for path in package.rglob("*.py")}):
        files = sorted(room.glob("*.py"))
        if not ast.get_docstring(ast.parse((room / "__init__.py").read_text())):
            yield f"{room}: the docstring of __init__.py is missing: say what comes in, what goes out and who calls the room"
        for path in files:
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                yield f"{path}: {lines} lines, {MOST_LINES} at most"


def main() -> int:
    packages = [package for package in PACKAGES if (package / "__init__.py").is_file()]
    messages = [problem for package in packages for problem in problems(package)]
    print("\n".join(messages) or f"the files of {len(packages)} packages are short")
    return 1 if messages or not packages else 0


if __name__ == "__main__":
    sys.exit(main())
