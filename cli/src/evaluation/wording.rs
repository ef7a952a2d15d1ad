//! Compares the wording of an answer with an expected statement: words without their case, numbers and quantities by their
//! value, dates by their day. Pure.
//!
//! | written | equal to |
//! |---|---|
//! | `1,500 g` | `1.5 kg`, `1500 grams` |
//! | `two weeks` | `14 days`, `2 weeks` |
//! | `€2,000` | `2000 euros`, `EUR 2 000` |
//! | `3 March 2026` | `2026-03-03`, `March 3rd, 2026` |
//! | `2:30 pm` | `14:30` |
//!
//! A number without a unit in an expected statement equals the number with any unit; a number with a unit needs that unit.
//! Punctuation, emphasis and citations do not count.

use std::sync::LazyLock;

use regex::Regex;

/// The maximum relative difference of two equal quantities: rounding errors of a conversion.
const TOLERANCE: f64 = 1e-9;

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A word in lower case.
    Word(String),
    /// A number, with its unit if it has one.
    Number(Quantity),
    /// A day, with its year if it has one.
    Day { year: Option<i64>, month: u8, day: u8 },
}

/// A number with an optional unit.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Quantity {
    written: f64,
    unit: Option<Unit>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Unit {
    base: &'static str,
    /// The size in base units.
    factor: f64,
}

impl Quantity {
    /// `true` if a text with `other` states this expected quantity.
    fn is_stated_by(self, other: Self) -> bool {
        match (self.unit, other.unit) {
            (None, _) => are_equal(self.written, other.written),
            (Some(_), None) => false,
            (Some(own), Some(stated)) => {
                own.base == stated.base && are_equal(self.written * own.factor, other.written * stated.factor)
            }
        }
    }
}

fn are_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
}

impl Token {
    /// `true` if a text with `other` states this expected token.
    fn is_stated_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Word(expected), Self::Word(word)) => expected == word,
            (Self::Number(expected), Self::Number(number)) => expected.is_stated_by(*number),
            (
                Self::Day { year: expected, month, day },
                Self::Day { year, month: other_month, day: other_day },
            ) => month == other_month && day == other_day && (expected.is_none() || expected == year),
            (Self::Word(_) | Self::Number(_) | Self::Day { .. }, _) => false,
        }
    }
}

/// A text that is searched for statements.
#[derive(Debug)]
pub struct Wording {
    tokens: Vec<Token>,
    /// The text for patterns: on one line, without citations.
    plain: String,
}

impl Wording {
    pub fn read(text: &str) -> Self {
        static CITATION: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"\[(?:[A-Za-z0-9_.-]+/)?S?[0-9]{1,6}\]").expect("a valid pattern"));
        let without = CITATION.replace_all(text, " ");
        let without = without.replace(['*', '`'], "");
        let plain = without.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { tokens: read_tokens(&plain), plain }
    }

    pub fn plain_text(&self) -> &str {
        &self.plain
    }

    /// `true` if the tokens of `expected` occur here in order, without others in between.
    pub fn states(&self, expected: &Self) -> bool {
        let wanted = &expected.tokens;
        !wanted.is_empty()
            && self
                .tokens
                .windows(wanted.len())
                .any(|window| wanted.iter().zip(window).all(|(expected, token)| expected.is_stated_by(token)))
    }

    /// `true` if it has no word and no number.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Units by symbol, compared exactly.
