r"""The text of a document made of several fields: `{title}\n\n{body.text}`.

Outside of fields, `{{` and `}}` are braces, and `\n`, `\t` and `\\` a line break, a tab and a backslash, because a shell does not
translate them. `{NAME}` is a field that a document must have, `{NAME?}` one that may be missing, null or empty; NAME is a key
or a path (`text_keys`), and in it `\}` and `\?` are the characters themselves.
"""

import dataclasses
import functools
import re

from lt_preprocess.readers import text_keys
from lt_shared.console import UsageError

_TOKENS = re.compile(
    r"(?P<brace>\{\{|\}\})|\{(?P<field>(?:[^{}\\]|\\.)*)\}|\\(?P<escape>.)|(?P<text>[^{}\\]+)|(?P<wrong>.)", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "{": "{", "}": "}"}


@dataclasses.dataclass(frozen=True)
class Template:
    """`parts` are texts (bytes, UTF-8) and numbers of fields; `fields` are the names."""

    parts: tuple[bytes | int, ...]
    fields: tuple[str, ...]
    is_optional: tuple[bool, ...]

    @property
    def json_keys(self) -> tuple[str, ...]:
        """The fields as the readers take them."""
        return tuple(
            text_keys.optional(field) if optional else field
            for field, optional in zip(self.fields, self.is_optional, strict=True)
        )

    @property
    def optional_fields(self) -> tuple[str, ...]:
        return tuple(field for field, optional in zip(self.fields, self.is_optional, strict=True) if optional)

    def fill(self, values: list[bytes]) -> bytes:
        """Put the values into the text, in UTF-8."""
        return b"".join(values[part] if isinstance(part, int) else part for part in self.parts)


@functools.cache
def parse(template: str) -> Template:
    """Raises UsageError for a template that is malformed or has no field."""
    parts: list[bytes | int] = []
    fields: dict[str, bool] = {}
    for match in _TOKENS.finditer(template):
        if (field := match["field"]) is not None:
            is_optional = re.search(r"(?<!\\)(?:\\\\)*\?$", field) is not None
            name = re.sub(r"\\([}?{])", r"\1", field[:-1] if is_optional else field)
            if not name:
                raise UsageError(f"--template {template!r}: a field without a name", r"{{ and }} are braces")
            if fields.setdefault(name, is_optional) != is_optional:
                raise UsageError(f"--template {template!r}: {{{name}}} is optional in one place and not in another")
            parts.append(list(fields).index(name))
        elif match["wrong"] is not None or (match["escape"] is not None and match["escape"] not in _ESCAPES):
            raise UsageError(
                f"--template {template!r}: {match[0]!r} at character {match.start() + 1}", r"{{, }}, \\ stand for {, } and \ "
            )
        else:
            text = match["text"] or _ESCAPES.get(match["escape"] or "") or match["brace"][0]
            parts.append(text.encode(errors="surrogateescape"))
    if not fields:
        raise UsageError(f"--template {template!r}: has no field such as {{text}}")
    return Template(tuple(parts), tuple(fields), tuple(fields.values()))
