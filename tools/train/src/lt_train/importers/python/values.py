"""Values of the interpreted program: classes, instances, functions, and objects whose value is unknown.

Numbers, texts, lists, tuples, sets and dictionaries are those of Python.
"""

import ast
import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Unknown:
    """A value that only an execution would show. `origin` is the line that it comes from, as FILE:LINE."""

    reason: str
    origin: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class External:
    """An object of a package outside of the repository, such as torch.bfloat16. `name` is its dotted path."""

    name: str

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_of_torch(self) -> bool:
        """Whether it is a type, a function or a class of torch itself, not a property of the machine as torch.version.hip."""
        parts = self.name.split(".")
        return parts[0] == "torch" and (len(parts) == 2 or parts[1] in ("nn", "optim"))

    @property
    def is_class(self) -> bool:
        """Whether the name is written as classes' names are: an upper-case letter first, and a lower-case one."""
        name = self.last_name.lstrip("_")
        return name[:1].isupper() and not name.isupper()


@dataclasses.dataclass(frozen=True, eq=False)
class Missing:
    """Stands for a name, attribute or argument that does not exist."""


MISSING = Missing()


@dataclasses.dataclass(eq=False, repr=False)
class Scope:
    """Names of a module, a class body or a function call. `parent` is the enclosing scope."""

    names: dict[str, Any]
    module: "Module"
    parent: "Scope | None" = None
    is_class: bool = False
    outer_names: set[str] = dataclasses.field(default_factory=set)
    owner: "Class | None" = None

    def lookup(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.names[name]
            scope = scope.parent
        return self.module.scope.names.get(name, MISSING) if self.module.scope is not None else MISSING


@dataclasses.dataclass(eq=False, repr=False)
class Module:
    """A file of the repository. `scope` is None until its body is interpreted."""

    name: str
    file: str
    tree: ast.Module
    is_package: bool
    scope: Scope | None = None
    # Paths of files are shown relative to the repository.
    shown: str = ""


@dataclasses.dataclass(eq=False, repr=False)
class LazyImport:
    """`name` of the module `module`, or the module itself if `name` is empty. It is resolved when it is first read."""

    module: str
    name: str
    importer: Module
    line: int


@dataclasses.dataclass(eq=False)
class Field:
    """A field of a dataclass. `default` and `factory` are MISSING if there are none."""

    default: Any = MISSING
    factory: Any = MISSING
    is_argument: bool = True
    is_keyword: bool = False


@dataclasses.dataclass(eq=False, repr=False)
class Class:
    name: str
    qualified_name: str
    bases: list[Any]
    namespace: dict[str, Any]
    module: Module
    is_dataclass: bool = False
    own_fields: dict[str, Field] = dataclasses.field(default_factory=dict)
    is_enum: bool = False
    # An enum whose members are also texts or numbers.
    is_plain_enum: bool = False

    def ancestors(self) -> list[Any]:
        """Return the class and its bases in the order of attribute lookup. Bases of other packages are External."""
        merged: list[Any] = [self]
        linear = [base.ancestors() if isinstance(base, Class) else [base] for base in self.bases]
        lists = [*linear, list(self.bases)]
        while any(lists):
            for candidates in lists:
                if candidates and not any(_contains(tail[1:], candidates[0]) for tail in lists):
                    break
            else:
                candidates = next(filter(None, lists))
            head = candidates[0]
            merged.append(head)
            lists = [[entry for entry in entries if not is_same(entry, head)] for entries in lists]
        return merged

    def find(self, name: str, after: "Class | None" = None) -> Any:
        """Return the attribute `name` of the class or of its bases, or MISSING. With `after`, search behind that class."""
        ancestors = self.ancestors()
        if after is not None:
            ancestors = ancestors[ancestors.index(after) + 1 :] if after in ancestors else []
        for ancestor in ancestors:
            if isinstance(ancestor, Class) and name in ancestor.namespace:
                return ancestor.namespace[name]
        return MISSING

    def externals(self) -> list[Any]:
        """Return the bases that other packages define, and those whose value is unknown."""
        return [ancestor for ancestor in self.ancestors() if not isinstance(ancestor, Class)]


def _contains(entries: list[Any], value: Any) -> bool:
    return any(is_same(entry, value) for entry in entries)


def is_same(left: Any, right: Any) -> bool:
    """Whether two class values are the same class."""
    return left is right or (isinstance(left, External) and isinstance(right, External) and left == right)


@dataclasses.dataclass(eq=False, repr=False)
class Instance:
    """An object. `target` is the class, external class or function that it is an instance or a configured call of.

    `is_deferred` says that no constructor ran, as for NeMo's run.Config. `tainted` is set if unknown code had the object.
    """

    target: Any
    attributes: dict[str, Any]
    origin: str = ""
    is_deferred: bool = False
    tainted: Unknown | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class EnumMember:
    owner: Class
    name: str
    value: Any


@dataclasses.dataclass(eq=False, repr=False)
class Function:
    """A function or lambda of the program. `defaults` maps parameters to their default values."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    defaults: dict[str, Any]
    scope: Scope
    owner: Class | None = None

    @property
    def qualified_name(self) -> str:
        return f"{self.owner.qualified_name}.{self.name}" if self.owner else f"{self.scope.module.name}.{self.name}"


@dataclasses.dataclass(eq=False)
class Method:
    """A function bound to the object that is its first argument."""

    function: Any
    receiver: Any


@dataclasses.dataclass(eq=False)
class Decorated:
    """A function of a class body under @property, @staticmethod or @classmethod. `kind` is the decorator's name."""

    kind: str
    function: Any
    setter: Any = None


@dataclasses.dataclass(eq=False)
class Partial:
    """functools.partial of a function."""

    function: Any
    arguments: list[Any]
    keywords: dict[str, Any]


@dataclasses.dataclass(eq=False)
class Builtin:
    """A function of Python that the interpreter provides. `call` takes positional arguments and keywords."""

    name: str
    call: Callable[..., Any]


@dataclasses.dataclass(eq=False)
class Super:
    """super() in a method of `owner`, called for `receiver`."""

    owner: Class
    receiver: Any


# The key of entries that unknown code may have added to a dictionary.
UNKNOWN_KEY = "<unknown>"


def poison(value: Any, cause: Unknown, most: int = 10_000) -> None:
    """Make all that code with `value` in its hands could change unknown: objects, lists and dictionaries."""
    seen: set[int] = set()
    queue = [value]
    while queue and len(seen) < most:
        entry = queue.pop()
        if id(entry) in seen or isinstance(entry, str | int | float | None):
            continue
        seen.add(id(entry))
        if isinstance(entry, Instance):
            entry.tainted = entry.tainted or cause
            queue.extend(entry.attributes.values())
        elif isinstance(entry, dict):
            queue.extend(entry.values())
            entry.update(dict.fromkeys([*entry, UNKNOWN_KEY], cause))
        elif isinstance(entry, list):
            queue.extend(entry)
            entry[:] = [cause] * max(1, len(entry))
        elif isinstance(entry, tuple | set):
            queue.extend(entry)
