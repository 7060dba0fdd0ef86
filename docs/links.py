"""Map files of the repository to paths on the site, and rewrite the links between pages.

Pages link each other as they do in the repository, so that the same files read well there. On the site docs/ is the root, other
Markdown lies under repository/, and source files are text under files/.
"""

import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\])\(([^()\s]+)\)")


TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->\n", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


class BrokenLink(Exception):
    """A page links to a missing target; the message names both."""


def site_path(path: str) -> str:
    """Return the path on the site of the file at `path`, relative to the repository."""
    if path.startswith("docs/images/") or (path.startswith("docs/") and path.endswith(".md")):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"files/{path}.txt"


def rewritten(text: str, origin: str, page: str, need: Callable[[str, str], bool]) -> str:
    """Return `text`, the content of the repository's file `origin`, with links that work on the site's `page`.

    `need` is called with each file that `origin` links, and returns whether the site has the file; if not, the link becomes text.
    `need` raises BrokenLink for a missing file; a link to a missing section raises BrokenLink, too.
    """

    def target(link: re.Match[str]) -> str:
        address, _, anchor = link[1].partition("#")
        if "://" in address or address.startswith("mailto:"):
            return link[0]
        path = os.path.normpath(os.path.join(os.path.dirname(origin), address)) if address else origin
        if not need(path, origin):
            return ""
        linked = ROOT / path
        if anchor and path.endswith(".md") and linked.is_file() and anchor not in anchors(linked.read_text()):
            raise BrokenLink(f"{origin}: {path} has no section #{anchor}")
        relative_path = os.path.relpath(site_path(path), os.path.dirname(page) or ".")
        return f"({relative_path}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(TABS.sub(as_tabs, text))
    return "".join(part if part.startswith("```") else unescaped_pipes(LINK.sub(target, part)) for part in parts)


def as_tabs(section: re.Match[str]) -> str:
    """Return the headings between two comments, which GitHub shows one after the other, as tabs of one section."""
    _, *tabs = re.split(r"^### (.+)\n", section[1], flags=re.MULTILINE)
    return "".join(
        f'=== "{title}"\n{textwrap.indent(content, " " * 4)}' for title, content in zip(tabs[::2], tabs[1::2], strict=True)
    )


def unescaped_pipes(text: str) -> str:
    r"""Replace `\|` by `|` in the code of table rows.

    On GitHub, a pipe in a table needs a backslash, also in code. Python-Markdown would show the backslash, and needs none,
    because a pipe in code ends no cell there.
    """

    def plain(code: re.Match[str]) -> str:
        return code[0].replace("\\|", "|")

    return "".join(CODE.sub(plain, line) if line.lstrip().startswith("|") else line for line in text.splitlines(keepends=True))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)}


def slug(heading: str) -> str:
    """Return the anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