const SYMBOLS: &[(&str, &str, f64)] = &[
    ("mg", "g", 1e-3),
    ("g", "g", 1.0),
    ("kg", "g", 1e3),
    ("t", "g", 1e6),
    ("mm", "m", 1e-3),
    ("cm", "m", 1e-2),
    ("m", "m", 1.0),
    ("km", "m", 1e3),
    ("ms", "s", 1e-3),
    ("s", "s", 1.0),
    ("sec", "s", 1.0),
    ("min", "s", 60.0),
    ("h", "s", 3600.0),
    ("hrs", "s", 3600.0),
    ("d", "s", 86_400.0),
    ("km/h", "km/h", 1.0),
    ("m/s", "km/h", 3.6),
    ("ml", "l", 1e-3),
    ("mL", "l", 1e-3),
    ("l", "l", 1.0),
    ("L", "l", 1.0),
    ("B", "B", 1.0),
    ("kB", "B", 1e3),
    ("KB", "B", 1e3),
    ("MB", "B", 1e6),
    ("GB", "B", 1e9),
    ("TB", "B", 1e12),
    ("KiB", "B", 1024.0),
    ("MiB", "B", 1_048_576.0),
    ("GiB", "B", 1_073_741_824.0),
    ("W", "W", 1.0),
    ("kW", "W", 1e3),
    ("MW", "W", 1e6),
    ("mW", "W", 1e-3),
    ("Wh", "Wh", 1.0),
    ("kWh", "Wh", 1e3),
    ("V", "V", 1.0),
    ("mV", "V", 1e-3),
    ("A", "A", 1.0),
    ("mA", "A", 1e-3),
    ("Ah", "Ah", 1.0),
    ("mAh", "Ah", 1e-3),
    ("Hz", "Hz", 1.0),
    ("kHz", "Hz", 1e3),
    ("MHz", "Hz", 1e6),
    ("GHz", "Hz", 1e9),
    ("bar", "bar", 1.0),
    ("mbar", "bar", 1e-3),
    ("hPa", "bar", 1e-3),
    ("°C", "°C", 1.0),
    ("℃", "°C", 1.0),
    ("C", "°C", 1.0),
    ("°F", "°F", 1.0),
    ("°", "°", 1.0),
    ("%", "%", 1.0),
    ("€", "€", 1.0),
    ("$", "$", 1.0),
    ("£", "£", 1.0),
];

/// Units by word, compared without case; a plural has an `s` more.
const WORDS: &[(&str, &str, f64)] = &[
    ("milligram", "g", 1e-3),
    ("gram", "g", 1.0),
    ("gramme", "g", 1.0),
    ("kilogram", "g", 1e3),
    ("kilo", "g", 1e3),
    ("tonne", "g", 1e6),
    ("millimetre", "m", 1e-3),
    ("millimeter", "m", 1e-3),
    ("centimetre", "m", 1e-2),
    ("centimeter", "m", 1e-2),
    ("metre", "m", 1.0),
    ("meter", "m", 1.0),
    ("kilometre", "m", 1e3),
    ("kilometer", "m", 1e3),
    ("millisecond", "s", 1e-3),
    ("second", "s", 1.0),
    ("minute", "s", 60.0),
    ("hour", "s", 3600.0),
    ("day", "s", 86_400.0),
    ("week", "s", 604_800.0),
    ("month", "month", 1.0),
    ("year", "month", 12.0),
    ("litre", "l", 1.0),
    ("liter", "l", 1.0),
    ("millilitre", "l", 1e-3),
    ("milliliter", "l", 1e-3),
    ("byte", "B", 1.0),
    ("kilobyte", "B", 1e3),
    ("megabyte", "B", 1e6),
    ("gigabyte", "B", 1e9),
    ("watt", "W", 1.0),
    ("kilowatt", "W", 1e3),
    ("volt", "V", 1.0),
    ("percent", "%", 1.0),
    ("euro", "€", 1.0),
    ("eur", "€", 1.0),
    ("dollar", "$", 1.0),
    ("usd", "$", 1.0),
    ("gbp", "£", 1.0),
    ("celsius", "°C", 1.0),
];

const SMALL_NUMBERS: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const MAGNITUDES: [(&str, f64); 4] =
    [("hundred", 1e2), ("thousand", 1e3), ("million", 1e6), ("billion", 1e9)];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

fn unit_of_symbol(symbol: &str) -> Option<Unit> {
    let (_, base, factor) = SYMBOLS.iter().find(|(name, _, _)| *name == symbol)?;
    Some(Unit { base, factor: *factor })
}

fn unit_of_word(word: &str) -> Option<Unit> {
    let lower = word.to_lowercase();
    let singular = lower.strip_suffix('s').unwrap_or(&lower);
    let (_, base, factor) = WORDS.iter().find(|(name, _, _)| *name == lower || *name == singular)?;
    Some(Unit { base, factor: *factor })
}

/// A lexical element before numbers, units and dates are put together.
#[derive(Debug, Clone, PartialEq)]
enum Lexeme {
    Word(String),
    Number(f64),
    Date {
        year: i64,
        month: u8,
        day: u8,
    },
    /// A sign that may be a unit: `%`, `°` or a currency.
    Sign(char),
}

fn read_tokens(text: &str) -> Vec<Token> {
    join_dates(&join_quantities(&read_lexemes(text)))
}

