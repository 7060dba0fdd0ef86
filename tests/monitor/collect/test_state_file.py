"""A state is read as it was written, and anything else is an error that says what to do."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from lt_monitor.collect import state_file
from lt_shared.console import BadData, CannotCreate

STATE = {"runs": [], "known": {"a": 1.5}}


def written(path: Path, content: bytes | None = None) -> Path:
    path.write_bytes(state_file.content("prom-state", STATE) if content is None else content)
    path.chmod(0o600)
    return path


def test_a_state_comes_back(tmp_path: Path) -> None:
    found = state_file.read(str(written(tmp_path / "state")), "prom")
    assert found is not None and {key: found[key] for key in STATE} == STATE
    assert state_file.read(str(tmp_path / "missing"), "prom") is None
    assert state_file.MODE == 0o600


def test_the_file_is_one_line_of_json_that_ends_with_its_digest() -> None:
    content = state_file.content("prom-state", STATE)
    record = json.loads(content)
    assert (record["v"], record["kind"]) == (3, "prom-state")
    assert content.endswith(b'"}\n') and content.count(b"\n") == 1
    assert record["sha256"] == hashlib.sha256(content[: content.rindex(b',"sha256"')]).hexdigest()


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"", "prom", "it is empty"),
        (b"\n", "prom", "changed or cut off"),
        (state_file.content("prom-state", STATE)[:-1], "prom", "changed or cut off"),
        (state_file.content("prom-state", STATE) + b"\n", "prom", "changed or cut off"),
        (state_file.content("prom-state", STATE).replace(b"1.5", b"1.6"), "prom", "changed or cut off"),
        (state_file.content("prom-state", STATE), "alert", "another version or another command"),
        (state_file.content("prom-state", STATE).replace(b"\n", b"\r"), "prom", "changed or cut off"),
    ],
)
def test_anything_else_is_no_state(content: bytes, kind: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "state", content)
    with pytest.raises(BadData) as caught:
        state_file.read(str(path), kind)
    assert str(caught.value).startswith(f"{path}: not a state of lt-monitor {kind}: ")
    assert message in str(caught.value)
    assert caught.value.hint == "delete it to read every log from its beginning"


@pytest.mark.parametrize("version", [2, 4, "3", None])
def test_a_state_of_another_version_is_refused(version: object, tmp_path: Path) -> None:
    body = json.dumps({"v": version, "kind": "prom-state"}).encode()[:-1]
    digest = hashlib.sha256(body).hexdigest().encode()
    path = written(tmp_path / "state", body + b',"sha256":"' + digest + b'"}\n')
    with pytest.raises(BadData, match="another version"):
        state_file.read(str(path), "prom")


def test_what_is_not_an_own_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "state")
    written(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    written(tmp_path / "twice")
    os.link(tmp_path / "twice", tmp_path / "other")
    written(tmp_path / "open").chmod(0o620)
    monkeypatch.chdir(tmp_path)
    opened = len(os.listdir("/proc/self/fd"))
    for name, reason in {
        "link": "is a symbolic link",
        "directory": "is a directory",
        "pipe": "is neither a file nor a directory",
        "twice": "has another name (a hard link)",
        "open": "can be written to by others (mode 0620)",
    }.items():
        for shown in (name, str(tmp_path / name)):
            with pytest.raises(CannotCreate) as caught:
                state_file.read(shown, "prom")
            assert str(caught.value) == f"{shown}: {reason}"
            assert caught.value.hint == "delete it to start over, or choose another file in a directory of your own"
    assert len(os.listdir("/proc/self/fd")) == opened
    assert state_file.read("state", "prom") == state_file.read(str(path), "prom") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_the_directory_of_the_state_says_who_owns_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a mount gives all files to one user, a state there is one's own; only there."""
    from lt_shared.files import ownership

    path = written(tmp_path / "state")
    os.chown(path, 1001, 1001)
    monkeypatch.setattr(ownership, "_new_file", lambda folder, mode=0o600: os.stat(path) if folder == str(tmp_path) else None)
    assert state_file.read(str(path), "prom") is not None
    monkeypatch.setattr(ownership, "_new_file", lambda folder, mode=0o600: os.stat(path) if folder == "." else None)
    monkeypatch.chdir(tmp_path)
    assert state_file.read("state", "prom") is not None
    with pytest.raises(CannotCreate, match="uid 1001"):
        state_file.read(str(path), "prom")


def test_a_link_that_takes_the_place_of_a_state_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the file and its opening."""
    path = written(tmp_path / "state")
    written(tmp_path / "his")
    lstat = os.lstat

    def exchange(name: str) -> os.stat_result:
        found = lstat(name)
        path.unlink()
        path.symlink_to("his")
        return found

    monkeypatch.setattr(os, "lstat", exchange)
    with pytest.raises(CannotCreate, match="symbolic links"):
        state_file.read(str(path), "prom")


def test_a_directory_of_others_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(CannotCreate, match=r"state: can be written to by others \(mode 0777\)"):
        state_file.read(str(tmp_path / "state"), "prom")


def test_a_path_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(state_file.content("scrape-state", {"logs": ["/fsx/a\udcff/run.log", "/fsx/é/run.log"]}))
    path.chmod(0o600)
    state = state_file.read(str(path), "scrape")
    assert state is not None
    assert state["logs"] == ["/fsx/a\udcff/run.log", "/fsx/é/run.log"]
