"""The commands that work on finished datasets, those of Megatron-LM and NeMo included."""

import click

from lt_shared import console


@click.group(cls=console.Group)
def commands() -> None:
    """Work on finished datasets."""
