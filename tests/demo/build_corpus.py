"""Rebuild corpus.jsonl.zst, byte for byte, from two Debian 12 packages of public-domain text.

The packages hold dictd databases: a gzip-compressed text and an index of byte ranges, one range an entry. One entry
becomes one document, `{"id": ..., "source": ..., "text": ...}`. Wrapped prose is joined into one line a paragraph;
verse, code and dialogue keep their lines. Documents are ordered by the SHA-256 of their id, so that every contiguous
part of the file is a fair sample of the whole: a validation split taken from the tail does not consist of one source or
of the letter Z.

Needs dpkg-deb and apt-get, with package lists (`apt-get update`). The compressed bytes depend on the zstd library too:
zstandard 0.25.0 (zstd 1.5.7) wrote the file in the repository. The JSON lines inside depend on the packages alone.

    python tests/demo/build_corpus.py
"""

import gzip
import hashlib
import json
import re
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import zstandard

CORPUS = Path(__file__).with_name("corpus.jsonl.zst")
INDEX_DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
BROKEN_WORD = re.compile(r"((?<!\S)[({]?[^\s/(]\S*/|\w-)\n\s*(?=\w)")  # broad-|browed, ftp://|host, but not /pron/|word
PICTURE = re.compile(r"\n\n\[[a-z\d_-]+\](\n\n(?!\d).{,90}(?=\n\n|$))?")  # the name of a picture file and its caption
BOX_DRAWING = re.compile("[\u2500-\u257f]")
SLUR_ENTRIES = {"african", "minstrel"}


@dataclass(frozen=True)
class Package:
    """A Debian package and the dictd database in it."""

    name: str
    version: str
    sha256: str
    database: str


JARGON = Package("dict-jargon", "4.4.7-3.1", "405f8168d7994ed2cb71407bb95493daec2e9aa66fc0461dafa74a9d6728a8c1", "jargon")
DEVIL = Package("dict-devil", "1.0-13.1", "6a535684def2a1f70cd42da16d12d43f0e9dc3e54e4a329178eebab3170e3154", "devil")


def dictd_entries(package: Package) -> list[str]:
    """Download the package, check its SHA-256 and return its entries in file order, each once.

    Several index words may point to one entry. Left out: dictd's own entries (00-database...) and SLUR_ENTRIES.
    """
    with tempfile.TemporaryDirectory() as directory:
        download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", f"{package.name}={package.version}"]
        subprocess.run(download, cwd=directory, check=True)
        (deb,) = Path(directory).glob("*.deb")
        found = hashlib.sha256(deb.read_bytes()).hexdigest()
        if found != package.sha256:
            sys.exit(f"{deb.name}: sha256 is {found}, expected {package.sha256}")
        subprocess.run(["dpkg-deb", "-x", deb, directory], check=True)
        dictd = Path(directory, "usr/share/dictd")
        text = gzip.decompress((dictd / f"{package.database}.dict.dz").read_bytes())
        index = (dictd / f"{package.database}.index").read_text(encoding="utf-8")
    ranges = set()
    for line in index.splitlines():
        word, offset, size = line.split("\t")
        if not word.startswith(("00-database", "00database")) and word not in SLUR_ENTRIES:
            ranges.add((index_number(offset), index_number(size)))
    return [text[offset : offset + size].decode() for offset, size in sorted(ranges)]


def index_number(digits: str) -> int:
    """Decode a dictd index number: base 64, most significant digit first."""
    number = 0
    for digit in digits:
        number = number * 64 + INDEX_DIGITS.index(digit)
    return number


def unwrap(block: str, width: int) -> str:
    """Join the lines of a wrapped paragraph; give any other block back without its left margin.

    A paragraph is a block where no line had room for the first word of the next, and without aligned columns. `width`
    is a few columns less than the text's margin: lines were wrapped by hand, or hold characters of double width.
    """
    lines = block.split("\n")
    filled = all(len(line) + 1 + len(below.split()[0]) > width for line, below in pairwise(lines))
    if filled and not any("   " in line.strip() for line in lines):
        return " ".join(BROKEN_WORD.sub(r"\1", block).split())
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(line[margin:] for line in lines)


def paragraphs(text: str, width: int) -> str:
    """Return the text with prose unwrapped and one blank line between its blocks."""
    text = re.sub(r" +$", "", text.replace("\u00a0", " "), flags=re.MULTILINE)
    blocks = [block.strip("\n") for block in re.split(r"\n{2,}", text)]
    return "\n\n".join(unwrap(block, width) for block in blocks if block)


def jargon_documents(entries: list[str]) -> Iterator[str]:
    """Yield `headword /pronunciation/, grammar` and the body; leave out the few entries with drawn tables.

    dictfmt marks cross-references with braces: {foo}. They go where they surround a headword or plain words; braces of
    code stay. A pronunciation that the dictionary does not have is an empty `//`, which goes too.
    """
    headwords = {entry.split("\n", 1)[0] for entry in entries}

    def without_braces(match: re.Match[str]) -> str:
        words = " ".join(match[1].split())
        return words if words in headwords or re.fullmatch(r"\w[\w '/-]*(, [\w '-]+)*", words) else match[0]

    for entry in entries:
        if BOX_DRAWING.search(entry):
            continue
        heading, body = entry.split("\n\n", 1)
        heading = re.sub(r"//(, )?", "", " ".join(heading.split())).strip()
        body = PICTURE.sub("", paragraphs(body, width=76))
        body = re.sub(r"\{+([^{}]+)\}+", without_braces, body)
        body = re.sub("(?<=[\u201c\u2018]) | (?=\u201d)", "", body)
        yield f"{heading}\n\n{body}".replace("\u00ad", "").replace("\u25a1", "-")


def devil_documents(entries: list[str]) -> Iterator[str]:
    """Yield each entry, its indented paragraphs set apart, the signatures of its verse moved left, no braces."""
    for entry in entries:
        entry = re.sub(r"\n(?= {4}\S.*\n\S)", "\n\n", entry)
        entry = re.sub(r"^(\S.*)\n(?= )", r"\1\n\n", entry, flags=re.MULTILINE)
        entry = re.sub(r"^ {20,}", " " * 12, entry, flags=re.MULTILINE)
        yield paragraphs(entry.replace("{", "").replace("}", ""), width=62)


def documents(package: Package, source: str, clean: Callable[[list[str]], Iterator[str]]) -> Iterator[dict[str, str]]:
    """Yield the package's documents without duplicates, numbered in the order of the book."""
    seen = set()
    for number, text in enumerate(clean(dictd_entries(package)), start=1):
        if text not in seen:
            seen.add(text)
            yield {"id": f"{package.database}-{number:04d}", "source": source, "text": text}


def main() -> None:
    """Write the corpus and print its size."""
    corpus = [
        *documents(JARGON, "The Jargon File 4.4.7", jargon_documents),
        *documents(DEVIL, "The Devil's Dictionary", devil_documents),
    ]
    corpus.sort(key=lambda document: hashlib.sha256(document["id"].encode()).digest())
    lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in corpus).encode()
    CORPUS.write_bytes(zstandard.ZstdCompressor(level=19).compress(lines))
    print(f"{len(corpus)} documents, {len(lines)} bytes, sha256 of the JSON lines {hashlib.sha256(lines).hexdigest()}")


if __name__ == "__main__":
    main()
