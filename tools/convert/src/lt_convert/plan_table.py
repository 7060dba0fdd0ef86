"""The plan of a conversion as a table for people."""

from typing import IO, Any

from lt_shared.architecture import Architecture


def write(record: dict[str, Any], output: IO[str]) -> None:
    """Write what `Plan.to_record` gives: a line per tensor, layers that differ in their number alone as one, then the files."""
    from rich.console import Console
    from rich.table import Table

    architecture = Architecture.from_record(record["architecture"])
    console = Console(file=output, width=None if output.isatty() else 160, highlight=False, markup=False)
    console.print(f"{record['source']} ({record['from']}) -> {record['destination']} ({record['to']})", soft_wrap=True)
    console.print(f"{architecture.parameters():,} parameters, {record['bytes'] / 1e9:,.3f} GB on disk")
    table = Table(box=None, pad_edge=False)
    for title, side in (("tensor", "left"), ("dtype", "left"), ("shape", "left"), ("bytes", "right"), ("operation", "left"),
                        ("from", "left")):  # fmt: skip
        table.add_column(title, justify=side, overflow="fold", no_wrap=title in ("dtype", "bytes"))  # type: ignore[arg-type]
    for tensor in record["tensors"]:
        shape = " x ".join(map(str, tensor["shape"]))
        table.add_row(
            tensor["name"], tensor["dtype"], shape, f"{tensor['bytes']:,}", tensor["operation"], ", ".join(tensor["from"])
        )
    console.print(table)
    files = Table(box=None, pad_edge=False)
    files.add_column("file", overflow="fold")
    files.add_column("bytes", justify="right")
    for file in record["files"]:
        files.add_row(file["name"], f"{file['bytes']:,}")
    console.print(files)
    if record["left_out"]:
        console.print(f"left out: {len(record['left_out'])} keys of the training state")
