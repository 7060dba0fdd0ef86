"""A command's options as keywords of a Python function: `seq_length=8192` becomes `--seq-length=8192`."""

import difflib
import os
from collections.abc import Mapping

import click

from lt_shared.console.errors import UsageError

Value = str | os.PathLike[str] | int | float | bool | list[str] | list[int] | tuple[str, ...] | tuple[int, ...] | None
# Options of terminals and pipes.
_COMMAND_ONLY = ("as_json", "help", "quiet", "verbose")


def words(command: click.Command, options: Mapping[str, Value], command_path: str, excluded: tuple[str, ...] = ()) -> list[str]:
    """Return the command-line words of `options`, whose keys are spellings of the command's options with underscores.

    None and False add no words. A list gives an option several values, or repeats it if it can be repeated. Raises UsageError for
    a key that is no option, or is in `excluded`, and for a value that is a switch where the option takes a value, or the reverse.
    """
    spellings: dict[str, tuple[str, click.Option]] = {}
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in (*_COMMAND_ONLY, *excluded):
            spellings |= {flag[2:].replace("-", "_"): (flag, option) for flag in option.opts if flag.startswith("--")}
    remedies = getattr(command, "foreign_options", {})
    for name in options.keys() - spellings.keys():
        alike = difflib.get_close_matches(name, spellings, 1)
        nearest = f"did you mean {alike[0]}?" if alike else f"see {command_path} --help"
        raise UsageError(f"no option {name}", remedies.get(name.replace("_", "-"), nearest))
    return [word for name, value in options.items() for word in _words(name, value, *spellings[name])]


def _words(name: str, value: Value, flag: str, option: click.Option) -> list[str]:
    if value is None:
        return []
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}, and takes True or False")
        return [flag] if value else []
    if isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, and takes a value")
    if isinstance(value, list | tuple):
        values = [str(one) for one in value]
        return [f"{flag}={one}" for one in values] if option.multiple else [flag, *values]
    return [f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
