"""What another user has planted, or could have written, is told apart from what this user made."""

import os
from pathlib import Path

import pytest

from lt_shared.console import BadData
from lt_shared.files import ownership

OTHER_UID = 1001
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def reason(path: Path) -> str | None:
    return ownership.reason_for_distrust(os.lstat(path), path.parent)


def test_an_own_private_file_is_trusted(tmp_path: Path) -> None:
    for mode in (0o600, 0o644, 0o400):
        path = tmp_path / oct(mode)
        path.touch()
        path.chmod(mode)
        assert reason(path) is None
    assert reason(tmp_path) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_file_that_others_can_write_is_not(mode: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    assert reason(tmp_path / "file") == f"can be written to by others (mode {mode:04o})"


def test_published_files_have_what_the_umask_gives(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o664)
    found = os.lstat(tmp_path / "file")
    before = os.umask(0o022)
    try:
        assert ownership.writable_by_others(found, tmp_path, 0o666) == "can be written to by others (mode 0664)"
        os.umask(0o002)
        assert ownership.writable_by_others(found, tmp_path, 0o666) is None
    finally:
        os.umask(before)


def test_links_and_pipes_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert reason(tmp_path / "link") == "is a symbolic link"
    assert reason(tmp_path / "pipe") == "is neither a file nor a directory"
    os.link(tmp_path / "file", tmp_path / "second")
    assert reason(tmp_path / "file") == "has another name (a hard link)"


@needs_root
def test_another_users_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    os.chown(tmp_path / "file", OTHER_UID, OTHER_UID)
    assert reason(tmp_path / "file") == f"belongs to another user (uid {OTHER_UID})"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_where_the_mount_decides_owner_and_mode_a_new_file_is_the_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    found = os.lstat(tmp_path / "file")
    monkeypatch.setattr(ownership, "_new_file", lambda directory, mode=0o600: found)
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
    assert reason(tmp_path / "file") is None


def test_a_directory_is_trusted_with_all_above_it(tmp_path: Path) -> None:
    below = tmp_path / "shared/cache"
    below.mkdir(parents=True)
    assert ownership.reason_for_distrust_of_path(below) is None
    below.parent.chmod(0o777)
    assert ownership.reason_for_distrust_of_path(below) == f"{below.parent} can be written to by others (mode 0777)"
    below.parent.chmod(0o1777)
    assert ownership.reason_for_distrust_of_path(below) is None
    below.chmod(0o1777)
    assert ownership.reason_for_distrust_of_path(below) == f"{below} can be written to by others (mode 1777)"


@needs_root
def test_a_directory_below_anothers_is_not_trusted(tmp_path: Path) -> None:
    below = tmp_path / "other/cache"
    below.mkdir(parents=True)
    os.chown(below.parent, OTHER_UID, OTHER_UID)
    assert ownership.reason_for_distrust_of_path(below) == f"{below.parent} belongs to another user (uid {OTHER_UID})"
    (tmp_path / "link").symlink_to(below)
    assert ownership.reason_for_distrust_of_path(tmp_path / "link") is not None


@needs_root
def test_a_file_of_root_is_not_ones_own(tmp_path: Path) -> None:
    """Only what lies above may be root's: a file of root's in our directory was put there by somebody."""
    found = os.lstat(tmp_path)
    os.seteuid(OTHER_UID)
    try:
        assert ownership.belongs_to_other(found, "/") == "belongs to another user (uid 0)"
    finally:
        os.seteuid(0)


@needs_root
def test_what_lies_above_may_belong_to_root_and_to_nobody_else(tmp_path: Path) -> None:
    path = Path("/") / f"lt-ownership-{os.getpid()}"
    path.mkdir(mode=0o755)
    try:
        os.chown(path, OTHER_UID, OTHER_UID)
        os.seteuid(OTHER_UID)
        assert ownership.reason_for_distrust_of_path(path) is None
        os.seteuid(0)
        os.seteuid(OTHER_UID + 1)
        assert ownership.reason_for_distrust_of_path(path) == f"{path} belongs to another user (uid {OTHER_UID})"
        os.seteuid(0)
        os.chown(path, 1, 1)
        assert ownership.reason_for_distrust_of_path(path) == f"{path} belongs to another user (uid 1)"
        path.chmod(0o777)
        os.chown(path, 0, 0)
        os.seteuid(OTHER_UID)
        assert ownership.reason_for_distrust_of_path(path) == f"{path} can be written to by others (mode 0777)"
    finally:
        os.seteuid(0)
        path.rmdir()


def test_where_nothing_can_be_made_what_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    found = os.lstat(tmp_path / "file")
    assert ownership.reason_for_distrust(found, tmp_path / "missing") == "can be written to by others (mode 0666)"


def test_nothing_is_made_where_the_first_look_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is made to compare costs a round trip to the server of a shared filesystem."""
    monkeypatch.setattr(ownership, "_new_file", lambda *arguments: pytest.fail("a file was made"))
    (tmp_path / "file").touch(0o600)
    assert reason(tmp_path / "file") is None
    assert ownership.reason_for_distrust_of_path(tmp_path) is None


def test_a_mount_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There every file looks as if anyone could write to it, the directory as well, and a new one no less."""
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o777)
    found = os.lstat(tmp_path / "file")
    tmp_path.chmod(0o777)
    monkeypatch.setattr(ownership, "_new_file", lambda directory, mode=0o600: found)
    assert ownership.reason_for_distrust_of_path(tmp_path) is None
    monkeypatch.setattr(ownership, "_new_file", lambda directory, mode=0o600: None)
    assert ownership.reason_for_distrust_of_path(tmp_path) == f"{tmp_path} can be written to by others (mode 0777)"


