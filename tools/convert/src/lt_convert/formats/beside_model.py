"""Files beside the weights of a Hugging Face model, apart from the tokenizer: model card, licence, settings of generation.

The files are carried unchanged. Formats without a place for them keep them in the directory `huggingface` of the run, together
with the ids of special tokens in `config.json`. known_files.py lists the files of each format; all others are named.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_convert.formats import FORMATS, known_files
from lt_convert.formats.directories import listing
from lt_convert.formats.known_files import DIRECTORY as DIRECTORY
from lt_convert.formats.known_files import Fate
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.tokenizers import discovery
from lt_convert.tokenizers.huggingface_tokenizer import GENERATION, SPECIAL_IDS
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import storage, strict_json
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

IDS = "special_token_ids.json"
TOKENIZER_HASH = "tokenizer_sha256"
MAXIMUM_BYTES = 50_000_000


def read(directory: str, files: Files) -> dict[str, bytes]:
    """Read the carried files in a directory, by relative name. Files above MAXIMUM_BYTES are left out.

    Returns no files if there is no such directory.
    """
    names = [name for name in _names(directory) if known_files.is_carried(name) or name == IDS]
    paths = {name: f"{directory}/{name}" for name in names}
    return {name: files.read(path, 0, size) for name, path in paths.items() if (size := files.size_bytes(path)) <= MAXIMUM_BYTES}


def _names(directory: str) -> list[str]:
    """List the names in a directory; instead of a folder of chat templates, the names in the folder."""
    try:
        names = listing(directory)
    except NoInput:
        return []
    folders = [name for name in names if name in tokenizer_files.TEMPLATE_FOLDERS]
    inside = [f"{folder}/{name}" for folder in folders for name in listing(f"{directory}/{folder}")]
    return sorted({*names} - {*folders}) + inside


def stored_fields(
    format_name: str, run: str, names: Sequence[str], tokenizer: TokenizerFiles | None, files: Files
) -> dict[str, Any]:
    """Read what an earlier conversion kept in the directory `huggingface` of a run, as fields of a `Source`.

    `names` are those in the checkpoint's directory. The ids of special tokens count if the run has the tokenizer of that
    conversion, or none. Raises BadData for a malformed file of ids.
    """
    directory = f"{run}/{DIRECTORY}"
    discovery.check_owner(run, directory, run)
    contents = read(directory, files)
    for name in contents:
        discovery.check_owner(directory, f"{directory}/{name}", run)
    ids = contents.pop(IDS, None)
    try:
        special = None if ids is None else dict(strict_json.loads(ids))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadData(f"{directory}/{IDS}: not a JSON object: {error}", "delete it") from None
    if special is not None and tokenizer is not None and special.get(TOKENIZER_HASH) != tokenizer.sha256():
        special = None
    if special is not None:
        special = {name: value for name, value in special.items() if name in SPECIAL_IDS}
    kept = [f"{DIRECTORY}/{name}" for name in _names(directory) if name != IDS and name not in contents]
    return {
        "beside": contents,
        "special_ids": special,
        "generation": contents.get(GENERATION),
        "state_files": tuple(known_files.names_with(Fate.STATE, names, FORMATS[format_name].known_files)),
        "not_carried": (
            *known_files.unknown_names(names, FORMATS[format_name].known_files),
            *_unread(run, tokenizer),
            *known_files.without_traces(kept),
        ),
    }


def _unread(run: str, tokenizer: TokenizerFiles | None) -> list[str]:
    """List the files in the run's directory of the tokenizer that are no part of the tokenizer."""
    folder = checkpoint_layout.TOKENIZER_DIRECTORY
    directory = f"{run}/{folder}"
    if tokenizer is None or storage.is_remote(run) or tokenizer.directory != Path(directory):
        return []
    tokenizer_names = {tokenizer.relative_name(path) for path in tokenizer.all_files} | {tokenizer_files.MODEL_CONFIGURATION}
    return [f"{folder}/{name}" for name in known_files.without_traces(_names(directory)) if name not in tokenizer_names]


def outputs(
    beside: Mapping[str, bytes], special_ids: Mapping[str, Any] | None, tokenizer: TokenizerFiles | None
) -> list[OutputFile]:
    """The files of a run that keep what lay beside a Hugging Face model, in its directory `huggingface`.

    Files that are kept with the tokenizer are left out.
    """
    of_tokenizer = {tokenizer.relative_name(path) for path in tokenizer.all_files} if tokenizer else set()
    files = {name: content for name, content in beside.items() if name not in of_tokenizer}
    if special_ids:
        ids = dict(special_ids) | ({TOKENIZER_HASH: tokenizer.sha256()} if tokenizer else {})
        files[IDS] = (json.dumps(ids, indent=2) + "\n").encode()
    return [OutputFile(f"{DIRECTORY}/{name}", (content,)) for name, content in files.items()]


def not_carried(
    format_name: str,
    directory: str,
    read_names: Iterable[str],
    tokenizer: TokenizerFiles | None,
    carried: Iterable[str],
) -> tuple[str, ...]:
    """List the files in the directory of a Hugging Face model that its conversion does not take along.

    `read_names` are weights that were read and `carried` the files of `read`.
    """
    of_tokenizer = {tokenizer.relative_name(path) for path in tokenizer.all_files} if tokenizer else set()
    names = {*_names(directory)} - {*read_names} - {*carried} - of_tokenizer
    known = [files for files in FORMATS[format_name].known_files if files.fate is not Fate.CARRIED]
    return tuple(sorted(known_files.unknown_names(names, known)))
