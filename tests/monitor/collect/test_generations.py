"""Logs that are rotated between two scrapes: every event once, whatever rotation does to the files."""

import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from backports import zstd

from lt_monitor.collect import generations
from lt_monitor.collect.generations import originals, rotated_paths
from lt_monitor.collect.scrape import scrape
from lt_monitor.prometheus import textfile
from lt_shared.contracts import run_log


def lines(*steps: int, loss: float = 1.0) -> bytes:
    return "".join(f"{run_log.Step(step, 100_000, loss=loss).format()}\n" for step in steps).encode()


def scraped_steps(*logs: Path) -> list[int]:
    with tempfile.TemporaryFile() as output:
        scrape([str(log) for log in logs], str(logs[0].parent / "state"), output)
        output.seek(0)
        return [event["step"] for line in output if (event := json.loads(line))["kind"] == "step"]


def append(log: Path, content: bytes) -> None:
    with log.open("ab") as file:
        file.write(content)


def test_rotated_files_are_those_that_are_named_after_the_log(tmp_path: Path) -> None:
    names = ["run.log", "run.log.1", "run.log-20261121", "run.logs", "run.log2", "run.lo.1", "other.log.1", "arun.log.1"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "run.log.d").mkdir()
    (tmp_path / "run.log.2").symlink_to("run.log.1")
    assert [os.path.basename(path) for path in rotated_paths(str(tmp_path / "run.log"))] == [
        "run.log-20261121", "run.log.2", "run.log.1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "ordered",
    [
        ["run.log.10.gz", "run.log.9.xz", "run.log.2", "run.log.1"],
        ["run.log-20261101.gz", "run.log-20261130", "run.log-20261201-12"],
        ["run.log.2026-11-28_09", "run.log.2026-11-28_10"],
        ["run-20261127.log.gz", "run-20261128.log"],
        ["run.log-1732799999", "run.log-1732800000"],
        ["run.log.old"],
    ],
)
def test_rotated_files_go_from_the_oldest_to_the_newest(ordered: list[str], tmp_path: Path) -> None:
    for name in [*ordered[::-1], "run-2.log", "run.2.log", "run-20261128.out"]:
        (tmp_path / name).touch()
    assert [os.path.basename(path) for path in rotated_paths(str(tmp_path / "run.log"))] == ordered


def test_a_file_and_its_compressed_copy_are_one(tmp_path: Path) -> None:
    for name in ("run.log", "run.log.1", "run.log.1.gz", "run.log.2.gz"):
        (tmp_path / name).touch()
    assert [os.path.basename(path) for path in rotated_paths(str(tmp_path / "run.log"))] == ["run.log.2.gz", "run.log.1"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/a/run.log.1", ["/a/run", "/a/run.log"]),
        ("/a/run-20261121", ["/a/run"]),
        ("/a.b-c/x", []),
        ("/a/x.1", ["/a/x"]),
        ("/a/.hidden", []),
        ("/x.1", ["/x"]),
        ("/a.b/r.log-1.gz", ["/a.b/r", "/a.b/r.log", "/a.b/r.log-1"]),
    ],
)
def test_the_names_from_which_rotation_may_have_made_one(path: str, names: list[str]) -> None:
    assert originals(path) == names


def rename(log: Path, rotated: Path) -> None:
    log.rename(rotated)
    log.touch()


def copy_and_truncate(log: Path, rotated: Path) -> None:
    shutil.copy(log, rotated)
    os.truncate(log, 0)


@pytest.mark.parametrize("rotate", [rename, copy_and_truncate])
@pytest.mark.parametrize("name", ["a.log.1", "a.log-20261128"])
@pytest.mark.parametrize("later", [(), (4, 5)])
def test_a_log_that_was_empty_before_is_read_after_rotation(tmp_path: Path, rotate, name: str, later: tuple[int, ...]) -> None:
    log = tmp_path / "a.log"
    log.touch()
    assert scraped_steps(log) == []
    append(log, lines(1, 2, 3))
    rotate(log, tmp_path / name)
    append(log, lines(*later))
    assert scraped_steps(log) == [1, 2, 3, *later]
    assert scraped_steps(log) == []


