"""Where a file of the repository lies on the site, and links between pages rewritten accordingly.

Pages link each other as they do in the repository, so that the same files read well there. On the site docs/ is the root, other
Markdown lies under repository/, and source files are text under files/. A link alone on its line, to a section of a page outside
docs/, is replaced by that section: nothing is said twice.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\])\(([^()\s]+)\)")
INCLUSION = re.compile(r"^\[[^\]\n]+\]\(([^()#\s]+\.md)#([^()\s]+)\)$", re.MULTILINE)


class BrokenLink(Exception):
    """A page links what is not there; the message names both."""


def site_path(path: str) -> str:
    """Where `path`, relative to the repository, lies on the site."""
    if path.startswith("docs/images/") or (path.startswith("docs/") and path.endswith(".md")):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"files/{path}.txt"


def rewritten(text: str, origin: str, page: str, need: Callable[[str, str], bool]) -> str:
    """`text` of the file `origin` of the repository with links that work on the site's `page`.

    `need` is told each file of the repository that `origin` links, and answers whether the site has it; where not, the link
    becomes text. It raises BrokenLink.
    """

    def target(found: re.Match[str]) -> str:
        address, _, anchor = found[1].partition("#")
        if "://" in address or address.startswith("mailto:"):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(origin), address)) if address else origin
        if not need(path, origin):
            return ""
        there = os.path.relpath(site_path(path), os.path.dirname(page) or ".")
        return f"({there}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(target, part) for part in parts)


def assembled(text: str, origin: str, page: str, need: Callable[[str, str], bool]) -> str:
    """`text` of `origin` as the site's `page` has it: sections included, links rewritten. Raises BrokenLink."""
    parts, end = [], 0
    for found in INCLUSION.finditer(text):
        path = os.path.normpath(os.path.join(os.path.dirname(origin), found[1]))
        if path.startswith("docs/"):
            continue
        if not (ROOT / path).exists() or (body := section((ROOT / path).read_text(), found[2])) is None:
            raise BrokenLink(f"{origin}: {path} has no section #{found[2]}")
        parts += [rewritten(text[end : found.start()], origin, page, need), rewritten(body, path, page, need)]
        end = found.end()
    return "".join([*parts, rewritten(text[end:], origin, page, need)])


def section(text: str, anchor: str) -> str | None:
    """What stands under the heading that has `anchor`, down to the next of its level; None without such a heading."""
    lines: list[str] = []
    level, in_code = 0, False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        heading = None if in_code else re.match(r"(#+) (.*)", line)
        if level and heading and len(heading[1]) <= level:
            break
        if level:
            lines.append(line)
        elif heading and slug(heading[2]) == anchor:
            level = len(heading[1])
    return "\n".join(lines).strip("\n") if level else None


def slug(heading: str) -> str:
    """The anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
