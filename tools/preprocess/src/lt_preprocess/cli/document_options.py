"""The options that say how texts become documents: fields, tokens around them, lengths, samples, infilling, the dtype."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lt_shared import console

Function = TypeVar("Function", bound=Callable[..., Any])

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
LARGEST_SEED = 2**64 - 1


class Size(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A number of bytes: 500M, 2GB, 1GiB."""

    name = "size"
    unit = "b?"
    examples = "500M, 2GB or 1GiB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*([kmgt]i?)?{self.unit}", value, re.IGNORECASE)
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is no {self.name} such as {self.examples}", param, ctx)
        return int(float(match[1]) * UNITS[(match[2] or "").lower()])


class Count(Size):
    """A number of things: 1000, 500k, 10M."""

    name = "number"
    unit = ""
    examples = "1000, 500k or 10M"


class DocumentOption(click.Option):
    """Shown in a section of its own."""

    section = "Documents"


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--template",
        cls=DocumentOption,
        metavar="TEXT",
        help="Make a text of several fields: '{title}\\n\\n{body.text}'; {NAME?} may be missing.",
    ),
    click.option("--prepend-bos", cls=DocumentOption, is_flag=True, help="Begin every document with the tokenizer's BOS token."),
    click.option(
        "--bos-token", cls=DocumentOption, metavar="TOKEN", help="The special token that --prepend-bos puts, if not bos_token."
    ),
    click.option(
        "--max-document-tokens",
        cls=DocumentOption,
        type=Count(),
        metavar="N",
        help="Cut longer documents into documents of at most N tokens, BOS and EOD included.",
    ),
    click.option(
        "--limit-documents",
        cls=DocumentOption,
        type=Count(),
        metavar="N",
        help="Stop after the first N documents of the input, for a sample; with --shard, of the shard.",
    ),
    click.option(
        "--limit-tokens",
        cls=DocumentOption,
        type=Count(),
        metavar="N",
        help="Stop before the document that would make more than N tokens.",
    ),
    click.option(
        "--fim-rate",
        cls=DocumentOption,
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Rearrange this share of documents for infilling: prefix, suffix, middle.",
    ),
    click.option(
        "--fim-spm-rate",
        cls=DocumentOption,
        type=click.FloatRange(0, 1),
        show_default="0.5",
        metavar="SHARE",
        help="Put the suffix first in this share of the rearranged documents.",
    ),
    click.option(
        "--fim-seed",
        cls=DocumentOption,
        type=click.IntRange(0, LARGEST_SEED),
        show_default="0",
        metavar="NUMBER",
        help="The same one, the same rearranged documents.",
    ),
    *(
        click.option(f"--fim-{part}-token", cls=DocumentOption, metavar="TOKEN", help=f"The special token before the {part}.")
        for part in ("prefix", "middle", "suffix")
    ),
    click.option(
        "--chat",
        cls=DocumentOption,
        is_flag=True,
        help="Read conversations, apply the tokenizer's chat template, write a loss mask: PREFIX_chat_document.",
    ),
    click.option(
        "--chat-template",
        cls=DocumentOption,
        metavar="FILE",
        help="A chat template, or a file with one, in place of the tokenizer's.",
    ),
    click.option(
        "--train-on",
        cls=DocumentOption,
        type=click.Choice(["assistant", "last", "all"]),
        show_default="assistant",
        help="What counts in the loss: the assistant's turns, its last one, or all text.",
    ),
    click.option(
        "--dtype",
        cls=DocumentOption,
        type=click.Choice(["uint16", "int32"]),
        show_default="uint16 below 65,500 entries",
        help="The type of the stored tokens.",
    ),
)

NAMES = (
    *("template", "prepend_bos", "bos_token", "max_document_tokens", "limit_documents", "limit_tokens"),
    *("fim_rate", "fim_spm_rate", "fim_seed", "fim_prefix_token", "fim_middle_token", "fim_suffix_token", "dtype"),
    *("chat", "chat_template", "train_on"),
)


def document_options(function: Function) -> Function:
    """Add the options to a command; they arrive in its keyword arguments."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def separated(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """These options among keyword arguments, and all others."""
    return {name: arguments[name] for name in NAMES}, {name: value for name, value in arguments.items() if name not in NAMES}


def bos_token(options: dict[str, Any]) -> str | None:
    """The token that begins documents, "" for the tokenizer's own choice, None for none."""
    if not options["prepend_bos"]:
        if options["bos_token"]:
            raise console.UsageError(f"--bos-token {options['bos_token']} begins no document without --prepend-bos")
        return None
    return options["bos_token"] or ""


def plan_options(options: dict[str, Any], json_keys: tuple[str, ...]) -> dict[str, Any]:
    """The options as `plan.Options` takes them. Raises UsageError for options that contradict each other."""
    from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle

    if options["template"] is not None and json_keys != ("text",):
        raise console.UsageError("--template and --json-keys both say where the text is", "name all fields in --template")
    fim = None
    tokens = {name: options[name] for name in ("fim_prefix_token", "fim_middle_token", "fim_suffix_token")}
    if options["fim_rate"]:
        if any(tokens.values()) and not all(tokens.values()):
            missing = next(name for name, token in tokens.items() if not token)
            raise console.UsageError(f"--{missing.replace('_', '-')} is missing beside the others")
        named = {name.removeprefix("fim_"): token for name, token in tokens.items()}
        chosen = {name: options[f"fim_{name}"] for name in ("spm_rate", "seed") if options[f"fim_{name}"] is not None}
        fim = FillInTheMiddle(options["fim_rate"], **chosen, **named)
    elif options["fim_rate"] is None:
        for name in (*tokens, "fim_spm_rate", "fim_seed"):
            if options[name] is not None:
                raise console.UsageError(f"--{name.replace('_', '-')} has no effect without --fim-rate")
    same = ("template", "max_document_tokens", "limit_documents", "limit_tokens", "dtype")
    return {name: options[name] for name in same} | {"fim": fim} | _chat_options(options, json_keys)


def _chat_options(options: dict[str, Any], json_keys: tuple[str, ...]) -> dict[str, Any]:
    from lt_preprocess.pipeline.chat_plan import JSON_KEY, Chat

    if not options["chat"]:
        if options["train_on"] is not None:
            raise console.UsageError("--train-on has no effect without --chat")
        if options["chat_template"] is not None:
            console.note("--chat-template has no effect: it belongs to conversations, see --chat")
        return {"json_keys": json_keys}
    if json_keys != ("text",):
        raise console.UsageError("--chat and --json-keys both say where the text is", "leave --json-keys out")
    return {"chat": Chat(options["train_on"] or "assistant", options["chat_template"]), "json_keys": (JSON_KEY,)}
