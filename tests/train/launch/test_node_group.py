"""Launchers of several nodes find each other, and each loss and each return is noticed."""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from reserved_ports import free_port

from lt_shared.console import Terminated, Unavailable
from lt_train.launch.node_group import LONGEST_LINE_BYTES, Leader, LeaderLost, Member, Refused, is_leader, listen

HOST = "127.0.0.1"
SETTINGS = "batches=1"


@pytest.fixture
def group() -> Iterator[Leader]:
    with Leader(listen(HOST, free_port()), 0, 4, SETTINGS) as leader:
        yield leader


def member(leader: Leader, node: int, settings: str = SETTINGS) -> Member:
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Member, lambda: [(HOST, port(leader))], node, settings, 0)
        until(leader, joining.done)
        return joining.result()


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
        group.begin([0, 2], (HOST, 29611), 40)
        endpoints = {"2": [HOST, two.listener.getsockname()[1]]}
        attempt = {"begin": 1, "nodes": [0, 2], "address": [HOST, 29611], "step": 40, "members": endpoints}
        assert received(two) == attempt
        assert not group.is_complete
        two.send({"ended": 79, "attempt": 1, "leaves": False})
        until(group, lambda: group.is_complete)
        assert (group.endings, group.lost) == ({2: 79}, {})
        group.begin([0, 1, 2], (HOST, 29612), 44)
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


def test_an_attempt_that_begins_with_the_welcome(group: Leader) -> None:
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Member, lambda: [(HOST, port(group))], 1, SETTINGS, 0)
        admit = group._admit

        def admit_and_begin(*arguments: object) -> None:
            admit(*arguments)  # type: ignore[arg-type]
            group.begin([0, 1], (HOST, 1), 0)

        group._admit = admit_and_begin  # type: ignore[method-assign]
        until(group, joining.done)
        with joining.result() as one:
            assert received(one)["begin"] == 1


def test_nodes_that_are_lost_or_leave(group: Leader) -> None:
    with contextlib.ExitStack() as stack:
        one, two, three = (stack.enter_context(member(group, node)) for node in (1, 2, 3))
        until(group, lambda: len(group.present) == 4)
        group.begin([0, 1, 2], (HOST, 1), 0)
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
        group.begin([0, 1], (HOST, 1), 0)
        with member(group, 1) as second:
            until(group, lambda: bool(group.lost))
            assert group.present == [0, 1]
            group.begin([0, 1], (HOST, 1), 0)
            assert received(second)["begin"] == 2
            assert received(first)["begin"] == 1
            with pytest.raises(LeaderLost):
                while True:
                    first.receive()


@pytest.mark.parametrize(
    ("node", "settings", "reason"), [(1, "batches=2", "other settings"), (4, SETTINGS, "is number 4"), (0, SETTINGS, "number 0")]
)
def test_nodes_that_are_refused(group: Leader, node: int, settings: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        member(group, node, settings)
    assert group.present == [0]


def test_a_leader_is_known_from_its_answer(group: Leader) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(is_leader, (HOST, port(group)))
        until(group, asking.done)
        assert asking.result()
    assert group.present == [0]
    assert not is_leader((HOST, free_port()))


def test_another_node_leads(group: Leader) -> None:
    """The first node is lost. The second listens already, and the first is its member when it is back."""
    with member(group, 1) as one:
        group.__exit__()
        with pytest.raises(LeaderLost):
            one.receive()
        with Leader(one.listener, 1, 4, SETTINGS) as second, member(second, 0), member(second, 2):
            assert second.present == [1, 0, 2]


@pytest.mark.parametrize("content", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"x" * (LONGEST_LINE_BYTES + 2), b"\xff\n", b"{}\n"])
def test_what_is_no_launcher(group: Leader, content: bytes) -> None:
    with socket.create_connection((HOST, port(group))) as stranger:
        stranger.sendall(content)
        with member(group, 1):
            until(group, lambda: group.present == [0, 1] and not group._newcomers)


def test_a_taken_port_and_a_leader_that_is_not_there(group: Leader) -> None:
    with pytest.raises(Unavailable, match="in use"):
        listen(HOST, port(group))
    with pytest.raises(Unavailable, match="no launcher that leads the others answers at"):
        Member(lambda: [(HOST, free_port())], 1, SETTINGS, 0)


def test_the_last_words_of_the_leader_are_read(group: Leader) -> None:
    with member(group, 1) as one:
        until(group, lambda: group.present == [0, 1])
        group.finish(0)
        group.__exit__()
        assert json.dumps(received(one)) == '{"finish": 0}'


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_the_wait_for_a_leader(number: signal.Signals, code: int) -> None:
    """The leader does not listen, or listens and does not answer, because it waits for the lock of SAVE."""
    with listen(HOST, 0) as silent:
        for port in (free_port(), silent.getsockname()[1]):
            begin = time.monotonic()
            with pytest.raises(Terminated) as caught:
                Member([(HOST, port)].copy, 1, SETTINGS, 60, lambda: number)
            assert caught.value.exit_code == code
            assert time.monotonic() - begin < 15
