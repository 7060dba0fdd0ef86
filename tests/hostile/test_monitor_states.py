"""A stranger has put something where lt-monitor keeps its states, locks and outputs, or could write what it left there."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitor_command import monitor
from stranger import Stranger

LOG = '{"v":1,"kind":"step","step":1,"loss":2.5}\n'
# Each command with a state, the names of the state and of its lock or partial file.
COMMANDS = {
    "scrape": (["scrape", "--state", "state", "run.log"], "state", ".state.lock"),
    "alert": (["alert", "--state", "state", "run.log"], "state", ".state.partial"),
    "prom": (["prom", "-o", "lt.prom", "run.log"], "lt.prom.state", ".lt.prom.state.partial"),
}
OUTPUTS = {
    "prom": (["prom", "-o", "out.prom", "run.log"], "out.prom"),
    "heartbeat": (["alert", "--heartbeat", "out.beat", "run.log"], "out.beat"),
    "report": (["plot", "-o", "out.html", "run.log"], "out.html"),
}
PLANTS = {
    "file": "cp valid {0}; chmod 644 {0}",
    "link to his": "cp valid his; ln -s his {0}",
    "link to ours": "ln -s victim {0}",
    "dangling link": "ln -s nowhere {0}",
    "pipe": "mkfifo -m 666 {0}",
    "directory": "mkdir -m 777 {0}",
    "device": "ln -s /dev/zero {0}",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(monitor(*arguments), cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


@pytest.fixture
def shared(stranger: Stranger) -> Path:
    (stranger.shared / "run.log").write_text(LOG)
    (stranger.shared / "victim").write_text("thesis")
    return stranger.shared


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_planted_state_is_refused(command: str, plant: str, shared: Path, stranger: Stranger) -> None:
    arguments, state, _ = COMMANDS[command]
    assert run(shared, *arguments).returncode == 0
    (shared / "valid").write_bytes((shared / state).read_bytes())
    (shared / "valid").chmod(0o644)
    (shared / state).unlink()
    stranger.run(PLANTS[plant].format(state))
    done = run(shared, *arguments)
    assert (done.returncode, done.stdout) == (73, ""), done.stderr
    assert state in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2
    assert (shared / "victim").read_text() == "thesis"
    assert not (shared / "nowhere").exists()


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_planted_lock_is_refused(command: str, plant: str, shared: Path, stranger: Stranger) -> None:
    arguments, _, lock = COMMANDS[command]
    (shared / "valid").write_text("")
    (shared / "valid").chmod(0o644)
    stranger.run(PLANTS[plant].format(lock))
    done = run(shared, *arguments)
    assert (done.returncode, done.stdout) == (73, ""), done.stderr
    assert (shared / "victim").read_text() == "thesis"
    assert not (shared / "nowhere").exists()


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("command", OUTPUTS)
def test_a_planted_output_is_not_written_through(command: str, plant: str, shared: Path, stranger: Stranger) -> None:
    """In a sticky directory what a stranger made cannot be replaced, elsewhere it is replaced; never is it written into."""
    arguments, output = OUTPUTS[command]
    (shared / "valid").write_text("his")
    (shared / "valid").chmod(0o644)
    stranger.run(PLANTS[plant].format(output))
    done = run(shared, *arguments)
    assert done.returncode in (0, 73, 74), done.stderr
    assert (shared / "victim").read_text() == "thesis"
    assert not (shared / "nowhere").exists()
    if done.returncode == 0:
        assert not stranger.owns(shared / output)
    assert not [name for name in os.listdir(shared) if name.endswith(".partial")]


@pytest.mark.parametrize("change", ["chmod 666 {0}", "chmod 620 {0}", "ln {0} other"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_that_others_could_change_is_refused(command: str, change: str, shared: Path) -> None:
    arguments, state, _ = COMMANDS[command]
    assert run(shared, *arguments).returncode == 0
    subprocess.run(["sh", "-c", change.format(state)], cwd=shared, check=True)
    before = (shared / state).read_bytes()
    done = run(shared, *arguments)
    assert (done.returncode, done.stdout) == (73, "")
    assert (shared / state).read_bytes() == before


@pytest.mark.parametrize("umask", ["000", "002", "077"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_is_private_whatever_the_umask(command: str, umask: str, tmp_path: Path) -> None:
    arguments, state, _ = COMMANDS[command]
    (tmp_path / "run.log").write_text(LOG)
    for _ in range(2):
        line = f"umask {umask}; exec {shlex.join(monitor(*arguments))}"
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / state).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_state_is_none(command: str, tmp_path: Path) -> None:
    """As a full disk, a crash or `mktemp` leaves it: taken for a new one, all events would come again."""
    arguments, state, _ = COMMANDS[command]
    (tmp_path / "run.log").write_text(LOG)
    (tmp_path / state).touch(0o600)
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (65, "")
    assert "empty" in done.stderr.splitlines()[0]
    assert (tmp_path / state).read_bytes() == b""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_state_with_anything_else_in_it_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    """One value of a valid state is another one, or is there twice."""
    from lt_monitor.collect.command_state import CommandState
    from lt_shared.console import BadData

    log, state = tmp_path / "run.log", tmp_path / "state"
    log.write_text(LOG)
    state.unlink(missing_ok=True)
    with CommandState.open(str(state), "alert", [str(log)]) as command_state:
        command_state.feed(lambda record: None)
        command_state.save()
    record = json.loads(state.read_text())
    key = data.draw(st.sampled_from(sorted(record)))
    if data.draw(st.booleans()):
        text = json.dumps(record | {key: data.draw(JSON)})
    else:
        text = json.dumps(record)[:-1] + f", {json.dumps(key)}: {json.dumps(data.draw(JSON))}" + "}"
    state.write_text(text + "\n")
    with pytest.raises(BadData), CommandState.open(str(state), "alert", [str(log)]):
        pass
