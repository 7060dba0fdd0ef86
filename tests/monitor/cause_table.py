"""Check tables of causes: a row is the end of a log, its fault, its exit code, and the origin of the line."""

from pathlib import Path

from failure_tally import verdict

Row = tuple[str, str | None, int, str]

STEPS = "".join(
    f" iteration {step:8d}/     100 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n"
    for step in (1, 2, 3)
)
LATER_STEPS = STEPS.replace("3/", "5/").replace("2/", "4/")


def check_cause(row: Row, directory: Path, after_steps: bool = False) -> None:
    """Check the cause of a log that consists of the row's text.

    With `after_steps`, the text follows step lines. Then the cause must vanish once later steps follow the text, unless the text
    is a notice: a machine's maintenance still ends the job.
    """
    text, fault, code, source = row
    log = directory / "slurm-7.out"
    if not after_steps:
        assert verdict(log, text) == (fault, code), source
        return
    assert verdict(log, f"{STEPS}{text}\n") == (fault, code), source
    is_notice = fault == "preemption" and "MAINTENANCE" in text
    assert verdict(log, f"{STEPS}{text}\n{LATER_STEPS}") == (("preemption", 75) if is_notice else (None, 0)), source
