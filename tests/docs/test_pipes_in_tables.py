"""Commands with pipes in tables: on the site and on GitHub they can be copied as they are to be typed."""

import html
import re
import subprocess
from pathlib import Path

import markdown
import nursery
import pytest

ROOT = Path(__file__).parents[2]
CELL_END = re.compile(r"(?<!\\)\|")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs")
    subprocess.run([nursery.light_python(), ROOT / "docs/generate.py", directory], check=True, stdout=subprocess.DEVNULL)
    return directory / "pages"


def site_codes(page: Path) -> list[str]:
    """The code in the tables of a page, as mkdocs renders it."""
    rendered = markdown.markdown(page.read_text(), extensions=["tables", "fenced_code"])
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", rendered, re.DOTALL)
    return [html.unescape(code) for cell in cells for code in re.findall(r"<code>(.*?)</code>", cell, re.DOTALL)]


def github_codes(text: str) -> list[str]:
    """The code in the tables of a page by GitHub's rules: an unescaped pipe ends a cell, in code too."""
    codes = []
    for line in re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        if line.startswith("|"):
            for cell in CELL_END.split(line):
                codes += [code for _, code in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", cell.replace("\\|", "|"))]
    return [code.strip() if code.strip().startswith("`") else code for code in codes]


def test_the_site_shows_what_github_shows(pages: Path) -> None:
    with_pipes = 0
    for path in sorted(ROOT.glob("docs/**/*.md")):
        page = pages / path.relative_to(ROOT / "docs")
        assert site_codes(page) == github_codes(path.read_text()), path
        with_pipes += sum("|" in code for code in site_codes(page))
    assert with_pipes > 30


def test_no_page_of_the_site_shows_a_backslash_before_a_pipe(pages: Path) -> None:
    for page in pages.rglob("*.md"):
        shown = [code for code in site_codes(page) if "\\|" in code]
        assert not shown, (page, shown)
