"""Several validation sets by name: --valid-data-path web=data/web code= 0.7 data/python 0.3 data/c.

`NAME=` begins a set, with its first word behind it or after it. A word that is the prefix of a dataset is none, so that the
directories of partitioned tables (`lang=en/part`) are what they were.
"""

import re
from collections.abc import Callable, Sequence

from lt_shared.console import UsageError
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import storage

_BEGIN = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.+-]{0,39})=(?P<first>.*)", re.DOTALL)


def read(
    words: Sequence[str], read_set: Callable[[tuple[str, ...]], tuple[Dataset, ...]]
) -> list[tuple[str | None, tuple[Dataset, ...]]]:
    """Each set with its datasets; one without a name when no word names one. Raises UsageError, and as `read_set`."""
    sets: list[tuple[str | None, list[str]]] = []
    for word in words:
        begin = None if storage.exists(f"{word}.idx") else _BEGIN.fullmatch(word)
        if begin:
            sets.append((begin["name"], [begin["first"]] if begin["first"] else []))
        elif sets:
            sets[-1][1].append(word)
        else:
            sets.append((None, [word]))
    _check([name for name, _ in sets], [bool(given) for _, given in sets])
    return [(name, read_set(tuple(given))) for name, given in sets]


def without_names(words: Sequence[str]) -> list[str]:
    """Return the words that name datasets or weights."""
    found = ((_BEGIN.fullmatch(word), word) for word in words)
    return [plain for begin, word in found if (plain := begin["first"] if begin and not storage.exists(f"{word}.idx") else word)]


def _check(names: list[str | None], are_given: list[bool]) -> None:
    if None in names and len(names) > 1:
        raise UsageError("--valid-data-path: data before the first NAME=", "give every validation set a name")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UsageError(f"--valid-data-path: two sets are called {name}", "choose another name for one of them")
        if not are_given[place]:
            raise UsageError(f"--valid-data-path: nothing follows {name}=", f"for example {name}=data/web_text_document")
