"""Import the configurations of real_files.tsv again, from clones of their repositories, and compare with what is written there.

    python tests/train/real_files.py CLONES

CLONES has a clone of NVIDIA/NeMo as NVIDIA+NeMo, with its history, and so on. The files are those of 2021
to 2026 as their authors left them; they are not copied here. A configuration in Python, or one that names others, is imported in
the tree of its commit in TREES. Prints a tally for each repository, and each difference.
"""

import collections
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FACTS = Path(__file__).with_suffix(".tsv")
COUNTED = "the model has "
# Commits of repositories whose configurations read other files. One of them has the file with its content.
TREES = {
    "AMD-AGI/Primus": ("fd1eeabb",),
    "AMD-AIG-AIMA/Primus": ("2d42400",),
    "GeodesicResearch/geodesic-megatron": ("df06386a224d5f61ef1e7b67b0ee17b943940322",),
    "NVIDIA-NeMo/Megatron-Bridge": ("067f987df03b8355b03192d88d70f1709fedf51a",),
    "NVIDIA/NeMo": ("8cfedd7203462cb251a914e700e5605444277561",),
    "OpenEuroLLM/oellm-autoexp": ("c6d0cc0",),
    "pytorch/torchtitan": (
        "dafd87a902197f7822aa5e572a13e915c7159e9a",
        "61c010fcb661a9f6a8ef05f42dd9efbe3f31190e",
        "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a",
    ),
    "zidanehuang001/Megatron-Bridge": ("8dfe24902104042861f391fce0eb11918b24a3d0",),
}
READ = (".py", ".yaml", "pyproject.toml", "setup.py", "LICENSE")


@dataclasses.dataclass(frozen=True)
class RealFile:
    """`expected` is a number of parameters, or "refused: " and why."""

    repository: str
    path: str
    blob: str
    expected: str

    @property
    def is_imported(self) -> bool:
        return not self.expected.startswith("refused: ")


def real_files() -> Iterator[RealFile]:
    for line in FACTS.read_text().splitlines():
        if not line.startswith("#"):
            yield RealFile(*line.split("\t"))


def outcome(file: RealFile, clone: Path) -> str:
    """What `lt-train import` ends with, as in the table."""
    name, colon, function = file.path.partition(".py:")
    name += ".py" if colon else ""
    with tempfile.TemporaryDirectory() as directory:
        commit = next((commit for commit in TREES.get(file.repository, ()) if blob_of(clone, commit, name) == file.blob), None)
        path = Path(directory, name if commit else Path(name).name)
        if commit:
            checkout(clone, commit, Path(directory))
        else:
            path.write_bytes(git(clone, "cat-file", "blob", file.blob))
        source = f"{path}:{function}" if function else str(path)
        done = subprocess.run([sys.executable, "-m", "lt_train", "import", source], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stderr.rpartition(COUNTED)[2].split()[0].replace(",", "")
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("lt-train: error: "))
    return "refused: " + error.removeprefix("lt-train: error: ").removeprefix(f"{source}: ").removeprefix(f"{path}: ")


def git(clone: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", clone, *words], capture_output=True, check=True).stdout


def blob_of(clone: Path, commit: str, path: str) -> str:
    """git's id of the content of a path in a commit, or an empty text."""
    row = git(clone, "ls-tree", commit, path).decode().split()
    return row[2] if row else ""


def checkout(clone: Path, commit: str, directory: Path) -> None:
    """Write the files of a commit that a configuration may read."""
    for row in git(clone, "ls-tree", "-rz", commit).decode().split("\0"):
        kind, _, path = row.partition("\t")
        if path.endswith(READ) and kind.split()[1] == "blob" and not kind.startswith("120000"):
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(git(clone, "cat-file", "blob", kind.split()[2]))


def main(clones: Path) -> int:
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    for file in real_files():
        name = file.repository.replace("/", "+")
        clone = next((place for place in (clones / name / "repo", clones / name) if place.exists()), None)
        if clone is None:
            tally[file.repository, "no clone"] += 1
            continue
        found = outcome(file, clone)
        tally[file.repository, "as before" if found == file.expected else "DIFFERS"] += 1
        if found != file.expected:
            print(f"{file.repository} {file.path}: {found}, before {file.expected}")
    for (repository, kind), count in sorted(tally.items()):
        print(f"{repository}: {count} {kind}")
    return int(any(kind != "as before" for _, kind in tally))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
