"""Command line of lt-monitor."""

import sys

import click

from lt_monitor import __version__, machine_commands
from lt_shared import console

_LOGS = click.argument("logs", metavar="LOG...", nargs=-1, required=True)


@click.group(
    cls=console.Group,
    examples="""
lt-monitor scrape slurm-*.out
lt-monitor summarize run1/train.log
lt-monitor plot run1/train.log run2/train.log -o loss.png
""",
)
@click.version_option(__version__, prog_name="lt-monitor")
def command() -> None:
    """Read training logs of lt-train and Megatron-LM while they grow, or later. LOG is a file, a pattern, or - for stdin."""


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


@command.command(
    examples="""
lt-monitor summarize run1/train.log
lt-monitor summarize --json slurm-*.out | jq '.runs[] | [.run, .step, .loss]'
""",
)
@_LOGS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def summarize(logs: tuple[str, ...], as_json: bool) -> None:
    """Print where each run is, how fast it is, how good, and what happened to it."""
    from lt_monitor import runs, summary, summary_table

    summaries = [summary.summarize(run) for run in runs.read(logs)]
    if as_json:
        console.print_json({"v": 1, "kind": "summary", "runs": [one.to_record() for one in summaries]})
    else:
        summary_table.print_table(summaries)


@command.command(
    examples="""
lt-monitor plot run1/train.log -o loss.png
lt-monitor plot run1/train.log run2/train.log --reference unigram=6.53 -o compare.png
""",
)
@_LOGS
@click.option("-o", "--output", metavar="FILE.png", required=True, help="The picture; - is stdout.")
@click.option(
    "--reference", "references", metavar="NAME=VALUE", multiple=True, help="Draw a labelled line at this loss. Repeatable."
)
@click.option("--plain", is_flag=True, help="Print the bare path instead of a JSON line.")
def plot(logs: tuple[str, ...], output: str, references: tuple[str, ...], plain: bool) -> None:
    """Draw loss, gradient norm and speed of the runs in the logs, and print the path of the picture."""
    from lt_monitor import plot as picture

    picture.plot(logs, output, [picture.parse_reference(reference) for reference in references])
    if output != "-":
        if plain:
            click.echo(output)
        else:
            console.print_json({"v": 1, "kind": "plot", "path": output})


for _command in machine_commands.COMMANDS:
    command.add_command(_command)


def main() -> None:
    console.run(command, "lt-monitor")
