"""A stranger has put pipes and links among the logs: nothing waits for him or reads for him what he may not; the rest is read."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from monitor_command import monitor
from stranger import STRANGER_UID, Stranger

LT_MONITOR = Path(sys.executable).parent / "lt-monitor"
STEP = '{{"v":1,"kind":"step","step":{0},"loss":2.5}}\n'
LOG = "".join(STEP.format(step) for step in range(1, 5))
SECRET_STEP = "4711471147114711"  # long enough to be in no digest by chance
SECRET = STEP.format(SECRET_STEP)
COMMANDS = {
    "scrape": ["scrape"],
    "scrape with a state": ["scrape", "--state", "state"],
    "alert": ["alert"],
    "alert with a state": ["alert", "--state", "state"],
    "prom": ["prom", "-o", "lt.prom"],
    "goodput": ["goodput"],
    "summarize": ["summarize"],
    "runs": ["runs"],
    "plot": ["plot", "-o", "report.html"],
}
PLANTS = {
    "pipe": ("mkfifo -m 666 {}", "is neither a file nor a directory, and belongs to another user (uid 1001)"),
    "link to a pipe": (
        "mkfifo -m 666 his; ln -s his {}", "is neither a file nor a directory, and belongs to another user (uid 1001)",
    ),
    "socket": (
        "python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(\"{}\")'",
        "is neither a file nor a directory, and belongs to another user (uid 1001)",
    ),
    "device": ("ln -s /dev/zero {}", "is a link that another user (uid 1001) has made to"),
    "link": ("ln -s SECRET {}", "is a link that another user (uid 1001) has made to"),
    "link to a directory": ("ln -s FOLDER {}", "is a link that another user (uid 1001) has made to"),
    "link to nothing": ("ln -s nowhere {}", "is a link that another user (uid 1001) has made to nothing"),
    "link to itself": ("ln -s {0} {0}", "is a link that another user (uid 1001) has made to nothing"),
}  # fmt: skip
NO_FILES = ("pipe", "link to a pipe", "socket", "device", "link to a directory", "link to nothing", "link to itself")
# One of each exit code and each of what is said.
ENDS = ("pipe", "link", "link to nothing")


@pytest.fixture
def folder(stranger: Stranger, tmp_path: Path) -> Path:
    """Our logs are read from here; the stranger's directory is `logs`."""
    (stranger.shared / "c.out").write_text(LOG)
    (tmp_path / "private").mkdir()
    (tmp_path / "private/secret.out").write_text(SECRET)
    (tmp_path / "logs").symlink_to(stranger.shared)
    return tmp_path


def plant(stranger: Stranger, folder: Path, what: str, name: str) -> str:
    script, message = PLANTS[what]
    private = folder / "private"
    stranger.run(script.format(name).replace("SECRET", str(private / "secret.out")).replace("FOLDER", str(private)))
    return message


