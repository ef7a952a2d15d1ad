"""The program of word-count.yaml: reads the task as JSON from standard input and prints the result as JSON; standard
error is shown as progress."""
import json
import sys

task = json.load(sys.stdin)
words = len(task["parameters"]["text"].split())
print(f"counted {words} words", file=sys.stderr)
print(json.dumps({"summary": f"{words} words", "output": f"The text has {words} words.", "data": {"words": words}}))
