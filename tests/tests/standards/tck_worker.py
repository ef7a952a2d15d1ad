"""The capability `tck`: acts as the test kit of A2A asks, by the scripts of its `scenarios` folder. `tck_adapter.py` names the script."""

import asyncio

from millrace.worker import Attempt, Result, Worker

worker = Worker()


@worker.capability("tck", "Acts as the test kit of A2A asks.")
async def act(attempt: Attempt, script: str) -> Result:
    if script == "input-required":
        turn = 1
        # A message of the kit's conversations asks for one more; any other one ends the task.
        while str((await attempt.ask(f"turn-{turn}", "What next?")).value).startswith("TCK history message"):
            turn += 1
    if script.startswith("reject"):
        raise ValueError("rejected")
    if script.startswith(("stream", "resubscribe")):
        await asyncio.sleep(2)
    if script.endswith("data"):
        return Result("Data of the kit.", "Generated data", data={"key": "value", "count": 42})
    text = {"artifact-text": "Generated text content"}.get(script, "Hello from TCK")
    return Result(text, text)


worker.run()
