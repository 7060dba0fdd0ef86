"""What every lt command does alike: exit codes, errors, help, progress and signals.

stdout carries data, stderr is for people. A tool ends through `run`, which turns every exception into one line on stderr and
an exit code that an sbatch script can act on (requeue on 75, stop on 78). rich costs 60 ms to import, so it is loaded only
when a progress bar is drawn on a terminal.
"""

import contextlib
import enum
import errno
import io
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import click


class ExitCode(enum.IntEnum):
    """Exit codes of every lt tool: sysexits where one fits, shell conventions for signals."""

    OK = 0
    FOUND = 1
    USAGE = 2
    CRITICAL = 3
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    CANNOT_CREATE = 73
    IO = 74
    TRY_AGAIN = 75
    BAD_CONFIG = 78
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class ToolError(Exception):
    """An error that a user can understand: what went wrong and where, and in `hint` what to do about it."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


class UsageError(ToolError):
    """The command line asks for something that cannot be."""

    exit_code = ExitCode.USAGE


class BadData(ToolError):
    """An input exists but is malformed, truncated or contradicts another input."""

    exit_code = ExitCode.BAD_DATA


class NoInput(ToolError):
    """An input does not exist, is empty, or was cut off."""

    exit_code = ExitCode.NO_INPUT


class Unavailable(ToolError):
    """A service or an optional package is missing."""

    exit_code = ExitCode.UNAVAILABLE


class CannotCreate(ToolError):
    """An output cannot be created where it was asked for."""

    exit_code = ExitCode.CANNOT_CREATE


class IoFailure(ToolError):
    """Reading or writing failed half-way, for example because the disk is full."""

    exit_code = ExitCode.IO


class TryAgain(ToolError):
    """The same command is expected to succeed later."""

    exit_code = ExitCode.TRY_AGAIN


class BadConfig(ToolError):
    """The configuration cannot work, however often it is tried."""

    exit_code = ExitCode.BAD_CONFIG


class Terminated(BaseException):
    """A signal asked this process to end; raised in the main thread so that `with` blocks clean up.

    The exit code is that of a process which the signal has killed, unless another is given.
    """

    def __init__(self, signal_number: int, exit_code: int | None = None):
        super().__init__(signal_number)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number if exit_code is None else exit_code


_tool_name = "lt"


def note(text: str) -> None:
    """Tell the person at the terminal one line. A standard error that cannot be written does not stop the work."""
    with contextlib.suppress(OSError):
        click.echo(f"{_tool_name}: {_printable(text)}", err=True)


def _printable(text: str) -> str:
    """Messages repeat what was given, which may be a URL with a password. Compiling its patterns would slow every --help."""
    from lt_shared import credentials

    return credentials.without_tokens(text)


def warn(text: str) -> None:
    note(f"warning: {text}")


def print_json(record: Mapping[str, Any]) -> None:
    """Write one line of data to stdout at once, so that a reader at the other end of a pipe sees it."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class Command(click.Command):
    """A click command whose help begins with examples and shows the environment variable of every option."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any):
        super().__init__(*args, **_with_context_settings(kwargs))
        self.examples = examples
        _show_environment_variables(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN, which click's own lets through."""

    name = "float range"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", parameter, context)
        return number


def section(title: str, *options: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Any], Any]:
    """A decorator that adds click `options`, in their order, which `Command` shows under `title` in its help."""

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].section = title
        return function

    return add


class Group(click.Group):
    """A click group with the same help as `Command`; its subcommands are `Command`s."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any):
        # Without a subcommand click would pass its whole help off as the error message.
        super().__init__(*args, **_with_context_settings(kwargs) | {"no_args_is_help": False})
        self.examples = examples
        _show_environment_variables(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_help(ctx, formatter)


def _with_context_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    defaults = {"help_option_names": ["-h", "--help"], "show_default": True}
    return arguments | {"context_settings": defaults | (arguments.get("context_settings") or {})}


def _show_environment_variables(command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and (parameter.expose_value or not parameter.is_flag):
            parameter.show_envvar = True


def _write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    if examples:
        formatter.write("Examples:\n\n")
        for line in examples.strip().splitlines():
            formatter.write(f"  {line}\n")
        formatter.write("\n")


def run(command: click.Command, tool: str, handle_signals: Callable[[], None] | None = None) -> NoReturn:
    """Run `command` as the console program `tool` and exit. The command's return value, if any, is the exit code.

    `handle_signals` installs handlers of the tool's own before those of SIGTERM and SIGHUP, which leave them as they are.
    """
    global _tool_name
    _tool_name = tool
    environment_prefix = tool.upper().replace("-", "_")
    if f"_{environment_prefix}_COMPLETE" in os.environ:
        command.main(prog_name=tool)
    _prepare_streams()

    def work() -> int:
        # Inside `_exit_code_of`: a signal between a handler's installation and its `try` would end with a traceback.
        if handle_signals is not None:
            handle_signals()
        _end_by_signals()
        with command.make_context(tool, sys.argv[1:], auto_envvar_prefix=environment_prefix) as context:
            return int(command.invoke(context) or ExitCode.OK)

    code = _exit_code_of(work)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # From here on a second signal ends the process at once, and without a traceback.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if code == ExitCode.OK:
        code = _exit_code_of(_flush_output)
    else:
        with contextlib.suppress(OSError):
            _flush_output()
    sys.exit(code)


def _end_by_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup has it ignored, and that must stay so.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise_terminated)


def _prepare_streams() -> None:
    """UTF-8 on both ends of a pipe whatever the locale, file names that are no UTF-8 unchanged, closed streams as empty ones.

    What is written to a closed stdout must not vanish: it is a descriptor that refuses it, and nothing else can get its number.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _flush_output() -> int:
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter flushes once more when it ends; what could not be written is given up here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
    return ExitCode.OK


