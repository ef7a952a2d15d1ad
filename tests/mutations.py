#!/usr/bin/env python3
"""Draws mutations of the product's code by a seed and shows whether the tests catch them.

    tests/mutations.py draw                 print the candidates of each area, in order
    tests/mutations.py apply AREA N         apply candidate N, or the next one whose code still exists
    tests/mutations.py revert               undo it
    tests/mutations.py check [AREA ...]     one mutation per area: apply, test, revert; print caught or survived

A mutation deletes a statement of one line or turns a comparison round. The draw depends on the seed and on one revision
(`--at`), not on the working tree: the same mutations are applied before and after a change, found again by their text.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time

REVISION = "8574262"
# Area: its package, its folder, and the files of `millrace-tests` that cover it. The package's own tests run first, and each
# further one only if the mutation survives.
AREAS = {
    "protocol": ("millrace-protocol", "protocol", "behaviours prefixes history"),
    "runtime": ("millrace-runtime", "crates/runtime", "takeover queues backup behaviours"),
    "agent": ("millrace-agent", "crates/agent", "agents skills behaviours"),
    "models": ("millrace-models", "crates/models", "agents behaviours"),
    "tools": ("millrace-tools", "crates/tools", "agents web_sources behaviours"),
    "documents": ("millrace-documents", "crates/documents", "agents behaviours"),
    "host": ("millrace-host", "crates/host", "takeover behaviours"),
    "worker": ("millrace-worker", "worker", "takeover exit_codes health"),
    "supervisor": ("millrace-supervisor", "supervisor", "takeover supervision health"),
    "gateway": ("millrace-gateway", "gateway", "standards gateway gateway_access gateway_tenants dashboard"),
    "cli": ("millrace", "cli", "behaviours exit_codes backup questions"),
}
# Mutations that change nothing which a caller can observe, by file and text, each with the reason. Found by reading the code.
EQUIVALENT = {}

OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
# rustfmt puts spaces around comparisons and none around the brackets of generics.
COMPARISON = re.compile(r"(?:(?<=\s)|^)(==|!=|<=|>=|<|>)(?=\s|$)")
LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>\#*)".*?"(?P=hashes)|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"|'(?:\\[^\n']+|\\'|[^\\\n'])'""",
    re.S,
)
ATTRIBUTE = re.compile(r"#!?\[")
LOG = re.compile(r"\b(?:tracing::)?(?:trace|debug|info|warn|error|event|debug_assert\w*)!\s*[({\[]")
TEXT_IMPL = re.compile(r"\bimpl\b[^{;]*\b(?:Display|Debug)\s+for\b[^{;]*\{")
MACRO = re.compile(r"\bmacro_rules!\s*\w+\s*\{")
NO_STATEMENT = re.compile(r"[\])}.?&|+*/=<>-]|(?:pub|use|mod|fn|async fn|const|static|type|extern|where|else|in)\b|let (?!_ =)|let _ = &")


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def blank(text, start, end, fill=" "):
    return text[:start] + re.sub(r"[^\n]", fill, text[start:end]) + text[end:]


