"""Looks for a key, given in two parts, in what all processes show of their variables, and opens the memory of those above this one:
`look.py PART PART FILE`."""

import json
import os
import sys
from pathlib import Path


def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def can_open(path):
    try:
        open(path, "rb").close()
        return True
    except OSError:
        return False


key = (sys.argv[1] + sys.argv[2]).encode()
shown = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and key in read(f"/proc/{pid}/environ")]
above, pid = [], os.getppid()
while pid > 1:
    above.append(pid)
    pid = int(read(f"/proc/{pid}/stat").rsplit(b")", 1)[1].split()[1])
opened = [pid for pid in above if can_open(f"/proc/{pid}/mem")]
passed_on = os.environ.get("PASSED_ON")
Path(sys.argv[3]).write_text(json.dumps({"shown": shown, "above": above, "opened": opened, "passed_on": passed_on}))
print("done")
