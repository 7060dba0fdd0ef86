"""What a run reports, where and how often."""

import dataclasses
from typing import Any

import click

from lt_shared import console

OPTIONS = console.section(
    "Reports",
    click.option("--log-interval", type=click.IntRange(min=1), default=10, help="Steps between log lines."),
    click.option("--plain", is_flag=True, help="Print bare checkpoint paths instead of JSON lines."),
)


@dataclasses.dataclass(frozen=True)
class Reporting:
    log_interval: int
    plain: bool


def resolve(options: dict[str, Any]) -> Reporting:
    return Reporting(options["log_interval"], options["plain"])
