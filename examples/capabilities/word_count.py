"""The program behind word-count.yaml: the task comes as JSON on standard input, the result goes out as JSON; what is
written to standard error is shown as progress."""
import json
import sys

task = json.load(sys.stdin)
words = len(task["parameters"]["text"].split())
print(f"counted {words} words", file=sys.stderr)
print(json.dumps({"summary": f"{words} words", "output": f"The text has {words} words.", "data": {"words": words}}))
