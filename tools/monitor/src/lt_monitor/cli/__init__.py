"""Command line of lt-monitor."""

import os
import shlex
import sys

import click

from lt_monitor.cli import blame_command, machine_commands, view_commands
from lt_monitor.cli.log_options import pattern_options, reads_logs
from lt_shared import console


class Commands(console.Group):
    """The commands of lt-monitor. A log in place of a command's name is answered with the command that shows it."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and os.path.exists(args[0]):
            raise console.UsageError(f"{args[0]} is no command", f"lt-monitor summarize {shlex.quote(args[0])}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    examples="""
lt-monitor scrape slurm-*.out
lt-monitor summarize run1/train.log
lt-monitor plot run1/train.log -o report.html
lt-monitor plot run1/train.log run2/train.log -o loss.png
""",
)
@console.version_option("lt-monitor", "matplotlib", "s3fs")
def command() -> None:
    """Find out why a training run is slow, stuck or wrong from its logs. LOG is a file, directory or pattern, or - for stdin."""


@command.command(
    examples="""
lt-monitor scrape slurm-*.out
lt-monitor scrape --state scrape.state slurm-*.out >> events.jsonl
tail -n +1 -f run1/train.log | lt-monitor scrape -
""",
)
@reads_logs
@click.option("--state", metavar="FILE", help="Keep in FILE how far each log was read, and print only new events.")
@click.option("--follow", is_flag=True, help="Keep reading as the logs grow, including new logs that match a pattern.")
def scrape(logs: tuple[str, ...], state: str | None, follow: bool) -> None:
    """Print the events of logs as JSON lines: steps, validation losses, checkpoints, starts, ends, faults and notes."""
    from lt_monitor.collect.scrape import scrape as scrape_logs

    scrape_logs(logs, state, sys.stdout.buffer, follow)


@command.command(
    examples="""
lt-monitor diff run1/train.log run2/train.log
lt-monitor diff --tolerance 0.001 --field loss --field grad_norm run1/train.log run2/train.log
""",
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@pattern_options
@click.option(
    "--tolerance",
    type=console.FiniteRange(min=0),
    default=0.01,
    show_default=True,
    help="Maximum relative difference of two values.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    default=("loss",),
    show_default=True,
    metavar="NAME",
    help="What to compare: a key of the step events, or validation_loss. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def diff(a: str, b: str, tolerance: float, fields: tuple[str, ...], as_json: bool) -> console.ExitCode:
    """Compare two runs at the same steps. Exit code 1 when they differ: a check after a conversion or an upgrade."""
    from lt_monitor.views import divergence

    comparison = divergence.compare(a, b, fields, tolerance)
    if as_json:
        console.print_json(comparison.to_record())
    else:
        console.print_text("\n".join(comparison.lines()))
    return console.ExitCode.OK if comparison.agree else console.ExitCode.FOUND


for _command in (blame_command.blame, *view_commands.COMMANDS, *machine_commands.COMMANDS):
    command.add_command(_command)


def main() -> None:
    console.run(command, "lt-monitor")
