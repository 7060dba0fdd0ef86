"""Hints for what a user nearly got right: a misspelt file, an integer in another notation.

They are looked for only after a command has failed, so they cost a working command nothing.
"""

import os
import re
from collections.abc import Collection
from itertools import islice

# A directory of a training corpus may have a million files; reading so many names takes 8 ms, comparing them 0.24 s.
_MAX_NAMES = 10_000
_MIN_LIKENESS = 0.75
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(?:e\+?([0-9]{1,2}))?([kmgbt]?)", re.IGNORECASE)


def nearest(word: str, words: Collection[str]) -> str | None:
    """Return the word of `words` that `word` most likely is meant to be, or None.

    The parts before the first dot have to be alike, too: `no.jsonl` is not meant to be `a.jsonl`.
    """
    from difflib import SequenceMatcher, get_close_matches

    stem = word.partition(".")[0]
    for alike in get_close_matches(word, words, n=5, cutoff=_MIN_LIKENESS):
        if SequenceMatcher(None, stem, alike.partition(".")[0]).ratio() >= _MIN_LIKENESS:
            return alike
    return None


def for_missing_file(path: str) -> str | None:
    """Return a hint with the file or directory whose name is most like the missing `path`, or None.

    If the directory of `path` is missing, too, the hint names the directory that is most like it.
    """
    alike = nearest_file(path)
    return None if alike is None else f"did you mean {alike}?"


def nearest_file(path: str) -> str | None:
    """Return the file or directory that the missing `path` most likely is meant to be, or None."""
    directory, name = os.path.split(path.rstrip("/"))
    if not name:
        return None
    try:
        with os.scandir(directory or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES)]
    except FileNotFoundError:
        return nearest_file(directory)
    except (OSError, ValueError):
        return None
    alike = nearest(name, names)
    return os.path.join(directory, alike) if alike is not None and alike != name else None


def for_integer(text: str) -> str | None:
    """Return a hint with the integer that `1e3`, `1,000`, `1000.0` or `4K` stands for, or None."""
    match = _NUMBER.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        return None
    number = float(match[1]) * 10 ** int(match[2] or 0) * _SUFFIXES.get(match[3].lower(), 1)
    return f"write {number:.0f}" if number == int(number) else None
