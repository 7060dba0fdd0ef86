"""The plan of a command, checked before any work: the inputs exist, the tokenizer is loaded, the outputs have names.

The fingerprint of a plan covers everything that can change a byte of the result: every input (size and modification time, or the
object's version on a remote store), the tokenizer and the options. A dataset with this fingerprint is up to date, and an
interrupted run with this fingerprint resumes. The number of workers is not part of it, nor is `--on-error`, which matters only
for bad lines.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lt_preprocess.curation.rules import NO_RULES, Rules
from lt_preprocess.documents import recipe as recipes
from lt_preprocess.documents.conversation_filter import Conversations
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.pipeline import chat_plan
from lt_preprocess.pipeline.chat_plan import Chat
from lt_preprocess.readers import inputs, text_template
from lt_preprocess.readers.inputs import SampleBy
from lt_preprocess.readers.slices import Slice
from lt_preprocess.tokenizers import beginning_of_document
from lt_preprocess.tokenizers import loading as tokenizers
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_shared.console import BadConfig, CannotCreate, UsageError, note, warn
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.files import storage
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from lt_preprocess.curation.duplicates import DuplicateList

RESULT_VERSION = 2
"""Raised when the same inputs, tokenizer and options give other bytes than in an earlier version."""

REQUESTS_AT_ONCE = 32
# The parts of a stream: the first is tokenized within a second, the later ones are large enough to be shuffled within.
FIRST_PART_TOKENS, LARGEST_PART_TOKENS = 1 << 22, 1 << 28

OnError = Literal["fail", "skip", "quarantine"]


TokenType = Literal["uint16", "int32"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What changes the result, besides the inputs and the tokenizer. `max_shard_bytes` is the most that a .bin may have.

    The parts of a `stream` begin small and double. `template` makes the text of a document from several fields; `bos` is the
    token that begins documents, None for none; `dtype` None is the smallest type for the vocabulary.
    """

    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    on_error: OnError = "fail"
    special_tokens: SpecialTokens = "text"
    shard: Slice | None = None
    max_shard_bytes: int | None = None
    stream: bool = False
    sample_by: SampleBy = "document"
    rules: Rules = NO_RULES
    template: str | None = None
    bos: int | None = None
    max_document_tokens: int | None = None
    limit_documents: int | None = None
    limit_tokens: int | None = None
    fim: FillInTheMiddle | None = None
    dtype: TokenType | None = None
    chat: Chat | None = None

    def to_record(self) -> dict[str, Any]:
        """Leave out newer options that have their default, so that older fingerprints stay valid."""
        record = dataclasses.asdict(self)
        del record["rules"]
        newer = {name: value for name, value in record.items() if name not in _NEWER or value != _NEWER[name]}
        return newer | self.rules.to_record()

    @property
    def has_parts(self) -> bool:
        return self.stream or self.max_shard_bytes is not None

    def most_tokens(self, part: int, token_bytes: int) -> int | None:
        """The most tokens that a part may have, None for all: it depends on the text alone, never on time."""
        stated = None if self.max_shard_bytes is None else self.max_shard_bytes // token_bytes
        return min(stated or LARGEST_PART_TOKENS, FIRST_PART_TOKENS << min(part, 32)) if self.stream else stated


