"""Apply a tokenizer's chat template as transformers does: Jinja in a sandbox, with the same filters, functions and variables.

Files that hold a template, in the order of transformers 5: `chat_template.jinja`, with further templates by name in
`additional_chat_templates/`; `chat_template` in tokenizer_config.json, a text or a list of named texts. A conversation with tools
takes the template `tool_use` if there is one.

A template is a stranger's program. Jinja's sandbox keeps it from attributes of Python objects. Here it also may not count
further than MOST_LOOPED in one conversation, multiply texts to more than MOST_CHARACTERS, or compute powers.
"""

import datetime
import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from lt_preprocess.conversations.records import Conversation, Message
from lt_preprocess.readers.json_line import Unusable
from lt_preprocess.tokenizers.files import json_files
from lt_shared.console import BadData, NoInput
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

MOST_LOOPED = 1 << 20
MOST_CHARACTERS = 1 << 24
DEFAULT, TOOL_USE = "default", "tool_use"
# The date that templates write: in seconds, as https://reproducible-builds.org/specs/source-date-epoch has it.
DATE_VARIABLE = "SOURCE_DATE_EPOCH"
_CHARACTERS_OF_REASON = 200
_SYNTAX = re.compile(r"\{[{%]")


class Rendered(NamedTuple):
    """A conversation as text. `generated` are the bounds, in characters, of what `{% generation %}` blocks wrote."""

    text: str
    generated: list[tuple[int, int]]


class _GenerationBlock(jinja2.ext.Extension):
    """The blocks with which templates mark what the model generates: `{% generation %}...{% endgeneration %}`."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Any) -> str:
        text: str = caller()
        progress = getattr(_rendering, "progress", None)
        if progress is not None:
            progress.generated.append((progress.characters, progress.characters + len(text)))
        return text


class _Progress:
    """The conversation that a thread renders: characters of finished blocks, generated parts, and steps of loops over numbers."""

    def __init__(self) -> None:
        self.characters = 0
        self.looped = 0
        self.generated: list[tuple[int, int]] = []


_rendering = threading.local()


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.exceptions.SecurityError("the template computes a power")
        sequence, number = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, str | list | tuple) and isinstance(number, int) and len(sequence) * number > MOST_CHARACTERS:
            raise jinja2.exceptions.SecurityError(f"the template makes a text of {len(sequence) * number:,} characters")
        return super().call_binop(context, operator, left, right)


def _bounded_range(*arguments: int) -> Iterator[int]:
    for number in range(*arguments):
        progress = getattr(_rendering, "progress", None)
        if progress is not None:
            progress.looped += 1
            if progress.looped > MOST_LOOPED:
                raise jinja2.exceptions.SecurityError(f"the template loops more than {MOST_LOOPED:,} times")
        yield number


def _raise_exception(message: object) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _date() -> datetime.datetime:
    epoch = os.environ.get(DATE_VARIABLE, "")
    return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch.isdecimal() else datetime.datetime.now()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: _date().strftime(form)
    environment.globals["range"] = _bounded_range
    return environment


class ChatTemplate:
    """The chat templates of a tokenizer, by name. Safe to use from many threads.

    Attributes: `source`, the file, for messages; `date`, which is part of the text, or None.
    """

    def __init__(self, source: str, texts: Mapping[str, str], special_tokens: Mapping[str, str]):
        self.source = source
        self.texts = texts
        self._special_tokens = special_tokens
        self._compiled = {name: self._compile(text) for name, text in texts.items()}
        self.date = _date().date().isoformat() if any("strftime_now" in text for text in texts.values()) else None

    def _compile(self, text: str) -> jinja2.Template:
        try:
            return _environment().from_string(text)
        except (jinja2.exceptions.TemplateError, RecursionError, SyntaxError, OverflowError) as error:
            raise BadData(f"{self.source}: not a template: {_reason(error)}") from None

    @property
    def marks_generation(self) -> bool:
        """Whether each template says what the model generates."""
        return all("endgeneration" in text for text in self.texts.values())

    def render(self, conversation: Conversation, messages: list[Message], add_generation_prompt: bool = False) -> Rendered:
        """Render `messages` with the tools and variables of `conversation`. Raises Unusable if the template refuses them."""
        name = TOOL_USE if conversation.tools is not None and TOOL_USE in self._compiled else DEFAULT
        _rendering.progress = progress = _Progress()
        blocks = []
        try:
            for block in self._compiled[name].generate(
                **{
                    **self._special_tokens,
                    **conversation.variables,
                    "messages": messages,
                    "tools": conversation.tools,
                    "documents": conversation.documents,
                    "add_generation_prompt": add_generation_prompt,
                }
            ):
                blocks.append(block)
                progress.characters += len(block)
        except Exception as error:
            # Templates compute with the data of strangers: type errors, missing keys, division by zero.
            raise Unusable(f"the chat template refuses it: {_reason(error)}") from None
        finally:
            _rendering.progress = None
        return Rendered("".join(blocks), progress.generated)


def _reason(error: Exception) -> str:
    message = " ".join(str(error).split())[:_CHARACTERS_OF_REASON]
    is_stated = isinstance(error, jinja2.exceptions.TemplateError) and message
    return message if is_stated else f"{type(error).__name__}{message and ': '}{message}"


def load(files: TokenizerFiles, template: str | None = None) -> ChatTemplate:
    """Load the chat template of a tokenizer, or `template`, a text or the path of a file.

    Raises: NoInput if there is none, BadData for a template that is malformed.
    """
    if template is None:
        source, texts = _stored(files)
    elif _SYNTAX.search(template):
        source, texts = "--chat-template", {DEFAULT: template}
    else:
        source, texts = template, _one(Path(template))
    if not texts:
        raise NoInput(
            f"{files.name}: this tokenizer has no chat template",
            "take the tokenizer of an instruction-tuned model, or name a template with --chat-template FILE",
        )
    if DEFAULT not in texts:
        raise BadData(f"{source}: no template is called {DEFAULT!r}, there are {', '.join(sorted(texts))}")
    return ChatTemplate(source, texts, dict(files.configuration().named_tokens))


def _one(path: Path) -> dict[str, str]:
    try:
        return {DEFAULT: path.read_text(encoding="utf-8")}
    except OSError as error:
        raise NoInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadData(f"{path}: not a text in UTF-8") from None


def _stored(files: TokenizerFiles) -> tuple[str, dict[str, str]]:
    """The file that holds the templates of a tokenizer, and the templates by name."""
    companions = {files.relative_name(path): path for path in files.companions}
    if main := companions.get("chat_template.jinja"):
        named = {path.stem: _one(path)[DEFAULT] for name, path in companions.items() if name.endswith(".jinja") and "/" in name}
        return str(main), named | _one(main)
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = companions.get(name)
        template = json_files.read_object(path).get("chat_template") if path is not None else None
        if template:
            return str(path), _listed(str(path), template)
    return str(files.directory), {}


def _listed(source: str, template: Any) -> dict[str, str]:
    if isinstance(template, str):
        return {DEFAULT: template}
    try:
        texts = {item["name"]: item["template"] for item in template}
    except (TypeError, KeyError):
        texts = {}
    if not texts or not all(isinstance(word, str) for pair in texts.items() for word in pair):
        raise BadData(f"{source}: its chat_template is malformed")
    return texts
