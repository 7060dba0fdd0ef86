"""Natural text for benchmarks, from Debian's documentation packages: `python corpus.py DIRECTORY`.

`english.jsonl` (about 100 MB) and `mixed.jsonl` (about 210 MB: the same with code, Korean, Japanese, Chinese, Russian, Hindi and
German) hold one {"text": ...} object a line. A paragraph appears once: text that repeats would flatter every cache. Lines have
several shapes (keys before and after, a "text" key inside another object) and some escape what is not ASCII, as the lines of
real corpora do. The same packages give the same bytes. `apt-get download` and `dpkg-deb` fetch and unpack, without root.
"""

import argparse
import gzip
import hashlib
import html.parser
import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MB = 1_000_000
ENGLISH, MIXED = "english.jsonl", "mixed.jsonl"
ESCAPED_SHARE = 0.3
LONG_TEXT_CHARACTERS = 20_000
PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")
SHORT_PARAGRAPH_CHARACTERS = 25
SHORT_DOCUMENT_CHARACTERS = 200


class Package(NamedTuple):
    """A Debian package, at most how much text of it is taken, and which files of it hold text."""

    name: str
    limit_mb: int
    patterns: tuple[str, ...]


ENGLISH_PACKAGES = (
    Package("linux-doc-6.1", 30, ("*.rst.gz", "*.rst", "*.html", "*.txt")),
    Package("postgresql-doc-15", 15, ("*.html",)),
    Package("python3.11-doc", 15, ("*.html", "*.txt")),
    Package("perl-doc", 15, ("*.pod",)),
    Package("libreoffice-help-en-us", 15, ("*.html",)),
    Package("dict-gcide", 15, ("*.dict.dz",)),
    Package("rust-doc", 30, ("*.html",)),
)
OTHER_PACKAGES = (
    *(Package(f"libreoffice-help-{language}", 15, ("*.html",)) for language in ("ko", "ja", "zh-cn", "ru", "hi", "de")),
    *(Package(f"manpages-{language}", 15, ("*.gz",)) for language in ("ja", "zh", "ru")),
    Package("debian-reference-ja", 15, ("*.html", "*.txt.gz")),
    Package("linux-source-6.1", 70, ("*.c", "*.h", "*.py", "*.sh")),
)
SOURCE_DIRECTORIES = ("kernel", "mm", "fs/ext4", "fs/btrfs", "net/core", "net/ipv4", "lib", "tools/perf")


class _VisibleText(html.parser.HTMLParser):
    """Collects the text of a page that a reader sees; blocks become paragraphs."""

    HIDDEN = {"script", "style", "nav", "head"}
    BLOCKS = {"p", "div", "br", "li", "tr", "pre", "dd", "dt", "section", "table", "h1", "h2", "h3", "h4", "h5", "h6"}

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in self.HIDDEN))
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _unpacked(package: Package, cache: Path) -> Path:
    """The directory with the package's files, fetched unless it is there."""
    target = cache / package.name
    if target.is_dir():
        return target
    partial = cache / f"{package.name}.partial"
    subprocess.run(["apt-get", "-qq", "download", package.name], cwd=cache, check=True)
    archive = max(cache.glob(f"{package.name}_*.deb"), key=lambda path: path.stat().st_mtime)
    subprocess.run(["dpkg-deb", "-x", archive, partial], check=True)
    for tarball in partial.rglob("linux-source-*.tar.xz"):
        root = tarball.name.removesuffix(".tar.xz")
        members = [f"{root}/{directory}" for directory in SOURCE_DIRECTORIES]
        subprocess.run(["tar", "-xJf", tarball, "-C", partial, *members], check=True)
        tarball.unlink()
    partial.rename(target)
    return target


def _text(path: Path) -> str | None:
    """The text of a file, None when it is not UTF-8."""
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    try:
        text = data.decode(errors="replace" if path.suffix == ".dz" else "strict")
    except UnicodeDecodeError:
        return None
    if path.suffix != ".html":
        return text
    page = _VisibleText()
    page.feed(text)
    page.close()
    return "".join(page.parts)


