"""What lies at a destination, and whether a conversion may replace it: a checkpoint, and never anything else that is with it.

`--force` replaces a directory as a whole. Its name may be a slip, and people keep notes beside their models. So every file in it
must have a name that checkpoints have, or be listed in the `lt-convert.json` there; otherwise nothing is deleted.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator

from lt_convert.engine.journal import JOURNAL
from lt_convert.engine.ledger import STATE
from lt_convert.engine.receipt import ConversionRecord
from lt_convert.tensors.checksums import Checksums
from lt_shared.console import BadData, CannotCreate
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import ownership, storage
from lt_shared.files.checksums import FileChecksums
from lt_shared.tokenizers import tokenizer_files

SHOWN = 3

_ITERATION = r"(?:iter_\d{7,}|release)/"
_TOKENIZER = "|".join(
    [
        *map(re.escape, (*tokenizer_files.NAMED_FILES, *tokenizer_files.COMPANIONS)),
        r"merges\.txt|gpt2-merges\.txt|vocab\.bpe|vocab\.txt|added_tokens\.json|[\w.-]+\.tiktoken|tokenization_\w+\.py",
        r"tokenizer\.model\.v\d\w*|chat_template\.(?:json|jinja)|spiece\.model|sentencepiece\.bpe\.model",
        rf"(?:{'|'.join(tokenizer_files.TEMPLATE_FOLDERS)})/[^/]+\.jinja",
    ]
)
_DCP = r"\.metadata|__\d+_\d+\.distcp"
_RECORDS = rf"common\.pt|metadata\.json|{re.escape(checkpoint_layout.RECORD)}|{re.escape(FileChecksums.NAME)}"
_RANK = r"mp_rank_\d{2,}(?:_\d{3,}){0,2}/(?:model_optim_rng|model_rng|distrib_optim)\.pt"
_SAFETENSORS = r"(?:model|padding|consolidated)(?:-\d+-of-\d+)?\.safetensors(?:\.index\.json)?"
_TORCH = r"pytorch_model(?:-\d+-of-\d+)?\.bin(?:\.index\.json)?|consolidated\.\d+\.pth"
# A directory that contains such a file is a checkpoint.
_CORE = re.compile(rf"{_SAFETENSORS}|{_TORCH}|(?:{_ITERATION}|step-\d+/)?(?:{_DCP})|(?:{_ITERATION})?{_RANK}")
# Files that the Hub, its tools and Megatron put beside a checkpoint.
_BESIDE = re.compile(
    rf"(?:{_ITERATION}|step-\d+/)?(?:{_RECORDS})|{re.escape(checkpoint_layout.TRACKER)}"
    rf"|(?:tokenizer/|original/)?(?:{_TOKENIZER})|config\.json|params\.json|preprocessor_config\.json"
    r"|(?:modeling|configuration)_\w+\.py|original/(?:params\.json|consolidated\.\d+\.pth)"
    r"|README\.md|\.gitattributes|\.gitignore|(?:LICENSE|NOTICE)(?:-MODEL|-CODE)?(?:\.txt|\.md)?|USE_POLICY\.md"
    r"|(?:\.cache/huggingface|\.huggingface)/(?:\.gitignore|CACHEDIR\.TAG|download/.+\.(?:metadata|lock|incomplete))"
    rf"|latest_wandb_artifact_path\.txt|lt-convert\.padding|{re.escape(Checksums.RECORD)}|{re.escape(JOURNAL)}|{re.escape(STATE)}/[^/]+"
)
_FOLDER = re.compile(rf"(?:{_ITERATION}(?:mp_rank_[\d_]+/)?|mp_rank_[\d_]+/|step-\d+/|tokenizer/|original/|\.cache/|"
                     rf"\.cache/huggingface/(?:.+/)?|\.huggingface/(?:.+/)?|{re.escape(STATE)}/)")  # fmt: skip


def looks_like_checkpoint(name: str) -> bool:
    """Whether a checkpoint, in any format that is read or written here, may have a file of this name (relative to it)."""
    return bool(_CORE.fullmatch(name) or _BESIDE.fullmatch(name))


def occupied(destination: str) -> CannotCreate:
    return CannotCreate(f"{destination}: exists and is not empty", "choose another output or pass --force")


def check_replaceable(destination: str, journaled: Collection[str] = ()) -> None:
    """Raise CannotCreate, naming some, for files and folders at the destination that are no part of a checkpoint.

    An interrupted conversion has `journaled` the names of all planned files, even if few of these files exist yet.
    """
    names = list(_names(destination))
    if not names:
        return
    try:
        record = ConversionRecord.read(destination)
    except BadData:
        record = None
    listed = {*record.files.sizes} if record else set()
    if names != [JOURNAL] and not any(_CORE.fullmatch(name) or name in listed for name in (*names, *journaled)):
        raise _foreign(destination, names, "holds no checkpoint, only")
    folders = {name[: name.rindex("/") + 1] for name in listed if "/" in name}
    replaceable = {*listed, *folders, *(name for name in names if looks_like_checkpoint(name) or _FOLDER.fullmatch(name))}
    check_only(destination, names, replaceable)
    if not storage.is_remote(destination):
        for path in (destination, *(os.path.join(destination, name.rstrip("/")) for name in names)):
            ownership.check_owner(path)


def check_only(destination: str, names: Iterable[str], expected: Collection[str]) -> None:
    """Raise CannotCreate if one of the names is not among the `expected` ones."""
    foreign = sorted(name for name in names if name not in expected)
    if foreign:
        raise _foreign(destination, foreign, "holds what no conversion wrote:")


def _foreign(destination: str, names: list[str], what: str) -> CannotCreate:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(sorted(names)[:SHOWN])
    return CannotCreate(
        f"{destination}: {what} {shown}{more}", "nothing was deleted: move that elsewhere, or choose another output"
    )


def _names(destination: str) -> Iterator[str]:
    """List the files and folders at and below the destination. Folders end with a slash; links are not followed."""
    if storage.is_remote(destination):
        yield from storage.sizes_below(destination)
        return
    for folder, folders, files in os.walk(destination):
        place = os.path.relpath(folder, destination)
        prefix = "" if place == "." else f"{place}/"
        for name in folders:
            is_link = os.path.islink(os.path.join(folder, name))
            yield f"{prefix}{name}" if is_link else f"{prefix}{name}/"
        yield from (f"{prefix}{name}" for name in files)


def check_own(destination: str, names: Iterable[str]) -> None:
    """Raises CannotCreate for a finished result at the destination that may be another user's work."""
    reason = None if storage.is_remote(destination) else _reason_for_distrust(destination, names)
    if reason is not None:
        raise CannotCreate(f"{destination}: exists, and {reason}", "choose another output, or remove it if it is not needed")


