"""Run a command as a console program: signals, streams, and an exit code and one line for every exception."""

import contextlib
import errno
import io
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from lt_shared import memory
from lt_shared.console import output, streams, suggestions
from lt_shared.console.default_command import DefaultCommand
from lt_shared.console.errors import ExitCode, Terminated, ToolError

_MORE_OPEN_FILES = (
    "this process may open {}: raise the hard limit by LimitNOFILE= in the systemd unit of slurmd or the kubelet, by"
    " --ulimit nofile= of docker, or by ulimit -Hn as root"
)


def run(command: click.Command, tool: str, handle_signals: Callable[[], None] | None = None) -> NoReturn:
    """Run `command` as the console program `tool` and exit. The command's return value, if any, is the exit code.

    A DefaultCommand gives way to its named commands. `handle_signals` installs the tool's signal handlers first; the default
    handlers of SIGTERM and SIGHUP do not replace them.
    """
    output.begin(tool)
    environment_prefix = tool.upper().replace("-", "_")
    completing = f"_{environment_prefix}_COMPLETE"
    if isinstance(command, DefaultCommand):
        chosen = command.chosen(completing)
        handle_signals = handle_signals if chosen is command else None
        command = chosen
    if completing in os.environ:
        _complete_values_behind_equals_signs()
        command.main(prog_name=tool)
    _prepare_streams()

    def work() -> int:
        # Inside `exit_code_of`: a signal between a handler's installation and its `try` would end with a traceback.
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            # lt_shared has left SIGINT to the kernel while modules were imported.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if handle_signals is not None:
            handle_signals()
        _end_by_signals()
        with command.make_context(tool, sys.argv[1:], auto_envvar_prefix=environment_prefix) as context:
            return int(command.invoke(context) or ExitCode.OK)

    began = time.monotonic()
    try:
        code = exit_code_of(work)
        _end_at_once_by_signals()
    except (KeyboardInterrupt, Terminated) as end:
        # The signal came while an error was reported.
        os._exit(end.exit_code if isinstance(end, Terminated) else ExitCode.INTERRUPTED)
    _tell_cost(time.monotonic() - began)
    if code == ExitCode.OK:
        code = exit_code_of(_flush_output)
    else:
        with contextlib.suppress(OSError):
            _flush_output()
    with contextlib.suppress(OSError, ValueError):
        # With messages that cannot be written the interpreter would end with 120.
        _flush(sys.stderr)
    sys.exit(code)


def _complete_values_behind_equals_signs() -> None:
    """Replace click's classes for shells, which complete `--model tiny` but not `--model=tiny`.

    bash splits the word at the equals sign; zsh and fish replace the whole word by the completion, so that the option was lost.
    """
    from click import shell_completion

    class Bash(shell_completion.BashComplete):
        def get_completion_args(self) -> tuple[list[str], str]:
            words, incomplete = super().get_completion_args()
            words.append(incomplete)
            for index in range(len(words) - 1, 0, -1):
                if words[index] == "=" and words[index - 1].startswith("--"):
                    words[index - 1 : index + 2] = ["".join(words[index - 1 : index + 2])]
            return words[:-1], words[-1]

    def behind_option(items: list[Any], incomplete: str) -> list[Any]:
        option, equals, _ = incomplete.partition("=")
        for item in items:
            if equals and option.startswith("--") and item.type == "plain":
                item.value = f"{option}={item.value}"
        return items

    class Zsh(shell_completion.ZshComplete):
        def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
            return behind_option(super().get_completions(args, incomplete), incomplete)

    class Fish(shell_completion.FishComplete):
        def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
            return behind_option(super().get_completions(args, incomplete), incomplete)

    for shell in (Bash, Zsh, Fish):
        shell_completion.add_completion_class(shell)


def _tell_cost(seconds: float) -> None:
    size_bytes = max(memory.peak_resident_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
    output.detail(f"took {seconds:.2f} s, a process {size_bytes / (1 << 20):,.0f} MiB of memory at most")


def _end_by_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup has it ignored, and that must stay so.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise_terminated)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupt)


def _end_at_once_by_signals() -> None:
    """Let the next signal end the process: a handler's exception in an `except` block would end with a traceback.

    Not by SIG_DFL: if the signal has come already, Python finds no handler for it and prints a traceback.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_at_once)


def _exit_at_once(signal_number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + signal_number)


def _prepare_streams() -> None:
    """Use UTF-8 on the standard streams in every locale, keep file names that are not UTF-8, read a closed stdin as empty, and
    write each text whole.

    Output to a closed stdout must not vanish. Descriptor 1 becomes one that refuses writes, so no other file gets its number.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    sys.stdout, sys.stderr = streams.whole(sys.stdout, "surrogateescape"), streams.whole(sys.stderr, "backslashreplace")
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _flush_output() -> int:
    _flush(sys.stdout)
    return ExitCode.OK


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        # The interpreter flushes once more when it ends; what could not be written is given up here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def _raise_terminated(signal_number: int, frame: FrameType | None) -> None:
    _end_at_once_by_signals()
    raise Terminated(signal_number)


def _raise_interrupt(signal_number: int, frame: FrameType | None) -> None:
    _end_at_once_by_signals()
    raise KeyboardInterrupt


def exit_code_of(work: Callable[[], int]) -> int:
    """Run `work`; report whatever it raises on stderr and return the exit code for it."""
    try:
        return work()
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except click.UsageError as error:
        return _report(_origin(error) + error.format_message(), _usage_hint(error), ExitCode.USAGE)
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
        is_missing = isinstance(error, FileNotFoundError)
        hint = suggestions.for_missing_file(os.fsdecode(error.filename)) if is_missing and error.filename else None
        if error.errno == errno.EMFILE:
            hint = _MORE_OPEN_FILES.format(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return _report(f"{place}{(error.strerror or str(error)).lower()}", hint, ExitCode.NO_INPUT if is_missing else ExitCode.IO)
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("aiohttp", "botocore"):
            return _report(str(error), "see the network and the endpoint in the environment", ExitCode.IO)
        return _report(f"internal error: {type(error).__name__}: {error}", "LT_DEBUG=1 shows where", ExitCode.INTERNAL)


def _usage_hint(error: click.UsageError) -> str:
    if refused := re.match(r"'([^']*)' is not a valid integer", error.message):
        integer = suggestions.for_integer(refused[1])
        if integer is not None:
            return integer
    return f"see {error.ctx.command_path if error.ctx else output.tool_name()} --help"


def _origin(error: click.UsageError) -> str:
    """Return the environment variable or the file that a refused value comes from, if it is not from the command line."""
    option, context = getattr(error, "param", None), error.ctx
    if option is None or context is None or option.name is None:
        return ""
    source = context.get_parameter_source(option.name)
    if source is click.core.ParameterSource.DEFAULT_MAP:
        return "in the file of --config: "
    if source is not click.core.ParameterSource.ENVIRONMENT:
        return ""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    if context.auto_envvar_prefix:
        names.append(f"{context.auto_envvar_prefix}_{option.name.upper()}")
    return next((f"{name} in the environment: " for name in names if name in os.environ), "")


def _report(message: str, hint: str | None, code: int) -> int:
    if os.environ.get("LT_DEBUG") == "1":
        traceback.print_exc()
    # Where nobody can be told, the exit code still says it.
    with contextlib.suppress(OSError):
        click.echo(f"{output.tool_name()}: error: {output.printable(' '.join(message.split()))}", err=True)
        if hint:
            click.echo(f"hint: {output.printable(hint)}", err=True)
    return int(code)
