"""A question of a run, and its answer."""

from __future__ import annotations

from typing import Any, cast

from .._question import QuestionFields
from .._requests import UNSET, Request, answer_body, quote_parts
from ..types import AnswerLine, AnswerScope, QuestionLine
from .transport import AsyncTransport


class AsyncQuestion(QuestionFields):
    """A question of a run to a person."""

    def __init__(self, transport: AsyncTransport, data: QuestionLine) -> None:
        super().__init__(data)
        self._transport = transport

    async def answer(
        self,
        *,
        approve: bool = False,
        edit: Any = UNSET,
        reject: str | None = None,
        respond: str | None = None,
        value: Any = UNSET,
        decline: bool = False,
        pass_result: bool = False,
        fail: str | None = None,
        scope: AnswerScope = "once",
    ) -> AnswerLine:
        """Answers the question; `answer_body` explains the kinds of answers. The first answer counts.

        The outcome is `answered`, or `sent` if no supervisor has decided on it yet. Raises `QuestionClosed` if the
        question has an answer, and `AnswerRefused` if the answer does not fit. The request is not repeated: after
        `GatewayUnreachable` read the question again.
        """
        body = answer_body(
            approve=approve,
            edit=edit,
            reject=reject,
            respond=respond,
            value=value,
            decline=decline,
            pass_result=pass_result,
            fail=fail,
            scope=scope,
        )
        response = await self._transport.send(Request("POST", f"/questions/{quote_parts(self.id)}", body=body))
        return cast(AnswerLine, response.json())
