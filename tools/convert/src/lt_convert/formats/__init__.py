"""The checkpoint formats. Every list of formats in lt-convert is made from these `Format` records.

A format's module has
    recognise(names)                        whether a directory with these names in it holds such a checkpoint
    open_source(directory, files)           the checkpoint as a `Source`
    outputs(target)                         the files (`OutputFile`) to be written for a `Target`
    TABLE                                   the name of the table of weight ops for its tensors

The module of a read-only format has only `open_source`: its directories look like another format's directories.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lt_convert.formats import known_files
from lt_convert.formats.known_files import KnownFiles

if TYPE_CHECKING:
    from lt_convert.formats.checkpoint import Source, Target
    from lt_convert.tensors.output_files import OutputFile
    from lt_convert.tensors.source_files import Files


@dataclasses.dataclass(frozen=True)
class Format:
    """A checkpoint format; `name` is the value of --to and the `format` of a manifest.

    `module` reads and writes it. `known_files` lists the files in a checkpoint; a conversion warns of any further file.
    """

    name: str
    module: str
    known_files: tuple[KnownFiles, ...]
    # Whether --to can name it.
    is_written: bool = True
    # Whether a conversion writes the optimizer state.
    has_optimizer: bool = False
    # Whether lt-train or lt-convert may have put `checksums.json` beside its files. A repository of the Hub may have a file of
    # that name with other content.
    has_checksums: bool = True
    # Whether a checkpoint is a directory in the one of a run, which has the tokenizer and the tracker file.
    is_in_run: bool = False
    # Whether `config.json` may be in a directory above the checkpoint.
    has_config_above: bool = False
    # Whether the result depends on --target options, so that a conversion from the format to itself is of use.
    has_target_options: bool = False
    # Whether --quantize applies.
    is_quantizable: bool = False
    # Whether Megatron's arguments are written, and a warning names the features that stock Megatron-LM has no argument for.
    warns_of_arguments: bool = False
    # Whether the model is megatron-core's HybridModel.
    is_hybrid: bool = False

    def _load(self) -> Any:
        """Import the module when it is first used: the command line lists all formats, and a conversion uses two."""
        return importlib.import_module(f"lt_convert.formats.{self.module}")

    @property
    def table(self) -> str:
        table: str = self._load().TABLE
        return table

    def recognise(self, names: Sequence[str]) -> bool:
        is_recognised: bool = self._load().recognise(names)
        return is_recognised

    def open_source(self, directory: str, files: "Files") -> "Source":
        source: Source = self._load().open_source(directory, files)
        return source

    def outputs(self, target: "Target") -> "list[OutputFile]":
        outputs: list[OutputFile] = self._load().outputs(target)
        return outputs


HUGGINGFACE = Format(
    "hf",
    "huggingface",
    known_files.HUGGINGFACE,
    has_checksums=False,
    has_config_above=True,
    is_quantizable=True,
)
MEGATRON_DIST = Format(
    "megatron-dist",
    "megatron.torch_dist",
    known_files.MEGATRON_DIST,
    has_optimizer=True,
    is_in_run=True,
    warns_of_arguments=True,
)
# Its files have the names of `megatron-dist`. The names of the tensors tell the two formats apart (`location.locate`).
MEGATRON_HYBRID = Format(
    "megatron-hybrid",
    "megatron.hybrid",
    known_files.MEGATRON_DIST,
    has_optimizer=True,
    is_in_run=True,
    warns_of_arguments=True,
    is_hybrid=True,
)
MEGATRON_LEGACY = Format(
    "megatron-legacy",
    "megatron.legacy",
    known_files.MEGATRON_LEGACY,
    is_in_run=True,
    has_target_options=True,
)
TORCHTITAN = Format(
    "torchtitan",
    "torchtitan",
    known_files.TORCHTITAN,
    has_optimizer=True,
    has_config_above=True,
)
MEGATRON_FSDP = Format(
    "megatron-fsdp",
    "megatron.fsdp",
    known_files.MEGATRON_FSDP,
    is_written=False,
    has_checksums=False,
)

OLMO_CORE = Format(
    "olmo-core",
    "olmo_core",
    known_files.OLMO_CORE,
    is_written=False,
    has_checksums=False,
)

# A directory is compared with the formats in this order; help and errors list them in this order, too.
_ALL = (
    HUGGINGFACE,
    MEGATRON_DIST,
    MEGATRON_HYBRID,
    MEGATRON_LEGACY,
    TORCHTITAN,
    MEGATRON_FSDP,
    OLMO_CORE,
)
FORMATS = {one.name: one for one in _ALL}
WRITTEN = tuple(one.name for one in _ALL if one.is_written)


def recognise(names: Sequence[str]) -> str | None:
    """The name of the format of a directory with these names (of files and directories) in it, None for none."""
    return next((name for name in WRITTEN if FORMATS[name].recognise(names)), None)


def names_with(property_name: str) -> str:
    """The names of the written formats that have a property of `Format`, for help and errors."""
    return ", ".join(name for name in WRITTEN if getattr(FORMATS[name], property_name))
