"""Fails when files import each other in a circle, be they siblings or a package's `__init__.py` and one of its modules.

import-linter's `acyclic_siblings` compares siblings only. Here an edge is an import statement, also one inside a function, but
not one that only type checkers see: in such the packages name their Python API, which they import when it is asked for.
"""

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("lt_shared", "lt_preprocess", "lt_train", "lt_convert", "lt_monitor")


def circle(package: str) -> list[str]:
    """The modules of one circle, the first again at the end; empty when there is none."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> int:
    sys.path[:0] = [str(path) for path in (ROOT / "shared/src", *(ROOT / "tools").glob("*/src"))]
    found = {package: modules for package in PACKAGES if (modules := circle(package))}
    for package, modules in found.items():
        print(f"{package}: {' -> '.join(reversed(modules))}")
    print("import circles" if found else f"no import circle in {len(PACKAGES)} packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
