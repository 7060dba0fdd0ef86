"""Every way for a tool to end: its exit code, one line on stderr, and never a traceback."""

import io
import os
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pseudo_terminal
import pytest

from lt_shared.console import ExitCode, Progress, Stopwatch, counted, note

PROGRAM = '''
import errno, json, os, signal, sys, time
import click
from lt_shared import console


@click.group(cls=console.Group, examples="lt-x work --size 3\\nlt-x work -")
@console.version_option("lt-shared", "click", "no-such-package")
@click.option("--level", default=1, help="How much.")
def command(level):
    """Do things."""


@command.command(examples="lt-x work --size 3")
@click.option("--size", default=2, help="Size in bytes.")
@click.option("--fast", is_flag=True, help="Be quick.")
@click.argument("what", default="")
def work(size, fast, what):
    """Do one thing."""
    exec(what)
    return size - 2


console.run(command, "lt-x")
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def run(program: list[str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([*program, *arguments], env=os.environ | environment, capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    return result


def run_code(program: list[str], code: str) -> subprocess.CompletedProcess[str]:
    return run(program, "work", code)


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("raise console.ToolError('broken')", ExitCode.INTERNAL, "broken"),
        ("raise console.UsageError('contradiction')", ExitCode.USAGE, "contradiction"),
        ("raise console.BadData('line 3')", ExitCode.BAD_DATA, "line 3"),
        ("raise console.NoInput('empty')", ExitCode.NO_INPUT, "empty"),
        ("raise console.Unavailable('no package')", ExitCode.UNAVAILABLE, "no package"),
        ("raise console.CannotCreate('no folder')", ExitCode.CANNOT_CREATE, "no folder"),
        ("raise console.IoFailure('disk full')", ExitCode.IO, "disk full"),
        ("raise console.TryAgain('locked')", ExitCode.TRY_AGAIN, "locked"),
        ("raise console.BadConfig('TP 3')", ExitCode.BAD_CONFIG, "TP 3"),
        ("raise console.BadData('two\\n  lines')", ExitCode.BAD_DATA, "two lines"),
        ("open('/no/such')", ExitCode.NO_INPUT, "/no/such: no such file or directory"),
        ("raise FileNotFoundError", ExitCode.NO_INPUT, ""),
        ("raise OSError(errno.EIO, 'Input/output error', '/dev/x')", ExitCode.IO, "/dev/x: input/output error"),
        ("raise OSError('odd')", ExitCode.IO, "odd"),
        ("1 / 0", ExitCode.INTERNAL, "internal error: ZeroDivisionError: division by zero"),
        ("raise MemoryError", ExitCode.INTERNAL, "internal error: MemoryError:"),
        ("raise KeyboardInterrupt", ExitCode.INTERRUPTED, "interrupted"),
        ("raise click.Abort", ExitCode.INTERRUPTED, "interrupted"),
        ("raise click.ClickException('from click')", 1, "from click"),
    ],
)
def test_every_exception_is_one_line_and_its_exit_code(program: list[str], code: str, exit_code: int, message: str) -> None:
    result = run_code(program, code)
    assert result.returncode == exit_code
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].rstrip() == f"lt-x: error: {message}".rstrip()
    assert lines[1:] == (["hint: LT_DEBUG=1 shows where"] if message.startswith("internal") else [])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from botocore.exceptions import NoRegionError; raise NoRegionError", "You must specify a region."),
        ("import aiohttp; raise aiohttp.ClientPayloadError('cut off')", "cut off"),
    ],
)
def test_what_the_clients_of_stores_raise_is_no_internal_error(program: list[str], code: str, message: str) -> None:
    """In the middle of a file: they have no exception in common with the operating system."""
    result = run_code(program, code)
    expected = f"lt-x: error: {message}\nhint: see the network and the endpoint in the environment\n"
    assert (result.returncode, result.stderr) == (ExitCode.IO, expected)


def test_a_hint_is_the_second_line(program: list[str]) -> None:
    result = run_code(program, "raise console.NoInput('a: no such file', 'make it')")
    assert result.stderr == "lt-x: error: a: no such file\nhint: make it\n"


def test_debugging_shows_the_traceback(program: list[str]) -> None:
    result = subprocess.run([*program, "work", "1 / 0"], env=os.environ | {"LT_DEBUG": "1"}, capture_output=True, text=True)
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith(
        "lt-x: error: internal error: ZeroDivisionError: division by zero\nhint: LT_DEBUG=1 shows where\n"
    )
    assert result.returncode == ExitCode.INTERNAL


def test_success_and_the_returned_code(program: list[str]) -> None:
    result = run(program, "work")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert run(program, "work", "--size", "3").returncode == ExitCode.FOUND


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["work", "--sizes", "3"], "No such option"),
        (["work", "--size", "many"], "Invalid value for '--size'"),
        (["work", "a", "b"], "Got unexpected extra argument (b)"),
        (["wrok"], "No such command 'wrok'"),
        ([], "Missing command."),
    ],
)
def test_usage_errors_are_one_line_with_a_hint(program: list[str], arguments: list[str], message: str) -> None:
    result = run(program, *arguments)
    assert result.returncode == ExitCode.USAGE
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"lt-x: error: {message}")
    assert re.fullmatch(r"hint: see lt-x( work)? --help", hint)


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["work", "-h"], ["work", "--help"]])
def test_help_begins_with_examples(program: list[str], arguments: list[str]) -> None:
    result = run(program, *arguments)
    assert result.returncode == 0
    assert result.stdout.startswith("Examples:\n\n  lt-x work --size 3\n")
    assert result.stdout.index("Usage: lt-x") > result.stdout.index("Examples:")


def test_help_shows_defaults_and_environment_variables(program: list[str]) -> None:
    subcommand = " ".join(run(program, "work", "--help").stdout.split())
    rule = "The environment sets options, too, where the command line does not: {} is {}, and so on."
    assert "Size in bytes. [default: 2]" in subcommand
    assert subcommand.endswith(rule.format("LT_X_WORK_SIZE", "--size"))
    group = " ".join(run(program, "--help").stdout.split())
    assert "How much. [default: 1]" in group
    assert rule.format("LT_X_LEVEL", "--level") in group


def test_the_environment_asks_for_no_help_and_no_version(program: list[str]) -> None:
    """An image may have LT_X_VERSION=0.1.0."""
    names = ("VERSION", "HELP", "H", "QUIET", "VERBOSE")
    variables = {f"LT_X_{prefix}{name}": "0.1.0" for name in names for prefix in ("", "WORK_")}
    result = run(program, "work", "--size", "3", **variables)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_what_a_terminal_would_act_on_is_written_out(program: list[str]) -> None:
    code = r"console.note('a\x1b]0;title\x07 b\u202ec'); raise console.BadData('d\x9b31m\te')"
    assert run_code(program, code).stderr == ("lt-x: a\\x1b]0;title\\x07 b\\u202ec\nlt-x: error: d\\x9b31m e\n")


def test_a_refused_value_of_the_environment_is_named(program: list[str]) -> None:
    refused = run(program, "work", LT_X_WORK_SIZE="abc")
    assert refused.stderr.startswith("lt-x: error: LT_X_WORK_SIZE in the environment: Invalid value for '--size': 'abc'")
    refused = run(program, "--level", "abc", LT_X_LEVEL="7")
    assert refused.stderr.startswith("lt-x: error: Invalid value for '--level': 'abc'")


def test_the_environment_sets_options_and_flags_win(program: list[str]) -> None:
    assert run(program, "work", LT_X_WORK_SIZE="5").returncode == 3
    assert run(program, "work", "--size", "3", LT_X_WORK_SIZE="5").returncode == 1
    assert run(program, "work", LT_X_WORK_SIZE="many").returncode == ExitCode.USAGE


def test_version(program: list[str]) -> None:
    result = run(program, "--version")
    assert (result.returncode, result.stdout) == (
        0,
        f"lt-shared {metadata.version('lt-shared')}\nPython {platform.python_version()}, click {metadata.version('click')}\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_clean_up_and_give_128_plus_the_number(program: list[str], tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
from lt_shared.files import storage
with storage.publish({str(tmp_path / "out")!r}):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)  # a signal just before a sleep is seen only after it
"""
    process = subprocess.Popen([*program, "work", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert errors == ("lt-x: error: interrupted\n" if number == signal.SIGINT else f"lt-x: error: ended by {number.name}\n")
    assert os.listdir(tmp_path) == ["program.py"]


def test_a_hangup_that_nohup_ignores_stays_ignored(program: list[str]) -> None:
    code = "os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    result = subprocess.run(["nohup", *program, "work", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout) == (0, "alive\n")


@pytest.mark.parametrize(
    "code",
    [
        "[console.print_json({'n': n}) for n in range(100_000)]",
        "import builtins; builtins.print('x' * 3_000_000)",
        "sys.stdout.write('left in the buffer'); time.sleep(0.3)",
    ],
    ids=["while printing", "one large write", "at exit"],
)
def test_a_closed_pipe_is_141_and_silent(program: list[str], code: str) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen([*program, "work", code], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(reader)
    os.close(writer)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, "")


def test_an_error_outranks_the_closed_pipe(program: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "sys.stdout.write('x'); raise console.BadData('bad')"
    result = subprocess.run([*program, "work", code], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (ExitCode.BAD_DATA, "lt-x: error: bad\n")


def test_output_that_does_not_fit_is_an_io_error(program: list[str]) -> None:
    for code in ("console.print_json({})", "sys.stdout.write('x')"):
        with open("/dev/full", "w") as full:
            result = subprocess.run([*program, "work", code], stdout=full, stderr=subprocess.PIPE, text=True)
        assert (result.returncode, result.stderr) == (ExitCode.IO, "lt-x: error: no space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "code",
    [
        "console.print_json({'text': 'x' * 5000})",
        "click.echo('x' * 5000)",
        "sys.stdout.buffer.write(b'x' * 5000)",
        "note('x' * 5000)",
    ],
)
def test_a_file_that_takes_a_part_of_the_output_is_an_io_error(
    program: list[str], tmp_path: Path, code: str, unbuffered: str
) -> None:
    """A limit on the size of files takes what fits and reports no error, as a disk does that becomes full."""
    code = code.replace("note(", "console.note(")
    with open(tmp_path / "output", "wb") as output:
        result = subprocess.run(
            ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *program, "work", code],
            stdout=output, stderr=output if "note" in code else subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    # What cannot be said on standard error does not stop the work.
    assert result.returncode == (ExitCode.OK if "note" in code else ExitCode.IO)
    assert (tmp_path / "output").stat().st_size == 4096


def test_a_pipe_that_does_not_block_gets_all_of_the_output(program: list[str]) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*program, "work", "sys.stdout.write('x' * 300_000 + 'end')"], stdout=writer, env=environment
    ) as process:
        os.close(writer)
        with open(reader, "rb") as pipe:
            content = pipe.read()
    assert (process.returncode, len(content), content[-4:]) == (ExitCode.OK, 300_003, b"xend")


def closed(program: list[str], code: str, streams: str) -> subprocess.CompletedProcess[str]:
    script = f'code=$1; shift; "$@" work "$code" {streams}; echo $?'
    return subprocess.run(["bash", "-c", script, "bash", code, *program], capture_output=True, text=True)


@pytest.mark.parametrize("streams", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_that_are_not_needed(program: list[str], streams: str) -> None:
    result = closed(program, "console.warn('x') if sys.stderr.fileno() != 2 else sys.stdin.read()", streams)
    assert (result.stdout, result.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    "code",
    ["console.print_json({})", "sys.stdout.write('x')", "click.echo('x')", "sys.stdout.buffer.write(b'x'); sys.stdout.flush()"],
)
def test_output_to_a_closed_stdout_is_an_io_error(program: list[str], code: str) -> None:
    result = closed(program, code, ">&-")
    assert result.stdout == f"{ExitCode.IO}\n"
    assert result.stderr == "lt-x: error: standard output is closed\nhint: redirect it to a file or to /dev/null\n"


def test_json_lines_are_compact_utf8(program: list[str]) -> None:
    result = subprocess.run([*program, "work", "console.print_json({'a': 1, 'b': '\uac00'})"], capture_output=True, check=True)
    assert result.stdout == '{"a":1,"b":"\uac00"}\n'.encode()


PROGRESS = "p = console.Progress('encode', 4e6, 'B', interval_seconds={interval})\nwith p:\n    p.advance(1e6); p.advance(3e6)"


def test_progress_without_a_terminal_is_plain_lines(program: list[str]) -> None:
    every = run_code(program, PROGRESS.format(interval=0)).stderr.splitlines()
    assert [line.split(",")[0] for line in every] == [
        "lt-x: encode: 1.0/4.0 MB (25%)",
        "lt-x: encode: 4.0/4.0 MB (100%)",
        "lt-x: encode: 4.0/4.0 MB (100%)",
    ]
    rare = run_code(program, PROGRESS.format(interval=3600)).stderr.splitlines()
    assert len(rare) == 1 and rare[0].endswith(" s")
    assert run_code(program, "with console.Progress('read', None, 'lines') as p: p.advance(3)").stderr.startswith(
        "lt-x: read: 3 lines, "
    )


def test_progress_on_a_terminal_is_a_bar(program: list[str]) -> None:
    code = PROGRESS.format(interval=1) + "; time.sleep(0.3)"
    result = pseudo_terminal.run([*program, "work", code])
    assert result.code == 0
    assert "\u2501" in result.shown and "4.0/4.0 MB (100%)" in result.shown


def test_lines_beside_a_progress_bar_are_whole(program: list[str]) -> None:
    line = " [2026-11-21] iteration 1/ 4 |" + " lm loss: 7.6E+00 |" * 10
    work = f"p.advance(1); time.sleep(0.2); p.print({line!r}); print('data'); time.sleep(0.2)"
    code = f"with console.Progress('train', 4, 'steps') as p: {work}"
    result = pseudo_terminal.run([*program, "work", code])
    assert (result.code, result.other) == (0, "data\n")
    assert line in result.shown and "1/4 steps (25%)" in result.shown
    assert run_code(program, code).stderr.splitlines()[0] == line


def test_progress_of_an_earlier_attempt_is_no_speed(program: list[str]) -> None:
    code = "with console.Progress('train', 10, 'steps', done=8) as p: p.advance(1); time.sleep(0.5)"
    (line,) = run_code(program, code).stderr.splitlines()
    assert line.startswith("lt-x: train: 9/10 steps (90%), ")
    assert float(line.split("%), ")[1].split()[0]) <= 2


def test_a_failed_block_prints_no_final_progress(program: list[str]) -> None:
    result = run_code(program, "with console.Progress('read', 2, 'lines'): raise console.BadData('line 1')")
    assert result.stderr == "lt-x: error: line 1\n"


@pytest.mark.parametrize("stream", ["none", "closed"])
def test_a_program_without_standard_streams_can_use_what_tells_people(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    closed = io.StringIO()
    closed.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, closed if stream == "closed" else None)
    note("nobody reads this")
    with Progress("work", 2, "files", interval_seconds=0) as progress, Stopwatch("work"):
        progress.advance(1)
    assert progress.done == 1


@pytest.mark.parametrize(("count", "said"), [(0, "0 steps"), (1, "1 step"), (2000, "2,000 steps")])
def test_one_is_singular(count: int, said: str) -> None:
    assert counted(count, "step") == said
