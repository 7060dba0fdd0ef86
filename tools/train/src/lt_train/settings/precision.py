"""The number formats of weights, activations and gradients."""

import dataclasses
from typing import Any

import click

from lt_shared import console

OPTIONS = console.section(
    "Precision",
    click.option("--bf16", is_flag=True, help="Train in bfloat16 with fp32 master weights."),
)


@dataclasses.dataclass(frozen=True)
class Precision:
    """`dtype` is torch's name of the type of weights and activations; the optimizer's own weights are float32."""

    dtype: str

    @property
    def bf16(self) -> bool:
        return self.dtype == "bfloat16"


def resolve(options: dict[str, Any]) -> Precision:
    return Precision("bfloat16" if options["bf16"] else "float32")
