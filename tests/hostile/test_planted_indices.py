"""Several users share a directory of sample indices; one of them has planted some."""

import dataclasses
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
import synthetic
from stranger import Stranger

from lt_shared.console import BadData, CannotCreate
from lt_train.config.run_config import RunConfig
from lt_train.data import blended_dataset
from lt_train.data.blended_dataset import SampleOrder
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


@pytest.fixture
def plan(tmp_path: Path) -> RunConfig:
    datasets = tuple(synthetic.write(tmp_path / name, [20, 7, 33] * 30) for name in ("one", "two"))
    sizes = ("--seq-length", "16", "--global-batch-size", "4", "--eval-iters", "0", "--train-iters", "20")
    return synthetic.plan(*sizes, "--split", "1,0,0", datasets=datasets)


def samples(plan: RunConfig, cache: Path) -> list[list[int]]:
    training = blended_dataset.build(SampleOrder.from_config(plan), str(cache)).training
    assert training is not None
    return [training[number].tolist() for number in range(len(training))]


def test_training_reads_what_it_has_made(plan: RunConfig, stranger: Stranger, tmp_path: Path) -> None:
    """Another user has put a copy of every index there, each with its first entry everywhere."""
    expected = samples(plan, tmp_path / "cache")
    for made in (tmp_path / "cache").iterdir():
        if made.is_dir():
            planted = stranger.shared / made.name
            stranger.run(f"mkdir -m 777 {made.name}")
            for file in made.glob("*.npy"):
                index = np.load(file)
                index[:] = index[0]
                np.save(planted / file.name, index)
    assert samples(plan, stranger.shared) == expected


def test_a_damaged_index_is_not_trained_on(plan: RunConfig, tmp_path: Path) -> None:
    expected = samples(plan, tmp_path)
    files = sorted(tmp_path.glob("*/*.npy"))
    assert len(files) == 5
    for file in files:
        sound = file.read_bytes()
        for position in (len(sound) - 1, len(sound) // 2 + 40, 9):
            file.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
            with pytest.raises(BadData, match=file.name) as caught:
                blended_dataset.build(SampleOrder.from_config(plan), str(tmp_path))
            assert "will be made again" in (caught.value.hint or "")
        file.write_bytes(sound[:-1])
        with pytest.raises(BadData, match=file.name):
            blended_dataset.build(SampleOrder.from_config(plan), str(tmp_path))
        file.write_bytes(sound)
    for record in tmp_path.glob("*/checksums.json"):
        record.unlink()
    assert samples(plan, tmp_path) == expected


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_exchanged_indices_are_not_used(mode: int, plan: RunConfig, stranger: Stranger) -> None:
    """Both are this user's, in a directory where anyone may rename what is there, now or from the beginning."""
    cache = stranger.shared
    cache.chmod(mode)
    other = dataclasses.replace(plan, seed=plan.seed + 1)
    expected = samples(plan, cache)
    before = {path.name for path in cache.glob("samples-*")}
    samples(other, cache)
    [first], [second] = before, {path.name for path in cache.glob("samples-*")} - before
    cache.chmod(0o777)
    stranger.run(f"mv {first} away; mv {second} {first}; mv away {second}")
    assert samples(plan, cache) == expected
    assert (cache / f"{first}.{os.geteuid()}").is_dir()


@pytest.mark.parametrize("target", ["a directory", "nothing"])
def test_a_link_in_the_place_of_the_cache(target: str, stranger: Stranger, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir() if target == "a directory" else None
    stranger.run(f"ln -s {tmp_path}/victim data-cache")
    with pytest.raises(CannotCreate):
        make_once(stranger.shared / "data-cache", "index", fill)
    assert list(tmp_path.glob("victim/*")) == []
