"""Results of attempts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ._waits import contract_error
from ._wire import UnreadableMessage, unpack

MAX_SUMMARY = 280
STORED_FIELDS = ("output", "summary", "notes", "data", "usage", "models")
SourceKind = Literal["document", "web", "code", "data", "other"]


@dataclass(frozen=True)
class Source:
    """A source of a result, which the output cites by its id, as `[S1]`."""

    id: str
    title: str
    location: str
    """A path below the documents folder, or a URL."""
    kind: SourceKind = "document"
    sha256: str | None = None


@dataclass(frozen=True)
class Quotation:
    """A verbatim passage of a source."""

    source: str
    """The id of the source."""
    text: str
    first_line: int
    last_line: int


@dataclass(frozen=True)
class Result:
    """The result of an attempt. A capability may also return text, or a value that becomes the data of a result."""

    output: str = ""
    """The result itself, as Markdown. A result without it and without data never passes a review."""
    summary: str = ""
    """One or two sentences; by default the first line of the output."""
    notes: str | None = None
    """Remarks for the reader: gaps, doubts."""
    sources: Sequence[Source] = ()
    quotations: Sequence[Quotation] = ()
    data: Any = None
    """Structured output."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """What models used, such as `{"model_calls": 1, "input_tokens": 900, "output_tokens": 40}`; budgets count it."""
    models: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same by model."""
    review: Any = None
    """The review that the capability wants for this result, if its task has none."""

    @property
    def is_empty(self) -> bool:
        """`True` if there is no usable content."""
        return not self.output.strip() and self.data is None

    @property
    def is_detailed(self) -> bool:
        """`True` if there is text beyond the summary."""
        return bool(self.output.strip()) and self.output.strip() != self.summary.strip()

    @property
    def short_text(self) -> str:
        """The summary, or the first line of the output."""
        lines = [line.lstrip("#").strip() for line in (self.summary + "\n" + self.output).splitlines()]
        text = self.summary.strip() or next((line for line in lines if line), "")
        return text[:MAX_SUMMARY]

    def body(self) -> dict[str, Any]:
        """Returns the result as it is stored."""
        body: dict[str, Any] = {"summary": self.short_text, "output": self.output}
        optional = {
            "notes": self.notes,
            "sources": [without_none(dataclasses.asdict(source)) for source in self.sources],
            "quotations": [dataclasses.asdict(quotation) for quotation in self.quotations],
            "usage": dict(self.usage),
            "models": {model: dict(usage) for model, usage in self.models.items()},
        }
        body.update({name: value for name, value in optional.items() if value})
        if self.data is not None:
            body["data"] = self.data
        return body

    def outcome(self) -> dict[str, Any]:
        """Returns the outcome, without the stored result."""
        outcome: dict[str, Any] = {
            "summary": self.short_text,
            "is_empty": self.is_empty,
            "is_detailed": self.is_detailed,
        }
        optional = {"review": self.review, "usage": dict(self.usage), "models": dict(self.models)}
        outcome.update({name: value for name, value in optional.items() if value})
        return outcome


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def result_of(value: Any) -> Result:
    """Returns the result that a capability has returned: a result, text, or data."""
    if isinstance(value, Result):
        result = value
    elif isinstance(value, str):
        result = Result(output=value)
    elif value is None:
        raise contract_error("the capability returned None; return text, a JSON value, or a Result")
    else:
        text = write_json(value, None)
        result = Result(output=f"```json\n{write_json(value, 2)}\n```", summary=text, data=json.loads(text))
    if result.data is not None:
        write_json(result.data, None)
    return result


def write_json(value: Any, indent: int | None) -> str:
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise contract_error(f"the result of the capability can't be written as JSON: {error}") from error


def encode_result(result: Result) -> bytes:
    """Encodes a result as it is stored."""
    return write_json(result.body(), None).encode("utf-8", "replace")


def decode_result(data: bytes) -> Result:
    """Decodes a stored result: MessagePack, or JSON text."""
    body = json.loads(data) if data[:1] == b"{" else unpack(data, "the result")
    if not isinstance(body, dict):
        raise UnreadableMessage("the result is no map")
    fields = {name: body[name] for name in STORED_FIELDS if body.get(name) is not None}
    for name, kind in (("sources", Source), ("quotations", Quotation)):
        known = {field.name for field in dataclasses.fields(kind)}
        fields[name] = [kind(**{key: one[key] for key in known & one.keys()}) for one in body.get(name) or ()]
    return Result(**fields)
