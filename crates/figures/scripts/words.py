#!/usr/bin/env python3
"""Writes `data/words.tsv` from the Unicode CLDR: names of units, of powers of ten and of numbers, by word.

    npm pack cldr-units-full cldr-numbers-full cldr-rbnf      # unpack each in a folder of its name
    scripts/words.py FOLDER > data/words.tsv

A line is `word <TAB> kind <TAB> value [<TAB> languages]`: `unit` with the name of the unit in `src/unit.rs`, `before` for a unit
that stands before its number, `times` with the factor, `number` with the value and the languages in which the word means it. A word
with several meanings has several lines. Symbols of units in Latin letters are in `src/unit.rs`: in one language or another, each of
one or two letters means something else.
"""

import json
import pathlib
import re
import sys

LANGUAGES = (
    "en de fr es it pt nl sv da nb fi is pl cs sk hu ro bg el ru uk be sr hr sl mk sq lt lv et ga cy ca eu gl tr az uz kk ky "
    "ar fa he ur hi bn ta te ml mr gu kn pa ne si or as th lo km my vi id ms fil jv zh zh-Hant ja ko mn ka hy sw am so zu af"
).split()
UNITS = {
    "mass": "milligram gram kilogram tonne metric-ton pound ounce",
    "length": "millimeter centimeter meter kilometer nanometer inch foot yard mile nautical-mile",
    "duration": "millisecond second minute hour day week month year decade century",
    "volume": "milliliter liter cubic-meter cubic-centimeter gallon barrel",
    "area": "square-meter square-kilometer hectare acre square-mile square-foot",
    "digital": "bit byte kilobyte megabyte gigabyte terabyte",
    "power": "watt kilowatt megawatt gigawatt horsepower",
    "energy": "joule kilojoule kilowatt-hour calorie kilocalorie",
    "electric": "volt ampere ohm",
    "frequency": "hertz kilohertz megahertz gigahertz",
    "pressure": "pascal hectopascal bar millibar",
    "temperature": "celsius fahrenheit kelvin",
    "speed": "kilometer-per-hour meter-per-second mile-per-hour knot",
    "concentr": "percent permille",
    "angle": "degree",
}
POWERS = [100, *(10**power for power in (3, 4, 5, 6, 7, 8, 9, 12))]
FAMILIES = [("USD", "CAD", "AUD"), ("GBP", "EGP", "LBP"), ("INR", "PKR"), ("RUB", "BYN"), ("SEK", "ISK"), ("KRW", "KPW")]
CURRENCIES = "USD EUR GBP JPY CNY INR RUB TRY CHF PLN BRL MXN KRW THB ILS SEK NOK DKK CZK HUF RON UAH CAD AUD".split()


def strings(node):
    """All patterns of a unit, of each count and case."""
    for value in node.values():
        if isinstance(value, str) and "{0}" in value:
            yield value
        elif isinstance(value, dict):
            yield from strings(value)


def clean(text):
    return re.sub(r"[\u200b\u200e\u200f\u061c\u00ad']", "", text).replace("\u00a0", " ").replace("\u202f", " ").strip().lower()


def is_distinct(word, style):
    """A short form in Latin letters is a word of another language as often."""
    return style == "long" and len(word) > 2 or not re.fullmatch(r"[\x00-\u024f]+", word)


def main(folder):
    lines = {}
    add = lambda word, kind, value, language="": lines.setdefault((word, kind, value), set()).add(language)
    read = lambda package, path: json.loads((folder / package / "package" / path).read_text())
    for language in LANGUAGES:
        units = read("cldr-units-full", f"main/{language}/units.json")["main"][language]["units"]
        for style in ("long", "short"):
            for kind, names in UNITS.items():
                for name in names.split():
                    for pattern in strings(units[style].get(f"{kind}-{name}", {})):
                        before, after = map(clean, pattern.split("{0}"))
                        if after and not before and is_distinct(after, style):
                            add(after, "unit", name)
                        elif before and not after and is_distinct(before, style):
                            add(before, "before", name)
        numbers = read("cldr-numbers-full", f"main/{language}/numbers.json")["main"][language]
        formats = numbers["numbers"]["decimalFormats-numberSystem-latn"]
        for style in ("long", "short"):
            for key, pattern in formats[style]["decimalFormat"].items():
                if key[0] != "1" or ";" in pattern:
                    continue
                zeros = pattern.count("0")
                word = clean(pattern.replace("0", ""))
                if zeros and word and (len(word) > 3 or is_distinct(word, style)):
                    add(word, "times", str(int(key.split("-")[0]) // 10 ** (zeros - 1)))
        currencies = read("cldr-numbers-full", f"main/{language}/currencies.json")["main"][language]["numbers"]["currencies"]
        names_of = lambda code: {clean(name) for key, name in currencies[code].items() if "count" in key}
        for currency in CURRENCIES:
            for name in names_of(currency):
                if is_distinct(name, "long"):
                    add(name, "unit", currency)
        # `dollars` alone is the word that the names of all dollars have.
        for currency, *others in FAMILIES:
            words = lambda code: {word for name in names_of(code) for word in name.split()}
            for word in words(currency).intersection(*map(words, others)):
                if is_distinct(word, "long"):
                    add(word, "unit", currency)
        path = folder / "cldr-rbnf" / "package" / "rbnf" / f"{language}.json"
        rules = json.loads(path.read_text())["rbnf"]["rbnf"].get("SpelloutRules", {}) if path.exists() else {}
        for name, rows in rules.items():
            if not re.match(r"%spellout-(numbering|cardinal)", name) or "verbose" in name:
                continue
            for value, text in rows:
                power = re.match(r"←[^←]*←\s*([^\[→←;$=]+)", text)
                if value.isdigit() and int(value) in POWERS and power and clean(power[1]):
                    add(clean(power[1]), "times", value)
                number = re.split(r"[\[←→=%>]", text.rstrip(";"))[0]
                word = clean(number).rstrip("-")
                is_whole = re.fullmatch(r"[^\d#<←]+", word) if word else None
                if value.isdigit() and int(value) <= 90 and is_whole and (int(value) <= 20 or int(value) % 10 == 0):
                    add(word, "number", value, language)
    print("# Unicode CLDR 48.2; written by scripts/words.py. Licence: Unicode-3.0.")
    for line, languages in sorted(lines.items()):
        if re.search(r"\w", line[0]) and line[0][0] != "/":
            print("\t".join([*line, *filter(None, [" ".join(sorted(languages - {""}))])]))


main(pathlib.Path(sys.argv[1]))
