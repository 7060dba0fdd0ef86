"""Execute the assignments NAME=value, NAME+=value, NAME[key]=value and NAME=(...)."""

import re

from lt_train.importers.shell.expansion import Expansion
from lt_train.importers.shell.syntax import NAME, array_words
from lt_train.importers.shell.unknown import unknown
from lt_train.importers.shell.variables import Value, Variables

ASSIGNMENT = re.compile(rf"({NAME})(?:\[([^\]]*)\])?(\+?)=(.*)", re.DOTALL)
KEYED = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)


def assign(source: str, variables: Variables, expansion: Expansion) -> None:
    """Assign to `variables` if `source` is an assignment. Other words, such as NAME of `export NAME`, change nothing."""
    match = ASSIGNMENT.fullmatch(source)
    if match is None:
        return
    name, index, more, value = match.groups()
    if value.startswith("(") and index is None:
        _assign_array(name, value[1:-1], bool(more), variables, expansion)
        return
    text, before = expansion.text(value), variables.get(name)
    if index is not None:
        variables.assign(f"{name}[{expansion.text(index)}]", text)
        if isinstance(before, list):
            variables.assign(name, unknown(f"${name}"))
    elif isinstance(before, list) and before:
        variables.assign(name, [(before[0] if more else "") + text, *before[1:]])
    else:
        variables.assign(name, (before or "") + text if more and not isinstance(before, list) else text)


def _assign_array(name: str, source: str, is_appended: bool, variables: Variables, expansion: Expansion) -> None:
    words: list[str] = []
    for word in array_words(source):
        keyed = KEYED.fullmatch(word)
        if keyed:
            variables.assign(f"{name}[{expansion.text(keyed[1])}]", expansion.text(keyed[2]))
        else:
            words.extend(expansion.fields(word))
    before: Value = (variables.get(name) or []) if is_appended else []
    variables.assign(name, [*([before] if isinstance(before, str) else before), *words])
