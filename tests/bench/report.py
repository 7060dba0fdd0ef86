"""Tables for people: plain for a terminal, Markdown between two markers of a file."""

import dataclasses
import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MEASURED_PACKAGES = ("numba", "gigatoken", "tiktoken", "sentencepiece", "tokenizers")


@dataclasses.dataclass
class Table:
    """The first `text_columns` columns are words, the others numbers. Notes stand below, and then a list."""

    title: str
    columns: Sequence[str]
    text_columns: int
    rows: list[Sequence[str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    items: list[str] = dataclasses.field(default_factory=list)
    has_failed: bool = False

    def plain(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = []
        for row in (self.columns, *self.rows):
            cells = [
                cell.ljust(width) if i < self.text_columns else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([self.title, "", *lines, "", *self.notes, *self.items, ""])

    def markdown(self) -> str:
        rule = ["---" if i < self.text_columns else "---:" for i in range(len(self.columns))]
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, rule, *self.rows)]
        notes = [" ".join(self.notes), ""] if self.notes else []
        items = [*(f"- {item}" for item in self.items), ""] if self.items else []
        return "\n".join([f"### {self.title}", "", *lines, "", *notes, *items])


def machine() -> str:
    """What was measured on, when, and which versions: one sentence each."""
    processor = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    versions = ", ".join(f"{name} {version}" for name in MEASURED_PACKAGES if (version := _version(name)))
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.date.today().isoformat()}, {processor}, {cores} cores, {memory_gib:.0f} GiB of memory, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}."
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_markers(path: Path) -> None:
    """Raises ValueError unless the file has the two markers, in order."""
    text = path.read_text(encoding="utf-8")
    if not 0 <= text.find(BEGIN) < text.find(END):
        raise ValueError(f"{path}: needs a line {BEGIN} and after it a line {END}")


def write_markdown(path: Path, content: str) -> None:
    """Replace what stands between the markers."""
    check_markers(path)
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n{content.strip()}\n{END}{after}", encoding="utf-8")
