"""Exit codes, and the errors that end a command with them. A message says which file or value failed, and the remedy."""

import enum


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
    NO_PROGRESS = 76
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

    The default exit code is 128 plus the signal's number, as for a killed process.
    """

    def __init__(self, signal_number: int, exit_code: int | None = None):
        super().__init__(signal_number)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number if exit_code is None else exit_code