fn read_lexemes(text: &str) -> Vec<Lexeme> {
    static LEXEME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?x)
            (?P<date> \b[0-9]{4}-[0-9]{2}-[0-9]{2}\b )
          | (?P<time> \b[0-9]{1,2}:[0-9]{2}\b (?: \s? [ap]\.?m\b\.? )? | \b[0-9]{1,2} \s? [ap]\.?m\b\.? )
          | (?P<version> \b[0-9]+ (?: \.[0-9]+ ){2,} )
          | (?P<number> [-\u{2212}]? [0-9]{1,3} (?: [,\u{a0}\u{202f}\ '’] [0-9]{3} )+ \b (?: \.[0-9]+ )?
                      | [-\u{2212}]? [0-9]+ (?: \.[0-9]+ )? )
          | (?P<speed> \bkm/h\b | \bm/s\b )
          | (?P<word> [\p{Alphabetic}_] [\p{Alphabetic}\p{Nd}_]* )
          | (?P<sign> [%€$£°℃] C? F? )
            ",
        )
        .expect("a valid pattern")
    });
    let mut lexemes = Vec::new();
    for found in LEXEME.captures_iter(text) {
        let part = |name: &str| found.name(name).map(|part| (part.start(), part.as_str()));
        if let Some((_, date)) = part("date") {
            let numbers: Vec<i64> = date.split('-').filter_map(|part| part.parse().ok()).collect();
            match day_in_year(numbers[1], numbers[2]) {
                Some((month, day)) => lexemes.push(Lexeme::Date { year: numbers[0], month, day }),
                None => lexemes.push(Lexeme::Word(date.to_owned())),
            }
        } else if let Some((_, time)) = part("time") {
            lexemes.push(Lexeme::Word(normalize_time(time)));
        } else if let Some((_, version)) = part("version") {
            lexemes.push(Lexeme::Word(version.to_owned()));
        } else if let Some((start, number)) = part("number") {
            // A hyphen between two words or numbers is no sign: "5-10", "covid-19".
            let follows_word = text[..start].chars().next_back().is_some_and(char::is_alphanumeric);
            let is_negative = number.starts_with(['-', '\u{2212}']) && !follows_word;
            let digits: String = number.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
            let value: f64 = digits.parse().unwrap_or(f64::NAN);
            lexemes.push(Lexeme::Number(if is_negative { -value } else { value }));
        } else if let Some((_, speed)) = part("speed") {
            lexemes.push(Lexeme::Word(speed.to_owned()));
        } else if let Some((_, word)) = part("word") {
            lexemes.push(Lexeme::Word(word.to_owned()));
        } else if let Some((_, sign)) = part("sign") {
            match sign {
                "°C" | "℃" => lexemes.push(Lexeme::Word("°C".into())),
                "°F" => lexemes.push(Lexeme::Word("°F".into())),
                sign => {
                    lexemes.extend(sign.chars().take(1).map(Lexeme::Sign));
                    lexemes.extend(sign.chars().skip(1).map(|letter| Lexeme::Word(letter.to_string())));
                }
            }
        }
    }
    lexemes
}

/// Returns a time of day as `14:30`.
fn normalize_time(time: &str) -> String {
    let lower = time.to_lowercase();
    let digits: String = lower.chars().filter(|c| c.is_ascii_digit() || *c == ':').collect();
    let (hour, minute) = digits.split_once(':').unwrap_or((&digits, "00"));
    let hour: u32 = hour.parse().unwrap_or_default();
    let hour = match (lower.contains('p'), lower.contains('a')) {
        (true, _) if hour < 12 => hour + 12,
        (_, true) if hour == 12 => 0,
        (_, _) => hour,
    };
    format!("{hour:02}:{minute}")
}

fn day_in_year(month: i64, day: i64) -> Option<(u8, u8)> {
    let is_day = (1..=12).contains(&month) && (1..=31).contains(&day);
    is_day.then(|| (u8::try_from(month).unwrap_or_default(), u8::try_from(day).unwrap_or_default()))
}

/// Puts numbers together with number words, magnitudes and units.
fn join_quantities(lexemes: &[Lexeme]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < lexemes.len() {
        if let Some((quantity, length)) = read_quantity(&lexemes[at..]) {
            tokens.push(Token::Number(quantity));
            at += length;
            continue;
        }
        match &lexemes[at] {
            Lexeme::Word(word) => tokens.push(Token::Word(word.to_lowercase())),
            Lexeme::Date { year, month, day } => {
                tokens.push(Token::Day { year: Some(*year), month: *month, day: *day });
            }
            Lexeme::Sign('%' | '°') | Lexeme::Number(_) => {}
            Lexeme::Sign(sign) => tokens.push(Token::Word(sign.to_string())),
        }
        at += 1;
    }
    tokens
}

