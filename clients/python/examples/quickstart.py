"""Submits a run with documents, follows it, answers its questions, and prints the report.

    millrace up --api                          in another terminal
    pip install millrace
    python quickstart.py [FOLDER [QUESTION]]

The run asks for an approval of its plan. Without a language model it quotes the documents.
"""

import os
import sys
from pathlib import Path

from millrace import Client, Question

LICENCES = Path(__file__).resolve().parents[3] / "examples" / "licences"
QUESTION = "How do these licences treat patents?"
ASKS = {"plan_question_asked", "attempt_parked"}


def ask_person(question: Question) -> None:
    """Asks the person at the terminal, and sends the answer."""
    choices = ", ".join(question.decisions)
    answer = input(f"? {question.text.strip()}\n  ({choices}) ").strip()
    if answer in ("approve", "yes", "y") and "approve" in question.decisions:
        question.answer(approve=True)
    elif "reject" in question.decisions:
        question.answer(reject=answer or "no")
    else:
        question.answer(value=answer)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else LICENCES
    objective = sys.argv[2] if len(sys.argv) > 2 else QUESTION
    with Client(os.environ.get("MILLRACE_URL", "http://127.0.0.1:7070")) as client:
        run = client.submit(objective, documents=[folder], approve_plan=True)
        print(f"run {run.id}")
        for event in run.events():
            print(f"{event.id:>8}  {event.type}  {event.task or ''}".rstrip())
            if event.type in ASKS:
                for question in run.questions():
                    ask_person(question)
        print(run.report())


if __name__ == "__main__":
    main()
