"""Write src/lt_preprocess/tokenizers/bpe/unicode_ranges.py from the regular expression engine inside tiktoken.

An encoding whose vocabulary is the 256 bytes and whose pattern is one character class returns exactly the characters of that
class and drops the rest. Needs tiktoken; takes a second.

    python tools/preprocess/generate_unicode_ranges.py
"""

import textwrap
from pathlib import Path

import tiktoken

TARGET = Path(__file__).parent / "src/lt_preprocess/tokenizers/bpe/unicode_ranges.py"
CLASSES = {
    "LETTERS": r"\p{L}",
    "UPPER_CASE": r"[\p{Lu}\p{Lt}]",
    "LOWER_CASE": r"\p{Ll}",
    "MARKS": r"\p{M}",
    "NUMBERS": r"\p{N}",
    "SPACES": r"\s",
    "HAN": r"\p{Han}",
    "PUNCTUATION_AND_SYMBOLS": r"[\p{P}\p{S}]",
}
BLOCK = 4096


def members(pattern: str) -> list[int]:
    encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    found: list[int] = []
    for start in range(0, 0x110000, BLOCK):
        text = "".join(chr(point) for point in range(start, start + BLOCK) if not 0xD800 <= point < 0xE000)
        found.extend(ord(character) for character in bytes(encoding.encode_ordinary(text)).decode())
    return found


def ranges(points: list[int]) -> str:
    bounds: list[list[int]] = []
    for point in points:
        if bounds and point == bounds[-1][1] + 1:
            bounds[-1][1] = point
        else:
            bounds.append([point, point])
    return " ".join(f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in bounds)


def main() -> None:
    parts = ['"""Code points of classes of characters in Unicode 16, hexadecimal; made by generate_unicode_ranges.py."""\n']
    for name, pattern in CLASSES.items():
        lines = textwrap.wrap(ranges(members(pattern)), 124, break_on_hyphens=False)
        parts.append(f'{name} = """\n' + "".join(f"    {line}\n" for line in lines) + '"""\n')
    TARGET.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
