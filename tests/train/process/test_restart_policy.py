"""Every exit code has one policy, whoever starts lt-train again."""

import pytest

from lt_shared.console import ExitCode
from lt_train.process.process_lifetime import MISCOMPUTED
from lt_train.process.restart_policy import Policy, policy, starts_ranks_again

RESTARTED = {ExitCode.UNAVAILABLE, ExitCode.INTERNAL, ExitCode.IO, ExitCode.INTERRUPTED}
CONTINUED = {ExitCode.TRY_AGAIN, ExitCode.NO_PROGRESS}


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_code(code: ExitCode) -> None:
    expected = Policy.RESTART if code in RESTARTED else Policy.CONTINUE if code in CONTINUED else Policy.NEVER
    assert policy(code) is expected
    assert starts_ranks_again(code) is (code in RESTARTED or code is ExitCode.NO_PROGRESS)


def test_a_machine_that_computes_wrong_is_not_used_again() -> None:
    assert not starts_ranks_again(MISCOMPUTED)


def test_a_signal_is_a_failed_attempt() -> None:
    assert {policy(128 + number) for number in (6, 7, 9, 11, 15)} == {Policy.RESTART}