def _raise_terminated(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated(signal_number)


def _exit_code_of(work: Callable[[], int]) -> int:
    """Run `work`; report whatever it raises on stderr and return the exit code for it."""
    try:
        return work()
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _tool_name
        return _report(error.format_message(), f"see {path} --help", ExitCode.USAGE)
    except click.ClickException as error:
        return _report(error.format_message(), None, error.exit_code)
    except ToolError as error:
        return _report(str(error), error.hint, error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", None, ExitCode.INTERRUPTED)
    except Terminated as end:
        return _report(f"ended by {signal.Signals(end.signal_number).name}", None, end.exit_code)
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        if error.errno == errno.EBADF and not error.filename:
            return _report("standard output is closed", "redirect it to a file or to /dev/null", ExitCode.IO)
        place = f"{error.filename}: " if error.filename else ""
        code = ExitCode.NO_INPUT if isinstance(error, FileNotFoundError) else ExitCode.IO
        return _report(f"{place}{(error.strerror or str(error)).lower()}", None, code)
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("aiohttp", "botocore"):
            return _report(str(error), "see the network and the endpoint in the environment", ExitCode.IO)
        return _report(f"internal error: {type(error).__name__}: {error}", "LT_DEBUG=1 shows where", ExitCode.INTERNAL)


def _report(message: str, hint: str | None, code: int) -> int:
    if os.environ.get("LT_DEBUG") == "1":
        traceback.print_exc()
    # Where nobody can be told, the exit code still says it.
    with contextlib.suppress(OSError):
        click.echo(f"{_tool_name}: error: {_printable(' '.join(message.split()))}", err=True)
        if hint:
            click.echo(f"hint: {_printable(hint)}", err=True)
    return int(code)


class Progress:
    """Progress of long work: a bar when stderr is a terminal, otherwise one plain line every `interval_seconds`.

    `total` and `advance` count in `unit`; "B" is shown as megabytes. With `total` unknown (None), only the amount and
    the rate are shown. `done` is what an earlier attempt has finished: it counts as progress, not as speed.
    """

    def __init__(self, title: str, total: float | None, unit: str, interval_seconds: float = 10.0, done: float = 0.0):
        self.title = title
        self.total = total
        self.unit = unit
        self.interval_seconds = interval_seconds
        self.done = self._done_before = done
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._start = self._last_line = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn()]
            # Data on a stdout that is no terminal must not be drawn above the bar, where rich would put it.
            is_shared = sys.stdout.isatty()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=is_shared)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, completed=self.done, state="")
        return self

    def advance(self, amount: float) -> None:
        self.done += amount
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, state=self._state(now))
        elif now - self._last_line >= self.interval_seconds:
            self._last_line = now
            note(f"{self.title}: {self._state(now)}")

    def print(self, text: str) -> None:
        """Write a line to stderr, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None:
            now = time.monotonic()
            note(f"{self.title}: {self._state(now)} in {now - self._start:.1f} s")

    def _state(self, now: float) -> str:
        scale, unit = (1e6, "MB") if self.unit == "B" else (1.0, self.unit)
        digits = 1 if self.unit == "B" else 0
        rate = (self.done - self._done_before) / scale / max(now - self._start, 1e-9)
        amount = f"{self.done / scale:,.{digits}f}"
        if self.total:
            amount += f"/{self.total / scale:,.{digits}f} {unit} ({self.done / self.total:.0%})"
        else:
            amount += f" {unit}"
        return f"{amount}, {rate:,.1f} {unit}/s"