/// Reads a number, with its unit, at the start of `lexemes`. Returns it with the number of lexemes it takes.
fn read_quantity(lexemes: &[Lexeme]) -> Option<(Quantity, usize)> {
    let (currency, start) = match &lexemes[0] {
        Lexeme::Sign(sign @ ('€' | '$' | '£')) => (unit_of_symbol(&sign.to_string()), 1),
        Lexeme::Word(word) if ["eur", "usd", "gbp"].contains(&word.to_lowercase().as_str()) => {
            (unit_of_word(word), 1)
        }
        Lexeme::Word(_) | Lexeme::Number(_) | Lexeme::Date { .. } | Lexeme::Sign(_) => (None, 0),
    };
    let (value, length) = read_number(lexemes.get(start..)?)?;
    let after = start + length;
    if start > 0 {
        return currency.map(|unit| (Quantity { written: value, unit: Some(unit) }, after));
    }
    let (unit, length) = read_unit(&lexemes[after..]);
    Some((Quantity { written: value, unit }, after + length))
}

fn read_number(lexemes: &[Lexeme]) -> Option<(f64, usize)> {
    let (mut value, mut length) = match lexemes.first()? {
        Lexeme::Number(value) => (*value, 1),
        Lexeme::Word(word) => read_number_words(word, lexemes.get(1))?,
        Lexeme::Date { .. } | Lexeme::Sign(_) => return None,
    };
    while let Some(Lexeme::Word(word)) = lexemes.get(length)
        && let Some((_, factor)) = MAGNITUDES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name))
    {
        value *= factor;
        length += 1;
    }
    Some((value, length))
}

/// Reads a number in words, up to ninety-nine.
fn read_number_words(word: &str, next: Option<&Lexeme>) -> Option<(f64, usize)> {
    let lower = word.to_lowercase();
    let position = |names: &[&str], word: &str| names.iter().position(|name| *name == word);
    if let Some(tens) = position(&TENS, &lower) {
        let tens = (tens + 2) * 10;
        let ones = match next {
            Some(Lexeme::Word(next)) => position(&SMALL_NUMBERS[1..10], &next.to_lowercase()),
            Some(Lexeme::Number(_) | Lexeme::Date { .. } | Lexeme::Sign(_)) | None => None,
        };
        return Some(match ones {
            Some(ones) => ((tens + ones + 1) as f64, 2),
            None => (tens as f64, 1),
        });
    }
    position(&SMALL_NUMBERS, &lower).map(|value| (value as f64, 1))
}

/// Reads a unit at the start of `lexemes`. Returns it with the number of lexemes it takes.
fn read_unit(lexemes: &[Lexeme]) -> (Option<Unit>, usize) {
    let lower = |lexeme: Option<&Lexeme>| match lexeme {
        Some(Lexeme::Word(word)) => word.to_lowercase(),
        Some(Lexeme::Number(_) | Lexeme::Date { .. } | Lexeme::Sign(_)) | None => String::new(),
    };
    match (lower(lexemes.first()).as_str(), lower(lexemes.get(1)).as_str()) {
        ("per", "cent") => return (unit_of_symbol("%"), 2),
        ("degree" | "degrees", "celsius" | "c") => return (unit_of_symbol("°C"), 2),
        (_, _) => {}
    }
    let unit = match lexemes.first() {
        Some(Lexeme::Word(word)) => unit_of_symbol(word).or_else(|| unit_of_word(word)),
        Some(Lexeme::Sign(sign)) => unit_of_symbol(&sign.to_string()),
        Some(Lexeme::Number(_) | Lexeme::Date { .. }) | None => None,
    };
    (unit, usize::from(unit.is_some()))
}

