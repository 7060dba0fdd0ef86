"""Layouts that the mixers of some layers do not have are refused before ranks start."""

import pytest

from lt_shared.models.architecture.mixers import MIXERS
from lt_shared.models.architecture.sizes import ATTENTION
from lt_shared.models.presets import preset
from lt_train.config.settings import parallelism
from lt_train.config.settings.parallelism import Parallelism

TINY = preset("tiny")


def problems(tensor: int = 1, context: int = 1) -> list[str]:
    parallel = Parallelism("cpu", tensor * context, tensor, 1, False, False, context=context)
    return [str(problem) for problem in parallelism.check(parallel, TINY, 64)]


def test_a_mixer_that_needs_whole_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(context=2) == []
    monkeypatch.setitem(MIXERS, ATTENTION, MIXERS[ATTENTION]._replace(splits_samples=False))
    assert problems() == []
    (problem,) = problems(context=2)
    assert problem == (
        "context parallel size 2 splits samples, and the layers 0, 1, 2, 3 (from 0) of tiny have attention, which needs"
        " them whole"
    )


def test_what_a_mixer_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(tensor=2) == []
    monkeypatch.setitem(MIXERS, ATTENTION, MIXERS[ATTENTION]._replace(divided=lambda model: {"channels": 3}))
    assert problems(tensor=2) == ["channels 3 not divisible by tensor parallel size 2"]
