"""Find the end of quotes, substitutions and parentheses in a shell script."""

from lt_train.importers.shell.unknown import CLOSING, OPENING


def end_of_quoted(text: str, position: int) -> int:
    """Return the end of the quote, substitution or escape at `position`. Raises ValueError if it is unclosed."""
    if text[position] == "\\":
        return position + 2
    if text[position] == OPENING:
        return _end_of_unknown(text, position)
    if text[position] == "'" or text.startswith("$'", position):
        return _end_of_single(text, position)
    if text[position] == '"':
        return end_of(text, position + 1, '"')
    if text[position] == "`":
        return end_of(text, position + 1, "`")
    if text.startswith("${", position):
        return end_of(text, position + 2, "}")
    if text.startswith(("$(", "<(", ">("), position):
        return end_of(text, position + 2, ")")
    return position + 1


def _end_of_single(text: str, position: int) -> int:
    is_escaping = text[position] == "$"
    position += 2 if is_escaping else 1
    while position < len(text) and text[position] != "'":
        position += 2 if is_escaping and text[position] == "\\" else 1
    if position >= len(text):
        raise ValueError("a quote is left open")
    return position + 1


def _end_of_unknown(text: str, position: int) -> int:
    """Return the end of the unknown part at `position`. Quotes inside of it do not count."""
    end = text.find(CLOSING, position)
    return len(text) if end < 0 else end + 1


def end_of(text: str, position: int, closing: str) -> int:
    """Return the position after `closing`, skipping nested parentheses and quotes."""
    nested: list[str] = [closing]
    while position < len(text):
        character, inner = text[position], nested[-1]
        if character == inner:
            nested.pop()
            position += 1
            if not nested:
                return position
        elif character == "\\":
            position += 2
        elif character == OPENING:
            position = _end_of_unknown(text, position)
        elif inner == "`":
            position += 1
        elif text.startswith(("${", "$("), position):
            nested.append("}" if text[position + 1] == "{" else ")")
            position += 2
        elif character == "`" or (character == '"' and inner != '"'):
            nested.append(character)
            position += 1
        elif inner == ")" and character == "(":
            nested.append(")")
            position += 1
        elif inner == ")" and (character == "'" or text.startswith("$'", position)):
            position = _end_of_single(text, position)
        elif inner == ")" and character == "#" and text[position - 1] in " \t\n":
            position = end_of_line(text, position)
        elif inner == "}" and character == "'" and '"' not in nested:
            position = _end_of_single(text, position)
        else:
            position += 1
    raise ValueError("a quote or a parenthesis is left open")


def end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end
