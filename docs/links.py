"""Where a file of the repository lies on the site, and links between pages rewritten accordingly.

Pages link each other as they do in the repository, so that the same files read well there. On the site docs/ is the root, other
Markdown lies under repository/, and source files are text under files/.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\])\(([^()\s]+)\)")


CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


class BrokenLink(Exception):
    """A page links to a missing target; the message names both."""


def site_path(path: str) -> str:
    """Where `path`, relative to the repository, lies on the site."""
    if path.startswith("docs/images/") or (path.startswith("docs/") and path.endswith(".md")):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"files/{path}.txt"


def rewritten(text: str, origin: str, page: str, need: Callable[[str, str], bool]) -> str:
    """`text` of the file `origin` of the repository with links that work on the site's `page`.

    `need` is told each file of the repository that `origin` links, and answers whether the site has it; where not, the link
    becomes text. It raises BrokenLink, as does a link to a section that is not there.
    """

    def target(found: re.Match[str]) -> str:
        address, _, anchor = found[1].partition("#")
        if "://" in address or address.startswith("mailto:"):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(origin), address)) if address else origin
        if not need(path, origin):
            return ""
        linked = ROOT / path
        if anchor and path.endswith(".md") and linked.is_file() and anchor not in anchors(linked.read_text()):
            raise BrokenLink(f"{origin}: {path} has no section #{anchor}")
        there = os.path.relpath(site_path(path), os.path.dirname(page) or ".")
        return f"({there}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else unescaped_pipes(LINK.sub(target, part)) for part in parts)


def unescaped_pipes(text: str) -> str:
    """`text` with the pipes of commands in tables as mkdocs reads them.

    On GitHub a pipe in a table needs a backslash, in code as well. Python-Markdown shows that backslash, and a pipe in code ends
    no cell.
    """

    def plain(code: re.Match[str]) -> str:
        return code[0].replace("\\|", "|")

    return "".join(CODE.sub(plain, line) if line.lstrip().startswith("|") else line for line in text.splitlines(keepends=True))


def anchors(text: str) -> set[str]:
    """Those of the headings of a page."""
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)}


def slug(heading: str) -> str:
    """The anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
