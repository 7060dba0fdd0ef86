import json
from pathlib import Path

import pytest

from lt_shared.console import Unavailable
from lt_train.preflight import bandwidth
from lt_train.preflight.bandwidth import Measurement, rounds
from lt_train.process.ports import free_port
from lt_train.process.rank_environment import RankEnvironment


def measurement(pairs: dict[str, dict[str, float]], seen: list[str] | None = None) -> Measurement:
    return Measurement(len(pairs), 1e9, pairs, seen)


def pairs_of(speeds: dict[str, float]) -> dict[str, dict[str, float]]:
    """A link is as fast as the slower of its ends."""
    return {a: {b: min(speeds[a], speeds[b]) for b in speeds if a != b} for a in speeds}


@pytest.mark.parametrize("players", [2, 3, 4, 5, 8, 9])
def test_everybody_meets_everybody_once(players: int) -> None:
    met = [(a, b) for played in rounds(players) for a, b in played.items()]
    assert sorted(met) == [(a, b) for a in range(players) for b in range(players) if a != b]
    for played in rounds(players):
        assert all(played[played[player]] == player for player in played)


def test_the_slow_node_is_named() -> None:
    found = measurement(pairs_of({"a": 10e9, "b": 10e9, "c": 1e9, "d": 9e9})).findings(None)
    assert [finding.where for finding in found] == ["c"]
    assert "1.00 GB/s at best with any other, which have 9.00 GB/s" in found[0].what
    assert not measurement(pairs_of({"a": 10e9, "b": 10e9, "c": 6e9})).findings(None)
    assert not measurement(pairs_of({"a": 10e9, "b": 1e9})).findings(None)


def test_a_directory_that_one_does_not_see() -> None:
    pairs = pairs_of({"a": 1e9, "b": 1e9})
    (found,) = measurement(pairs, seen=["a"]).findings("/tmp/run")
    assert (found.where, found.what.split(" do not")[0]) == ("--save /tmp/run", "b")
    assert not measurement(pairs, seen=["a", "b"]).findings("/tmp/run")


def test_three_ranks_of_which_one_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real messages through gloo; the third rank's are made slow."""
    program = Path(__file__).parents[1] / "slow_rank.py"
    monkeypatch.setattr(bandwidth, "PROGRAM", (str(program),))
    found = bandwidth.measure_from_this_machine(None, 3, "cpu", str(tmp_path / "run"))
    assert found is not None
    assert found.bus_bandwidth > 0
    assert [name.split(" on ")[0] for name in found.slow_nodes()] == ["rank 2"]
    assert found.seen_by == list(found.pairs)
    assert json.loads(json.dumps(found.pairs)) == found.pairs
    assert not list(tmp_path.iterdir())


def test_ranks_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "PROGRAM", ("-c", "raise SystemExit('no route to host')"))
    with pytest.raises(Unavailable, match="no route to host"):
        bandwidth.measure_from_this_machine(None, 2, "cpu", None)


def test_a_rank_that_nobody_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = RankEnvironment(0, 0, 1, 2, "127.0.0.1", free_port(), "test")
    for name, value in alone.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bandwidth, "TIMEOUT_SECONDS", 1)
    with pytest.raises(Unavailable, match="the ranks cannot exchange data"):
        bandwidth.measure(alone, "cpu", None)
