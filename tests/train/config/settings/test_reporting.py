"""What is profiled and where curves go is settled before a rank starts."""

import importlib.util
import os
from typing import Any

import click
import pytest

from lt_shared.console import BadConfig, ToolError, Unavailable, UsageError
from lt_train.config.settings import reporting
from lt_train.config.settings.reporting import Profile, Reporting, Wandb


@click.command()
@reporting.OPTIONS
def command(**options: Any) -> None:
    """Only its parser is used."""


def resolved(*arguments: str, save: str | None = "run", ranks: int = 4, where: str = "cuda") -> Reporting:
    options = command.make_context("test", list(arguments)).params
    parallelism: Any = type("Layout", (), {"world_size": ranks})
    settings = reporting.resolve_reporting(options | {"save": save}, parallelism)
    here = (*reporting.missing_packages(settings), *reporting.check_directories(settings))
    for problem in (*reporting.check(settings, where, 100), *here):
        raise problem
    return settings


def test_nothing_is_profiled_or_tracked_by_default() -> None:
    settings = resolved()
    assert (settings.profile, settings.wandb, settings.tensorboard_dir, settings.timing_log_level) == (None, None, None, 0)


def test_profile_of_chosen_steps_and_ranks() -> None:
    asked = ("--profile", "--profile-step-start", "3", "--profile-step-end", "5", "--profile-ranks", "0,2")
    assert resolved(*asked).profile == Profile(True, False, 3, 5, (0, 2), os.path.join("run", "profile"))
    everywhere = resolved("--record-memory-history", "--profile-ranks", "all", "--tensorboard-dir", "tb", save=None).profile
    assert everywhere == Profile(False, True, 10, 12, (0, 1, 2, 3), os.path.join("tb", "profile"))


def test_wandb_keeps_its_files_in_the_run() -> None:
    assert resolved("--wandb-project", "p", "--wandb-exp-name", "e").wandb == Wandb("p", "e", "run")
    assert resolved("--wandb-project", "p", "--wandb-save-dir", "w").wandb == Wandb("p", None, "w")


REFUSED: dict[tuple[str, ...], tuple[type[ToolError], str]] = {
    ("--profile", "--profile-step-start", "5", "--profile-step-end", "5"): (BadConfig, "ends at step 5"),
    ("--profile", "--profile-step-start", "100", "--profile-step-end", "102"): (BadConfig, "begins at step 100"),
    ("--tensorboard-dir", "/dev/null/curves"): (BadConfig, "/dev/null is not a directory"),
    ("--wandb-project", "p", "--wandb-save-dir", "/dev/null"): (BadConfig, "--wandb-save-dir"),
    ("--profile", "--profile-ranks", "0,4"): (BadConfig, "names rank 4, the run has 4"),
    ("--profile", "--profile-ranks", "first"): (UsageError, "no list of ranks"),
    ("--wandb-exp-name", "e"): (UsageError, "without --wandb-project"),
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refused(arguments: tuple[str, ...]) -> None:
    error, message = REFUSED[arguments]
    with pytest.raises(error, match=message):
        resolved(*arguments)


def test_a_profile_needs_a_directory_and_memory_snapshots_a_gpu() -> None:
    with pytest.raises(UsageError, match="no directory for the profile"):
        resolved("--profile", save=None)
    with pytest.raises(BadConfig, match="on a CPU"):
        resolved("--record-memory-history", where="cpu")


@pytest.mark.parametrize(
    ("arguments", "package"), [(("--tensorboard-dir", "t"), "tensorboard"), (("--wandb-project", "p"), "wandb")]
)
def test_a_missing_package_is_named_with_the_way_to_get_it(
    arguments: tuple[str, str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=f"needs the package {package}") as caught:
        resolved(*arguments)
    assert caught.value.hint == f"pip install 'lt-train[{package}]'"
