"""The files of the repository that a configuration belongs to, and the modules in them.

Only files below the repository's directory are read, and none that an import path of this process names.
"""

import ast
from pathlib import Path

from lt_shared.console import BadData
from lt_shared.files import storage
from lt_train.importers.python.limits import LARGEST_FILE, MOST_FILES, REMEDY
from lt_train.importers.python.values import Module

# Files that stand in the directory of a repository, the surest first. Packages inside of it have some of them, too.
MARKS = ((".git",), ("pyproject.toml", "setup.py", "setup.cfg"), ("requirements.txt", "LICENSE", "README.md"))
# Directories of a repository that imports may begin in, beside its own.
SOURCES = ("src", "3rdparty/Megatron-LM", "third_party/Megatron-LM", "lib")
MOST_PARENTS = 12


class Repository:
    """Find modules by their dotted names, beginning beside the configuration and in the directories above it."""

    def __init__(self, file: Path):
        self.file = file
        self.root = _root_of(file)
        self._modules: dict[str, Module | None] = {}
        self._packages: dict[str, bool] = {}
        self._files = 0

    def first_module(self) -> Module:
        """Parse the configuration itself, under the name that its place in the repository gives it."""
        name, package = self._name_of(self.file)
        module = self._parse(name, self.file, is_package=package)
        self._modules[name] = module
        return module

    def module(self, name: str) -> Module | None:
        """Return the module `name`, or None if the repository has no such file."""
        if name not in self._modules:
            file = self._find(name)
            self._modules[name] = self._parse(name, file, file.name == "__init__.py") if file else None
        return self._modules[name]

    def is_package(self, name: str) -> bool:
        """Whether the repository has a directory of modules with this name."""
        if name not in self._packages:
            folders = [base / Path(*name.split(".")) for base in self._bases()]
            self._packages[name] = any(any(folder.glob("*.py")) or _has_packages(folder) for folder in folders)
        return self._packages[name]

    def _bases(self) -> list[Path]:
        bases = [parent for parent in self.file.parents if parent == self.root or self.root in parent.parents]
        return [*bases, *(self.root / name for name in SOURCES)]

    def _find(self, name: str) -> Path | None:
        if not name or not all(part.isidentifier() for part in name.split(".")):
            return None
        relative = Path(*name.split("."))
        for base in self._bases():
            for candidate in (base / relative / "__init__.py", (base / relative).with_suffix(".py")):
                if candidate.is_file() and self._is_inside(candidate) and self._is_reachable(base, candidate):
                    return candidate
        return None

    def _is_inside(self, file: Path) -> bool:
        """Whether `file` lies in the repository, also behind symbolic links."""
        return self.root.resolve() in file.resolve().parents

    def _is_reachable(self, base: Path, candidate: Path) -> bool:
        """Whether imports could begin in `base`: a directory that is itself a package holds no top-level modules."""
        return base == self.file.parent or not (base / "__init__.py").exists()

    def _name_of(self, file: Path) -> tuple[str, bool]:
        """Return the dotted name of a file, and whether it names a package."""
        inside = [parent for parent in file.parents if self.root in parent.parents]
        packages = [parent for parent in inside if (parent / "__init__.py").exists()]
        # A directory between packages may lack __init__.py, and so may those above, as megatron in src/megatron/bridge.
        bases = [self.root / name for name in SOURCES] + [self.root]
        base = packages[-1].parent if packages else file.parent
        base = next((place for place in bases if place in base.parents), base) if packages else base
        parts = file.relative_to(base).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        return ".".join(parts[:-1] if is_package else parts) or file.stem, is_package

    def _parse(self, name: str, file: Path, is_package: bool) -> Module:
        shown = str(file.relative_to(self.root)) if self.root in file.parents else file.name
        self._files += 1
        if self._files > MOST_FILES:
            raise BadData(f"more than {MOST_FILES} files to read it", REMEDY)
        if file.stat().st_size > LARGEST_FILE:
            raise BadData(f"{shown}: more than {LARGEST_FILE:,} bytes", REMEDY)
        content = storage.read_bytes(str(file))
        try:
            tree = ast.parse(content)
        except SyntaxError as error:
            raise BadData(f"{shown}:{error.lineno}: not Python: {error.msg}", "lt-train import recipe.py:FUNCTION") from None
        except (ValueError, MemoryError, RecursionError):
            raise BadData(f"{shown}: not Python that can be read", "lt-train import recipe.py:FUNCTION") from None
        return Module(name, str(file), tree, is_package, shown=shown)


def _root_of(file: Path) -> Path:
    """Return the directory of the repository that `file` is in, or the topmost directory of its package."""
    parents = [parent for parent in list(file.parents)[:MOST_PARENTS] if not (parent / "__init__.py").exists()]
    for marks in MARKS:
        marked = next((parent for parent in parents if any((parent / mark).exists() for mark in marks)), None)
        if marked is not None:
            return marked
    directory = file.parent
    while directory != directory.parent and (directory / "__init__.py").exists():
        directory = directory.parent
    return directory


def _has_packages(directory: Path) -> bool:
    return directory.is_dir() and any(child.is_dir() and (child / "__init__.py").exists() for child in directory.iterdir())
