"""Several users share a directory of sample indices; one of them has planted some."""

import fcntl
import os
from pathlib import Path

import pytest
from stranger import Stranger

from lt_shared.console import CannotCreate
from lt_train.data.index_cache import make_once

PLANTED = {
    "his directory": "mkdir index; echo wrong > index/order",
    "a directory that anyone can write": "mkdir -m 777 index; echo wrong > index/order",
    "a link": "mkdir his; echo wrong > his/order; ln -s his index",
    "a file": "echo wrong > index",
}


def fill(directory: Path) -> None:
    (directory / "order").write_text("right")


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_index_is_not_used(planted: str, stranger: Stranger, capsys: pytest.CaptureFixture[str]) -> None:
    stranger.run(PLANTED[planted])
    made = make_once(stranger.shared, "index", fill)
    assert made == stranger.shared / f"index.{os.geteuid()}"
    assert (made / "order").read_text() == "right"
    assert "not used" in capsys.readouterr().err
    assert make_once(stranger.shared, "index", lambda directory: pytest.fail("made again")) == made


def test_both_names_planted(stranger: Stranger) -> None:
    stranger.run(f"mkdir -m 777 index index.{os.geteuid()}")
    with pytest.raises(CannotCreate, match="belongs to another user"):
        make_once(stranger.shared, "index", fill)


@pytest.mark.parametrize("planted", ["touch .index.lock; chmod 600 .index.lock", "ln -s victim .index.lock"])
def test_a_planted_lock_does_no_harm(planted: str, stranger: Stranger) -> None:
    stranger.run(planted)
    assert (make_once(stranger.shared, "index", fill) / "order").read_text() == "right"
    assert not (stranger.shared / "victim").exists()


def test_a_lock_that_another_user_holds_is_not_waited_for(stranger: Stranger) -> None:
    """Nor is his, nor one that he can write to, so that he can hold it."""
    stranger.run("touch .index.lock; chmod 666 .index.lock")
    with (stranger.shared / ".index.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (make_once(stranger.shared, "index", fill) / "order").read_text() == "right"


def test_a_group_may_read_an_index_and_not_change_it(stranger: Stranger) -> None:
    umask = os.umask(0o002)
    try:
        made = make_once(stranger.shared, "index", fill)
    finally:
        os.umask(umask)
    assert (made.stat().st_mode & 0o777, (made / "order").stat().st_mode & 0o777) == (0o755, 0o644)
    stranger.run("cat index/order; ! sh -c 'echo wrong > index/order' 2>/dev/null; ! touch index/more 2>/dev/null")
    assert make_once(stranger.shared, "index", lambda directory: pytest.fail("made again")) == made
