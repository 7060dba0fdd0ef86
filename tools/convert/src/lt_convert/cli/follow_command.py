"""`lt-convert follow`."""

import click

from lt_convert.cli.target_options import DTYPES, to_option
from lt_shared import console
from lt_shared.contracts import manifest

EXAMPLES = """
lt-convert follow run1 --to hf -o run1-checkpoints --once
lt-convert follow run1 --to hf -o run1-checkpoints --keep-last 2 --interval 60
lt-convert follow run1 --to hf -o run1-evals --keep-last 2 --once --each 'ls {}'
"""


@click.command(cls=console.Command, examples=EXAMPLES)
@click.argument("run", metavar="RUN")
@to_option
@click.option("-o", "--output", metavar="DIR", required=True, help="Write each checkpoint to a directory of its name in DIR.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Cast all tensors. Default: keep every tensor's dtype.")
@click.option("--ema", is_flag=True, help="Convert the averages that lt-train --ema-decay keeps, in place of the weights.")
@click.option(
    "--each", metavar="COMMAND", help="Run COMMAND with sh on each converted checkpoint; {} is its path, quoted for the shell."
)
@click.option(
    "--keep-last", type=click.IntRange(1), metavar="K", help="Delete converted checkpoints but the newest K. Default: keep all."
)
@click.option(
    "--once", is_flag=True, help="Make one pass and end, as from cron. Exit code 1: something is tried again next time."
)
@click.option(
    "--interval", type=console.FiniteRange(min=0.1), default=60.0, metavar="SECONDS", help="Wait so long between two passes."
)
@click.option("--plain", is_flag=True, help="Print paths alone instead of a manifest.")
def follow(
    run: str,
    to: str,
    output: str,
    dtype: str | None,
    ema: bool,
    each: str | None,
    keep_last: int | None,
    once: bool,
    interval: float,
    plain: bool,
) -> console.ExitCode:
    """Convert each complete checkpoint of a run once, in order, while it trains, and run a command on each.

    A checkpoint that is being written is not touched. DIR records the progress: after a restart the same command goes on, and a
    command that failed is run again in the next pass. SIGTERM or Ctrl-C ends the follower.
    """
    from lt_convert.commands.follow import following

    writer = manifest.Writer(plain)
    request = following.FollowRequest(run, to, output, dtype, each, keep_last, ema)
    went_well = following.follow(request, None if once else interval, writer.write)
    writer.end()
    return console.ExitCode.OK if went_well else console.ExitCode.FOUND
