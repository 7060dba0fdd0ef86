"""Call `lt-preprocess FILE...` from notebooks and scripts. The function has the options and checks of the command."""

import os
from collections.abc import Sequence

from lt_preprocess.cli import tokenize as tokenize_command
from lt_shared.console import keyword_options, tool_process
from lt_shared.console.keyword_options import Value
from lt_shared.contracts import manifest

PathLike = str | os.PathLike[str]


def tokenize(
    files: PathLike | Sequence[PathLike], *, tokenizer: PathLike, output_prefix: PathLike, **options: Value
) -> list[manifest.Dataset]:
    """Tokenize text files into Megatron's indexed datasets, and return the datasets, which are durable on disk.

    `options` are the command's other options, with underscores: `append_eod=True`, `json_keys=["text", "title"]`, `workers=8`.
    None and False omit an option. Variables such as LT_PREPROCESS_WORKERS are ignored. Progress goes to standard error.

    A dataset that is up to date stays unchanged, and the same call resumes an interrupted call. Raises the errors of the command:
    UsageError for an unknown option or an invalid value, NoInput, BadData, CannotCreate, IoFailure.
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    required = {"tokenizer": tokenizer, "output_prefix": output_prefix}
    words = keyword_options.words(
        tokenize_command.command, required | options, "lt-preprocess", excluded=("plain", "dry_run", "stream")
    )
    lines = tool_process.run("lt-preprocess", [*words, "--", *(os.fspath(path) for path in paths)])
    return manifest.datasets(manifest.parse(lines, "lt-preprocess"), "lt-preprocess")
