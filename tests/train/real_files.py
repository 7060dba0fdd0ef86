"""Import the configurations of real_files.tsv again, from clones of their repositories, and compare with what is written there.

    python tests/train/real_files.py CLONES

CLONES has a clone of NVIDIA/NeMo as NVIDIA+NeMo, with its history, and so on. The files are those of 2021
to 2026 as their authors left them; they are not copied here. Prints a tally for each repository, and each difference.
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
    content = subprocess.run(["git", "-C", clone, "cat-file", "blob", file.blob], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, Path(file.path).name)
        path.write_bytes(content)
        done = subprocess.run([sys.executable, "-m", "lt_train", "import", path], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stderr.rpartition(COUNTED)[2].split()[0].replace(",", "")
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("lt-train: error: "))
    return "refused: " + error.removeprefix(f"lt-train: error: {path}: ")


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
