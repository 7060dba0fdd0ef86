"""Launchers of several nodes find each other, and each loss and each return is noticed."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from reserved_ports import free_port

from lt_shared.console import Unavailable
from lt_train.launch.node_group import LONGEST_LINE_BYTES, Leader, Member, Refused

HOST = "127.0.0.1"
SETTINGS = "batches=1"


@pytest.fixture
def group() -> Iterator[Leader]:
    with Leader(HOST, free_port(), 4, SETTINGS) as leader:
        yield leader


def member(leader: Leader, node: int, settings: str = SETTINGS) -> Member:
    return Member(HOST, port(leader), node, settings, 0)


def port(leader: Leader) -> int:
    return int(leader._listener.getsockname()[1])


def until(leader: Leader, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        leader.poll()


def received(node: Member) -> dict[str, object]:
    node.wait(60)
    (message,) = node.receive()
    return message


def test_an_attempt_begins_and_ends(group: Leader) -> None:
    with member(group, 2) as two, member(group, 1) as one:
        until(group, lambda: group.present == [0, 1, 2])
        group.begin([0, 2], 29611, 40)
        assert received(two) == {"begin": 1, "nodes": [0, 2], "port": 29611, "step": 40}
        assert not group.is_complete
        two.send({"ended": 79, "attempt": 1, "leaves": False})
        until(group, lambda: group.is_complete)
        assert (group.endings, group.lost) == ({2: 79}, {})
        group.begin([0, 1, 2], 29612, 44)
        # An answer to an attempt that has ended says nothing about this one.
        two.send({"ended": None, "attempt": 1, "leaves": False})
        two.send({"ended": None, "attempt": 2, "leaves": False})
        until(group, lambda: not group.is_complete and 2 not in group._running)
        assert group.endings == {}
        assert received(one)["begin"] == 2
        group.stop()
        assert received(one) == {"stop": 2}
        group.finish(75)
        assert received(one) == {"finish": 75}


def test_nodes_that_are_lost_or_leave(group: Leader) -> None:
    with contextlib.ExitStack() as stack:
        one, two, three = (stack.enter_context(member(group, node)) for node in (1, 2, 3))
        until(group, lambda: len(group.present) == 4)
        group.begin([0, 1, 2], 1, 0)
        # The third does not take part: its loss does not matter to the attempt.
        three._connection.close()
        until(group, lambda: group.present == [0, 1, 2])
        assert not group.lost
        one._connection.close()
        two.send({"leaves": True})
        until(group, lambda: group.present == [0])
        assert group.lost == dict.fromkeys((1, 2), socket.gethostname())
        assert group.is_complete


def test_a_node_that_is_back_before_its_loss_is_known(group: Leader) -> None:
    with member(group, 1) as first:
        until(group, lambda: group.present == [0, 1])
        group.begin([0, 1], 1, 0)
        with member(group, 1) as second:
            until(group, lambda: bool(group.lost))
            assert group.present == [0, 1]
            group.begin([0, 1], 1, 0)
            assert received(second)["begin"] == 2
            assert received(first)["begin"] == 1
            with pytest.raises(Unavailable, match="the first node is lost"):
                while True:
                    first.receive()


@pytest.mark.parametrize(
    ("node", "settings", "reason"), [(1, "batches=2", "other settings"), (4, SETTINGS, "is number 4"), (0, SETTINGS, "number 0")]
)
def test_nodes_that_are_refused(group: Leader, node: int, settings: str, reason: str) -> None:
    with member(group, node, settings) as stranger:
        group.poll()
        until(group, lambda: not group._newcomers)
        stranger.wait(60)
        with pytest.raises(Refused, match=reason):
            stranger.receive()
    assert group.present == [0]


@pytest.mark.parametrize("content", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"x" * (LONGEST_LINE_BYTES + 2), b"\xff\n", b"{}\n"])
def test_what_is_no_launcher(group: Leader, content: bytes) -> None:
    with socket.create_connection((HOST, port(group))) as stranger, member(group, 1):
        stranger.sendall(content)
        until(group, lambda: group.present == [0, 1] and not group._newcomers)


def test_a_taken_port_and_a_leader_that_is_not_there(group: Leader) -> None:
    with pytest.raises(Unavailable, match="in use"):
        Leader(HOST, port(group), 2, SETTINGS)
    with pytest.raises(Unavailable, match="no launcher answers at"):
        Member(HOST, free_port(), 1, SETTINGS, 0)


def test_the_last_words_of_the_leader_are_read(group: Leader) -> None:
    with member(group, 1) as one:
        until(group, lambda: group.present == [0, 1])
        group.finish(0)
        group.__exit__()
        assert json.dumps(received(one)) == '{"finish": 0}'