def closing(text, opening):
    """Returns the end of the bracket that opens at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(text)


def product_code(text):
    """Blanks whatever is not mutated: comments, literals, attributes, tests, logs, texts of `Display`, macros."""
    code = LITERAL.sub(lambda match: blank(match[0], 0, len(match[0]), " " if match[0][0] == "/" else '"'), text)
    for pattern in (LOG, TEXT_IMPL, MACRO):
        while match := pattern.search(code):
            code = blank(code, match.start(), closing(code, match.end() - 1))
    while match := ATTRIBUTE.search(code):
        end = closing(code, match.end() - 1)
        of_tests = re.search(r"\bcfg\b.*\btest\b", code[match.start() : end], re.S)
        if of_tests and code[match.start() + 1] == "!":
            return ""
        if of_tests:
            while further := re.compile(r"\s*#(?=\[)").match(code, end):
                end = closing(code, further.end())
            body = re.compile(r"[{;]").search(code, end)
            end = len(code) if body is None else body.end() if body[0] == ";" else closing(code, body.start())
        code = blank(code, match.start(), end)
    return code


def indent(line):
    return len(line) - len(line.lstrip())


def enclosing_function(lines, at):
    """Returns the name of the function around a line, or None."""
    depth, head_continues = indent(lines[at]), False
    for line in reversed(lines[:at]):
        if not line.strip() or indent(line) > depth or (indent(line) == depth and not head_continues):
            continue
        depth = indent(line)
        if match := re.search(r"\bfn (\w+)", line):
            return match[1]
        head_continues = re.match(r"\s*(?:\)|\{|where\b)", line) is not None or (head_continues and indent(line) == depth)
        if depth == 0 and not head_continues:
            return None
    return None


def is_statement(code, at):
    """Returns True for a whole statement on one line, which compiles without it more often than not."""
    line = code[at].strip()
    previous = next((other.strip() for other in reversed(code[:at]) if other.strip()), "")
    balanced = all(line.count(one) == line.count(other) for one, other in ("()", "[]", "{}"))
    return line.endswith(";") and line != ";" and balanced and not NO_STATEMENT.match(line) and previous[-1:] in tuple(";{}")


def neighbours(lines, at):
    before = next((line.strip() for line in reversed(lines[:at]) if line.strip()), "")
    after = next((line.strip() for line in lines[at + 1 :] if line.strip()), "")
    return before, after


def mutations_of(area, file, text):
    """Yields each possible mutation of one file."""
    lines, code = text.split("\n"), product_code(text).split("\n")
    for at in range(min(len(lines), len(code))):
        function = enclosing_function(code, at) if code[at].strip() else None
        if function is None:
            continue
        before, after = neighbours(lines, at)
        line = {"area": area, "file": file, "line": at + 1, "text": lines[at].strip(), "before": before, "after": after, "function": function}
        if is_statement(code, at):
            yield line | {"kind": "delete", "mutated": ""}
        for match in COMPARISON.finditer(code[at]):
            mutated = lines[at][: match.start()] + OPPOSITE[match[1]] + lines[at][match.end() :]
            yield line | {"kind": "turn", "mutated": mutated.strip()}


def draw(seed, revision, area, count):
    """Returns the first `count` mutations of an area. Which kind comes next is drawn first: there are more statements than comparisons."""
    source = AREAS[area][1] + "/src"
    files = sorted(git("ls-tree", "-r", "--name-only", revision, "--", source).split())
    files = [file for file in files if file.endswith(".rs") and not re.search(r"(^|/)tests(/|\.rs$)", file)]
    number = lambda *parts: hashlib.sha256("\0".join(map(str, (seed, area, *parts))).encode()).hexdigest()
    kinds = {"delete": [], "turn": []}
    for file in files:
        for mutation in mutations_of(area, file, git("show", f"{revision}:{file}")):
            kinds[mutation["kind"]].append(mutation)
    for candidates in kinds.values():
        candidates.sort(key=lambda one: number(one["file"], one["line"], one["mutated"]), reverse=True)
    drawn = []
    while len(drawn) < count and any(kinds.values()):
        kind = ("delete", "turn")[int(number(len(drawn)), 16) % 2]
        drawn.append((kinds[kind] or kinds["delete"] or kinds["turn"]).pop())
    return drawn


def describe(mutation):
    change = "deleted" if mutation["kind"] == "delete" else f"→ {mutation['mutated']}"
    return f"{mutation['file']}:{mutation['line']} in {mutation['function']}: {mutation['text']}  {change}"


def locate(mutation, file):
    """Returns the only line of a file with the mutation's text, and both neighbours or one of them and the function."""
    lines = pathlib.Path(file).read_text().split("\n")
    found = {1: [], 2: []}
    for at, line in enumerate(lines):
        if line.strip() != mutation["text"]:
            continue
        equal = sum(a == b for a, b in zip(neighbours(lines, at), (mutation["before"], mutation["after"])))
        if equal == 2 or (equal == 1 and enclosing_function(lines, at) == mutation["function"]):
            found[equal].append(at)
    best = found[2] or found[1]
    same_function = [at for at in best if enclosing_function(lines, at) == mutation["function"]]
    if len(same_function) > 1 and file == mutation["file"]:
        return min(same_function, key=lambda at: abs(at + 1 - mutation["line"]))
    best = same_function or best
    return best[0] if len(best) == 1 else None


def record_path():
    return pathlib.Path(git("rev-parse", "--git-path", "mutation.json").strip())


def apply(mutation):
    """Applies a mutation in its file, or in the file that its code was moved to. Returns False if the code no longer exists."""
    if record_path().exists():
        sys.exit("a mutation is applied already; undo it with `tests/mutations.py revert`")
    moved = [file for file in sorted(git("ls-files", "*.rs").split()) if "/src/" in f"/{file}" and file != mutation["file"]]
    for file in [mutation["file"], *moved]:
        path = pathlib.Path(file)
        if not path.exists() or mutation["text"] not in (text := path.read_text()) or (at := locate(mutation, file)) is None:
            continue
        lines = text.split("\n")
        lines[at] = " " * indent(lines[at]) + mutation["mutated"] if mutation["mutated"] else ""
        mutated = "\n".join(lines)
        record_path().write_text(json.dumps({"file": file, "original": text, "mutated": mutated}))
        path.write_text(mutated)
        if (file, at + 1) != (mutation["file"], mutation["line"]):
            print(f"  the code is now at {file}:{at + 1}")
        return True
    print(f"  no longer in the code: {describe(mutation)}")
    return False


