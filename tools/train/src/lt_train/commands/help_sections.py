"""`lt-train help`: show one section of the long help, or the options whose names contain a word."""

import difflib
import re

import click

from lt_shared import console
from lt_shared.console import UsageError
from lt_train.config.options import schema

EXAMPLES = """
lt-train help parallelism
lt-train help lr
"""


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in _searchable_words() if word.startswith(incomplete.lower())]


@click.command("help", cls=console.Command, examples=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="[SECTION|OPTION]", nargs=-1, shell_complete=_complete)
def command(words: tuple[str, ...]) -> None:
    """Show the options of a section, or options that contain a word.

    Without a word it lists the sections.
    """
    context = click.Context(schema(), info_name="lt-train", auto_envvar_prefix="LT_TRAIN", show_default=True)
    formatter = context.make_formatter()
    sections = console.option_sections(context)
    if not words:
        with formatter.section("Sections"):
            formatter.write_dl([(title, _summarize(list(options))) for title, options in sections.items()])
        formatter.write_paragraph()
        formatter.write_text("lt-train help SECTION shows one, lt-train --help all of them.")
    else:
        matching = _matching(" ".join(words), sections)
        for title, options in matching.items():
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(context))])
    click.echo(formatter.getvalue().strip("\n"))


def _matching(words: str, sections: dict[str, list[click.Option]]) -> dict[str, list[click.Option]]:
    """Return the sections whose title matches `words`, otherwise the options whose name or else whose description does.

    Raises UsageError if nothing matches.
    """
    query = words.strip("-").lower()
    if titles := [title for title in sections if f" {title}".lower().find(f" {query}") >= 0]:
        return {title: sections[title] for title in titles}
    options_by_section = {title: [one for one in options if _has_name_part(one, query)] for title, options in sections.items()}
    matching = {title: options for title, options in options_by_section.items() if options} or _described(query, sections)
    if not matching and words.startswith("-"):
        raise click.NoSuchOption(words, ctx=click.get_current_context())
    if not matching:
        nearest = difflib.get_close_matches(query, _searchable_words(), 1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"sections: {', '.join(sections)}"
        raise UsageError(f"{words}: neither a section nor an option", hint)
    return matching


def _described(query: str, sections: dict[str, list[click.Option]]) -> dict[str, list[click.Option]]:
    """Return the options whose description has words that begin with `query`."""
    beginning = re.compile(rf"\b{re.escape(query)}", re.IGNORECASE)
    by_section = {title: [one for one in options if beginning.search(one.help or "")] for title, options in sections.items()}
    return {title: options for title, options in by_section.items() if options}


def _searchable_words() -> list[str]:
    """List the words of the section titles, and the option names without leading dashes."""
    sections = console.option_sections(click.Context(schema()))
    titles = [word for title in sections for word in re.findall(r"\w{3,}", title.lower())]
    names = [spelling.strip("-") for options in sections.values() for one in options for spelling in one.opts]
    return sorted({*titles, *names})


def _has_name_part(option: click.Option, query: str) -> bool:
    return any(f"-{query}-" in f"{spelling}-" for spelling in option.opts)


def _summarize(options: list[click.Option]) -> str:
    """Return the first three option names and the number of further options."""
    names = [option.opts[0] for option in options[:3]]
    return ", ".join(names) + (f" and {len(options) - 3} more" if len(options) > 3 else "")
