"""Short names of a run's datasets, for logs, metrics and schedules: the ends of their paths, as long as it takes to tell them
apart. `/fsx/web/part_text_document` and `/fsx/code/part_text_document` are `web/part_text_document` and
`code/part_text_document`.
"""

import re
from collections.abc import Sequence

LONGEST = 60
# Separators of the pairs in a log line, and control characters of terminals.
_UNFIT = re.compile(r"[^\w./+@-]", re.ASCII)


def names(prefixes: Sequence[str]) -> list[str]:
    """A name for each; a prefix that is there twice has a number behind it."""
    dataset_names = _ends(prefixes, 1)
    count_by_name: dict[str, int] = {}
    for place, name in enumerate(dataset_names):
        count_by_name[name] = count_by_name.get(name, 0) + 1
        if count_by_name[name] > 1:
            dataset_names[place] = f"{name}@{count_by_name[name]}"
    return dataset_names


def _ends(prefixes: Sequence[str], components: int) -> list[str]:
    ends = ["/".join(prefix.split("/")[-components:]) for prefix in prefixes]
    alike = {end for end in ends if len({prefix for prefix, other in zip(prefixes, ends, strict=True) if other == end}) > 1}
    if not alike:
        return [_UNFIT.sub("_", end)[-LONGEST:] for end in ends]
    longer = _ends([prefix for prefix, end in zip(prefixes, ends, strict=True) if end in alike], components + 1)
    told_apart = iter(longer)
    return [next(told_apart) if end in alike else _UNFIT.sub("_", end)[-LONGEST:] for end in ends]