def revert():
    if not record_path().exists():
        return
    record = json.loads(record_path().read_text())
    path = pathlib.Path(record["file"])
    if path.read_text() != record["mutated"]:
        sys.exit(f"{path} was edited after the mutation; undo it by hand, then delete {record_path()}")
    path.write_text(record["original"])
    record_path().unlink()


def cargo_test(arguments, output):
    """Runs `cargo test` and returns its exit code and output. A test that waits for ever ends after 15 minutes."""
    command = ["timeout", "900", "nice", "-n", "10", "cargo", "test", "--locked", *arguments]
    with output.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    return code, output.read_text(errors="replace")


def test_arguments(name):
    """Returns the arguments for one file of `millrace-tests`, which is a program or a module of one."""
    for program in sorted(pathlib.Path("tests/tests").glob("*.rs")):
        # A module with a path of its own is another file of this name.
        if re.search(rf"(?<!\]\n)^mod {name};", program.read_text(), re.M):
            return f"-p millrace-tests --test {program.stem} {name}::"
    return f"-p millrace-tests --test {name}"


def first_failure(code, text):
    """Returns the target and the name of the first failed test."""
    target = re.search(r"to rerun pass `([^`]*)`", text)
    test = re.search(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", text, re.M)
    return target and target[1], test[1] if test else "time limit" if code == 124 else "a test program ended early"


def check_mutation(mutation, output):
    """Applies one mutation and tests. Returns False if it does not compile, so that the next one is taken."""
    if reason := EQUIVALENT.get((mutation["file"], mutation["text"])):
        print(f"  equivalent: {describe(mutation)}: {reason}")
        return False
    if not apply(mutation):
        return False
    try:
        package, _, further = AREAS[mutation["area"]]
        for command in [f"-p {package} --tests", *map(test_arguments, further.split())]:
            code, text = cargo_test([*command.split(), "--no-run"], output / f"{mutation['area']}_build.txt")
            if code != 0 and not re.search(r"^error\[E\d+\]", text, re.M):
                sys.exit(f"`cargo test {command} --no-run` failed, and not for the mutation (exit code {code}):\n{text[-2000:]}")
            if code != 0:
                print(f"  does not compile: {describe(mutation)}")
                return False
            started = time.monotonic()
            code, text = cargo_test(command.split(), output / f"{mutation['area']}.txt")
            seconds = time.monotonic() - started
            if code == 0:
                print(f"  survived `cargo test {command}` ({seconds:.0f} s)", flush=True)
                continue
            target, test = first_failure(code, text)
            revert()
            # Without the mutation the same test passes, or it proves nothing about the mutation.
            alone = f"{target or command} -- --exact {test}".split() if " " not in test else command.split()
            code, text = cargo_test(alone, output / f"{mutation['area']}_unmutated.txt")
            verdict = "caught" if code == 0 else "UNCLEAR: the test fails without the mutation too"
            print(f"{verdict}: {describe(mutation)}\n  by {test} ({target}), `cargo test {command}`, {seconds:.0f} s", flush=True)
            return True
    finally:
        revert()
    print(f"SURVIVED: {describe(mutation)}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--at", default=REVISION, help="the revision that mutations are drawn from")
    parser.add_argument("--count", type=int, default=12, help="candidates per area")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("target/mutations"), help="folder of the test outputs")
    parser.add_argument("command", choices=["draw", "apply", "revert", "check"])
    parser.add_argument("arguments", nargs="*", metavar="AREA [N]", help=", ".join(AREAS))
    options = parser.parse_intermixed_args()
    candidates = lambda area: draw(options.seed, options.at, area, options.count)
    areas = options.arguments[:1] if options.command == "apply" else options.arguments or list(AREAS)
    if unknown := [area for area in areas if area not in AREAS]:
        parser.error(f"no such area: {', '.join(unknown)}")

    if options.command == "draw":
        for area in areas:
            for number, mutation in enumerate(candidates(area)):
                print(f"{area} {number} {mutation['kind']}: {describe(mutation)}")
    elif options.command == "apply":
        if len(options.arguments) != 2 or not options.arguments[1].isdecimal():
            parser.error("apply AREA N")
        first = int(options.arguments[1])
        applied = next((one for one in candidates(areas[0])[first:] if apply(one)), None)
        print(f"applied: {describe(applied)}" if applied else "no candidate left; raise --count")
        return 0 if applied else 1
    elif options.command == "revert":
        revert()
    else:
        options.output.mkdir(parents=True, exist_ok=True)
        for area in areas:
            print(f"{area}:", flush=True)
            if not any(check_mutation(mutation, options.output) for mutation in candidates(area)):
                print("  no candidate left; raise --count")
    return 0


if __name__ == "__main__":
    sys.exit(main())
