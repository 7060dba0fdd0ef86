"""`lt-train import`: another trainer's configuration as a file for --config."""

from typing import Any

import click

from lt_shared import console
from lt_shared.console import UsageError

EXAMPLES = """
lt-train import llama3_70b.toml | tee mine.toml
lt-train import -- torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 36 --hidden-size 4096 --num-attention-heads 32 --fp16
"""


@click.command("import", cls=console.Command, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of TOML.")
@click.argument("source", nargs=-1, type=click.UNPROCESSED, metavar="FILE | -- COMMAND LINE")
def command(as_json: bool, source: tuple[str, ...]) -> Any:
    """Turn another trainer's configuration into one for --config.

    FILE is a TorchTitan TOML, a HyperPod recipe or NeMo YAML, or a script that starts pretrain_gpt.py. The options go to standard
    output as TOML, and each key that is not carried over to standard error, with the reason.
    """
    from lt_train.importers import source as sources

    if not source:
        raise UsageError(
            "no FILE and no command line", "lt-train import FILE, or lt-train import -- torchrun ... pretrain_gpt.py ..."
        )
    translation = sources.translate_file(source[0]) if len(source) == 1 else sources.translate_command(source)
    for entry in translation.dropped:
        value = entry.value.replace("\n", "\\n") if isinstance(entry.value, str) else entry.value
        console.note(f"not carried over: {entry.key} = {value}: {entry.reason}")
    if as_json:
        console.print_json(translation.record())
    else:
        click.echo(translation.toml(), nl=False)
