import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from layouts import assembled
from situations import MODEL, said, situation, write

from lt_train.planner.checkpoint_size import CheckpointSize
from lt_train.preflight import model_checks, save_checks


def test_no_directory(tmp_path: Path) -> None:
    assert "lost when the run ends" in said(save_checks.is_set, situation(tmp_path))[0]
    assert said(save_checks.writable, situation(tmp_path)) == ["not checked: there is no --save"]


def test_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = situation(tmp_path, "--save", str(tmp_path / "a/b/run"))
    assert not said(save_checks.writable, run)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert f"{tmp_path} is not a directory that this user can write" in said(save_checks.writable, run)[0]


def test_what_is_no_directory(tmp_path: Path) -> None:
    """A file in the place of SAVE is found once, among the options; below a file, and in /proc, nothing can be saved."""
    file = tmp_path / "file"
    file.touch()
    run = situation(tmp_path, "--save", str(file))
    assert [said(check, run) for check in (save_checks.writable, save_checks.space)] == [
        ["not checked: --save is not a directory"],
        ["not checked: no checkpoint can be written there"],
    ]
    assert "exists and is not a directory; name a directory" in said(model_checks.settings, run)[0]
    below = situation(tmp_path, "--save", str(file / "run"))
    assert said(save_checks.writable, below) == [f"error: --save {file}/run: {file} is not a directory; name a directory"]
    write(tmp_path, "/proc/mounts", f"proc {tmp_path} proc rw 0 0\n")
    kernel = situation(tmp_path, "--save", str(tmp_path / "foo"))
    assert "is on proc, where nothing can be saved" in said(save_checks.writable, kernel)[0]
    assert said(save_checks.space, kernel) == ["not checked: no checkpoint can be written there"]


def test_a_small_filesystem_has_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    (found,) = said(save_checks.space, situation(tmp_path, "--save", str(tmp_path)))
    assert re.search(r"1\.0 MiB are free, a checkpoint takes [1-9][0-9.]*;", found)


@pytest.mark.parametrize(
    ("checkpoints_free", "options", "outcome"),
    [
        (0.5, (), "error"),
        (3, (), "warning"),
        (3, ("--keep-last", "2"), None),
        (2.5, ("--keep-last", "2"), "warning"),
        (11, (), None),
    ],
)
def test_space(
    checkpoints_free: float, options: tuple[str, ...], outcome: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of ten checkpoints."""
    saved = ("--save", str(tmp_path), "--train-iters", "1000", "--save-interval", "100")
    size = CheckpointSize.from_config(assembled([*MODEL, *saved])).total
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(checkpoints_free * size)))
    found = said(save_checks.space, situation(tmp_path, *saved, *options))
    assert [text.partition(":")[0] for text in found] == ([outcome] if outcome else [])


def test_size_of_a_checkpoint() -> None:
    """Llama 3.1 8B, 8.03 billion parameters: 14 bytes each with bfloat16, 2 without the optimizer."""
    options = (*MODEL, "--model", "llama3.1-8b", "--bf16", "--save", "x")
    assert CheckpointSize.from_config(assembled(options)).total == pytest.approx(14 * 8.03e9, rel=0.01)
    assert CheckpointSize.from_config(assembled([*options, "--no-save-optim"])).total == pytest.approx(2 * 8.03e9, rel=0.01)


def test_shared(tmp_path: Path) -> None:
    mounts = f"/dev/root / ext4 rw 0 0\nfsx@tcp:/x {tmp_path}/fs\\040x lustre rw 0 0\n"
    write(tmp_path, "/proc/mounts", mounts)
    (tmp_path / "fs x").mkdir()
    here, there = ("--save", str(tmp_path / "run")), ("--save", str(tmp_path / "fs x/run"))
    assert "is on ext4, which each node has for itself" in said(save_checks.shared, situation(tmp_path, *here, nodes=2))[0]
    assert not said(save_checks.shared, situation(tmp_path, *here))
    assert not said(save_checks.shared, situation(tmp_path, *there, nodes=2))


def test_inside_a_container(tmp_path: Path) -> None:
    write(tmp_path, "/proc/mounts", "overlay / overlay rw 0 0\n")
    run = ("--save", str(tmp_path / "run"))
    assert not said(save_checks.shared, situation(tmp_path, *run))
    assert "gone when the job ends" in said(save_checks.shared, situation(tmp_path, *run, ENROOT_ROOTFS="/x"))[0]
    write(tmp_path, "/.dockerenv")
    assert "gone when the job ends" in said(save_checks.shared, situation(tmp_path, *run))[0]


@pytest.mark.parametrize("names", save_checks.SCHEDULED)
def test_inside_a_container_that_a_scheduler_starts_again(names: tuple[str, ...], tmp_path: Path) -> None:
    variables = dict.fromkeys(names, "1")
    for kind in ("overlay", "xfs"):
        write(tmp_path, "/proc/mounts", f"root / {kind} rw 0 0\nfsx@tcp:/x {tmp_path}/fsx {kind} rw 0 0\n")
        (found,) = said(save_checks.shared, situation(tmp_path, "--save", str(tmp_path / "run"), **variables, nodes=2))
        assert found.startswith("error: ") and "from step 0 each time" in found
    (tmp_path / "fsx").mkdir()
    assert not said(save_checks.shared, situation(tmp_path, "--save", str(tmp_path / "fsx/run"), **variables))
    alone = situation(tmp_path, "--save", str(tmp_path / "run"), **{names[0]: "1"})
    assert not said(save_checks.shared, alone)


def test_a_filesystem_of_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop has no /fsx; a login node has, and its room is that of the run."""
    elsewhere = ("--save", "/no-such-fsx/run")
    for check in (save_checks.writable, save_checks.space, save_checks.shared):
        assert said(check, situation(tmp_path, *elsewhere, gpu="h100-80gb")) == [
            "not checked: /no-such-fsx/run is not on this machine: check there too"
        ]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert said(save_checks.space, situation(tmp_path, "--save", str(tmp_path / "run"), gpu="h100-80gb"))
    assert said(save_checks.space, situation(tmp_path, *elsewhere))


def test_load(tmp_path: Path) -> None:
    assert "does not exist" in said(save_checks.load, situation(tmp_path, "--load", str(tmp_path / "nothing")))[0]
    assert not said(save_checks.load, situation(tmp_path, "--load", str(tmp_path)))
