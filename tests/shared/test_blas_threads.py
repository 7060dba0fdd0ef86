"""A program of ours that limits OpenBLAS's threads does not limit those of the programs that it starts."""

import os

import pytest

from lt_shared import blas_threads

VARIABLE = "OPENBLAS_NUM_THREADS"


def test_other_programs_do_not_inherit_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_is_limited", False)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    before = dict(os.environ)
    blas_threads.limit()
    assert os.environ[VARIABLE] == "1"
    assert blas_threads.environment() == before


def test_a_limit_of_the_user_stays_and_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_is_limited", False)
    monkeypatch.setenv(VARIABLE, "7")
    blas_threads.limit()
    assert os.environ[VARIABLE] == blas_threads.environment()[VARIABLE] == "7"
