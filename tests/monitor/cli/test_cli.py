"""The commands as a user types them: streams, exit codes, and what --help costs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nursery
import pytest

import lt_monitor
from lt_monitor import cli
from lt_monitor.cli import machine_commands

ROOT = Path(__file__).parents[3]
README = ROOT / "tools/monitor/README.md"
PAGES = (README, *(ROOT / f"docs/guides/{name}.md" for name in ("monitoring", "logs", "alerts", "metrics", "causes")))
LOGS = Path(__file__).parents[1] / "samples"
TOOL = [sys.executable, "-m", "lt_monitor"]


def run(*arguments: str, cwd: Path = LOGS, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [nursery.light_python(), *TOOL[1:], *arguments]
    return subprocess.run(command, capture_output=True, cwd=cwd, input=stdin)


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", script(command)], capture_output=True, cwd=cwd)


def script(command: str) -> str:
    """A shell script that runs a documented command line as it stands."""
    return f'set -eo pipefail; lt-monitor() {{ "{nursery.light_python()}" -m lt_monitor "$@"; }}; {command}'


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory with the logs that the examples name."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for name in ("run1", "run2"):
        (tmp_path / name).mkdir()
        shutil.copy(LOGS / "lt_train.log", tmp_path / name / "train.log")
    for number in (76, 77):
        shutil.copy(LOGS / "megatron_old.log", tmp_path / f"slurm-{number}.out")
    (tmp_path / "run1-evals/iter_0000010").mkdir(parents=True)
    scores = {"hellaswag": {"acc,none": 0.6, "acc_norm,none": 0.79}}
    (tmp_path / "run1-evals/iter_0000010/results_2026-01-16T07-32-24.123456.json").write_text(json.dumps({"results": scores}))
    return tmp_path


def test_help_and_version_import_nothing_heavy() -> None:
    for arguments in (["--help"], ["--version"], ["scrape", "-h"], ["summarize", "--help"], ["plot", "--help"]):
        code = (
            "import sys\nfrom lt_monitor import cli\n"
            f"sys.argv = ['lt-monitor', *{arguments}]\n"
            "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
            "heavy = {'numpy', 'matplotlib', 'rich', 'fsspec'} & set(sys.modules)\nassert not heavy, heavy\n"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"lt-monitor {lt_monitor.__version__}\n" if "--version" in arguments else "Examples:")


def examples() -> list[str]:
    commands = [cli.command, *(one for one in cli.command.commands.values() if one not in machine_commands.COMMANDS)]
    found = [line for command in commands for line in command.examples.strip().splitlines()]
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    return list(dict.fromkeys([*found, *(line.strip() for line in lines if re.match("    (lt-monitor|cat|tail) ", line))]))


# Those of blame need a run with its data: see tests/monitor/blame and tests/train/test_cli.py.
ELSEWHERE = re.compile(r"^tail|^lt-monitor watch|lt-monitor blame ")


@pytest.mark.parametrize("example", [line for line in examples() if not ELSEWHERE.search(line)])
def test_documented_examples_run(example: str, logs: Path) -> None:
    if "| jq" in example:
        example = example.partition("| jq")[0]
    result = shell(example, logs)
    # The sample of the README is of a run that failed.
    assert result.returncode == (3 if " alert tests/" in example else 0), result.stderr.decode()
    assert result.stdout or ">" in example or " prom " in example


def test_following_a_log_prints_events_at_once(logs: Path) -> None:
    (example,) = (line for line in examples() if line.startswith("tail"))
    with subprocess.Popen(["bash", "-c", script(example)], stdout=-1, cwd=logs, start_new_session=True) as process:
        first = process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
    assert json.loads(first)["kind"] == "start"


def test_the_readme_shows_what_is_printed(logs: Path) -> None:
    shown = re.findall(r"^    (lt-monitor [^\n]*)\n\n```\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(shown) >= 2
    for command, output in shown:
        assert shell(command, logs).stdout.decode() == output


def test_each_documented_key_of_a_summary_exists() -> None:
    guide = (ROOT / "docs/guides/monitoring.md").read_text()
    section = guide.partition("## summarize")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    documented = {key.strip("` ") for cell in cells for key in cell.split(",")}
    summary = json.loads(run("summarize", "--json", "lt_train.log").stdout)
    assert documented | {"run"} == set(summary["runs"][0])
    assert (summary["v"], summary["kind"]) == (1, "summary")


def test_plot_prints_the_path(tool: Any, tmp_path: Path) -> None:
    """Two of the three in this process, where matplotlib is imported once."""
    log, picture = str(LOGS / "lt_train.log"), str(tmp_path / "loss.png")
    assert json.loads(tool("plot", log, "-o", picture).stdout) == {"v": 1, "kind": "plot", "path": picture}
    assert tool("plot", log, "-o", picture, "--plain").stdout == f"{picture}\n"
    assert run("plot", log, "-o", "-").stdout == Path(picture).read_bytes()


def test_filters_compose() -> None:
    scraped = run("scrape", "megatron_new.log", "lt_train.log").stdout
    assert run("scrape", "-", stdin=scraped).stdout == scraped
    direct = json.loads(run("summarize", "--json", "megatron_new.log", "lt_train.log").stdout)
    assert json.loads(run("summarize", "--json", "-", stdin=scraped).stdout) == direct


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["scrape", "missing.log"], 66, "missing.log: no such file"),
        (["scrape", "slurm-*.missing"], 66, "slurm-*.missing: no file matches"),
        (["summarize", "missing.log"], 66, "missing.log: no such file"),
        (["plot", "missing.log", "-o", "x.png"], 66, "missing.log: no such file"),
        (["scrape", "/proc/sys"], 66, "/proc/sys: no log in this directory"),
        (["summarize", "/proc/sys"], 66, "/proc/sys: no log in this directory"),
        (["plot", "no_events.log", "-o", "x.png"], 65, "no_events.log: no training steps"),
        (["plot", "lt_train.log", "-o", "x.jpg"], 2, "x.jpg: not a known image format"),
        (["summarize", "lt_train.log", "--gpu", "H1000"], 2, "--gpu H1000: its peak FLOP/s are not known"),
        (["watch", "lt_train.log"], 2, "watch needs a terminal"),
        (
            ["plot", "lt_train.log", "-o", "x.png", "--reference", "x"],
            2,
            "Invalid value for '--reference': 'x': expected NAME=VALUE",
        ),
        (["scrape"], 2, "Missing argument 'LOG...'."),
        (["scrape", "-", "--state", "s"], 2, "--state needs files"),
        (["scrape", "lt_train.log", "--state", "/proc/nowhere/s"], 73, "/proc/nowhere/s: no such directory"),
    ],
)
def test_errors_are_one_line_and_a_code(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    lines = result.stderr.decode().splitlines()
    assert (result.returncode, result.stdout) == (code, b"")
    assert lines[0].startswith(f"lt-monitor: error: {message}")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2


@pytest.mark.parametrize("state", [[], ["--state", "s"]])
def test_a_reader_that_leaves_ends_scrape_quietly(state: list[str], tmp_path: Path) -> None:
    big = tmp_path / "big.log"
    big.write_bytes((LOGS / "megatron_new.log").read_bytes() * 100)
    with subprocess.Popen([*TOOL, "scrape", "big.log", *state], stdout=-1, stderr=-1, cwd=tmp_path) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
    assert set(os.listdir(tmp_path)) <= {"big.log", ".s.lock"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_scrape_without_a_state(number: int, code: int, tmp_path: Path) -> None:
    big = tmp_path / "big.log"
    big.write_bytes((LOGS / "megatron_new.log").read_bytes() * 100)
    with subprocess.Popen([*TOOL, "scrape", "big.log", "--state", "s"], stdout=-1, stderr=-1, cwd=tmp_path) as process:
        process.stdout.readline()
        process.send_signal(number)
        process.communicate()
    assert process.returncode == code
    assert set(os.listdir(tmp_path)) <= {"big.log", ".s.lock"}


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [*TOOL, "scrape", str(LOGS / "lt_train.log"), "--state", "s"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert result.returncode == 74
    assert result.stderr == b"lt-monitor: error: standard output: No space left on device\n"
    assert os.listdir(tmp_path) == [".s.lock"]


def test_output_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    log = tmp_path / "ü.log"
    shutil.copy(LOGS / "lt_train.log", log)
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    result = subprocess.run([*TOOL, "scrape", "ü.log"], capture_output=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert all(json.loads(line) for line in result.stdout.splitlines())


def test_a_log_without_a_command_is_answered_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "a run.log").touch()
    done = run("a run.log", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        b"lt-monitor: error: a run.log is no command\nhint: lt-monitor summarize 'a run.log'\n",
    )
    assert b"No such command 'gone.log'" in run("gone.log", cwd=tmp_path).stderr