_NEWER = {"stream": False, "sample_by": "document"} | dict.fromkeys(
    ("template", "bos", "max_document_tokens", "limit_documents", "limit_tokens", "fim", "dtype", "chat")
)
"""Options that older versions did not have, with their defaults."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A command that has been checked.

    `sources` are fingerprints of `paths`, None with standard input or a pipe among them; `prefix` is the start of all output
    names, with the shard's number. `conversations` is set for chat files.
    """

    prefix: str
    paths: list[str]
    sources: list[dict[str, Any]] | None
    tokenizer: Tokenizer
    identity: manifest.Tokenizer
    options: Options
    rules_fingerprint: dict[str, Any] = dataclasses.field(default_factory=dict)
    conversations: Conversations | None = None

    @property
    def duplicates(self) -> "DuplicateList | None":
        """The duplicates to remove. Raises as `DuplicateList`."""
        path, options = self.options.rules.duplicates, self.options
        if path is None:
            return None
        from lt_preprocess.curation.duplicates import DuplicateList
        from lt_preprocess.curation.signature_files import Compared

        return DuplicateList(path, self.sources, Compared(options.json_keys, options.sample_by, options.template))

    @property
    def dtype(self) -> str:
        return self.options.dtype or indexed_dataset.dtype_for(self.tokenizer.vocab_size).name

    @property
    def eod(self) -> int | None:
        """The token that ends each document, if the options ask for one."""
        return self.tokenizer.eod if self.options.append_eod else None

    @property
    def eod_name(self) -> str:
        """The token that ends documents, as text."""
        return "" if self.tokenizer.eod is None else self.name_of_token(self.tokenizer.eod)

    def name_of_token(self, token: int) -> str:
        """A special token as documents would spell it."""
        names = {number: name for name, number in self.tokenizer.special_tokens.items()}
        return names.get(token) or self.tokenizer.decode([token]).decode("utf-8", "replace")

    @functools.cached_property
    def recipe(self) -> recipes.Recipe:
        """How the chunks of the inputs become documents."""
        options = self.options
        form = DocumentForm(np.dtype(self.dtype), options.bos, self.eod, options.max_document_tokens, options.fim)
        if self.conversations is not None:
            return recipes.of_conversations(options.json_keys[0], self.conversations, form, self.tokenizer)
        return recipes.make(options.json_keys, options.template, form)

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """The fields of the template that documents need not fill."""
        return () if self.options.template is None else text_template.parse(self.options.template).optional_fields

    @property
    def fingerprint(self) -> str | None:
        """None with standard input or a pipe: nobody can tell whether it is the same again."""
        if self.sources is None:
            return None
        options = self.options.to_record() | self.rules_fingerprint
        del options["on_error"]
        record = {
            "v": RESULT_VERSION,
            "sources": self.sources,
            "tokenizer": [self.identity.sha256, self.tokenizer.vocab_size, self.tokenizer.eod],
            "options": options,
        }
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def part_prefix(self, part: int) -> str:
        """Return the prefix of a part's outputs. Without a size limit there is one part, without a number."""
        return self.prefix if not self.options.has_parts else f"{self.prefix}-part{part:05d}"

    @property
    def stream(self) -> str | None:
        """The name of the stream whose parts are made, if they are."""
        return f"{self.prefix}_{self.options.json_keys[0]}_document" if self.options.stream else None

    def dataset_prefixes(self, part: int) -> list[str]:
        """One dataset for each key."""
        return [f"{self.part_prefix(part)}_{key}_document" for key in self.options.json_keys]

    def output_prefixes(self, part: int) -> list[str]:
        """Every pair of `.bin` and `.idx` that is written, in the order in which they are published: a loss mask comes first."""
        prefixes = self.dataset_prefixes(part)
        return prefixes if self.options.chat is None else [*map(indexed_dataset.mask_prefix, prefixes), *prefixes]

    def dtype_of(self, output_prefix: str) -> str:
        """The dtype of a dataset or of a loss mask."""
        return indexed_dataset.MASK_DTYPE.name if indexed_dataset.is_mask(output_prefix) else self.dtype

    def quarantine_path(self, part: int) -> str:
        return f"{self.part_prefix(part)}_quarantine.jsonl"

    def to_record(self) -> dict[str, Any]:
        """The plan as `--dry-run` prints it."""
        prefixes = self.output_prefixes(0)
        return {
            "v": RESULT_VERSION,
            "kind": "plan",
            "prefix": self.dataset_prefixes(0)[0],
            "outputs": [f"{prefix}{extension}" for prefix in prefixes for extension in (".bin", ".idx", ".json")],
            "inputs": self.sources or [{"path": path} for path in self.paths],
            "tokenizer": dataclasses.asdict(self.identity),
            "vocab_size": self.tokenizer.vocab_size,
            "eod": self.tokenizer.eod,
            "dtype": self.dtype,
            "options": self.options.to_record(),
        }


