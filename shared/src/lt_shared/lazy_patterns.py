"""Regular expressions that are compiled at their first use: a command needs only a few of its modules' patterns."""

import re
from typing import Any, AnyStr, Generic, cast

_ATTRIBUTES = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split", "pattern", "groupindex")


class _LazyPattern(Generic[AnyStr]):
    """A regular expression that is compiled at its first use, with the attributes of `re.Pattern`."""

    def __init__(self, source: AnyStr, flags: int):
        self._source: AnyStr = source
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._source, self._flags)
        # Later uses find these attributes without calling `__getattr__`.
        for attribute in _ATTRIBUTES:
            self.__dict__[attribute] = getattr(compiled, attribute)
        return getattr(compiled, name)


def regex(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled at its first use. An invalid `source` raises re.error only then."""
    return cast("re.Pattern[AnyStr]", _LazyPattern[AnyStr](source, flags))
