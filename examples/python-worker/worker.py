"""A worker in Python that counts words, one line per step. It asks a person first if the parameter `ask` has a
question, and delegates the paragraphs to the capability that the parameter `delegate` names.

    pip install 'millrace-client[worker]'
    python worker.py                     joins the cluster of `millrace up`; MILLRACE_NATS_URL names another one
"""

import asyncio

from millrace.worker import Attempt, ChildTask, Result, Worker

worker = Worker()


@worker.capability("wordcount", "Counts words.")
async def count_words(attempt: Attempt, text: str, ask: str = "", delegate: str = "", pause: float = 0.0) -> Result:
    async def count(line: str) -> int:
        await asyncio.sleep(pause)
        return len(line.split())

    if ask:
        answer = await attempt.ask("confirm", ask, ["yes", "no"])
        if answer.value != "yes":
            return Result("Nobody wanted the words to be counted.", "not counted")
    if delegate:
        paragraphs = text.split("\n\n")
        tasks = [ChildTask(delegate, "Count the words.", {"text": paragraph}) for paragraph in paragraphs]
        results = await attempt.delegate_all("paragraphs", tasks)
        words = sum(result.data["words"] for result in results if isinstance(result, Result))
    else:
        lines = text.splitlines()
        words = sum([await attempt.step(f"line.{number}", count, line) for number, line in enumerate(lines)])
    return Result(f"The text has {words} words.", f"{words} words", data={"words": words})


if __name__ == "__main__":
    worker.run()
