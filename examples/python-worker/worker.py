"""A Millrace worker in Python that counts words, one line per step. It asks a person first if the parameter "ask" has a question,
    and delegates the paragraphs to the capability that the parameter "delegate" names. docs/wire.md describes the protocol.
    pip install nats-py[nkeys] msgpack && NATS_URL=nats://127.0.0.1:4222 python worker.py"""
import asyncio, contextlib, hashlib, json, os, socket, time, uuid
import msgpack, nats
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

NAME, ME = "wordcount", f"python-{uuid.uuid4().hex[:12]}"

class Parked(Exception):
    """The attempt waits; the argument is the entry."""

async def work(parameters, step, ask, delegate):
    if question := parameters.get("ask"):
        if await step("confirm", lambda: ask("confirm", question)) != "yes":
            return {"summary": "not counted", "output": "Nobody wanted the words to be counted."}
    async def count(line):
        return await asyncio.sleep(parameters.get("pause", 0), len(line.split()))
    if capability := parameters.get("delegate"):
        tasks = [{"objective": "Count the words.", "capability": capability, "parameters": {"text": text}}
                 for text in parameters["text"].split("\n\n")]
        ends = await step("paragraphs", lambda: delegate("paragraphs", tasks))
        total = sum(int(end["Completed"]["summary"].split()[0]) for end in ends if "Completed" in end)
    else:
        lines = enumerate(parameters["text"].splitlines())
        total = sum([await step(f"line.{number}", lambda: count(line)) for number, line in lines])
    return {"summary": f"{total} words", "output": f"The text has {total} words.", "data": {"words": total}}

class Journal:
    """The journal of one attempt. Each append names the last entry (optimistic concurrency), so there is a single writer."""
    def __init__(self, js, order):
        lane, task, attempt = order["lane"], order["work"]["Task"]["task"], order["work"]["Task"]["attempt"]
        self.js, self.stream, self.subject = js, f"LANE_{lane}", f"lane.{lane}.run.{order['run']}.task.{task}.{attempt}"
        self.last, self.steps, self.claims, self.recorded, self.is_done = 0, 0, 0, [], False
        self.ended = {wait["key"]: wait["end"] for wait in order.get("ended_waits", ())}
        self.child, self.allowance = f"{task}-{attempt}", order.get("allowance", {})

    async def append(self, entry, version=1):
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.last), "Millrace-Id": uuid.uuid4().hex}
        message = msgpack.packb({"v": version, "t": "entry", "b": msgpack.packb(entry)})
        self.last = (await self.js.publish(self.subject, message, headers=headers)).seq

    async def read(self):
        with contextlib.suppress(NotFoundError):
            while found := await self.js.get_msg(self.stream, self.last + 1, self.subject, next=True):
                self.last, entry = found.seq, msgpack.unpackb(msgpack.unpackb(found.data)["b"])
                self.claims, waits = self.claims + ("Claimed" in entry), entry.get("Parked", {}).get("waits", [])
                self.is_done = "Outcome" in entry or any(wait["key"] not in self.ended for wait in waits)
                self.recorded += [json.loads(entry["Step"]["value"]["Inline"])] if "Step" in entry else []

    async def step(self, name, work):
        self.steps += 1
        if self.recorded:
            return self.recorded.pop(0)
        value = await work()
        blob = {"Inline": json.dumps(value).encode()}
        await self.append({"Step": {"number": self.steps, "name": name, "value": blob}})
        return value

    async def wait(self, key, condition, children=()):
        if key not in self.ended:
            raise Parked({"worker": ME, "waits": [{"key": key, "condition": condition}], "children": list(children)})
        return self.ended[key]

    async def ask(self, key, question):
        answer = (await self.wait(key, {"Answer": {
            "subject": {"Input": {"options": ["yes", "no"]}}, "text": question, "decisions": ["answer", "decline"],
            "digest": hashlib.sha256(question.encode()).hexdigest()}}))["Answered"]["answer"]
        return json.loads(answer["Answer"]["value"]) if "Answer" in answer else None

    async def delegate(self, key, tasks):
        share = {name: amount // (len(tasks) + 1) for name, amount in self.allowance.items()}
        children = [{"id": f"{self.child}-{key}-{number}", "budget": share, **task} for number, task in enumerate(tasks)]
        ended = await self.wait(key, {"Tasks": {"tasks": [child["id"] for child in children]}}, children)
        return [task["end"] for task in ended["TasksEnded"]]

async def attempt(js, message, order):
    journal = Journal(js, order)
    await journal.read()
    if not journal.is_done:
        await journal.append({"Claimed": {"worker": ME, "claim": journal.claims + 1}})
        try:
            result = await work(order["parameters"], journal.step, journal.ask, journal.delegate)
        except Parked as parked:
            await message.ack_sync()  # the order is removed before the attempt can be offered again
            return await journal.append({"Parked": parked.args[0]}, version=2)
        end = {"summary": result["summary"], "is_empty": False, "result": {"Inline": msgpack.packb(result)}}
        await journal.append({"Outcome": {"worker": ME, "outcome": {"Finished": end}}})
    await message.ack()

async def every(seconds, do):
    while await asyncio.sleep(seconds, True):
        await do()

async def main():
    url, seed = os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), os.environ.get("NATS_NKEY")
    inbox = "_INBOX" + (f".{os.environ['NATS_PUBLIC_NKEY']}" if seed else "")  # only this worker may subscribe here
    js = (await nats.connect(url, nkeys_seed=seed, inbox_prefix=inbox)).jetstream()
    cluster = json.loads((await (await js.key_value("cluster")).get("settings")).value)
    lease, beats, capabilities = cluster["work_lease_ms"] / 1000, await js.key_value("beats"), await js.key_value("capabilities")
    about = {"name": NAME, "description": "Counts words.", "parameters": {"type": "object", "required": ["text"]}}
    await capabilities.put(NAME, json.dumps(about).encode())
    beat = json.dumps({"id": ME, "role": "worker", "host": socket.gethostname(), "pid": os.getpid(), "version": "1",
                       "started": time.time_ns() // 1000, "slots": [[NAME, 1]], "busy": 0}).encode()
    beating = asyncio.create_task(every(3, lambda: beats.put(f"worker.{ME}", beat)))
    queue = await js.pull_subscribe_bind(consumer=NAME, stream="WORK")
    while not beating.done():
        await asyncio.sleep(0.05)
        with contextlib.suppress(nats.errors.TimeoutError, ServiceUnavailableError):  # the supervisor creates the queue
            for message in await queue.fetch(1, timeout=5):
                renewal = asyncio.create_task(every(lease / 3, message.in_progress))
                with contextlib.suppress(APIError):  # another worker has claimed this work
                    await attempt(js, message, msgpack.unpackb(msgpack.unpackb(message.data)["b"]))
                renewal.cancel()

asyncio.run(main())