/// Puts days, months and years together: `3 March 2026`, `March 3rd, 2026`, `3 March`.
fn join_dates(tokens: &[Token]) -> Vec<Token> {
    let mut joined = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match read_day(&tokens[at..]) {
            Some((day, length)) => {
                joined.push(day);
                at += length;
            }
            None => {
                joined.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    joined
}

fn read_day(tokens: &[Token]) -> Option<(Token, usize)> {
    let (month, day, mut length) = match (month_at(tokens, 0), whole_number_at(tokens, 0)) {
        (Some(month), _) => {
            let (day, length) = day_at(tokens, 1)?;
            (month, day, 1 + length)
        }
        (None, Some(_)) => {
            let (day, length) = day_at(tokens, 0)?;
            let is_of = matches!(tokens.get(length), Some(Token::Word(word)) if word == "of");
            let at = length + usize::from(is_of);
            (month_at(tokens, at)?, day, at + 1)
        }
        (None, None) => return None,
    };
    let (month, day) = day_in_year(month, day)?;
    let year = whole_number_at(tokens, length).filter(|year| (1000..10_000).contains(year));
    length += usize::from(year.is_some());
    Some((Token::Day { year, month, day }, length))
}

fn month_at(tokens: &[Token], at: usize) -> Option<i64> {
    let Token::Word(word) = tokens.get(at)? else { return None };
    let position = MONTHS.iter().position(|name| name == word)?;
    i64::try_from(position + 1).ok()
}

/// Reads a day of the month, with the ending of an ordinal number if it has one.
fn day_at(tokens: &[Token], at: usize) -> Option<(i64, usize)> {
    let day = whole_number_at(tokens, at).filter(|day| (1..=31).contains(day))?;
    let is_ordinal = matches!(tokens.get(at + 1), Some(Token::Word(word)) if ["st", "nd", "rd", "th"].contains(&word.as_str()));
    Some((day, 1 + usize::from(is_ordinal)))
}

fn whole_number_at(tokens: &[Token], at: usize) -> Option<i64> {
    match tokens.get(at)? {
        Token::Number(Quantity { written, unit: None }) if written.fract() == 0.0 && written.abs() < 1e9 => {
            // The fraction is 0 and the number is small.
            Some(*written as i64)
        }
        Token::Number(_) | Token::Word(_) | Token::Day { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_states(text: &str, expected: &str, is_stated: bool) {
        let (wording, expectation) = (Wording::read(text), Wording::read(expected));
        assert_eq!(
            wording.states(&expectation),
            is_stated,
            "{expected:?} in {text:?}: {:?} in {:?}",
            expectation.tokens,
            wording.tokens
        );
    }

    #[test]
    fn equal_quantities_match_in_any_notation() {
        for (text, expected) in [
            ("It weighs 1,500 g.", "1.5 kg"),
            ("It weighs 1.5kg", "1500 grams"),
            ("Notice is two weeks.", "14 days"),
            ("The price is €2,000 net", "2000 euros"),
            ("costs EUR 2 000", "€2,000"),
            ("2.5 million euros", "€2,500,000"),
            ("a two-week trial", "2 weeks"),
            ("for twenty-four hours", "1 day"),
            ("reached 93 per cent of", "93%"),
            ("at -20 °C it", "-20 degrees Celsius"),
            ("up to 45 km/h", "12.5 m/s"),
            ("a 5000 mAh cell", "5 Ah"),
            ("warranty of 2 years", "24 months"),
            ("It lasts **9** hours [S1].", "9 hours"),
            ("| Weight | 1,2 kg |", "Weight"),
            ("the meeting is at 2:30 pm", "14:30"),
            ("opens at 9 am on", "9:00 a.m."),
            ("takes 1 h", "60 min"),
        ] {
            assert_states(text, expected, true);
        }
    }

    #[test]
    fn different_quantities_do_not_match() {
        for (text, expected) in [
            ("It weighs 1.5 g", "1.5 kg"),
            ("It has 15 units", "1.5"),
            ("It weighs 1500", "1500 g"),
            ("in 2 days", "2 weeks"),
            ("costs $2,000", "€2,000"),
            ("version 4.2.1", "4.2"),
            ("at 20 °C", "-20 °C"),
            ("pages 12 to 14", "1214"),
            ("128 days", "28 days"),
            ("IP67", "67"),
            ("2 MB", "2 MiB"),
        ] {
            assert_states(text, expected, false);
        }
    }

    #[test]
    fn dates_match_in_any_notation() {
        for (text, expected, is_stated) in [
            ("from 2026-03-03 on", "3 March 2026", true),
            ("on March 3rd, 2026", "2026-03-03", true),
            ("the 3rd of March", "3 March", true),
            ("on 3 March 2026", "March 3", true),
            ("on 3 March", "3 March 2026", false),
            ("on 13 March 2026", "3 March 2026", false),
            ("in March 2026", "March 2026", true),
        ] {
            assert_states(text, expected, is_stated);
        }
    }

    #[test]
    fn words_match_without_case_punctuation_and_citations() {
        assert_states("It is *not* allowed,\n[S2] Mr. Ōkami said.", "not allowed Mr Ōkami", true);
        assert_states("The safety [3] officer", "safety officer", true);
        assert_states("unsafe officer", "safe officer", false);
        assert_states("", "x", false);
        assert!(Wording::read("… !").is_empty());
        assert!(!Wording::read("anything").states(&Wording::read("…")), "an empty statement is never stated");
    }
}
