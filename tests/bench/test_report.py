"""Tables, and where they go."""

from pathlib import Path

import pytest
import report
from report import Table

TABLE = Table("Speed", ("who", "MB / s"), text_columns=1, rows=[("ours", "10"), ("theirs", "1,000")], notes=["Cold."])


def test_plain_table_is_aligned() -> None:
    assert TABLE.plain().splitlines() == ["Speed", "", "who     MB / s", "ours        10", "theirs   1,000", "", "Cold."]


def test_markdown_table() -> None:
    expected = ["### Speed", "", "| who | MB / s |", "| --- | ---: |", "| ours | 10 |", "| theirs | 1,000 |", "", "Cold."]
    assert TABLE.markdown().splitlines() == expected


def test_markdown_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for content in ("new", "newer"):
        report.write_markdown(page, content)
    assert page.read_text() == f"before\n{report.BEGIN}\nnewer\n{report.END}\nafter\n"


@pytest.mark.parametrize("text", ["no markers", report.BEGIN, f"{report.END}\n{report.BEGIN}"])
def test_file_without_both_markers_is_refused(tmp_path: Path, text: str) -> None:
    page = tmp_path / "README.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="needs a line"):
        report.write_markdown(page, "new")
    assert page.read_text() == text