def plan(
    patterns: Sequence[str],
    files: TokenizerFiles,
    tokenizer_path: str | Path,
    output_prefix: str,
    options: Options,
    eod_token: str | None = None,
    bos_token: str | None = None,
) -> Plan:
    """Check everything that can be checked before work begins. `files` is the tokenizer that the user called `given`.

    `eod_token` names a special token that ends documents instead of the tokenizer's own choice, `bos_token` one that begins them
    ("" for the tokenizer's own choice).

    Raises: NoInput for a missing input, BadData for a tokenizer that cannot be read, BadConfig when `append_eod` asks for a token
    that the tokenizer does not have, UsageError for options that contradict each other, CannotCreate for a directory that is not
    there and for an output that is also an input.
    """
    if len(set(options.json_keys)) < len(options.json_keys):
        raise UsageError("a key is given twice in --json-keys")
    if options.stream and len(options.json_keys) > 1:
        raise UsageError("--stream and several --json-keys", "a stream is of one key: start a command for each")
    if options.max_document_tokens is not None:
        if len(options.json_keys) > 1:
            raise UsageError(
                "--max-document-tokens and several --json-keys: their documents would not be the same", "start a command for each"
            )
        if options.fim is not None:
            raise UsageError("--max-document-tokens and --fim-rate: a cut would part the middle from its prefix and suffix")
    if options.template is not None:
        text_template.parse(options.template)
    if options.chat is not None:
        chat_plan.check(options.chat, options.template, options.sample_by, options.fim, options.rules)
    for key in options.json_keys:
        if "/" in key or not key:
            raise UsageError(f"--json-keys {key!r}: cannot be a part of a file name")
    paths = inputs.expand_patterns(patterns)
    if paths.count(inputs.STDIN) > 1:
        raise UsageError("- (standard input) is given twice; it can be read once")
    if inputs.STDIN in paths and options.shard is not None:
        raise UsageError("- (standard input) cannot be read in shards", "write it to a file first")
    if twice := _given_twice(paths):
        warn(f"{twice}: some inputs are given more than once, and are read as often")
    sources = _fingerprints(paths) if all(map(_can_be_read_again, paths)) else None
    loaded = tokenizers.load(files, options.special_tokens if options.chat is None else "parse")
    if eod_token is not None:
        _end_with(loaded, eod_token, options)
    if options.append_eod and loaded.eod is None:
        raise BadConfig(
            f"{tokenizer_path}: this tokenizer has no end-of-document token for --append-eod",
            "name one of its special tokens with --eod-token, or leave --append-eod out",
        )
    if empty := [source["path"] for source in sources or () if source.get("size_bytes") == 0]:
        more = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        warn(f"{empty[0]}{more}: empty: a failed copy, or no documents")
    if bos_token is not None:
        options = dataclasses.replace(options, bos=_bos(loaded, files, bos_token))
    elif bos := beginning_of_document.added_by_template(files):
        note(f"{files.name}: transformers begins texts with {bos}; --prepend-bos begins documents with it")
    if options.fim is not None:
        options = dataclasses.replace(options, fim=options.fim.resolved(loaded))
    if options.dtype is not None and loaded.vocab_size - 1 > np.iinfo(options.dtype).max:
        raise BadConfig(f"--dtype {options.dtype}: too small for the {loaded.vocab_size:,} entries of this tokenizer")
    conversations = None
    if options.chat is not None:
        conversations = chat_plan.conversations(options.chat, files, loaded, options.special_tokens == "reject")
        options = dataclasses.replace(options, chat=options.chat.resolved(conversations.template))
    prefix = _checked_prefix(output_prefix)
    if options.shard is not None:
        prefix = f"{prefix}-{options.shard.index:05d}-of-{options.shard.count:05d}"
    _check_that_no_input_is_an_output(paths, prefix, options)
    identity = tokenizers.identity(files, tokenizer_path)
    checked_plan = Plan(prefix, paths, sources, loaded, identity, options, options.rules.fingerprint(), conversations)
    if (duplicates := checked_plan.duplicates) is not None:
        duplicates.check()
    return checked_plan


