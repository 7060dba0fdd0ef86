"""The commands for cron and other programs: goodput, alert, prom, rules, dashboard, stuck, samples of GPUs, Neuron and Slurm."""

import sys
from typing import Any

import click

from lt_monitor.cli.log_options import reads_logs
from lt_monitor.cli.view_commands import known_options
from lt_shared import console

_SAVED = click.argument("saved", metavar="[FILE]", required=False)


class _JobNumbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    name = "job"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        from lt_monitor.collect.slurm_jobs import is_job

        if not is_job(value):
            self.fail(f"{value!r} is not a job number such as 77, 77_3 or 70+1", parameter, context)
        return value


@click.command(
    cls=console.Command,
    examples="""
lt-monitor goodput slurm-*.out
lt-monitor goodput --json --price-per-gpu-hour 2.5 run1/train.log
""",
)
@reads_logs
@click.option(
    "--price-per-gpu-hour",
    type=console.FiniteRange(min=0),
    metavar="PRICE",
    help="Print the cost of the allocated and the lost time.",
)
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Number of GPUs, for logs that do not show it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each run instead of a table.")
def goodput(logs: tuple[str, ...], price_per_gpu_hour: float | None, gpus: int | None, as_json: bool) -> None:
    """Print the share of its allocated time that each run spent on steps that counted, and where the rest went."""
    from lt_monitor.views import goodput as goodput_view

    goodputs = goodput_view.goodput(logs, price_per_gpu_hour, gpus)
    if as_json:
        for one in goodputs:
            console.print_json(one.to_record())
    else:
        click.echo(goodput_view.table(goodputs), nl=False)


@click.command(
    cls=console.Command,
    examples="""
lt-monitor alert run1/train.log
lt-monitor alert --state alert.state --heartbeat alert.beat slurm-*.out
lt-monitor scrape --state scrape.state slurm-*.out | lt-monitor alert --rules default --state alert.state -
""",
)
@reads_logs
@click.option("--rules", default="default", metavar="FILE", help="TOML file with thresholds that differ from the built-in ones.")
@click.option("--state", metavar="FILE", help="Record positions and reported findings in FILE; report only new findings.")
@click.option("--exec", "command", metavar="CMD", help="Run CMD for each new finding, with the finding as JSON on its stdin.")
@click.option("--webhook", metavar="URL", help="POST new findings to URL. Set it in the environment: URLs are often secrets.")
@click.option("--heartbeat", metavar="FILE", help="Write the time of the last finished pass to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON lines.")
def alert(
    logs: tuple[str, ...],
    rules: str,
    state: str | None,
    command: str | None,
    webhook: str | None,
    heartbeat: str | None,
    as_json: bool,
) -> int:
    """Print the faults of runs, one line per new finding. Exit code 0: no finding, 1: warnings, 3: critical findings.

    Times without a time zone are local times. For a log from a machine in another zone, the file's modification time shows the
    zone. If that is impossible, and for -, set the log's time zone: TZ=UTC lt-monitor alert ...
    """
    from lt_monitor.alerts import alert as watch

    return watch.alert(logs, rules, state, watch.Channels(command, webhook), heartbeat, as_json)


@click.command(
    cls=console.Command,
    examples="""
lt-monitor prom run1/train.log
lt-monitor prom -o lt.prom slurm-*.out
lt-monitor scrape --state scrape.state slurm-*.out | lt-monitor prom -o lt.prom -
""",
)
@reads_logs
@click.option(
    "-o",
    "--output",
    default="-",
    metavar="FILE.prom",
    help="The file to write, - for stdout. Its state is kept in FILE.prom.state.",
)
@known_options
def prom(logs: tuple[str, ...], output: str, **run_facts: Any) -> None:
    """Write the metrics of the runs to a file for node_exporter's textfile collector."""
    from lt_monitor.prometheus import textfile
    from lt_monitor.runs.speed import RunFacts

    textfile.prom(logs, output, run_facts=RunFacts.of(**run_facts))


@click.command(cls=console.Command, examples="lt-monitor rules > lt-train.rules.yml")
def rules() -> None:
    """Print Prometheus alerting rules for the metrics of lt-monitor prom."""
    from lt_monitor.prometheus import alerting_rules

    click.echo(alerting_rules.render(), nl=False)


@click.command(cls=console.Command, examples="lt-monitor dashboard > lt-train.json")
def dashboard() -> None:
    """Print a Grafana dashboard for the metrics of lt-monitor prom, as JSON to import."""
    import json

    from lt_monitor.prometheus import dashboard as grafana

    click.echo(json.dumps(grafana.dashboard(), indent=2))


@click.command(
    cls=console.Command,
    examples="""
lt-monitor gpu
ssh node7 nvidia-smi --query-gpu=index,uuid,clocks.sm --format=csv | lt-monitor gpu -
""",
)
@_SAVED
def gpu(saved: str | None) -> None:
    """Print one sample of nvidia-smi as events. FILE is its saved output (CSV), - is stdin."""
    from lt_monitor.collect import gpu as source

    _print(source.sample(saved))


@click.command(
    cls=console.Command,
    examples="""
lt-monitor neuron
neuron-monitor | head -n 1 | lt-monitor neuron -
""",
)
@_SAVED
def neuron(saved: str | None) -> None:
    """Print one report of neuron-monitor as events. FILE has saved reports, one per line, - is stdin."""
    from lt_monitor.collect import neuron as source

    _print(source.sample(saved))


@click.command(
    cls=console.Command,
    examples="""
lt-monitor slurm
lt-monitor slurm --job 77 --job 78
squeue --json | lt-monitor slurm -
""",
)
@_SAVED
@click.option(
    "--job", "jobs", type=_JobNumbers(), multiple=True, metavar="ID", help="Only this job, e.g. 77 or 77_3. Repeatable."
)
def slurm(saved: str | None, jobs: tuple[str, ...]) -> None:
    """Print the state of Slurm jobs as events. FILE is the saved output of squeue, sacct or scontrol, - is stdin."""
    from lt_monitor.collect import slurm_jobs as source

    _print(source.sample(saved, jobs))


@click.command(
    cls=console.Command,
    examples="""
lt-monitor stuck run1
lt-monitor stuck 'dumps/nccl_trace_rank_*'
lt-monitor stuck --json dumps pyspy_rank_3.txt | jq .suspects
""",
)
@click.argument("dumps", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all findings and stacks instead of lines.")
def stuck(dumps: tuple[str, ...], as_json: bool) -> console.ExitCode:
    """Print which rank is missing from which collective, and the ranks' positions. Exit with 1 if a collective is stuck.

    FILE is a rank's dump (from torch's flight recorder, from py-spy, or the stacks from lt-train's watchdog), a directory with
    dumps, or a pattern.
    """
    from lt_monitor.hangs import dump_files, report

    hang_report = report.report(dump_files.read(dumps))
    if as_json:
        console.print_json(hang_report.to_record())
    else:
        console.print_text("\n".join(hang_report.lines()))
    return console.ExitCode.FOUND if hang_report.is_stuck else console.ExitCode.OK


def _print(records: list[dict[str, Any]]) -> None:
    for record in records:
        console.print_json(record)
    sys.stdout.flush()


COMMANDS = (goodput, alert, prom, rules, dashboard, gpu, neuron, slurm, stuck)
