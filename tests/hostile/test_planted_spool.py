"""A stranger has made the directory of a node in which the files of a remote run lie for a while."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stranger import Stranger

from lt_shared.console import CannotCreate
from lt_shared.files import storage
from lt_train.checkpoint import remote_run
from lt_train.config.settings.checkpointing import spool

RUN = "memory://spooled/run"
PLANTED = {
    "his directory": ("mkdir {name}", r"belongs to another user \(uid 1001\)"),
    "his directory for all": ("mkdir -m 777 {name}", r"belongs to another user \(uid 1001\)"),
    "a link": ("mkdir his; ln -s his {name}", "is a symbolic link"),
    "a link to the user's own": ("ln -s own {name}", "is a symbolic link"),
}


def fetch() -> None:
    remote_run.fetch(f"{RUN}/iter_0000001", None)


def prepare() -> None:
    remote_run.prepare(Path(spool(RUN)), RUN)


@pytest.fixture
def place(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the spool would be, beside a directory of the user; the run is on a store."""
    monkeypatch.setattr("tempfile.tempdir", str(stranger.shared))
    storage.write_bytes(f"{RUN}/iter_0000001/run.json", b"{}")
    storage.write_bytes(f"{RUN}/train.log", b"the log")
    (stranger.shared / "own").mkdir(mode=0o700)
    return stranger.shared / f"lt-train-{os.geteuid()}"


@pytest.mark.parametrize("use", [fetch, prepare])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_spool_is_not_used(planted: str, use: Callable[[], None], place: Path, stranger: Stranger) -> None:
    script, reason = PLANTED[planted]
    stranger.run(script.format(name=place.name))
    with pytest.raises(CannotCreate, match=f"{place}: {reason}") as caught:
        use()
    assert caught.value.hint == "set TMPDIR to a directory of your own"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_spool_in_which_others_can_write_is_not_used(mode: int, place: Path) -> None:
    place.mkdir()
    place.chmod(mode)
    for use in (fetch, prepare):
        with pytest.raises(CannotCreate, match=rf"{place}: can be written to by others \(mode {mode:04o}\)"):
            use()
    assert list(place.iterdir()) == []


def test_nobody_else_can_enter_a_spool(place: Path, stranger: Stranger) -> None:
    before = os.umask(0)
    try:
        prepare()
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o700
    assert (Path(spool(RUN)) / "train.log").read_bytes() == b"the log"
    stranger.run(f"! ls {place.name} 2>/dev/null")
    stranger.run(f"! touch {place.name}/x 2>/dev/null")
