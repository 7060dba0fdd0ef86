"""Where checkpoints go is settled before a rank starts."""

from typing import Any

import click
import pytest

from lt_shared.console import BadConfig
from lt_train.config.settings import checkpointing


@click.command()
@checkpointing.OPTIONS
def command(**options: Any) -> None:
    """Only its parser is used."""


def problems(*arguments: str) -> list[str]:
    settings = checkpointing.resolve_checkpointing(command.make_context("test", list(arguments)).params)
    found = list(checkpointing.check(settings))
    assert all(isinstance(problem, BadConfig) for problem in found)
    return [str(problem) for problem in found]


def test_a_directory_and_a_store_are_fine(tmp_path: Any) -> None:
    for place in (str(tmp_path), str(tmp_path / "new"), "s3://bucket/run"):
        assert problems("--save", place, "--load", place) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file:///data/run", "the URL of a local directory"),
        ("memory://run", "is the memory of one process"),
        ("https://server/run", "nothing can be written to a web server"),
        ("http://server/run", "nothing can be written to a web server"),
        (__file__, "exists and is not a directory"),
    ],
)
def test_places_that_keep_no_checkpoint(place: str, reason: str) -> None:
    assert problems("--save", place) == [f"--save {place}: {reason}"]


def test_options_that_contradict_each_other() -> None:
    assert "--keep-every says what --keep-last must not delete" in problems("--save", "run", "--keep-every", "10")
    assert any("not a multiple" in each for each in problems("--save", "run", "--keep-every", "7", "--keep-last", "1"))
    assert problems("--save", "run", "--save-local-interval", "5") == [
        "--save-local-interval without --save-local: there will be no copies"
    ]
    local = ("--save", "run", "--save-local", "disk")
    for interval in ("50", "100"):
        (problem,) = problems(*local, "--save-interval", interval)
        assert problem.startswith(f"--save-local-interval 100 is a multiple of --save-interval {interval}: there will be no")
    assert problems(*local) == problems(*local, "--save-interval", "10", "--save-local-interval", "15") == []
    for option in (("--async-save",), ("--keep-last", "2")):
        assert f"{option[0]} without --save: nothing will be saved" in problems(*option)
    assert any("the run could not resume" in each for each in problems("--exit-interval", "5"))
    assert any(
        "the run could not resume" in each for each in problems("--save", "run", "--no-save-optim", "--exit-interval", "5")
    )
    for option in ("--finetune", "--no-load-optim"):
        assert f"{option} says what to take from --load, which is not given" in problems(option)
