"""Several validation sets by name: --valid-data-path web=data/web code= 0.7 data/python 0.3 data/c.

`NAME=` begins a set; the first dataset or weight follows, with or without a space. The prefix of an existing dataset never begins
a set, so directories of partitioned tables (`lang=en/part`) keep their meaning.
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
    """Return each set's name and datasets; a single unnamed set if no word is a name. Raises UsageError, and as `read_set`."""
    sets: list[tuple[str | None, list[str]]] = []
    for word in words:
        begin = None if storage.exists(f"{word}.idx") else _BEGIN.fullmatch(word)
        if begin:
            sets.append((begin["name"], [begin["first"]] if begin["first"] else []))
        elif sets:
            sets[-1][1].append(word)
        else:
            sets.append((None, [word]))
    _check([name for name, _ in sets], [bool(entries) for _, entries in sets])
    return [(name, read_set(tuple(entries))) for name, entries in sets]


def without_names(words: Sequence[str]) -> list[str]:
    """Return the words that name datasets or weights."""
    matches = ((_BEGIN.fullmatch(word), word) for word in words)
    return [
        plain for begin, word in matches if (plain := begin["first"] if begin and not storage.exists(f"{word}.idx") else word)
    ]


def _check(names: list[str | None], are_given: list[bool]) -> None:
    if None in names and len(names) > 1:
        raise UsageError("--valid-data-path: data before the first NAME=", "give every validation set a name")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UsageError(f"--valid-data-path: two sets are called {name}", "choose another name for one of them")
        if not are_given[place]:
            raise UsageError(f"--valid-data-path: nothing follows {name}=", f"for example {name}=data/web_text_document")
