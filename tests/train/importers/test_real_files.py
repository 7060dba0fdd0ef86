"""The table of real configurations, and what the documentation says of it."""

import collections
import re
from pathlib import Path

from real_files import real_files

PAGE = Path(__file__).parents[3] / "docs/coming-from.md"


def test_the_page_has_the_tally_of_the_table() -> None:
    tally: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for file in real_files():
        tally[file.repository][not file.is_imported] += 1
    page = PAGE.read_text()
    rows = re.findall(r"^\| (\S+/\S+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert {name: [int(imported), int(refused)] for name, _, imported, refused in rows} == tally
    assert all(int(files) == int(imported) + int(refused) for _, files, imported, refused in rows)
    assert f"{len(list(real_files()))} configurations from these projects" in page


def test_the_table_is_of_different_files() -> None:
    files = list(real_files())
    assert len({(file.repository, file.blob) for file in files}) == len(files) > 60
    assert all(file.expected.isdigit() or not file.is_imported for file in files)
