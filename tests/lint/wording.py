"""Fails if the text points more often, or the names say less, than the limits below allow.

Text is docstrings, comments and click's help texts, and Markdown outside code. A phrase such as "those of" or "in which" makes
the reader look back for the noun; a name such as `found` does not say what the variable holds. Lower the limits as the counts
fall, and never raise them. A count is a place to look, not an aim: a sentence should be understood without the one before it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
POINTING = re.compile(
    r"\b(?:that|those) of\b"
    r"|\b(?:of|in|to|by|for|from|with|at|on) (?:which|whom)\b"
    r"|\bof (?:another|others|each|both|all|one|it|them|these|those)\b"
    r"|(?:,|^|\. )\s*where (?:it|they|there|that|this|no|none|one|nothing|some)\b"
    r"|\b[Ww]hat (?:is|are|was|were|has|have|it|they|a|the|this|another)\b"
    r"|\b(?:as it is|as they are|as was|that which|the same as that|of the same)\b",
    re.MULTILINE,
)
EMPTY_NAMES = frozenset(
    (
        *("found", "made", "given", "wanted", "kept", "told", "own", "begun", "where", "taken", "left", "seen", "each", "asked"),
        *("there", "others", "rest", "done", "said", "known", "needed"),
    )
)
HELP_ARGUMENTS = frozenset({"help", "short_help", "epilog"})
NO_TEXT = re.compile(r"(^|/)(tests|build)/|\.toml$")
# Phrases per 1,000 words of Python's text and of Markdown; names per 1,000 lines.
LIMITS = {"phrases in Python": 1.8, "phrases in Markdown": 2.0, "names": 3.0}


@dataclass
class Tally:
    """`hits` among `size` words or lines, and the files with most hits."""

    hits: int = 0
    size: int = 0
    worst: Counter[str] = field(default_factory=Counter)

    def add(self, path: str, hits: int, size: int) -> None:
        self.worst[path] += hits
        self.hits += hits
        self.size += size

    @property
    def rate(self) -> float:
        return 1000 * self.hits / max(self.size, 1)


def python_text(source: str) -> str:
    """Return the docstrings, the click help texts and the comments of a module."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts.append(ast.get_docstring(node) or "")
        elif isinstance(node, ast.keyword) and node.arg in HELP_ARGUMENTS and isinstance(node.value, ast.Constant):
            texts.append(str(node.value.value))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(texts)


def empty_names(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.NAME and token.string in EMPTY_NAMES for token in tokens)


def markdown_text(page: str) -> str:
    """Return a page without code blocks, tables and HTML."""
    without_fences = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in without_fences.splitlines() if not line.startswith(("    ", "|", "<")))


def count_phrases(text: str) -> tuple[int, int]:
    """Return the number of pointing phrases and of words, with each code span taken as one word."""
    text = re.sub(r"`[^`]*`", "x", text)
    return len(POINTING.findall(text)), len(text.split())


def tallies() -> dict[str, Tally]:
    result = {name: Tally() for name in LIMITS}
    listing = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in listing.splitlines():
        if NO_TEXT.search(path) or not (ROOT / path).is_file():
            continue
        text = (ROOT / path).read_text()
        if path.endswith(".md"):
            result["phrases in Markdown"].add(path, *count_phrases(markdown_text(text)))
        else:
            result["phrases in Python"].add(path, *count_phrases(python_text(text)))
            result["names"].add(path, empty_names(text), text.count("\n"))
    return result


def main() -> int:
    too_many = False
    for name, tally in tallies().items():
        print(f"{name}: {tally.hits} of {tally.size:,}, {tally.rate:.1f} per 1,000; at most {LIMITS[name]}")
        if tally.rate > LIMITS[name]:
            too_many = True
            print("\n".join(f"  {hits:4} {path}" for path, hits in tally.worst.most_common(10)))
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
