"""Submits a run with documents, follows it, answers its questions, and prints the report.

    millrace up --api                          in another terminal
    pip install millrace
    python quickstart.py [--url URL] [FOLDER [OBJECTIVE]]

The run asks for an approval of its plan. Without a language model it quotes the documents.
"""

import argparse
from pathlib import Path

from millrace import Client, Question

LICENCES = Path(__file__).resolve().parents[3] / "examples" / "licences"
OBJECTIVE = "How do these licences treat patents?"
QUESTIONS = {"plan_question_asked", "attempt_parked"}


def ask_person(question: Question) -> None:
    """Asks the person at the terminal, and sends the answer."""
    answer = input(f"? {question.text.strip()}\n  ({', '.join(question.decisions)}) ").strip()
    if "answer" in question.decisions:
        question.answer(value=answer)
    elif answer in ("approve", "yes", "y"):
        question.answer(approve=True)
    elif "reject" in question.decisions:
        question.answer(reject=answer or "no")
    else:
        question.answer(fail=answer or "no")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:7070")
    parser.add_argument("folder", nargs="?", type=Path, default=LICENCES)
    parser.add_argument("objective", nargs="?", default=OBJECTIVE)
    options = parser.parse_args()
    with Client(options.url) as client:
        run = client.submit(options.objective, documents=[options.folder], approve_plan=True)
        print(f"run {run.id}")
        for event in run.events():
            print(f"{event.id:>8}  {event.type}  {event.task or ''}".rstrip())
            if event.type in QUESTIONS:
                for question in run.questions():
                    ask_person(question)
        print(run.report())


if __name__ == "__main__":
    main()
