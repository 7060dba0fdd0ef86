"""Files beside the weights of a Hugging Face model, apart from the tokenizer: model card, licence, settings of generation.

The files are carried unchanged. Formats without a place for them keep them in the directory `huggingface` of the run, together
with the ids of special tokens in `config.json`. Each format names the files that it does not carry.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lt_convert.formats import FORMATS
from lt_convert.formats.directories import listing
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.tokenizers import discovery
from lt_convert.tokenizers.huggingface_tokenizer import GENERATION, SPECIAL_IDS
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import strict_json
from lt_shared.files.checksums import FileChecksums
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

DIRECTORY = "huggingface"
IDS = "special_token_ids.json"
MAXIMUM_BYTES = 50_000_000
_CARRIED = re.compile(
    r"README(\.\w+)?|MODEL_CARD\.md|CITATION\.(cff|bib)|(LICEN[CS]E|COPYING|NOTICE|USE_POLICY|ACCEPTABLE_USE_POLICY)([-_.][\w.-]+)?"
    r"|(\w+_)?(pre)?processor_config\.json|generation_config\.json|chat_template\.(jinja|json)|custom_generate\.py"
)
# Traces of git, of the Hub's tools and of lt-convert itself say nothing about a model.
_TRACES = re.compile(r"\.git(attributes|ignore|modules)?|\.cache|\.huggingface|\.DS_Store|\.lt-convert.*|\..*\.(lock|partial\S*)")
_OF_EVERY_FORMAT = {
    *(checkpoint_layout.TOKENIZER_DIRECTORY, checkpoint_layout.RECORD, checkpoint_layout.TRACKER, Checksums.RECORD),
    *(DIRECTORY, FileChecksums.NAME),
}


def read(directory: str, files: Files) -> dict[str, bytes]:
    """The carried files in a directory by name; empty if there is no such directory."""
    try:
        listed = listing(directory)
    except NoInput:
        return {}
    names = [name for name in listed if _CARRIED.fullmatch(name) or name == IDS]
    paths = {name: f"{directory}/{name}" for name in names}
    return {name: files.read(path, 0, size) for name, path in paths.items() if (size := files.size_bytes(path)) <= MAXIMUM_BYTES}


def stored_fields(run: str, tokenizer: TokenizerFiles | None, files: Files) -> dict[str, Any]:
    """The fields of a `Source` for what an earlier conversion kept in the directory `huggingface` of a run.

    The ids of special tokens count only without a tokenizer, which may be another one by now.
    """
    discovery.check_owner(run, f"{run}/{DIRECTORY}", run)
    contents = read(f"{run}/{DIRECTORY}", files)
    for name in contents:
        discovery.check_owner(f"{run}/{DIRECTORY}", f"{run}/{DIRECTORY}/{name}", run)
    ids = contents.pop(IDS, None)
    try:
        special = None if ids is None else {name: value for name, value in strict_json.loads(ids).items() if name in SPECIAL_IDS}
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadData(f"{run}/{DIRECTORY}/{IDS}: not a JSON object: {error}", "delete it") from None
    return {"beside": contents, "special_ids": None if tokenizer else special, "generation": contents.get(GENERATION)}


def outputs(
    beside: Mapping[str, bytes], special_ids: Mapping[str, Any] | None, tokenizer: TokenizerFiles | None
) -> list[OutputFile]:
    """The files of a run that keep what lay beside a Hugging Face model, in its directory `huggingface`.

    Files that are kept with the tokenizer are left out.
    """
    of_tokenizer = {tokenizer.relative_name(path) for path in tokenizer.all_files} if tokenizer else set()
    ids = {name: value for name, value in (special_ids or {}).items() if value is not None}
    files = {name: content for name, content in beside.items() if name not in of_tokenizer}
    files |= {IDS: (json.dumps(ids, indent=2) + "\n").encode()} if ids else {}
    return [OutputFile(f"{DIRECTORY}/{name}", (content,)) for name, content in files.items()]


def not_carried(
    kind: str, names: Sequence[str], read_names: Iterable[str], tokenizer: TokenizerFiles | None, carried: Iterable[str]
) -> tuple[str, ...]:
    """The `names` in a checkpoint's directory of a format `kind` that its conversion does not take along.

    `read_names` are weights that were read and `carried` the files of `read`.
    """
    of_tokenizer = {tokenizer.relative_name(path).split("/")[0] for path in tokenizer.all_files} if tokenizer else set()
    carried_names = {*_OF_EVERY_FORMAT, *of_tokenizer, *read_names, *carried, *tokenizer_files.COMPANIONS}
    pattern = re.compile(FORMATS[kind].known_files)
    return tuple(
        name for name in names if name not in carried_names and not _TRACES.fullmatch(name) and not pattern.fullmatch(name)
    )
