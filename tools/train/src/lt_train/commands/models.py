"""`lt-train models`: the architectures that --model knows by name."""

import dataclasses

import click

from lt_shared import console
from lt_shared.models import presets
from lt_shared.models.architecture import Architecture

EXAMPLES = """
lt-train models
lt-train models --json | jq -r 'select(.parameters < 2e9).name'
"""
COLUMNS = ("name", "parameters", "layers", "hidden", "heads", "KV heads", "experts", "positions", "vocabulary")


@click.command("models", cls=console.Command, examples=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each model instead of a table.")
def command(as_json: bool) -> None:
    """List the models that --model knows by name.

    For any other model, --model takes the path of a Hugging Face config.json.
    """
    if as_json:
        for architecture in presets.PRESETS.values():
            record = {"v": 1, "kind": "model", "parameters": architecture.parameters(), **dataclasses.asdict(architecture)}
            console.print_json(record)
        return
    rows = [COLUMNS, *(_row(architecture) for architecture in presets.PRESETS.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join([row[0].ljust(len(name)), *numbers]))


def _row(model: Architecture) -> tuple[str, ...]:
    return (
        model.name,
        f"{model.parameters() / 1e6:,.1f} M",
        str(model.num_layers),
        str(model.hidden_size),
        str(model.num_attention_heads),
        str(model.num_query_groups),
        str(model.num_experts or "-"),
        f"{model.max_position_embeddings:,}",
        f"{model.vocab_size:,}",
    )