def run(folder: Path, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    # A copy has no other open files.
    command = [LT_MONITOR, *map(str, arguments)] if options.get("pass_fds") else monitor(*arguments)
    options = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_he_planted_is_left_out(command: str, folder: Path, stranger: Stranger) -> None:
    """Named one by one, as the shell does it for *.out."""
    planted = {f"b{number}.out": plant(stranger, folder, what, f"b{number}.out") for number, what in enumerate(PLANTS)}
    result = run(folder, *COMMANDS[command], *(f"logs/{name}" for name in planted), "logs/c.out")
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    assert len(warnings) == len(planted), result.stderr
    for name, message in planted.items():
        (warning,) = (line for line in warnings if f"{name}: " in line)
        assert message in warning and warning.endswith(": left out")
    assert SECRET_STEP not in result.stdout + "".join(path.read_text() for path in folder.iterdir() if path.is_file())
    if command.startswith("scrape"):
        assert result.stdout.count('"kind":"step"') == 4
    assert command != "prom" or 'run="logs/c"' in (folder / "lt.prom").read_text()


@pytest.mark.parametrize("name", ["b{}.out", "train{}.log"])
def test_a_directory_with_plants(name: str, folder: Path, stranger: Stranger) -> None:
    planted = {what: plant(stranger, folder, what, name.format(number)) for number, what in enumerate(PLANTS)}
    result = run(folder, "scrape", "logs")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count('"kind":"step"') == 4 and SECRET_STEP not in result.stdout
    (told,) = planted.keys() - set(NO_FILES)
    assert planted[told] in result.stderr and result.stderr.count("left out") == 1


@pytest.mark.parametrize(
    ("command", "what"),
    [
        *(("scrape", what) for what in PLANTS),
        *((command, what) for command in ("scrape with a state", "alert", "alert with a state", "runs") for what in ENDS),
    ],
)
def test_nothing_else_is_named(command: str, what: str, folder: Path, stranger: Stranger) -> None:
    message = plant(stranger, folder, what, "b.out")
    result = run(folder, *COMMANDS[command], "logs/b.out")
    assert (result.returncode, result.stdout) == (66 if "nothing" in message else 65, ""), result.stderr
    assert "error: " in result.stderr and message in result.stderr and "left out" not in result.stderr


def test_a_link_to_a_directory_that_ends_with_a_slash(folder: Path, stranger: Stranger) -> None:
    message = plant(stranger, folder, "link to a directory", "b")
    result = run(folder, "scrape", "logs/b/")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert message in result.stderr


def test_it_is_said_once_though_alert_looks_twice(folder: Path, stranger: Stranger) -> None:
    """For the age of logs without training events."""
    (stranger.shared / "c.out").write_text("nothing\n")
    plant(stranger, folder, "pipe", "b.out")
    result = run(folder, "alert", "logs/b.out", "logs/c.out")
    assert (result.returncode, result.stderr.count("left out")) == (0, 1), result.stderr


def test_a_pattern_that_matches_only_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.out")
    result = run(tmp_path, "alert", "*.out")
    assert (result.returncode, result.stdout) == (65, "")
    assert "error: a.out: is neither a file nor a directory" in result.stderr


def test_links_among_his_own_files_are_read(folder: Path, stranger: Stranger) -> None:
    stranger.run(f"echo '{STEP.format(5).strip()}' > his.log; mkdir his; mv his.log his; ln -s his/his.log b.out; ln -s his d")
    result = run(folder, "scrape", "logs/b.out", "logs/d")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count('"step":5') == 2


def test_a_pipe_that_was_given_open_is_read_whoever_made_it(tmp_path: Path) -> None:
    """As that of `... | su -c 'lt-monitor runs /dev/stdin'`."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a pipe away")
    for path in ("/dev/fd/{}", "/dev/stdin"):
        reader, writer = os.pipe()
        os.fchown(reader, STRANGER_UID, STRANGER_UID)
        os.write(writer, LOG.encode())
        os.close(writer)
        result = run(tmp_path, "scrape", path.format(reader), pass_fds=[reader] if "{" in path else [], stdin=reader)
        os.close(reader)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.count('"kind":"step"') == 4


@pytest.mark.parametrize("command", ["scrape", "alert", "runs", "goodput", "runs of the shell's"])
def test_pipes_of_ones_own_are_read(command: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG)
    os.mkfifo(tmp_path / "own")
    script = f"(cat a.log > own &); {shlex.join(monitor(command))} own"
    if command not in COMMANDS:
        script = f"{LT_MONITOR} runs <(cat a.log)"
    result = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert "fd/63" in result.stdout or "own" in result.stdout or command == "alert"


def test_a_link_that_appears_later_does_not_end_a_follow(folder: Path, stranger: Stranger) -> None:
    command = monitor("scrape", "--follow", "logs/*.out")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        plant(stranger, folder, "link", "b.out")
        stranger.run("mkfifo a.out")
        time.sleep(2.5)
        with (stranger.shared / "c.out").open("a") as log:
            log.write(STEP.format(5))
        printed = [process.stdout.readline() for _ in range(4)]
        process.kill()
        assert '"step":5' in printed[-1] and SECRET_STEP not in "".join(printed)
        assert process.stderr.read() == ""


@pytest.mark.parametrize("command", ["scrape with a state", "alert with a state"])
def test_a_link_beside_a_log_that_was_rotated(command: str, folder: Path, stranger: Stranger) -> None:
    assert run(folder, *COMMANDS[command], "logs/c.out").returncode == 0
    (stranger.shared / "new").write_text(SECRET.replace(SECRET_STEP, "9"))
    (stranger.shared / "new").rename(stranger.shared / "c.out")
    plant(stranger, folder, "link", "c.out.1")
    result = run(folder, *COMMANDS[command], "logs/c.out")
    assert result.returncode == 0, result.stderr
    assert "was replaced by another log" in result.stderr


@pytest.mark.parametrize("log", ["logs/his.out", "logs/h*.out"])
def test_a_link_that_takes_the_place_of_the_only_log_does_not_end_a_follow(log: str, folder: Path, stranger: Stranger) -> None:
    stranger.run(f"echo '{STEP.format(1).strip()}' > his.out")
    command = monitor("scrape", "--follow", log)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        stranger.run(f"ln -s {folder}/private/secret.out link; mv link his.out")
        time.sleep(2.5)
        stranger.run(f"echo '{STEP.format(77).strip()}' > new; mv new his.out")
        printed = [process.stdout.readline() for _ in range(2)]
        process.kill()
        assert '"step":77' in printed[-1] and SECRET_STEP not in "".join(printed)