def test_the_file_that_is_made_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system gives it, in that directory, with the mode that was asked for; nothing of it remains."""
    before = os.umask(0)
    opened = len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(3):
            found = ownership._new_file(tmp_path)
            assert found is not None
            assert (found.st_mode & 0o7777, found.st_uid, found.st_dev) == (0o600, os.geteuid(), os.stat(tmp_path).st_dev)
        found = ownership._new_file(tmp_path, 0o666)
        assert found is not None and found.st_mode & 0o7777 == 0o666
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == opened
    (tmp_path / "victim").touch()
    monkeypatch.setattr(os, "urandom", lambda count: b"planted!")
    (tmp_path / ".lt-owner-706c616e74656421").symlink_to("victim")
    assert ownership._new_file(tmp_path) is None
    assert (tmp_path / ".lt-owner-706c616e74656421").is_symlink()
    (tmp_path / ".lt-owner-706c616e74656421").unlink()
    (tmp_path / ".lt-owner-706c616e74656421").write_text("his")
    assert ownership._new_file(tmp_path) is None
    assert (tmp_path / ".lt-owner-706c616e74656421").read_text() == "his"


def test_modes_are_compared_with_those_of_a_private_file(tmp_path: Path) -> None:
    """Whatever the umask is: a file of mode 0664 is not as private as one that is made private."""
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o664)
    before = os.umask(0)
    try:
        assert ownership.writable_by_others(os.lstat(tmp_path / "file"), tmp_path) is not None
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/{}", "/proc/self/fd/{}"])
def test_what_is_open_is_no_link(name: str) -> None:
    """Python's own look at a path finds nothing where the kernel's links to pipes lead."""
    reading, writing = os.pipe()
    try:
        ownership.check_link(name.format(reading))
        os.close(ownership.open_checked(name.format(reading)))
    finally:
        os.close(reading)
        os.close(writing)


def test_links_that_go_round(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        ownership.check_link(tmp_path / "a")


@pytest.mark.parametrize("way", ["x/file", "x/../x/file", "./x//file", "y/file", "z", "x/y/file"])
def test_ones_own_links_are_followed_as_the_kernel_does(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    tmp_path.chmod(0o777)
    (tmp_path / "x/file").touch()
    (tmp_path / "y").symlink_to("x")
    (tmp_path / "x/y").symlink_to(tmp_path / "x")
    (tmp_path / "z").symlink_to("y/../y/file")
    monkeypatch.chdir(tmp_path)
    for path in (way, str(tmp_path / way)):
        with open(path, opener=ownership.open_checked):
            assert ownership._followed(path)[0] == os.path.realpath(path)


@needs_root
@pytest.mark.parametrize(
    ("blob", "mode", "group", "is_followed"),
    [
        ("blobs/1f", 0o644, 0, True),
        ("blobs/1f", 0o640, OTHER_UID, True),
        # The owner of the link could not read these himself.
        ("blobs/1f", 0o640, 0, False),
        ("blobs/1f", 0o600, OTHER_UID, False),
        # Not blobs of this repository.
        ("blobs/deep/1f", 0o644, 0, False),
        ("../other/blobs/1f", 0o644, 0, False),
        ("snapshots/blobs/1f", 0o644, 0, False),
        ("1f", 0o644, 0, False),
    ],
)
def test_a_hub_cache_of_several_users(tmp_path: Path, blob: str, mode: int, group: int, is_followed: bool) -> None:
    """One has made the link in the snapshot, another has downloaded the blob that it leads to."""
    link = tmp_path / "datasets--a--b/snapshots/2c/data/x.jsonl"
    target = tmp_path / "datasets--a--b" / blob
    for path in (link, target):
        path.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    target.chmod(mode)
    os.chown(target, OTHER_UID + 1, group)
    link.symlink_to(os.path.relpath(target, link.parent))
    os.chown(link, OTHER_UID, OTHER_UID, follow_symlinks=False)
    if is_followed:
        os.close(ownership.open_checked(str(link)))
    else:
        with pytest.raises(BadData, match=r"x.jsonl: is a link that another user \(uid 1001\) has made to what is not his"):
            ownership.open_checked(str(link))


@needs_root
def test_a_blob_of_a_hub_cache_that_is_a_link(tmp_path: Path) -> None:
    """Whoever may write into the directory of blobs could let one lead to any file."""
    for directory in ("hub/blobs", "hub/snapshots/2c"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "secret").touch()
    (tmp_path / "hub/blobs/1f").symlink_to("../../secret")
    (tmp_path / "hub/snapshots/2c/x").symlink_to("../../blobs/1f")
    for name in ("blobs/1f", "snapshots/2c/x"):
        os.chown(tmp_path / "hub" / name, OTHER_UID, OTHER_UID, follow_symlinks=False)
    with pytest.raises(BadData, match="is a link that another user"):
        ownership.open_checked(str(tmp_path / "hub/snapshots/2c/x"))
