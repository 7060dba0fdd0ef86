"""Parts of a text that only a run of the script would know.

While a script is followed, such a part stands between two marks, so that a dollar sign in single quotes is not taken for one. In
the commands that are handed out it is written as the shell writes it: `$NODES`, `$((8*$NODES))`, `$(hostname)`.
"""

import re

OPENING, CLOSING = "\ue000", "\ue001"
PART = re.compile(f"{OPENING}([^{CLOSING}]*){CLOSING}")
BEFORE_LETTERS = re.compile(f"{OPENING}\\$(\\w+){CLOSING}(?=\\w)")
MARKS = re.compile(f"[{OPENING}{CLOSING}]")
VARIABLE = re.compile(r"\$\{?[!#]?([A-Za-z_]\w*|\d+)")
COMMAND = re.compile(r"\$\((?!\()|`")


def unknown(text: str) -> str:
    """`text` as a part that is not known."""
    return f"{OPENING}{MARKS.sub('', text)}{CLOSING}"


def is_known(text: str) -> bool:
    return OPENING not in text


def is_nameless(text: str) -> bool:
    """Return whether `text` is an unknown value without a name, such as the output of a command."""
    found = PART.fullmatch(text)
    return found is not None and (COMMAND.search(found[1]) is not None or not variables_in(found[1]))


def written(text: str) -> str:
    """`text` as a shell writes it; a name that letters follow needs its braces."""
    return MARKS.sub("", BEFORE_LETTERS.sub(r"${\1}", text))


def needs_shell(word: str) -> bool:
    return "$" in word or "`" in word


def variables_in(word: str) -> list[str]:
    """The names of the variables in what `written` gives."""
    return VARIABLE.findall(word)


def unknown_variables(text: str) -> list[str]:
    """The names in the unknown parts of a text that has marks."""
    return [name for part in PART.findall(text) for name in variables_in(part)]
