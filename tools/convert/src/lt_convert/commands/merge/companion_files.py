"""Files beside the merged models and adapters that the result does not have: chat templates, licences, settings of generation.

The result has the files beside one model. Files of the others are compared with them, and a warning names those that differ.
"""

from collections.abc import Mapping, Sequence

from lt_convert.commands.conversion import SHOWN_FILES
from lt_convert.commands.merge.plan import Part
from lt_convert.formats import beside_model, known_files
from lt_convert.formats.checkpoint import Source
from lt_convert.formats.directories import listing, normalized
from lt_convert.formats.huggingface import adapters
from lt_convert.tensors.source_files import Files
from lt_shared.console import warn
from lt_shared.tokenizers import tokenizer_files

# A merge by token writes its own tokenizer, into which the tokens of all models went.
_VOCABULARY_FILES = frozenset(
    (*tokenizer_files.OTHER_FORMS, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
)
_ADAPTER_FILES = frozenset((adapters.CONFIG, adapters.WEIGHTS, adapters.FORMER_WEIGHTS))


def carried_files(source: Source) -> dict[str, bytes]:
    """Read the files that a conversion of `source` carries, by relative name: the tokenizer's files and `beside`."""
    tokenizer = source.tokenizer
    stored = {tokenizer.relative_name(path): path.read_bytes() for path in tokenizer.all_files} if tokenizer else {}
    return dict(source.beside) | stored


def lost_files_of_parts(result: Source, parts: Sequence[Part], by_token: bool) -> dict[str, list[str]]:
    """List the files beside each model of a merge that `result` lacks or has with another content, by directory of the model.

    `by_token` says that the result has a vocabulary of its own: files of tokenizers do not count.
    """
    carried = carried_files(result)
    lost: dict[str, list[str]] = {}
    for part in parts:
        stored_files = carried_files(part.source)
        if by_token:
            stored_files = {name: content for name, content in stored_files.items() if name not in _VOCABULARY_FILES}
        lost[part.source.directory] = differing_names(stored_files, carried)
        if part.source.directory != result.directory:
            lost[part.source.directory] += part.source.not_carried
    return lost


def lost_files_of_adapter(path: str, result: Source, files: Files) -> dict[str, list[str]]:
    """List the files beside an adapter that `result` lacks or has with another content, by directory of the adapter."""
    directory = normalized(path)
    beside = beside_model.read(directory, files)
    names = known_files.without_traces(listing(directory))
    unknown = [name for name in known_files.unknown_names(names, known_files.CARRIED) if name not in _ADAPTER_FILES]
    return {directory: differing_names(beside, carried_files(result)) + sorted(unknown)}


def differing_names(contents: Mapping[str, bytes], carried: Mapping[str, bytes]) -> list[str]:
    """List the names in `contents` that `carried` lacks or has with another content."""
    return sorted(name for name, content in contents.items() if carried.get(name) != content)


def warn_of_lost_files(lost: Mapping[str, Sequence[str]], kept_directory: str) -> None:
    """Warn of files by directory that the result does not have. `kept_directory` has the model whose files it has."""
    for directory, names in lost.items():
        if names:
            shown = ", ".join(names[:SHOWN_FILES]) + (" ..." if len(names) > SHOWN_FILES else "")
            warn(f"{directory}: not taken along: {shown} ({len(names)} in all): the files are those of {kept_directory}")
