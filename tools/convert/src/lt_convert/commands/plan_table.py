"""The plan of a conversion as a text table."""

import io
import re
import shutil
from collections.abc import Iterator
from typing import IO, Any

from lt_convert.formats import HUGGINGFACE
from lt_convert.weights.tensor_names import abbreviated
from lt_shared.console import visible
from lt_shared.models.architecture import Architecture

# The width when the output is not a terminal.
COLUMNS = 160

# The numbers of layers and experts.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def write(record: dict[str, Any], output: IO[str]) -> None:
    """Write the result of `Plan.to_record`: a line per tensor, with equal layers and experts as one line, then the files."""
    from rich.table import Table
    from rich.text import Text

    architecture = Architecture.from_record(record["architecture"])
    table = Table(box=None, pad_edge=False)
    for title in ("tensor", "dtype", "shape", "bytes", "operation", "from"):
        justify: Any = "right" if title == "bytes" else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title in ("dtype", "bytes"))
    for row in _rows(record["tensors"]):
        table.add_row(*map(Text, row))
    files = Table(box=None, pad_edge=False)
    files.add_column("file", overflow="fold")
    files.add_column("bytes", justify="right")
    for file in record["files"]:
        files.add_row(Text(file["name"]), f"{file['bytes']:,}")
    for source in record.get("sources", ()):
        iteration = "" if source["iteration"] is None else f", iteration {source['iteration']:,}"
        share = f"{source['weight']:.6g} of " if "weight" in source else ""
        output.write(visible(f"{share}{source['path']} ({source['format']}{iteration})\n"))
    origin = "" if "sources" in record else f"{record['source']} ({record['from']}) "
    output.write(visible(f"{origin}-> {record['destination']} ({record['to']})\n"))
    output.write(f"{architecture.parameters():,} parameters, {record['bytes'] / 1e9:,.3f} GB on disk\n")
    print_to(output, table)
    print_to(output, files)
    for number, part in enumerate(record.get("parts", ())):
        names = [file["name"] for file in part["files"]]
        span = f" of {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "") if names else ""
        output.write(visible(f"part {number}: reads {part['read_bytes']:,} bytes, writes {part['bytes']:,}{span}\n"))
    if record["left_out"]:
        what = "tensors of other parts" if record["from"] == HUGGINGFACE.name else "keys of the training state"
        output.write(f"left out: {len(record['left_out'])} {what}\n")


def print_to(output: IO[str], table: Any) -> None:
    """Write a rich table as plain text. rich's own console would exit the program on a broken pipe."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if output.isatty() else COLUMNS
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    output.write("".join(f"{line.rstrip()}\n" for line in visible(text.getvalue()).splitlines()))


def _rows(tensors: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for tensor in tensors:
        names = tuple(dict.fromkeys(_NUMBER.sub("{}", name) for name in (tensor["name"], *tensor["from"])))
        alike.setdefault((names, tensor["dtype"], tuple(tensor["shape"]), tensor["operation"]), []).append(tensor)
    for (_, dtype, shape, operation), similar in alike.items():
        size_bytes = sum(tensor["bytes"] for tensor in similar)
        parts = abbreviated(dict.fromkeys(name for tensor in similar for name in tensor["from"]))
        name = abbreviated(dict.fromkeys(tensor["name"] for tensor in similar))
        yield name, dtype, " x ".join(map(str, shape)), f"{size_bytes:,}", operation, parts
