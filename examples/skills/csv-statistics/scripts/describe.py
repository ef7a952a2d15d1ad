#!/usr/bin/env python3
"""Prints count, mean, median, minimum and maximum of the numeric columns of a CSV file."""

import csv
import statistics
import sys


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--decimal-comma"]
    has_comma = len(arguments) < len(sys.argv) - 1
    if len(arguments) != 1:
        print("usage: describe.py FILE [--decimal-comma]", file=sys.stderr)
        return 2
    with open(arguments[0], newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    for column in rows[0] if rows else []:
        numbers, others = [], 0
        for row in rows:
            text = (row[column] or "").strip()
            if has_comma:
                text = text.replace(".", "").replace(",", ".")
            try:
                numbers.append(float(text))
            except ValueError:
                others += 1
        if not numbers:
            continue
        mean, median = statistics.fmean(numbers), statistics.median(numbers)
        print(
            f"{column}: {len(numbers)} values, mean {mean:g}, median {median:g}, "
            f"minimum {min(numbers):g}, maximum {max(numbers):g}, no numbers {others}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
