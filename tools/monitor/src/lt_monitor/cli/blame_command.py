"""The command blame, which finds the training text of a step."""

import re
from typing import Any

import click

from lt_shared import console


class _Steps(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Convert a step, or a range of steps such as 100-120, to (first, last)."""

    name = "steps"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            self.fail(f"{value!r} is no step, counted from 1, and no range such as 100-120", parameter, context)
        return first, last


@click.command(
    cls=console.Command,
    examples="""
lt-monitor blame run1 --spike
lt-monitor blame run1 --step 40 --skip-list skip.jsonl
lt-monitor blame run1 --step 31-40 -o blame.html
lt-train score run9 --step 11-12 | lt-monitor blame run9 --step 11-12 --losses -
""",
)
@click.argument("run", metavar="RUN")
@click.option("--step", "steps", type=_Steps(), metavar="N|M-N", help="Look at this step, or these steps.")
@click.option("--spike", is_flag=True, help="Look at the steps where the loss jumped.")
@click.option("--losses", metavar="FILE", help="Losses of samples that lt-train score has printed; - reads them from a pipe.")
@click.option("--score", is_flag=True, help="Compute the losses with the checkpoint before: runs lt-train score.")
@click.option("--top", type=click.IntRange(0), default=10, metavar="COUNT", help="Show the documents of so many samples.")
@click.option("--skip-list", metavar="FILE", help="Write the samples to leave out there, for lt-train --skip-samples.")
@click.option("-o", "--output", metavar="FILE", help="Write an HTML report of the run with the findings to FILE (.html).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def blame(
    run: str,
    steps: tuple[int, int] | None,
    spike: bool,
    losses: str | None,
    score: bool,
    top: int,
    skip_list: str | None,
    output: str | None,
    as_json: bool,
) -> console.ExitCode:
    """Find the text that raised the loss: samples, documents, source files and lines of a step.

    RUN is the directory that lt-train saves into. Exit code 1 when --spike finds no jump of the loss.
    """
    from lt_monitor.blame import investigation

    if (steps is None) == (not spike):
        raise click.UsageError("Give --step or --spike.")
    if losses is not None and score:
        raise click.UsageError("--losses and --score both give the losses.")
    search_result = investigation.investigate(run, steps, losses, score, top)
    if search_result is None:
        console.note(f"{run}: no jump of the loss")
        return console.ExitCode.FOUND
    if skip_list is not None:
        search_result.write_skip_list(skip_list)
    if output is not None:
        search_result.write_report(output)
    if as_json:
        console.print_json(search_result.to_record(skip_list))
    else:
        console.print_text("\n".join(search_result.lines(skip_list)))
    return console.ExitCode.OK
