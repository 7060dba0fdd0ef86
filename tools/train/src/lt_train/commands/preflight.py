"""`lt-train preflight`: check a run before it starts."""

from typing import Any

import click

from lt_shared import console
from lt_shared.console import ExitCode, note, print_text
from lt_train.config import cluster
from lt_train.config.options import CONFIG, SUBJECTS, RunCommand, settings_options
from lt_train.process import rank_environment

EXAMPLES = """
lt-train preflight --model tiny --save run1 data/web_text_document
lt-train preflight --model llama3.1-8b --bf16 --gpu h100-80gb --nodes 2 --parallel auto --mock-data --json
srun --ntasks-per-node 8 lt-train preflight --network --model llama3.1-8b --save /fsx/run1 @web.manifest
"""


@click.command(
    "preflight",
    cls=RunCommand,
    examples=EXAMPLES,
    context_settings={"auto_envvar_prefix": "LT_TRAIN", "show_default": True},
)
@click.argument("data", nargs=-1)
@click.option("--network", is_flag=True, help="Also measure how fast the ranks exchange data, and name a slow node.")
@click.option("--verify-data", is_flag=True, help="Also read every .bin and compare its checksum; the .idx always are.")
@click.option("--image", envvar=["LT_TRAIN_IMAGE", "IMAGE"], help="Container image of the job: check that the file is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@CONFIG
@cluster.OPTIONS
@settings_options(*SUBJECTS)
def command(data: tuple[str, ...], network: bool, verify_data: bool, image: str | None, as_json: bool, **options: Any) -> int:
    """Check a run before the queue does: all mistakes at once.

    Takes the options and DATA of a run. Checks them, the machine, the settings of the network, the directory of the run, the job.
    With --gpu, --gpus-per-node and --nodes the run is on another machine. Under srun the first node reports for all, with the
    nodes that each finding is about, and compares their clocks. Every start makes the checks that cost nothing. Exit code 78 when
    there are errors.
    """
    from lt_train.preflight import bandwidth, check_runner, measuring, nodes

    planned = cluster.planned_cluster(options)
    settings = {name: value for name, value in options.items() if name not in cluster.NAMES}
    result = check_runner.check_options(settings, data, planned, image, verify_data)
    if network:
        result = measuring.add_measurement(result, settings)
    if (meeting := nodes.plan_meeting(rank_environment.find(), rank_environment.find_node())) and not planned:
        longer = bandwidth.TIMEOUT_SECONDS if network else 0
        merged = nodes.gather_results(result, meeting, nodes.WAIT_SECONDS + longer)
        if merged is None:
            return ExitCode.OK
        result = merged
    if as_json:
        console.print_json(result.record())
    else:
        for finding in result.findings:
            print_text(str(finding))
        for check, reason in result.not_checked.items():
            note(f"not checked: {check}: {reason}")
        warnings = len(result.findings) - len(result.errors)
        location = f" on {len(result.nodes)} nodes" if result.nodes else ""
        note(f"{len(result.checked)} checks{location}: {len(result.errors)} error(s), {warnings} warning(s)")
    return ExitCode.BAD_CONFIG if result.errors else ExitCode.OK
