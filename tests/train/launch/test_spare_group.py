"""Which copies a run goes on from, who fetches them where, and which options contradict each other."""

import pytest
import synthetic

from lt_shared.console import BadConfig, UsageError
from lt_train.launch import spare_group
from lt_train.launch.spare_group import Inventory

# Three nodes of two ranks in a ring; node 1 is lost, and node 3 is its spare.
INVENTORIES = {
    0: Inventory({0: [7, 8], 1: [7, 8], 4: [7, 8], 5: [7]}, ["a", 1]),
    2: Inventory({4: [7, 8], 5: [7, 8], 2: [7, 8], 3: [7, 8]}, ["c", 3]),
    3: Inventory({}, ["d", 4]),
}


def test_a_spare_node_fetches_what_it_lacks_and_the_ring_is_closed() -> None:
    assert spare_group.choose_step(INVENTORIES, 6) == 8
    assert spare_group.extras([0, 3, 2], 2, 8, INVENTORIES) == {
        0: {"stored": 8, "fetch": {}, "next": ["d", 4]},
        3: {"stored": 8, "fetch": {"2": ["c", 3], "3": ["c", 3]}, "next": ["c", 3]},
        2: {"stored": 8, "fetch": {}, "next": ["a", 1]},
    }


def test_without_a_common_step_nothing_is_fetched() -> None:
    inventories = {node: INVENTORIES[node] for node in (0, 3)}
    assert spare_group.choose_step(inventories, 6) == 0
    assert spare_group.extras([0, 3], 3, 0, inventories)[3] == {"stored": 0, "fetch": {}, "next": ["a", 1]}
    assert spare_group.extras([0], 6, 0, inventories) == {0: {"stored": 0, "fetch": {}, "next": None}}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--spare-nodes", "1"), "--spare-nodes without --max-restarts"),
        (("--replicate-interval", "auto", "--save", "run"), "--replicate-interval without --max-restarts"),
        (("--replicate-interval", "5", "--max-restarts", "1"), "--replicate-interval without --save"),
        (
            ("--spare-nodes", "1", "--max-restarts", "1", "--min-nodes", "1", "--global-batch-size", "2", "--save", "run"),
            "--spare-nodes with --min-nodes",
        ),
    ],
)
def test_options_that_contradict_each_other(options: tuple[str, ...], problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        synthetic.plan("--mock-data", "--ranks", "1", *options)


def test_spare_nodes_have_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PET_NNODES": "3", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    arguments = ("--mock-data", "--ranks", "2", "--max-restarts", "1")
    assert synthetic.plan(*arguments, "--spare-nodes", "1").parallelism.world_size == 4
    with pytest.raises(UsageError, match="--spare-nodes 3 of 3 node"):
        synthetic.plan(*arguments, "--spare-nodes", "3")
