"""Capabilities: functions with a name, and the schema of their parameters, which follows from their signature."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ._wire import is_name
from .errors import TaskError, WorkerError

RESERVED = ("critic", "planner")
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class Capability:
    """A capability that a worker serves."""

    name: str
    function: Callable[..., Any]
    """Its function: of the attempt, and of the parameters by their names."""
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of the parameters of a task."""
    output: Mapping[str, Any] | None = None
    """The JSON Schema of the data of its results."""
    criteria: Sequence[str] = ()
    """What critics check in every result of it."""
    review: Any = None
    """The review of its results, if a task declares none."""
    version: str | None = None
    slots: int | None = None
    """The number of concurrent attempts; that of the worker if it is absent."""
    signature: inspect.Signature = field(default_factory=inspect.Signature)

    @property
    def is_async(self) -> bool:
        """`True` if the function is a coroutine function; others run in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def description_value(self) -> dict[str, Any]:
        """Returns the entry of the registry."""
        entry: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        optional = {"output": self.output, "criteria": list(self.criteria), "review": self.review}
        entry.update({name: value for name, value in optional.items() if value})
        if self.version is not None:
            entry["version"] = {"version": self.version}
        return entry

    def bind(self, attempt: Any, parameters: Mapping[str, Any]) -> inspect.BoundArguments:
        """Returns the arguments of a call."""
        try:
            return self.signature.bind(attempt, **parameters)
        except TypeError as error:
            raise TaskError(f"the parameters of the task do not fit {self.name}: {error}", "invalid_task") from error


def define_capability(
    function: Callable[..., Any],
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    **more: Any,
) -> Capability:
    """Makes a capability of a function."""
    if not is_name(name) or name in RESERVED:
        raise WorkerError(f"{name!r} is no name of a capability: up to 64 letters, digits, '-' and '_'")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise WorkerError(f"the capability {name} is a generator; make it a function that returns its result")
    signature = inspect.signature(function)
    text = description if description is not None else inspect.getdoc(function)
    if not text:
        raise WorkerError(f"the capability {name} needs a description: give one, or the function a docstring")
    takes_attempt = [
        one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if not takes_attempt:
        raise WorkerError(f"the function of the capability {name} must have the attempt as its first parameter")
    schema = parameters if parameters is not None else schema_of_signature(function, signature, name)
    return Capability(name, function, text, schema, signature=signature, **more)


def schema_of_signature(function: Callable[..., Any], signature: inspect.Signature, name: str) -> dict[str, Any]:
    """Returns the JSON Schema of the parameters of a function, without its first one."""
    named = {
        one.name: one.annotation for one in list(signature.parameters.values())[1:] if one.annotation is not one.empty
    }
    try:
        # The type of the attempt may be imported for type checkers only.
        only_named = types.SimpleNamespace(__annotations__=named, __globals__=getattr(function, "__globals__", {}))
        hints = get_type_hints(only_named, include_extras=True)
    except Exception as error:  # Any error can come out of an annotation.
        raise WorkerError(f"the annotations of the capability {name} can't be read: {error}") from error
    properties: dict[str, Any] = {}
    required: list[str] = []
    accepts_more = False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            accepts_more = True
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise WorkerError(f"the parameter {parameter.name} of the capability {name} can't be passed by its name")
        schema = schema_of_type(hints.get(parameter.name, Any), f"{name}.{parameter.name}")
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is None or isinstance(parameter.default, (str, int, float, bool)):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if not accepts_more:
        schema["additionalProperties"] = False
    return schema


def schema_of_type(annotation: Any, place: str) -> dict[str, Any]:
    """Returns the JSON Schema of a type."""
    if annotation is Any or annotation is object:
        return {}
    if annotation in SCALARS:
        return {"type": SCALARS[annotation]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        texts = [text for text in arguments[1:] if isinstance(text, str)]
        schema = schema_of_type(arguments[0], place)
        return {**schema, "description": texts[0]} if texts else schema
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(one, place) for one in arguments]}
    if annotation is list or origin in (list, Sequence):
        items = schema_of_type(arguments[0], place) if arguments else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    if annotation is dict or origin in (dict, Mapping):
        values = schema_of_type(arguments[1], place) if len(arguments) == 2 else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    if typing.is_typeddict(annotation):
        return schema_of_typed_dict(annotation, place)
    raise WorkerError(f"{place}: no JSON Schema for the type {annotation}; give the schema as `parameters`")


def schema_of_typed_dict(annotation: Any, place: str) -> dict[str, Any]:
    """Returns the JSON Schema of a TypedDict."""
    hints = get_type_hints(annotation, include_extras=True)
    properties = {name: schema_of_type(without_required(hint), f"{place}.{name}") for name, hint in hints.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = sorted(annotation.__required_keys__)
    return {**schema, "required": required} if required else schema


def without_required(hint: Any) -> Any:
    """Returns the type within `Required` and `NotRequired`."""
    name = getattr(get_origin(hint), "_name", "")
    return get_args(hint)[0] if name in ("Required", "NotRequired") else hint
