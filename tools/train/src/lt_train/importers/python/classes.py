"""Classes of the interpreted program: their dataclass fields, their instances, and the attributes of classes and instances."""

from collections.abc import Mapping
from typing import Any

from lt_train.importers.python import packaged_defaults
from lt_train.importers.python.core import kind_of
from lt_train.importers.python.text_methods import Methods
from lt_train.importers.python.values import (
    MISSING,
    Builtin,
    Class,
    Decorated,
    EnumMember,
    External,
    Field,
    Function,
    Instance,
    LazyImport,
    Method,
    Module,
    Partial,
    Super,
    Unknown,
)

# Attributes of a class that Python gives it.
NAMES = ("__name__", "__qualname__")
# Where megatron-core's GPTModelConfig looks for attributes that it lacks.
DELEGATE = "transformer"


class Classes(Methods):
    """Attribute access and construction of objects."""

    def fields(self, target: Any) -> dict[str, Field]:
        """Map each field of a dataclass to its default. Those of other packages' classes come from the pinned table."""
        if isinstance(target, External):
            return packaged_defaults.of(target.name)
        fields: dict[str, Field] = {}
        if isinstance(target, Class):
            for ancestor in reversed(target.ancestors()):
                if isinstance(ancestor, Class) and ancestor.is_dataclass:
                    fields.update(ancestor.own_fields)
                elif isinstance(ancestor, External):
                    fields.update(self.fields(ancestor))
        return fields

    def arguments_of(self, target: Any) -> dict[str, Field]:
        """Map the arguments of a class's constructor to the defaults of its fields, or of its __init__."""
        initializer = target.find("__init__") if isinstance(target, Class) else MISSING
        if isinstance(initializer, Function) and not (isinstance(target, Class) and target.is_dataclass):
            return {name: Field(value) for name, value in initializer.defaults.items()}
        return self.fields(target)

    def is_known(self, target: Any) -> bool:
        """Whether all bases of a class are in the repository or in the pinned table."""
        if isinstance(target, External):
            return packaged_defaults.has(target.name)
        return isinstance(target, Class) and all(
            isinstance(base, External) and (packaged_defaults.has(base.name) or base.name in packaged_defaults.EMPTY)
            for base in target.externals()
        )

    def attribute(self, value: Any, name: str) -> Any:
        self.limits.step()
        if isinstance(value, LazyImport):
            value = self.resolve_import(value)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, External):
            return External(f"{value.name}.{name}")
        if isinstance(value, Instance):
            return self._instance_attribute(value, name)
        if isinstance(value, Class):
            return self._class_attribute(value, name)
        if isinstance(value, EnumMember):
            members = {"name": value.name, "value": value.value, "_value_": value.value}
            return members[name] if name in members else self._bind(value.owner.find(name), value, value.owner)
        if isinstance(value, Module):
            return self.resolve_import(LazyImport(value.name, name, self._module or value, self._line))
        if isinstance(value, Super):
            return self._super_attribute(value, name)
        if isinstance(value, Decorated):
            return Builtin(
                name, lambda function: Decorated(value.kind, value.function, function if name == "setter" else value.setter)
            )
        if isinstance(value, Function | Method | Partial | Builtin):
            return self._function_attribute(value, name)
        return self.method(value, name)

    def _function_attribute(self, value: Any, name: str) -> Any:
        function = value.function if isinstance(value, Method) else value
        if name in NAMES and isinstance(function, Function | Builtin):
            return function.name
        members = {"func": "function", "args": "arguments", "keywords": "keywords"}
        if isinstance(value, Partial) and name in members:
            return getattr(value, members[name])
        return self.unknown(f"{name} of a function")

    def _instance_attribute(self, instance: Instance, name: str) -> Any:
        if name in ("__class__",):
            return instance.target
        if name == "__dict__":
            return instance.attributes
        if instance.tainted is not None:
            return instance.tainted
        if name in instance.attributes:
            return instance.attributes[name]
        value = self._default(instance, name)
        if value is not MISSING:
            return value
        target = instance.target
        if isinstance(target, Function):
            return MISSING
        if isinstance(target, Class):
            member = target.find(name)
            if member is not MISSING:
                return self._bind(member, instance, target)
            getter = target.find("__getattr__")
            if getter is not MISSING and not name.startswith("__"):
                return self.call(self._bind(getter, instance, target), [name], {})
        if name == "__dataclass_fields__":
            return {field: self.unknown("a field") for field in self.fields(target)}
        bases = [target] if isinstance(target, External) else target.externals() if isinstance(target, Class) else []
        methods = {method for base in bases if isinstance(base, External) for method in packaged_defaults.methods_of(base.name)}
        inner = instance.attributes.get(DELEGATE)
        if "__getattr__" in methods and isinstance(inner, Instance):
            return self.attribute(inner, name)
        if self.is_known(target) and name not in methods:
            return MISSING
        return self.unknown(f"{kind_of(target)} is not in the repository, so its {name} is not read")

    def _default(self, instance: Instance, name: str) -> Any:
        """Return the default of a field that no constructor has set, and keep it if it can be changed."""
        target = instance.target
        if isinstance(target, Function):
            return target.defaults.get(name, MISSING)
        if not instance.is_deferred and isinstance(target, Class):
            return MISSING
        field = self.arguments_of(target).get(name)
        if field is None:
            return MISSING
        value = self.call(field.factory, [], {}) if field.factory is not MISSING else field.default
        if isinstance(value, list | dict | set | Instance):
            value = type(value)(value) if isinstance(value, list | dict | set) else value
            instance.attributes[name] = value
        return value

    def _class_attribute(self, owner: Class, name: str) -> Any:
        if name in NAMES:
            return owner.name
        if name == "__module__":
            return owner.module.name
        if name == "__members__" and owner.is_enum:
            return owner.namespace.get(name, {})
        if name == "__dataclass_fields__":
            return {field: self.unknown("a field") for field in self.fields(owner)}
        if name == "__mro__":
            return tuple(owner.ancestors())
        value = owner.find(name)
        if isinstance(value, LazyImport):
            value = self.resolve_import(value)
        if isinstance(value, Decorated):
            return Method(value.function, owner) if value.kind == "classmethod" else value.function
        if value is MISSING and name == "__init__":
            return Builtin(
                name, lambda instance, *arguments, **keywords: self.initialize(instance, owner, [*arguments], keywords)
            )
        if value is MISSING:
            field = self.fields(owner).get(name)
            if field is not None and field.default is not MISSING:
                return field.default
            if not self.is_known(owner):
                return self.unknown(f"a base of {owner.name} is not in the repository, so its {name} is not read")
        return value

    def _super_attribute(self, value: Super, name: str) -> Any:
        owner = value.receiver.target if isinstance(value.receiver, Instance) else value.receiver
        if not isinstance(owner, Class):
            return self.unknown("super() of an object that is not read")
        member = owner.find(name, after=value.owner)
        if name == "__init__" and isinstance(value.receiver, Instance):
            base = self._next_initializer(owner, value.owner)
            if base is not None:
                return Builtin(name, lambda *arguments, **keywords: self.initialize(value.receiver, base, [*arguments], keywords))
        if member is MISSING:
            if name == "__setattr__":
                return Builtin(name, lambda key, entry: self.store(value.receiver, key, entry))
            # The bases are object, or classes of other packages, which prepare what they hold and change no setting.
            return (
                Builtin(name, lambda *arguments, **keywords: None)
                if name.startswith("__")
                else self.unknown(f"{name} of a base of {owner.name} is not in the repository")
            )
        return self._bind(member, value.receiver, owner)

    def _next_initializer(self, owner: Class, after: Class) -> Any:
        """Return the base behind `after` whose __init__ its dataclass generates, unless another __init__ comes first."""
        ancestors = owner.ancestors()
        for ancestor in ancestors[ancestors.index(after) + 1 :] if after in ancestors else []:
            if isinstance(ancestor, Class) and "__init__" in ancestor.namespace:
                return None
            if (isinstance(ancestor, External) and self.fields(ancestor)) or (
                isinstance(ancestor, Class) and ancestor.is_dataclass
            ):
                return ancestor
        return None

    def initialize(self, instance: Any, owner: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
        """Run the __init__ that the dataclass `owner` generates, for an instance of the class or of a subclass."""
        if isinstance(instance, Instance):
            self._fill(instance, self.fields(owner), arguments, keywords, owner)
            self._prepare(instance)

    def _prepare(self, instance: Instance) -> None:
        prepare = instance.target.find("__post_init__") if isinstance(instance.target, Class) else MISSING
        if isinstance(prepare, Function):
            self.call(Method(prepare, instance), [], {})

    def _bind(self, member: Any, receiver: Any, owner: Class) -> Any:
        if isinstance(member, Decorated):
            if member.kind == "property":
                return self.call(member.function, [receiver], {})
            if member.kind == "classmethod":
                return Method(member.function, owner)
            return member.function
        if isinstance(member, LazyImport):
            return self.resolve_import(member)
        return Method(member, receiver) if isinstance(member, Function) else member

    def set_attribute(self, target: Any, name: str, value: Any) -> None:
        """Assign an attribute, through the __setattr__ of the object's class if it has one."""
        if isinstance(target, Unknown | External):
            return
        if isinstance(target, Instance) and isinstance(target.target, Class):
            setter = target.target.find("__setattr__")
            if isinstance(setter, Function):
                self.call(Method(setter, target), [name, value], {})
                return
            member = target.target.find(name)
            if isinstance(member, Decorated) and member.kind == "property":
                if member.setter is None:
                    raise self.raised("AttributeError", f"{kind_of(target)}.{name} cannot be set")
                self.call(member.setter, [target, value], {})
                return
        self.store(target, name, value)

    def store(self, target: Any, name: str, value: Any) -> None:
        if isinstance(target, Instance):
            self.limits.step()
            target.attributes[name] = value
        elif isinstance(target, Class):
            target.namespace[name] = value
        elif not isinstance(target, Unknown | External | Function | Module):
            raise self.raised("AttributeError", f"{kind_of(target)} has no attribute {name} to be set")

    def construct(self, target: Class, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Make an instance: by its own __init__, or by the fields of its dataclass and __post_init__."""
        if target.is_enum:
            return self._enum_member(target, arguments)
        instance = Instance(target, {}, self.origin)
        initializer = target.find("__init__")
        is_own = isinstance(initializer, Function)
        if is_own and not (target.is_dataclass and "__init__" not in target.namespace):
            self.call(Method(initializer, instance), arguments, keywords)
            return instance
        fields = self.fields(target)
        if not fields and not target.is_dataclass:
            if arguments or keywords:
                instance.attributes.update(keywords)
                instance.tainted = self.unknown(f"a base of {target.name} is not in the repository") if arguments else None
            return instance
        self._fill(instance, fields, arguments, keywords, target)
        self._prepare(instance)
        return instance

    def _fill(
        self, instance: Instance, fields: Mapping[str, Field], arguments: list[Any], keywords: dict[str, Any], target: Any
    ) -> None:
        positional = [name for name, field in fields.items() if field.is_argument and not field.is_keyword]
        if len(arguments) > len(positional):
            raise self.raised("TypeError", f"{kind_of(target)}() takes {len(positional)} arguments, not {len(arguments)}")
        given = dict(zip(positional, arguments, strict=False)) | keywords
        strangers = [name for name in given if name not in fields]
        if strangers and self.is_known(target):
            raise self.raised("TypeError", f"{kind_of(target)}() has no argument {strangers[0]}")
        setter = target.find("__setattr__") if isinstance(target, Class) else MISSING
        for name, field in fields.items():
            if name in given:
                value = given[name]
            elif field.factory is not MISSING:
                value = self.call(field.factory, [], {})
            elif field.default is not MISSING:
                value = field.default
                value = type(value)(value) if isinstance(value, list | dict | set) else value
            elif field.is_argument and self.is_known(target):
                raise self.raised("TypeError", f"{kind_of(target)}() needs the argument {name}")
            else:
                continue
            if isinstance(setter, Function):
                self.call(Method(setter, instance), [name, value], {})
            else:
                instance.attributes[name] = value
        instance.attributes.update({name: given[name] for name in strangers})

    def _enum_member(self, target: Class, arguments: list[Any]) -> Any:
        for member in target.namespace.get("__members__", {}).values():
            if arguments and (member is arguments[0] or member.value == arguments[0]):
                return member
        if arguments and isinstance(arguments[0], Unknown):
            return arguments[0]
        raise self.raised("ValueError", f"no such value of {target.name}")
