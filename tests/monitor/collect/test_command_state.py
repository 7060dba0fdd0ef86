"""The state file of commands that run again and again."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_monitor.collect.command_state import CommandState
from lt_monitor.runs.state_lookup import state_of
from lt_shared.console import BadData, NoInput, TryAgain, UsageError

NOW = 2_000_000_000.0


def line(step: int, loss: float = 2.5) -> str:
    return f" iteration {step:8d}/    1000 | elapsed time per iteration (ms): 1000.0 | lm loss: {loss:.6E} |\n"


def one_pass(state: Path | str | None, *logs: Path | str) -> CommandState:
    with CommandState.open(None if state is None else str(state), "test", [str(log) for log in logs]) as command_state:
        command_state.feed(lambda record: state_of(command_state.runs, record["run"]).take(record, NOW))
        command_state.save()
    return command_state


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    log, state = tmp_path / "run.log", tmp_path / "state"
    taken: list[Any] = []
    for count in (3, 5, 5):
        log.write_text("".join(line(step) for step in range(1, count + 1)))
        with CommandState.open(str(state), "test", [str(log)]) as command_state:
            command_state.feed(lambda record: taken.append(record["step"]))
            command_state.save()
    assert taken == [1, 2, 3, 4, 5]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.lists(st.integers(0, 3000), max_size=5))
def test_passes_at_any_byte_make_the_same_state(tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int]) -> None:
    folder = tmp_path_factory.mktemp("passes")
    log, state = folder / "run.log", folder / "state"
    chance = random.Random(seed)
    text, step = "", 0
    for _ in range(30):
        step = max(0, step - 5) if chance.random() < 0.1 else step + 1
        text += line(step + 1, chance.uniform(2, 3)) + ("noise\n" if chance.random() < 0.2 else "")
    for cut in [*sorted(cuts), len(text)]:
        log.write_text(text[:cut])
        one_pass(state, log)
    grown = one_pass(state, log).runs[str(folder / "run")]
    whole = one_pass(None, log).runs[str(folder / "run")]
    assert grown.attempts == whole.attempts
    assert grown.recent == whole.recent


def test_a_rotated_log_is_read_to_its_end(tmp_path: Path) -> None:
    log, state = tmp_path / "run.out", tmp_path / "state"
    log.write_text("".join(line(step) for step in range(1, 10)))
    one_pass(state, log)
    with log.open("a") as file:
        file.write(line(10) + line(11))
    log.rename(tmp_path / "run.out.1")
    log.write_text(line(12) + line(13))
    (run,) = one_pass(state, log).runs.values()
    assert (run.step_lines, run.last["step"], len(run.attempts)) == (13, 13, 1)


def test_a_pass_without_save_leaves_the_state(tmp_path: Path) -> None:
    log, state = tmp_path / "run.log", tmp_path / "state"
    log.write_text(line(1))
    one_pass(state, log)
    before = state.read_bytes()
    log.write_text(line(1) + line(2))
    with pytest.raises(RuntimeError), CommandState.open(str(state), "test", [str(log)]) as command_state:
        command_state.feed(lambda record: None)
        raise RuntimeError
    assert state.read_bytes() == before
    assert [run.last["step"] for run in one_pass(state, log).runs.values()] == [2]


def test_one_pass_at_a_time(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with CommandState.open(state, "test", []), pytest.raises(TryAgain), CommandState.open(state, "test", []):
        pass


def test_states_of_other_commands_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    one_pass(state)
    with pytest.raises(BadData, match="another version or another command"), CommandState.open(str(state), "other", []):
        pass
    with pytest.raises(UsageError), CommandState.open("s3://bucket/state", "test", []):
        pass
    with pytest.raises(NoInput):
        one_pass(state, tmp_path / "gone.log")


@given(st.integers(0, 10_000), st.sampled_from(["cut", "flip", "twice", "empty"]))
def test_a_damaged_state_is_never_taken(tmp_path_factory: pytest.TempPathFactory, place: int, damage: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    log, state = folder / "damaged.log", folder / "damaged.state"
    log.write_text(line(1))
    state.unlink(missing_ok=True)
    one_pass(state, log)
    content = state.read_bytes()
    place %= len(content)
    damaged = {
        "cut": content[:place],
        "flip": content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :],
        "twice": content.replace(b'"known":{}', b'"known":{"a":1},"known":{}'),
        "empty": b"",
    }[damage]
    state.write_bytes(damaged)
    with pytest.raises(BadData, match="not a state"):
        one_pass(state, log)
    assert state.read_bytes() == damaged
