"""Man pages in roff's man macros, from the same commands as the reference."""

import re

from commands import CommandPage

from lt_shared import version_of


def manual_page(page: CommandPage) -> str:
    """The page of section 1 for a command."""
    tool = page.name.partition(" ")[0]
    lines = [
        f'.TH "{page.file_name.upper()}" 1 "" "{tool} {version_of(tool)}" "lt tools"',
        ".SH NAME",
        f"{page.file_name} \\- {plain(page.summary.rstrip('.'))}",
        ".SH SYNOPSIS",
        plain(page.usage),
        ".SH DESCRIPTION",
    ]
    for number, paragraph in enumerate(page.description.split("\n\n")):
        lines += [".PP", plain(" ".join(paragraph.split()))] if number else [plain(" ".join(paragraph.split()))]
    for title, options in page.sections.items():
        lines.append(f'.SH "{plain(title).upper()}"')
        for option in options:
            lines += [".TP", f"\\fB{plain(option.spelling)}\\fR", plain(option.help)]
    if page.examples:
        lines += [".SH EXAMPLES", ".nf", *map(plain, page.examples.splitlines()), ".fi"]
    if page.environment:
        lines += [".SH ENVIRONMENT", plain(page.environment)]
    if page.commands:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{plain(name.replace(' ', '-'))}\\fR(1)" for name in page.commands)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """`text` as roff prints it unchanged: escapes and hyphens, and no line that begins as a request does."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