def _pieces(text: str, chance: random.Random) -> Iterator[str]:
    """A long text becomes documents of natural sizes (a few KB, some much longer), a short one stays whole."""
    at = 0
    while at < len(text):
        size = len(text) if len(text) <= LONG_TEXT_CHARACTERS else 200 + int(chance.lognormvariate(8.6, 1.2))
        piece = text[at : at + size].strip()
        if len(piece) >= SHORT_DOCUMENT_CHARACTERS:
            yield piece
        at += size


class _Collector:
    """Takes documents from packages and leaves out each paragraph that was taken before."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._seen: set[bytes] = set()

    def documents(self, package: Package) -> Iterator[str]:
        root = _unpacked(package, self._cache)
        paths = sorted({path for pattern in package.patterns for path in root.rglob(pattern)})
        paths = [path for path in paths if path.is_file() and not path.is_symlink()]
        chance = random.Random(package.name)
        chance.shuffle(paths)
        left = package.limit_mb * MB
        for path in paths:
            text = _text(path)
            for piece in _pieces(self._new_paragraphs(text), chance) if text else ():
                left -= len(piece.encode())
                if left < 0:
                    return
                yield piece

    def _new_paragraphs(self, text: str) -> str:
        kept = []
        for paragraph in PARAGRAPH_END.split(text.replace("\r\n", "\n")):
            digest = hashlib.blake2b(paragraph.strip().encode(), digest_size=12).digest()
            if len(paragraph) > SHORT_PARAGRAPH_CHARACTERS:
                if digest in self._seen:
                    continue
                self._seen.add(digest)
            kept.append(paragraph)
        return "\n\n".join(kept)


def _line(number: int, text: str, chance: random.Random) -> str:
    shapes = (
        {"text": text},
        {"id": number, "meta": {"text": "not this"}, "text": text, "scores": [1, {"text": "nor this"}]},
        {"text": text, "source": 'say "hi"\\', "url": f"https://example.org/{number}"},
    )
    return json.dumps(shapes[number % len(shapes)], ensure_ascii=chance.random() < ESCAPED_SHARE)


def _write(path: Path, texts: list[str]) -> None:
    chance = random.Random(path.name)
    chance.shuffle(texts)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_line(number, text, chance) + "\n" for number, text in enumerate(texts))
    partial.rename(path)


def build(directory: Path, cache: Path) -> None:
    """Write english.jsonl and mixed.jsonl into `directory`; packages are kept in `cache`."""
    directory.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    collector = _Collector(cache)
    english = [text for package in ENGLISH_PACKAGES for text in collector.documents(package)]
    others = [text for package in OTHER_PACKAGES for text in collector.documents(package)]
    _write(directory / ENGLISH, list(english))
    _write(directory / MIXED, english + others)


def write_texts(corpus: Path, store: Path) -> None:
    """Copy the documents of a JSON lines file into one that loads without parsing, unless that is newer."""
    if store.is_file() and store.stat().st_mtime > corpus.stat().st_mtime:
        return
    partial = store.with_suffix(".partial")
    with corpus.open("rb") as lines, partial.open("wb") as file:
        for line in lines:
            text = json.loads(line)["text"].encode()
            file.write(len(text).to_bytes(8, "little") + text)
    partial.rename(store)


def load_texts(store: Path, megabytes: float = float("inf")) -> Iterator[bytes]:
    """The first documents of what `write_texts` wrote, about so many MB."""
    left = megabytes * MB
    with store.open("rb") as file:
        while left > 0 and (size := file.read(8)):
            text = file.read(int.from_bytes(size, "little"))
            left -= len(text)
            yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "lt-bench" / "packages")
    arguments = parser.parse_args()
    build(arguments.directory, arguments.cache)
    for name in (ENGLISH, MIXED):
        path = arguments.directory / name
        print(f"{path}: {sum(1 for _ in path.open('rb')):,} documents, {path.stat().st_size / MB:.0f} MB")


if __name__ == "__main__":
    main()
