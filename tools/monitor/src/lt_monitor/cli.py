"""Command line of lt-monitor."""

import sys

import click

from lt_monitor import __version__, machine_commands, view_commands
from lt_shared import console

_LOGS = click.argument("logs", metavar="LOG...", nargs=-1, required=True)


@click.group(
    cls=console.Group,
    examples="""
lt-monitor scrape slurm-*.out
lt-monitor summarize run1/train.log
lt-monitor plot run1/train.log -o report.html
lt-monitor plot run1/train.log run2/train.log -o loss.png
""",
)
@click.version_option(__version__, prog_name="lt-monitor")
def command() -> None:
    """Tell why a training run is slow, stuck or wrong, from its logs alone. LOG is a file, a pattern, or - for stdin."""


@command.command(
    examples="""
lt-monitor scrape slurm-*.out
lt-monitor scrape --state scrape.state slurm-*.out >> events.jsonl
tail -n +1 -f run1/train.log | lt-monitor scrape -
""",
)
@_LOGS
@click.option("--state", metavar="FILE", help="Remember in FILE how far each log was read and print only what is new.")
def scrape(logs: tuple[str, ...], state: str | None) -> None:
    """Print the events of logs as JSON lines: steps, validation losses, checkpoints, starts and resumes."""
    from lt_monitor.scrape import scrape as scrape_logs

    scrape_logs(logs, state, sys.stdout.buffer)


for _command in (*view_commands.COMMANDS, *machine_commands.COMMANDS):
    command.add_command(_command)


def main() -> None:
    console.run(command, "lt-monitor")
