"""The argument LOG... and the pattern options, which every command that reads logs has."""

from typing import Any

import click

from lt_shared import console, memory

# A block of 2 MiB and its step lines need about 10 MiB.
KEPT_BYTES = 32 << 20


def _use_pattern(context: click.Context, parameter: click.Parameter, pattern: str | None) -> None:
    if pattern is not None and not context.resilient_parsing:
        from lt_monitor.logs import user_patterns

        _use(context, [user_patterns.step_pattern(pattern)])


def _use_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None and not context.resilient_parsing:
        from lt_monitor.logs import user_patterns

        _use(context, user_patterns.read(path))


def _use(context: click.Context, patterns: list[Any]) -> None:
    from lt_monitor.logs import user_patterns

    context.with_resource(user_patterns.using([*user_patterns.active(), *patterns]))


pattern_options = console.section(
    "For other trainers",
    click.option(
        "--generic",
        metavar="PATTERN",
        expose_value=False,
        callback=_use_pattern,
        help=r"Regular expression of step lines, groups named as scrape's keys: 'n (?P<step>\d+) loss (?P<loss>\S+)'.",
    ),
    click.option(
        "--patterns",
        metavar="FILE",
        expose_value=False,
        callback=_use_file,
        help="TOML file of such patterns, also for other events.",
    ),
)


def _keep_memory(context: click.Context, parameter: click.Parameter, logs: tuple[str, ...]) -> tuple[str, ...]:
    if not context.resilient_parsing:
        memory.keep_freed_memory(KEPT_BYTES)
    return logs


_LOGS = click.argument("logs", metavar="LOG...", nargs=-1, required=True, callback=_keep_memory)


def reads_logs(function: Any) -> Any:
    """Decorate a command: add the argument LOG..., and the pattern options after the command's options."""
    command_options = list(getattr(function, "__click_params__", ()))
    pattern_options(function)
    # click stores parameters in reverse order, so the pattern options must come first here to be printed last.
    function.__click_params__[:] = [*function.__click_params__[len(command_options) :], *command_options]
    return _LOGS(function)