@pytest.mark.parametrize("before", [(), (1,), (1, 2)])
@pytest.mark.parametrize("rotate", [rename, copy_and_truncate])
def test_a_log_that_is_rotated_several_times_between_two_scrapes(tmp_path: Path, rotate, before: tuple[int, ...]) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(*before))
    scraped_steps(log)
    append(log, lines(3))
    rotate(log, tmp_path / "a.log.3")
    append(log, lines(4))
    rotate(log, tmp_path / "a.log.2")
    append(log, lines(5, 6))
    rotate(log, tmp_path / "a.log.1")
    append(log, lines(7))
    assert scraped_steps(log) == [3, 4, 5, 6, 7]
    (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
    rotate(log, tmp_path / "a.log.1")
    append(log, lines(8))
    assert scraped_steps(log) == [8]


@pytest.mark.parametrize("rotate", [rename, copy_and_truncate])
@pytest.mark.parametrize("form", ["old/a.log.{}", "a.{}.log", "a-{}.log", "archive/a.log-2026112{}", "old/a.{}.log"])
def test_generations_with_other_names_or_in_other_directories(tmp_path: Path, rotate, form: str) -> None:
    log = tmp_path / "a.log"
    for directory in ("old", "archive", "rank1"):
        (tmp_path / directory).mkdir()
    # Of other runs, which only look like it.
    (tmp_path / "rank1/a.log.1").write_bytes(lines(91, loss=2.0))
    (tmp_path / "a.7.log").write_bytes(lines(92, loss=2.0))
    log.write_bytes(lines(1, 2))
    assert scraped_steps(log) == [1, 2]
    append(log, lines(3))
    is_dated = form.endswith("2026112{}")
    rotate(log, tmp_path / form.format(1 if is_dated else 2))
    append(log, lines(4))
    rotate(log, tmp_path / form.format(2 if is_dated else 1))
    append(log, lines(5))
    assert scraped_steps(log) == [3, 4, 5]
    assert scraped_steps(log) == []


def test_lines_that_no_rotated_file_has_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(1, 2))
    scraped_steps(log)
    append(log, lines(3))
    (tmp_path / "elsewhere").mkdir()
    rename(log, tmp_path / "elsewhere/b.log")
    append(log, lines(4))
    assert scraped_steps(log) == [4]
    said = f"got after its byte {len(lines(1, 2))} is in no rotated file beside it and is not read"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("ending", "module"), [("gz", gzip), ("xz", lzma), ("bz2", bz2), ("zst", None)])
@pytest.mark.parametrize("before", [(), (1, 2)])
def test_compressed_generations_are_read(tmp_path: Path, ending: str, module, before: tuple[int, ...]) -> None:
    if module is None:
        module = zstd
    log = tmp_path / "a.log"
    log.write_bytes(lines(*before))
    scraped_steps(log)
    append(log, lines(3, 4))
    (tmp_path / f"a.log.2.{ending}").write_bytes(module.compress(log.read_bytes()))
    log.unlink()
    log.write_bytes(lines(5))
    rename(log, tmp_path / "a.log.1")
    append(log, lines(6))
    assert scraped_steps(log) == [3, 4, 5, 6]
    content = (tmp_path / "a.log.1").read_bytes()
    (tmp_path / f"a.log.2.{ending}").rename(tmp_path / f"a.log.3.{ending}")
    (tmp_path / "a.log.1").unlink()
    (tmp_path / f"a.log.2.{ending}").write_bytes(module.compress(content))
    rename(log, tmp_path / "a.log.1")
    assert scraped_steps(log) == []


def test_a_compressed_file_that_is_cut_off_gives_what_it_has(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.touch()
    scraped_steps(log)
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(lines(1, 2, 3))[:-6])
    log.unlink()
    log.write_bytes(lines(4))
    assert scraped_steps(log) == [1, 2, 3, 4]
    assert "a.log.1.gz: is cut off, or still being written" in capfd.readouterr().err
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(lines(1, 2, 3, 31)))
    assert scraped_steps(log) == [31]


@pytest.mark.parametrize("is_same", [False, True])
def test_a_new_log_with_the_inode_of_the_one_before(tmp_path: Path, is_same: bool) -> None:
    """A filesystem gives the inode of a file that was compressed and deleted to the next one."""
    log = tmp_path / "a.log"
    log.touch()
    scraped_steps(log)
    append(log, lines(1, 2))
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    if is_same:
        os.truncate(log, 0)
    else:
        log.unlink()
    append(log, lines(3))
    assert scraped_steps(log) == [1, 2, 3]
    assert scraped_steps(log) == []


def test_a_new_log_that_begins_with_the_same_lines(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(1, 2))
    assert scraped_steps(log) == [1, 2]
    append(log, lines(3))
    rename(log, tmp_path / "a.log.1")
    append(log, lines(1, 2, 3, 4))
    assert scraped_steps(log) == [3, 1, 2, 3, 4]


