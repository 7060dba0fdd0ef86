"""In a group directory that is not sticky, another user renames this user's files to the hidden names that commands clean up."""

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from stranger import Stranger

from lt_preprocess.datasets import shuffle
from lt_shared.files import leftovers, lock_holders, resumable_files, storage
from lt_train.checkpoint import disk_space
from lt_train.data import index_cache
from lt_train.process import run_files


@pytest.fixture
def group(stranger: Stranger) -> Stranger:
    """Anyone may write and rename in the shared directory; this user keeps a thesis there, in a file and in a directory."""
    stranger.shared.chmod(0o777)
    (stranger.shared / "thesis").mkdir()
    (stranger.shared / "thesis/text").write_text("precious")
    (stranger.shared / "thesis").chmod(0o755)
    (stranger.shared / "text").write_text("precious")
    (stranger.shared / "text").chmod(0o644)
    return stranger


def publish(place: Path) -> None:
    with storage.publish(place / "out") as file:
        file.write(b"x")


def resume(place: Path) -> None:
    with resumable_files.resumable(str(place / "out")) as file:
        file.write(b"x")


def journal(place: Path) -> None:
    with resumable_files.locked(str(place / ".out.partial"), "out") as file:
        file.write(b"x")
        os.unlink(place / ".out.partial")


def publish_directory(place: Path) -> None:
    with storage.publish_directory(place / "out") as directory:
        (directory.path / "file").write_bytes(b"x")


def resume_directory(place: Path) -> None:
    with storage.publish_directory(place / "out", resume=True) as directory:
        (directory.path / "file").write_bytes(b"x")


def replace_directory(place: Path) -> None:
    publish_directory(place)
    with storage.publish_directory(place / "out", replace=True) as directory:
        (directory.path / "file").write_bytes(b"y")


def buckets(place: Path) -> None:
    with shuffle.buckets_directory(str(place / "out")):
        pass


CLEANED = {
    "an output": ("text", ".out.partial", publish),
    "a resumed output": ("text", ".out.partial", resume),
    "a given up output": ("text", ".out.partial", lambda place: resumable_files.discard(str(place / "out"))),
    "a journal": ("text", ".out.partial", journal),
    "a directory": ("thesis", ".out.partial", publish_directory),
    "a resumed directory": ("thesis", ".out.partial", resume_directory),
    "what was replaced": ("thesis", ".out.replaced", replace_directory),
    "a partial checkpoint": ("thesis", ".iter_0000004.partial-ab", run_files.delete_abandoned),
    "a deleted checkpoint": ("thesis", ".iter_0000004.deleted", run_files.delete_abandoned),
    "a partial index": ("thesis", ".index.partial-n-1", lambda place: index_cache.make_once(place, "index", lambda made: None)),
    "a shuffle's buckets": ("thesis", ".out.buckets", buckets),
}


@pytest.mark.parametrize("case", CLEANED)
def test_what_another_user_renames_to_a_hidden_name_is_kept(
    case: str, group: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    name, hidden, command = CLEANED[case]
    group.run(f"mv {name} {hidden}")
    command(group.shared)
    (kept,) = group.shared.glob(f"{hidden[1:]}.kept-*")
    assert (kept / "text" if kept.is_dir() else kept).read_text() == "precious"
    assert str(kept) in capsys.readouterr().err
    assert not list(group.shared.glob(f"{hidden}*"))


LEFT: dict[str, Callable[[Path], None]] = {
    "an output": lambda place: os.close(os.open(place / ".out.partial", os.O_CREAT, 0o600)),
    "a directory": lambda place: (place / ".out.partial").mkdir(mode=0o700),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_a_killed_process_has_left_is_removed(case: str, group: Stranger) -> None:
    LEFT[case](group.shared)
    (publish if case == "an output" else publish_directory)(group.shared)
    assert sorted(path.name for path in group.shared.iterdir()) == ["out", "text", "thesis"]


def test_a_deleted_checkpoint_is_private_at_its_hidden_name(group: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed during the deletion leaves what the next one deletes."""
    (group.shared / "iter_0000002").mkdir()
    monkeypatch.setattr(disk_space.shutil, "rmtree", lambda *arguments, **options: None)
    disk_space._delete(group.shared / "iter_0000002")
    monkeypatch.undo()
    run_files.delete_abandoned(group.shared)
    assert sorted(path.name for path in group.shared.iterdir()) == ["text", "thesis"]


def test_elsewhere_a_leftover_is_deleted_whatever_its_mode(tmp_path: Path) -> None:
    """A process that was killed just before the rename has given its output the mode of a published one."""
    (tmp_path / ".out.partial").write_text("x")
    leftovers.remove(tmp_path / ".out.partial")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_user_could_have_put_there_is_not_waited_for(group: Stranger) -> None:
    """A file of this user, which all may read: whoever opens it can hold its lock."""
    group.run("mv text .index.lock")
    with (group.shared / ".index.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = index_cache.make_once(group.shared, "index", lambda directory: (directory / "order").touch())
    assert (made / "order").exists()


def test_a_lock_is_waited_for_so_long_and_its_holder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index_cache, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(index_cache, "POLL_SECONDS", 0.01)
    descriptor = os.open(tmp_path / ".index.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made = index_cache.make_once(tmp_path, "index", lambda directory: (directory / "order").touch())
    assert (made / "order").exists()
    comm = Path("/proc/self/comm").read_text().strip()
    holder = f"process {os.getpid()} of user {os.geteuid()} ({comm})"
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"{tmp_path}: waiting for {holder}, which makes index")
    assert second.endswith(f"{tmp_path}: {holder} has held the lock of index for 0 s: made here as well")
    os.close(descriptor)


def test_a_lock_that_is_released_in_time_is_taken(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / ".index.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made: list[Path] = []
    waiting = threading.Thread(target=lambda: made.append(index_cache.make_once(tmp_path, "index", lambda directory: None)))
    waiting.start()
    assert "process" in lock_holders.describe(descriptor)
    os.close(descriptor)
    waiting.join(60)
    assert made == [tmp_path / "index"]
