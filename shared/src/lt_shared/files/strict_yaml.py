"""YAML of strangers, read in one way and in bounded time.

A repeated key has two readings: PyYAML takes the last value, ruamel.yaml and Hydra's loader refuse the file. An alias is one word
for a whole subtree, so nine lines with nine aliases mean a billion values; values are counted before any is constructed.
"""

from typing import Any

# NeMo's and HyperPod's largest configurations have a few hundred.
MOST_VALUES = 100_000


def loads(text: str) -> Any:
    """Return the one document in `text` as plain types. Raises ValueError with the fault and its line, and RecursionError."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        return _constructed(loader, loader.get_single_node())
    except yaml.YAMLError as error:
        raise _reason(error) from None


def loads_all(text: str) -> list[Any]:
    """The documents in `text`, likewise."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        documents = []
        while loader.check_node():
            documents.append(_constructed(loader, loader.get_node()))
        return documents
    except yaml.YAMLError as error:
        raise _reason(error) from None


def _constructed(loader: Any, node: Any) -> Any:
    if node is None:
        return None
    _check(node, {})
    return loader.construct_document(node)


def _reason(error: Exception) -> ValueError:
    """Without the lines of the file, which the whole message has: there may be a password in them."""
    reason = getattr(error, "problem", None) or "a character that it does not have"
    return ValueError(f"{reason}{_place(getattr(error, 'problem_mark', None))}")


def _check(node: Any, counts: dict[int, int]) -> int:
    """The number of values in `node` with every alias written out. Raises ValueError for too many, or a key given twice."""
    if id(node) in counts:
        return counts[id(node)]
    # Inside itself an alias counts for all that is allowed.
    counts[id(node)] = MOST_VALUES + 1
    count = 1
    if node.id == "mapping":
        keys = set()
        for key, value in node.value:
            if key.id == "scalar":
                if key.value in keys:
                    raise ValueError(f"{key.value!r:.60} twice in one mapping{_place(key.start_mark)}")
                keys.add(key.value)
            count += _check(key, counts) + _check(value, counts)
    elif node.id == "sequence":
        count += sum(_check(value, counts) for value in node.value)
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values, with aliases written out{_place(node.start_mark)}")
    counts[id(node)] = count
    return count


def _place(mark: Any) -> str:
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
