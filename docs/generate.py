"""Write the source of the documentation site, and the man pages: `python docs/generate.py BUILD`.

BUILD/pages gets the pages of docs/, those that are made from the code (reference.py), and every file of the repository that they
link (links.py); BUILD/pages/man gets a man page for each command. All are derived, so none is committed. mkdocs then makes the
site from BUILD/pages; `nox -s docs` does both.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands
import links
import reference
import roff


def main(build: Path) -> None:
    pages = build / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    described = list(commands.pages())
    authored = {path.relative_to(links.ROOT).as_posix(): path.read_text() for path in links.ROOT.glob("docs/**/*.md")}
    for path, content in Site(authored | dict(reference.all_pages(described))).files():
        destination = pages / path
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_bytes(content)
    shutil.copy(links.ROOT / "docs/iframe-worker.js", pages)
    (pages / "man").mkdir()
    for page in described:
        (pages / "man" / f"{page.file_name}.1").write_text(roff.manual_page(page))
    print(f"{len(described)} commands: pages in {pages}, man pages in {pages}/man")


class Site:
    """The files of the site: the pages in `texts`, and every file that they link, directly or through other pages."""

    def __init__(self, texts: dict[str, str]):
        self._waiting = {path: text.encode() for path, text in texts.items()}
        self._known = set(texts)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files' paths on the site and their contents. Raises links.BrokenLink."""
        while self._waiting:
            origin, content = self._waiting.popitem()
            page = links.site_path(origin)
            if origin.endswith(".md"):
                content = links.rewritten(content.decode(), origin, page, self._need).encode()
            yield page, content

    def _need(self, path: str, origin: str) -> bool:
        source = links.ROOT / path
        if path not in self._known and source.is_file():
            self._known.add(path)
            self._waiting[path] = source.read_bytes()
        if path not in self._known and not source.is_dir():
            raise links.BrokenLink(f"{origin}: links {path}, which is not there")
        return path in self._known


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/generate.py BUILD")
    try:
        main(Path(sys.argv[1]))
    except links.BrokenLink as error:
        sys.exit(f"docs/generate.py: {error}")
