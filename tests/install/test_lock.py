"""What `nox -s lock` writes: one line where all Pythons agree, one for each where they do not."""

import re
from pathlib import Path

import lock
import pytest
import resolution

OLD = {"rich": "14.0.0", "torchtitan": "0.2.0"}


def test_a_package_has_a_line_for_each_python_where_they_differ() -> None:
    pins = {
        "3.11": {"alike": "1.0", "differs": "0.16.1", "old-only": "2.0"},
        "3.12": {"alike": "1.0", "differs": "0.19.2", "new-only": "3.0"},
        "3.13": {"alike": "1.0", "differs": "0.19.2", "new-only": "3.0"},
    }
    assert list(lock.lines(pins)) == [
        "alike==1.0",
        'differs==0.16.1 ; python_version == "3.11"',
        'differs==0.19.2 ; python_version == "3.12"',
        'differs==0.19.2 ; python_version == "3.13"',
        "new-only==3.0",
        "old-only==2.0",
    ]


def test_a_lock_that_still_fits_is_kept_and_a_pin_that_does_not_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = resolution.CONSTRAINTS.read_text()
    copy = tmp_path / "constraints.txt"
    copy.write_text(committed.replace("\ntriton==", "\ntriton==3.9.0 #"))
    monkeypatch.setattr(resolution, "CONSTRAINTS", copy)
    lock.main([])
    assert copy.read_text() == committed


def test_an_upgrade_is_of_what_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = resolution.CONSTRAINTS.read_text()
    copy = tmp_path / "constraints.txt"
    old = re.sub(r"^(rich|torchtitan)==.*", lambda pin: f"{pin[1]}=={OLD[pin[1]]}", committed, flags=re.MULTILINE)
    copy.write_text(old)
    monkeypatch.setattr(resolution, "CONSTRAINTS", copy)
    lock.main(["--upgrade-package", "rich", "--upgrade-package", "torchtitan"])
    found = dict(re.findall(r"^([\w.-]+)==(\S+)", copy.read_text(), re.MULTILINE))
    before = dict(re.findall(r"^([\w.-]+)==(\S+)", old, re.MULTILINE))
    assert {name for name in found if found[name] != before.get(name)} == set(OLD)


@pytest.mark.parametrize("words", [["--help"], ["--bogus"], ["--upgrade-packages", "rich"]])
def test_what_it_does_not_know_changes_nothing(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "constraints.txt"
    monkeypatch.setattr(resolution, "CONSTRAINTS", copy)
    with pytest.raises(SystemExit):
        lock.main(words)
    assert not copy.exists()