def check_links(destination: str) -> None:
    """Raises CannotCreate when a stranger's link, in a directory where anyone may put one, leads to the destination.

    Linux refuses to follow such links, too, where `fs.protected_symlinks` is set.
    """
    if not destination or storage.is_remote(destination.removeprefix("file://")):
        return
    path = os.path.abspath(destination.removeprefix("file://"))
    parts = path.split("/")
    for count in range(2, len(parts) + 1):
        place = "/".join(parts[:count])
        try:
            link = os.lstat(place)
            parent = os.stat(os.path.dirname(place))
        except OSError:
            return
        if stat.S_ISLNK(link.st_mode) and parent.st_mode & stat.S_IWOTH and link.st_uid not in (0, os.geteuid(), parent.st_uid):
            raise CannotCreate(
                f"{destination}: {place} is a link that another user (uid {link.st_uid}) has put there", "choose another output"
            )


def _reason_for_distrust(destination: str, names: Iterable[str]) -> str | None:
    """Return why the finished result at a local destination may be another user's work; None if it cannot be.

    A user who owns a result, or may write to it, decides which bytes the next program reads: such a result is not "up to date".
    Root may change everything anyway, so root's results are accepted.
    """
    parts = {".", Checksums.RECORD}
    for name in names:
        pieces = name.split("/")
        parts |= {"/".join(pieces[: count + 1]) for count in range(len(pieces))}
    for part in sorted(parts):
        path = os.path.normpath(os.path.join(destination, part))
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(status.st_mode):
            return f"{path} is a symbolic link"
        reason = status.st_uid != 0 and ownership.belongs_to_other(status, os.path.dirname(path))
        reason = reason or ownership.writable_by_others(status, os.path.dirname(path), 0o666)
        if reason:
            return f"{path} {reason}"
    return None