def test_lines_that_are_appended_to_a_file_after_its_rotation(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(1))
    scraped_steps(log)
    writer = log.open("ab", buffering=0)
    rename(log, tmp_path / "a.log.1")
    writer.write(lines(2))
    assert scraped_steps(log) == [2]
    writer.write(lines(3))
    assert scraped_steps(log) == [3]
    writer.write(lines(4))
    writer.close()
    (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
    append(log, lines(5))
    rename(log, tmp_path / "a.log.1")
    append(log, lines(6))
    assert sorted(scraped_steps(log)) == [4, 5, 6]


def test_files_of_the_time_before_are_not_read(tmp_path: Path) -> None:
    log, old = tmp_path / "a.log", tmp_path / "a.log.1"
    old.write_bytes(lines(1, 2))
    os.utime(old, (1e9, 1e9))
    log.touch()
    assert scraped_steps(log) == []
    append(log, lines(3))
    (tmp_path / "a.log.orig").write_bytes(lines(90))
    assert scraped_steps(log) == [3]
    rename(log, tmp_path / "a.log.2")
    assert scraped_steps(log) == []


def test_a_rotation_while_the_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(1))
    scraped_steps(log)
    append(log, lines(2))
    rename(log, tmp_path / "a.log.1")
    append(log, lines(3))
    listed, rotations = rotated_paths, []

    def rotated_meanwhile(path: str) -> list[str]:
        names = listed(path)
        if not rotations:
            rotations.append(path)
            (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
            rename(log, tmp_path / "a.log.1")
            append(log, lines(4))
        return names

    monkeypatch.setattr(generations, "rotated_paths", rotated_meanwhile)
    assert scraped_steps(log) == [2, 3]
    assert scraped_steps(log) == [4]


COUNTER = "lt_train_skipped_steps_total{"


def skipped_steps(*steps: int) -> bytes:
    records = ({"v": 1, "kind": "step", "step": step, "loss": 2.5, "skipped_steps": 1} for step in steps)
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def test_prom_counts_rotated_events_once(tmp_path: Path) -> None:
    log, metrics = tmp_path / "a.log", tmp_path / "lt.prom"
    log.touch()

    def total() -> int:
        textfile.prom([str(log)], str(metrics))
        samples = [line.split() for line in metrics.read_text().splitlines()]
        return sum(int(value) for name, value in (one for one in samples if len(one) == 2) if name.startswith(COUNTER))

    total()
    append(log, skipped_steps(1, 2, 3, 4, 5))
    rename(log, tmp_path / "a.log.1")
    assert total() == 5
    append(log, skipped_steps(6, 7, 8, 9, 10))
    copy_and_truncate(log, tmp_path / "a.log.2")
    (tmp_path / "a.log.1").rename(tmp_path / "a.log.3")
    (tmp_path / "a.log.2").rename(tmp_path / "a.log.1")
    (tmp_path / "a.log.3").rename(tmp_path / "a.log.2")
    assert total() == 10


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_pattern", [False, True])
def test_any_order_of_writing_rotating_and_scraping(seed: int, is_pattern: bool, tmp_path: Path) -> None:
    choice, log, seen, written = random.Random(seed), tmp_path / "a.log", [], 0
    log.touch()
    seen += scraped_steps(log)
    for _ in range(40):
        action = choice.choice(["write", "write", "rename", "copy", "compress", "scrape"])
        if action == "write":
            count = choice.randint(1, 3)
            append(log, lines(*range(written + 1, written + count + 1)))
            written += count
        elif action in ("rename", "copy"):
            for name in rotated_paths(str(log)):
                number, *compressed = name.removeprefix(f"{log}.").split(".")
                os.rename(name, ".".join([str(log), str(int(number) + 1), *compressed]))
            (rename if action == "rename" else copy_and_truncate)(log, tmp_path / "a.log.1")
        elif action == "compress":
            for name in [one for one in rotated_paths(str(log)) if not one.endswith(".gz")]:
                status = os.stat(name)
                Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
                os.utime(f"{name}.gz", ns=(status.st_atime_ns, status.st_mtime_ns))
                os.unlink(name)
        elif is_pattern:
            plain = [Path(one) for one in rotated_paths(str(log)) if not one.endswith(".gz")]
            seen += scraped_steps(log, *plain) if choice.random() < 0.5 else scraped_steps(*plain, log)
        else:
            seen += scraped_steps(log)
    seen += scraped_steps(log)
    assert sorted(seen) == list(range(1, written + 1))