def _given_twice(paths: Sequence[str]) -> str | None:
    """The first input that is another one again: the same path, or another path to the same file."""
    seen_files: set[object] = set()
    for path in paths:
        is_local = path != inputs.STDIN and not storage.is_remote(path) and os.path.isfile(path)
        status = os.stat(path) if is_local else None
        file = path if status is None else (status.st_dev, status.st_ino)
        if file in seen_files:
            return inputs.display_name(path)
        seen_files.add(file)
    return None


def _end_with(tokenizer: Tokenizer, token: str, options: Options) -> None:
    if not options.append_eod:
        raise UsageError(f"--eod-token {token} ends no document without --append-eod")
    tokenizer.eod = _special_token(tokenizer, token, "--eod-token")


def _special_token(tokenizer: Tokenizer, token: str, option: str) -> int:
    if token not in tokenizer.special_tokens:
        similar = difflib.get_close_matches(token, tokenizer.special_tokens, 3) or list(tokenizer.special_tokens)[:3]
        raise BadConfig(f"{option} {token}: not a special token of this tokenizer", f"for example {', '.join(similar)}")
    return tokenizer.special_tokens[token]


def _bos(tokenizer: Tokenizer, files: TokenizerFiles, token: str) -> int:
    """The token that begins documents; `token` is "" for the one that the tokenizer's files name."""
    if token:
        return _special_token(tokenizer, token, "--bos-token")
    bos = beginning_of_document.find(files, tokenizer)
    if bos is None:
        raise BadConfig(
            f"{files.name}: no beginning-of-document token is known for this tokenizer",
            "name one of its special tokens with --bos-token, or leave --prepend-bos out",
        )
    return bos


def _checked_prefix(prefix: str) -> str:
    """The prefix as an absolute path. Raises UsageError when it names no file, CannotCreate when nothing can be created there."""
    # What follows a store's scheme is the bucket.
    name = prefix.partition("://")[2].partition("/")[2] if storage.is_remote(prefix) else prefix
    if os.path.basename(name) in ("", ".", ".."):
        raise UsageError(
            f"-o {prefix or repr(prefix)}: the outputs have no name", f"for example -o {os.path.join(prefix, 'web')}"
        )
    if not storage.is_remote(prefix):
        directory = os.path.dirname(prefix) or "."
        if not os.path.isdir(directory):
            raise CannotCreate(f"{directory}: no such directory", f"mkdir -p {directory}")
        if not os.access(directory, os.W_OK):
            raise CannotCreate(f"{directory}: not writable")
    return manifest.absolute(prefix)


def _check_that_no_input_is_an_output(paths: Sequence[str], prefix: str, options: Options) -> None:
    """Raise CannotCreate for an input that this run would replace or delete when it publishes its files."""
    keys = "|".join(map(re.escape, options.json_keys))
    part = "-part[0-9]{5,}" if options.has_parts else ""
    outputs = re.compile(
        f"{re.escape(_resolved(prefix))}{part}_(({keys})_document[.](bin|idx|json)|quarantine[.]jsonl)", re.DOTALL
    )
    if overwritten := [path for path in paths if path != inputs.STDIN and outputs.fullmatch(_resolved(path))]:
        raise CannotCreate(f"{overwritten[0]}: is an input, and would be replaced by an output", "choose another -o")


def _resolved(path: str) -> str:
    """The path without links; an object of a store has none."""
    return path if storage.is_remote(path) else os.path.realpath(path)


def _can_be_read_again(path: str) -> bool:
    """Standard input and pipes cannot."""
    return path != inputs.STDIN and (storage.is_remote(path) or not os.path.exists(path) or os.path.isfile(path))


def _fingerprints(paths: Sequence[str]) -> list[dict[str, Any]]:
    """A remote store takes some 30 ms to answer, a file system with many metadata requests a few: so several at once."""
    with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(paths))) as pool:
        return list(pool.map(storage.fingerprint, paths))
