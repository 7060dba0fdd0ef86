"""Fails when a room (a folder of a package) has more than 20 files, a file more than 400 lines, or a room no docstring.

A room that outgrows this has two subjects, and so has a file: a reader who knows the field should find a file by its name.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [*(ROOT / "tools").glob("*/src/*"), ROOT / "shared/src/lt_shared"]
MOST_FILES = 20
MOST_LINES = 400


def problems(package: Path) -> Iterator[str]:
    for room in sorted({path.parent for path in package.rglob("*.py")}):
        files = sorted(room.glob("*.py"))
        if len(files) > MOST_FILES:
            yield f"{room}: {len(files)} files in one room, {MOST_FILES} at most"
        if not ast.get_docstring(ast.parse((room / "__init__.py").read_text())):
            yield f"{room}: its __init__.py does not say what comes in, what goes out and who calls it"
        for path in files:
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                yield f"{path}: {lines} lines, {MOST_LINES} at most"


def main() -> int:
    packages = [package for package in PACKAGES if (package / "__init__.py").is_file()]
    found = [problem for package in packages for problem in problems(package)]
    print("\n".join(found) or f"the rooms of {len(packages)} packages are small")
    return 1 if found or not packages else 0


if __name__ == "__main__":
    sys.exit(main())
