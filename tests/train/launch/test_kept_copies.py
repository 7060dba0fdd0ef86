"""Which copies of ranks' states a launcher keeps, and which of them count."""

import os
import threading
from pathlib import Path

from lt_train.checkpoint.memory.header import write_step
from lt_train.launch.control import Control, Controlled
from lt_train.launch.kept_copies import Copy, KeptCopies, newest_common


def memory(step: int) -> int:
    """A descriptor of memory that holds a copy of the step."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 64)
    write_step(descriptor, step)
    return descriptor


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_the_newest_two_copies_of_each_rank_are_kept() -> None:
    copies, descriptors = KeptCopies(), {step: memory(step) for step in (1, 2, 3)}
    for step, descriptor in descriptors.items():
        copies.keep(0, Copy(step, descriptor, 64))
    assert copies.steps() == {0: [2, 3]}
    assert not is_open(descriptors[1])
    copies.retain(2)
    assert copies.steps() == {0: [2]}
    assert not is_open(descriptors[3])
    copies.close()
    assert not is_open(descriptors[2])


def test_a_copy_that_is_being_written_does_not_count() -> None:
    copies, descriptor = KeptCopies(), memory(4)
    copies.keep(0, Copy(4, descriptor, 64))
    write_step(descriptor, 0)
    assert copies.steps() == {0: []}
    assert copies.find(0, 4) is None
    assert copies.open(0, 4) is None
    # The memory of step 4 has become that of step 6.
    write_step(descriptor, 6)
    assert copies.find(0, 4) is None
    copies.close()


def test_the_newest_step_counts_that_all_ranks_have_on_some_node() -> None:
    nodes = [{0: [3, 4], 1: [3, 4], 2: [3]}, {2: [3], 3: [3, 4]}]
    assert newest_common(nodes, range(3)) == 3
    assert newest_common(nodes, range(2)) == 4
    assert newest_common(nodes[:1], range(4)) == 0
    assert newest_common([{0: [1], 1: [2]}], range(2)) == 0


def test_a_rank_fetches_what_another_process_of_it_left(tmp_path: Path) -> None:
    copies = KeptCopies()
    control = Control(tmp_path / "control", copies)
    first = Controlled(str(tmp_path / "control"), 0)
    assert not first.is_safe(7)
    first.keep(7, memory(7), 64)
    control.poll(1)
    while not first.is_safe(7):
        control.poll(0.01)
    spare = Controlled(str(tmp_path / "control"), -1)
    assert control.begin({0: {"config": "", "variables": {"RANK": "0"}, "stored": copies.newest_common([0])}}, {0: 0})
    assert spare.wait_for_attempt() is not None
    assert spare.stored_step == 7
    reader = threading.Thread(target=control.poll, args=(5,))
    reader.start()
    descriptor = spare.fetch()
    reader.join()
    assert int.from_bytes(os.pread(descriptor, 8, 0), "little") == 7
    os.close(descriptor)
    control.close()
    copies.close()
