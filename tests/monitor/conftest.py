"""Real programs for the tests: installed ones, or else those of Debian's packages, unpacked into .nox/debian."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lt_monitor import cli
from lt_shared import console

Tool = Callable[..., subprocess.CompletedProcess[str]]

PROGRAMS = Path(__file__).parents[2] / ".nox" / "debian"


def debian_program(package: str, program: str) -> str:
    """The path of a program, which needs no installation and no root. A machine without apt has to have it installed."""
    found = shutil.which(program)
    target = PROGRAMS / package / "usr" / "bin" / program
    if found or target.is_file():
        return found or str(target)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip(f"{program} is not installed, and there is no apt-get to fetch it from Debian's {package}")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    with open(PROGRAMS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            with tempfile.TemporaryDirectory(dir=PROGRAMS) as folder:
                fetched = subprocess.run(["apt-get", "-q", "download", package], cwd=folder, capture_output=True)
                if fetched.returncode:
                    pytest.skip(f"{program} is not installed, and apt-get cannot fetch it: {fetched.stderr.decode()[-300:]}")
                (archive,) = Path(folder).glob("*.deb")
                subprocess.run(["dpkg-deb", "-x", archive, f"{folder}/root"], check=True, capture_output=True)
                os.rename(f"{folder}/root", PROGRAMS / package)
    return str(target)


@pytest.fixture(scope="session")
def promtool() -> str:
    return debian_program("prometheus", "promtool")


@pytest.fixture(scope="session")
def node_exporter() -> str:
    return debian_program("prometheus-node-exporter", "prometheus-node-exporter")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Tool:
    """Runs lt-monitor in this process, in `tmp_path`: forty times faster than a process of its own."""

    def work() -> int:
        with cli.command.make_context("lt-monitor", sys.argv[1:], auto_envvar_prefix="LT_MONITOR") as context:
            return int(cli.command.invoke(context) or 0)

    def run(*arguments: str, stdin: str | bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / ".stdin").write_bytes(stdin if isinstance(stdin, bytes) else stdin.encode())
        with monkeypatch.context() as patch, open(tmp_path / ".stdin") as file:
            patch.chdir(tmp_path)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", file)
            patch.setattr(sys, "argv", ["lt-monitor", *arguments])
            patch.setattr("lt_shared.console.output._tool_name", "lt-monitor")
            capfd.readouterr()
            code = console.exit_code_of(work)
            sys.stdout.flush()
            printed = capfd.readouterr()
        (tmp_path / ".stdin").unlink()
        return subprocess.CompletedProcess(arguments, int(code), printed.out, printed.err)

    return run
