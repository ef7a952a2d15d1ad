# %% [markdown]
# # A run in a notebook
#
# Each cell begins with `# %%`, so that Jupyter, VS Code and PyCharm open this file as a notebook; `python notebook.py` runs it as
# well. `millrace up --api` serves the API; MILLRACE_API names another one.

# %%
import os
from pathlib import Path

from millrace import Client

client = Client(os.environ.get("MILLRACE_API", "http://127.0.0.1:7070"))
licences = Path(__file__).resolve().parents[3] / "examples" / "licences"

# %% [markdown]
# Submit an objective with its documents. The plan waits for an approval.

# %%
run = client.submit("How do these licences treat patents?", documents=[licences], approve_plan=True)
print(run.id)

# %% [markdown]
# Follow it, and answer its questions. If you interrupt this cell, run it again: it continues after the last event.

# %%
last = globals().get("last")
for event in run.events(after=last):
    last = event.id or last
    print(event.id, event.type, event.task or "")
    if event.type in ("plan_question_asked", "attempt_parked"):
        for question in run.questions():
            print("?", question.text.strip(), question.decisions)
            question.answer(approve=True)

# %% [markdown]
# What it did and used.

# %%
state = run.get()
print(state["state"], state["task_counts"])
for task in state["tasks"]:
    print(task["id"], task["state"], task["capability"])

# %% [markdown]
# The report, as Markdown where the notebook can show it.

# %%
report = run.report()
try:
    from IPython.display import Markdown, display  # type: ignore[import-not-found]

    display(Markdown(report))
except ImportError:
    print(report)
client.close()
