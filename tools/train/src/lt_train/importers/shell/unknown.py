"""Mark the parts of a text whose value only a run of the script would show.

The interpreter puts an unknown part between two private-use characters, because a literal dollar sign in single quotes must not
look like one. Recorded commands contain the shell's notation again: `$NODES`, `$((8*$NODES))`, `$(hostname)`.
"""

import re

OPENING, CLOSING = "\ue000", "\ue001"
PART = re.compile(f"{OPENING}([^{CLOSING}]*){CLOSING}")
BEFORE_LETTERS = re.compile(f"{OPENING}\\$(\\w+){CLOSING}(?=\\w)")
MARKS = re.compile(f"[{OPENING}{CLOSING}]")
VARIABLE = re.compile(r"\$\{?[!#]?([A-Za-z_]\w*|\d+)")
COMMAND = re.compile(r"\$\((?!\()|`")


def unknown(text: str) -> str:
    """Mark `text` as an unknown part."""
    return f"{OPENING}{MARKS.sub('', text)}{CLOSING}"


def is_known(text: str) -> bool:
    return OPENING not in text


def is_nameless(text: str) -> bool:
    """Whether all of `text` is one unknown part without a variable that --set could give, such as the output of a command."""
    match = PART.fullmatch(text)
    return match is not None and (COMMAND.search(match[1]) is not None or not variables_in(match[1]))


def written(text: str) -> str:
    """Return `text` in shell notation without marks. A variable before a letter gets braces."""
    return MARKS.sub("", BEFORE_LETTERS.sub(r"${\1}", text))


def needs_shell(word: str) -> bool:
    return "$" in word or "`" in word


def variables_in(word: str) -> list[str]:
    """List the variables in a word in shell notation."""
    return VARIABLE.findall(word)


def unknown_variables(text: str) -> list[str]:
    """List the variables in the unknown parts of a marked text."""
    return [name for part in PART.findall(text) for name in variables_in(part)]
