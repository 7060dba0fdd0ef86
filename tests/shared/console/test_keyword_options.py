"""Options as keywords become the words that click reads back as the same values."""

from typing import Any

import click
import pytest

from lt_shared.console import UsageError, keyword_options

COMMAND = click.Command(
    "x",
    params=[
        click.Option(["--size"], type=int),
        click.Option(["--fast"], is_flag=True),
        click.Option(["--key"], multiple=True),
        click.Option(["--pair"], nargs=2),
        click.Option(["-o", "--output-prefix", "output"]),
        click.Option(["--plain"], is_flag=True),
    ],
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 3, "fast": True, "output_prefix": "-a"}, ["--size=3", "--fast", "--output-prefix=-a"]),
        ({"size": None, "fast": False}, []),
        ({"key": ["a", "b"], "pair": ("c", "d")}, ["--key=a", "--key=b", "--pair", "c", "d"]),
    ],
)
def test_words(options: dict[str, Any], words: list[str]) -> None:
    assert keyword_options.words(COMMAND, options, "lt-x") == words
    COMMAND.make_context("x", list(words))


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"sise": 3}, "no option sise", "did you mean size?"),
        ({"zzzz": 3}, "no option zzzz", "see lt-x --help"),
        ({"plain": True}, "no option plain", "did you mean pair?"),
        ({"fast": 1}, "fast is 1, and takes True or False", None),
        ({"size": True}, "size is True, and takes a value", None),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        keyword_options.words(COMMAND, options, "lt-x", excluded=("plain",))
    assert raised.value.hint == hint
