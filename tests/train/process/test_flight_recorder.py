"""torch records the collectives of a rank, as many as the environment says."""

import pytest

from lt_train.process import flight_recorder


@pytest.mark.parametrize("said", [{}, {"TORCH_FR_BUFFER_SIZE": "7"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}])
def test_the_environment_says_how_many_calls_are_kept(said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = dict(said)
    monkeypatch.setattr(flight_recorder.os, "environ", environment)
    flight_recorder.keep_calls()
    assert environment == (said or {"TORCH_FR_BUFFER_SIZE": "2000"})


@pytest.mark.parametrize(
    ("version", "variable"),
    [("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE"), ("2.9.1", "TORCH_FR_BUFFER_SIZE"), ("2.8.0", "TORCH_NCCL_TRACE_BUFFER_SIZE")],
)
def test_torch_warns_of_the_name_of_another_version(version: str, variable: str) -> None:
    assert flight_recorder.buffer_size_variable(version) == variable
