"""The commands for people: summarize, tail-cause, runs, plot, export, watch."""

from collections.abc import Callable
from typing import Any

import click

from lt_monitor.cli.log_options import reads_logs
from lt_monitor.views.plot_options import NO_RANGE, X_AXES, parse_range, parse_reference
from lt_shared import console


class _Written(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A click type that calls `parse` and reports its ValueError as a usage error."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]):
        self._parse = parse

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def _complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from lt_shared.models import presets

    return [name for name in presets.PRESETS if name.startswith(incomplete)]


def _complete_gpu(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from lt_shared.models import peak_flops

    return [name for name in peak_flops.PEAKS if name.lower().startswith(incomplete.lower()) and " " not in name]


def _complete_metric(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from lt_monitor.runs import metrics

    return [metric.key for metric in metrics.METRICS if metric.key.startswith(incomplete)]


evals_option = click.option(
    "--evals",
    metavar="DIR",
    multiple=True,
    help="Scores of the run's checkpoints: results_*.json of lm_eval below DIR. Repeatable, one for each run.",
)
known_options = console.section(
    "Where the log does not say",
    click.option(
        "--model",
        metavar="NAME",
        shell_complete=_complete_model,
        help="Preset of the model, for TFLOP/s and MFU, e.g. llama3-8b.",
    ),
    click.option("--seq-length", metavar="TOKENS", type=click.IntRange(min=1), help="Sequence length."),
    click.option("--gpus", metavar="N", type=click.IntRange(min=1), help="Number of GPUs of the run."),
    click.option(
        "--gpu", metavar="NAME", shell_complete=_complete_gpu, help="GPU model, for the MFU, e.g. H100, 'H100 PCIe', A100."
    ),
)


@click.command(
    cls=console.Command,
    examples="""
lt-monitor summarize run1/train.log
lt-monitor summarize --json slurm-*.out | jq '.runs[] | [.run, .step, .loss]'
lt-monitor summarize slurm-*.out --model llama3-8b --seq-length 8192 --gpus 64 --gpu H100
""",
)
@reads_logs
@evals_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@known_options
def summarize(logs: tuple[str, ...], evals: tuple[str, ...], as_json: bool, **run_facts: Any) -> None:
    """Print the progress, losses, speed, restarts and faults of runs."""
    from lt_monitor.runs import run_loader, scores, summary
    from lt_monitor.runs.speed import RunFacts
    from lt_monitor.views import summary_table

    loaded_runs = run_loader.join_by_checkpoints(run_loader.read(logs, or_starting=True))
    scores.attach(loaded_runs, evals)
    summaries = [summary.summarize(run, RunFacts.of(**run_facts)) for run in loaded_runs]
    if as_json:
        console.print_json({"v": 1, "kind": "summary", "runs": [one.to_record() for one in summaries]})
    else:
        summary_table.print_table(summaries)


@click.command(
    "tail-cause",
    cls=console.Command,
    examples="""
lt-monitor tail-cause slurm-77.out
lt-monitor tail-cause --json slurm-*.out | jq -r .advice
""",
)
@reads_logs
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a line.")
@click.option("--ended", is_flag=True, help="The job has ended, so that a log without an end is a failure.")
@click.option("--exclude-node", is_flag=True, help="Print only --exclude=NODE,... for sbatch; nothing where no node is to blame.")
def tail_cause(logs: tuple[str, ...], as_json: bool, ended: bool, exclude_node: bool) -> console.ExitCode:
    """Print in a line why a job ended; LOG are the job's logs, one or many. The exit code is for the job's script.

    0: the job ended properly, or still runs. 75: start it again. 69: start it again without the node. 78: stop, because it would
    fail again. 1: it failed, and the cause is not known.
    """
    from lt_monitor.runs.faults import tail_cause as causes
    from lt_monitor.runs.faults.advice import Action

    cause = causes.tail_cause(logs, ended)
    if exclude_node:
        click.echo(cause.excluded(), nl=bool(cause.excluded()))
    elif as_json:
        console.print_json(cause.to_record())
    else:
        console.print_text(cause.sentence())
    return {
        Action.NONE: console.ExitCode.OK,
        Action.AGAIN: console.ExitCode.TRY_AGAIN,
        Action.WITHOUT_NODE: console.ExitCode.UNAVAILABLE,
        Action.STOP: console.ExitCode.BAD_CONFIG,
        Action.UNKNOWN: console.ExitCode.FOUND,
    }[cause.action]


@click.command(
    cls=console.Command,
    examples="""
lt-monitor runs run*/train.log
lt-monitor runs --json 'run*/train.log' | jq -s 'min_by(.best_validation_loss).run'
""",
)
@reads_logs
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON line for each run, with the keys of summarize and its arguments."
)
@known_options
def runs(logs: tuple[str, ...], as_json: bool, **run_facts: Any) -> None:
    """Compare many runs: one row per run, with the arguments in which they differ."""
    from lt_monitor.runs import run_loader, summary
    from lt_monitor.runs.speed import RunFacts
    from lt_monitor.views import plot, runs_table

    loaded_runs = run_loader.join_by_checkpoints(run_loader.read(logs, or_starting=True))
    summaries = [summary.summarize(run, RunFacts.of(**run_facts)) for run in loaded_runs]
    if as_json:
        for run, one in zip(loaded_runs, summaries, strict=True):
            console.print_json({"v": 1, "kind": "run", **one.to_record(), "arguments": run.arguments})
    else:
        runs_table.print_table(loaded_runs, plot.short_names([run.name for run in loaded_runs]), summaries)


@click.command(
    cls=console.Command,
    examples="""
lt-monitor plot run1/train.log
lt-monitor plot run1/train.log -o report.html
lt-monitor plot run1/train.log --evals run1-evals -o report.html
lt-monitor plot run1/train.log run2/train.log --reference unigram=6.53 -o compare.png
lt-monitor plot run*/train.log --metric loss --metric lr --x tokens --log-x --x-range 1e4: -o loss.pdf
""",
)
@reads_logs
@click.option("-o", "--output", metavar="FILE", help="Image (.png, .svg, .pdf) or HTML report (.html); - writes a PNG to stdout.")
@evals_option
@click.option("--plain", is_flag=True, help="Print only the path instead of a JSON line.")
@console.section(
    "What is drawn",
    click.option(
        "--metric",
        "metrics",
        metavar="NAME",
        multiple=True,
        shell_complete=_complete_metric,
        help="Any number in the step lines instead of loss, grad_norm and speed: lr, mfu, memory, ... Repeatable.",
    ),
    click.option(
        "--reference",
        "references",
        metavar="NAME=VALUE",
        type=_Written(parse_reference),
        multiple=True,
        help="A labelled line at this loss. Repeatable.",
    ),
    click.option(
        "--smooth",
        "smooth_steps",
        metavar="STEPS",
        type=click.IntRange(0),
        help="Window of the smoothed curves, 0 for none; by default a share of the run.",
    ),
)
@console.section(
    "Axes of images",
    click.option("--x", type=click.Choice(X_AXES), default="step", show_default=True, help="Unit of the x axis."),
    click.option(
        "--x-range",
        metavar="LOW:HIGH",
        type=_Written(parse_range),
        default=NO_RANGE,
        show_default=False,
        help="Ends of the x axis, in its unit; either may be left out.",
    ),
    click.option(
        "--y-range",
        metavar="LOW:HIGH",
        type=_Written(parse_range),
        default=NO_RANGE,
        show_default=False,
        help="Ends of the y axis of the first metric.",
    ),
    click.option("--log-x", is_flag=True, help="Logarithmic x axis."),
    click.option("--log-y", is_flag=True, help="Logarithmic y axes."),
    click.option("--dark", is_flag=True, help="Light on dark."),
)
@known_options
def plot(
    logs: tuple[str, ...],
    output: str | None,
    evals: tuple[str, ...],
    plain: bool,
    **plot_settings: Any,
) -> None:
    """Draw loss, gradient norm and speed of the runs, with restarts and faults; without -o as sparklines."""
    from lt_monitor.runs.speed import RunFacts
    from lt_monitor.views import plot as picture
    from lt_monitor.views.plot_options import PlotOptions

    run_facts = RunFacts.of(**{name: plot_settings.pop(name) for name in ("model", "seq_length", "gpus", "gpu")})
    picture.plot(logs, output, run_facts, PlotOptions(**plot_settings), evals)
    if output is not None and output != "-":
        if plain:
            click.echo(output)
        else:
            console.print_json({"v": 1, "kind": "plot", "path": output})


@click.command(
    cls=console.Command,
    examples="""
lt-monitor export run*/train.log -o curves
lt-monitor export slurm-*.out -o curves --model llama3-8b --gpus 64 --gpu H100
""",
)
@reads_logs
@click.option("-o", "--output", metavar="DIR", required=True, help="Directory for tensorboard --logdir, with one for each run.")
@click.option("--plain", is_flag=True, help="Print only the paths instead of JSON lines.")
@known_options
def export(logs: tuple[str, ...], output: str, plain: bool, **run_facts: Any) -> None:
    """Write the curves of logs as TensorBoard event files, under the names that Megatron-LM and lt-train give them."""
    from lt_monitor.runs.speed import RunFacts
    from lt_monitor.views.export import tensorboard

    for run, path in tensorboard.export(logs, output, RunFacts.of(**run_facts)):
        if plain:
            click.echo(path)
        else:
            console.print_json({"v": 1, "kind": "export", "run": run, "path": path})


@click.command(
    cls=console.Command,
    examples="""
lt-monitor watch run1/train.log
lt-monitor watch 'run*/train.log' --interval 30
""",
)
@reads_logs
@click.option(
    "--interval",
    "interval_seconds",
    metavar="SECONDS",
    type=console.FiniteRange(min=0.1),
    default=5.0,
    help="Minimum pause between two reads of the logs.",
)
@known_options
def watch(logs: tuple[str, ...], interval_seconds: float, **run_facts: Any) -> None:
    """Show runs and GPUs live in the terminal: arrows choose a run, Enter opens its page, Esc closes it, q quits."""
    from lt_monitor.collect import gpu
    from lt_monitor.runs.speed import RunFacts
    from lt_monitor.views.live import watch as live

    live.watch(logs, RunFacts.of(**run_facts), interval_seconds, gpu.local)


COMMANDS: list[click.Command] = [summarize, tail_cause, runs, plot, export, watch]
