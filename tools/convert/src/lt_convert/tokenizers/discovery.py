"""Find the tokenizer of a checkpoint; from a remote store its few files are copied to a temporary directory first."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files, check_downloaded
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Tokenizer, absolute
from lt_shared.files import ownership, storage, strict_json
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

# Vocabularies of 256,000 tokens take 35 MB as tokenizer.json.
MAXIMUM_BYTES = 200_000_000
SUFFIXES = (".json", ".model", ".txt", ".tiktoken", ".bpe", ".py", ".jinja")


def beside_model(directory: str, files: Files) -> TokenizerFiles | None:
    """Find the tokenizer in a model's directory; after a conversion the original files, not the derived tokenizer.json."""
    local_directory = _local(directory)
    record = local_directory / Checksums.RECORD
    original = ""
    if record.is_file():
        try:
            original = strict_json.loads(record.read_bytes()).get("tokenizer_file") or ""
            if original == ".." or Path(original).name != original:
                raise ValueError("tokenizer_file is not the name of a file beside it")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise BadData(f"{directory}/{Checksums.RECORD}: malformed: {error}", "delete the file") from None
    return _checked(_find(local_directory / original), directory, files)


def of_run(run: str, saved: Tokenizer | None, files: Files, name: str = "tokenizer") -> TokenizerFiles | None:
    """The tokenizer of a training run: in its directory `name`, or where the checkpoint says, if that is on this machine.

    A stranger's checkpoint does not choose which server is asked. Raises BadData when it is not the one that the checkpoint was
    trained with.
    """
    directory = f"{run}/{name}"
    check_owner(run, directory, run)
    sha256 = saved.sha256 if saved else None
    tokenizer = _checked(_find(_local(directory), sha256), directory, files)
    for name in map(tokenizer.relative_name, tokenizer.all_files) if tokenizer else ():
        check_owner(directory, f"{directory}/{name}", run)
    if saved and tokenizer is None and saved.path and not storage.is_remote(saved.path):
        tokenizer = _find(_local(saved.path), sha256)
    if saved and tokenizer and tokenizer.sha256() != saved.sha256:
        raise BadData(
            f"{tokenizer.directory}: not the tokenizer {saved.name} that the checkpoint was trained with",
            "put the tokenizer's own files there",
        )
    return tokenizer


def outputs(tokenizer: TokenizerFiles | None) -> list[OutputFile]:
    """The files of a tokenizer unchanged, in the directory that a run has for them."""
    files = tokenizer.contents() if tokenizer else {}
    return [OutputFile(f"{checkpoint_layout.TOKENIZER_DIRECTORY}/{name}", (content,)) for name, content in files.items()]


def recorded(tokenizer: TokenizerFiles | None, destination: str) -> Tokenizer | None:
    """The tokenizer as recorded in a checkpoint at `destination`, where its `outputs` are written beside it."""
    if tokenizer is None:
        return None
    path = absolute(f"{destination}/{checkpoint_layout.TOKENIZER_DIRECTORY}")
    return Tokenizer(tokenizer.name, tokenizer.sha256(), path)


def _checked(tokenizer: TokenizerFiles | None, directory: str, files: Files) -> TokenizerFiles | None:
    """Raise BadData if a file differs from the conversion's record, or if its JSON has two readings.

    The files are copied unchanged: a reader of the copy must find the same content as this function.
    """
    if tokenizer is None:
        return None
    for path in tokenizer.all_files:
        name = f"{directory}/{tokenizer.relative_name(path)}"
        content = path.read_bytes()
        check_downloaded(name, content)
        if path.suffix == ".json":
            try:
                strict_json.loads(content)
            except ValueError as error:
                raise BadData(f"{name}: not as one reads it for all: {error}", "mend the file") from None
        if files.reader.is_recorded(name):
            files.read(name, 0, files.size_bytes(name))
    return tokenizer


def check_owner(directory: str, path: str, run: str) -> None:
    """Raises BadData for what somebody has put beside another's checkpoint, in a directory where anyone may."""
    if storage.is_remote(run) or not os.path.lexists(path):
        return
    status = os.lstat(path)
    other = status.st_uid not in (0, os.stat(run).st_uid) and ownership.belongs_to_other(status, directory)
    if other:
        raise BadData(f"{path}: {other}, who has not made {run}", "copy the checkpoint and its own tokenizer elsewhere")


def _find(path: Path, sha256: str | None = None) -> TokenizerFiles | None:
    """The tokenizer at `path`, of several in a directory the one with this hash, if there is one."""
    if not path.exists():
        return None
    try:
        return tokenizer_files.find(path) if sha256 is None else tokenizer_files.find_made_with(path, sha256)
    except NoInput:
        return None


def _local(directory: str) -> Path:
    """The directory, or a copy of what may be a tokenizer in a remote one."""
    if not storage.is_remote(directory):
        return Path(directory)
    temporary = Path(tempfile.mkdtemp(prefix="lt-convert-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    copy = temporary / directory.rstrip("/").rsplit("/", 1)[-1]
    copy.mkdir()
    for name, size in storage.sizes_below(directory).items():
        folder, _, _ = name.rpartition("/")
        is_beside = not folder or folder in tokenizer_files.TEMPLATE_FOLDERS
        if is_beside and name.endswith(SUFFIXES) and size <= MAXIMUM_BYTES and not name.endswith(".index.json"):
            (copy / folder).mkdir(exist_ok=True)
            (copy / name).write_bytes(storage.read_bytes(f"{directory}/{name}"))
    return copy
