//! The figures of a text: numbers with their units, dates, times, amounts of money, and names with digits, compared by value in
//! any language. It compares figures and knows nothing of the meaning of a sentence.
//!
//! | written | equal to |
//! |---|---|
//! | `410 g` | `0.41 kg`, `410 Gramm`, `四百一十克` |
//! | `October 30, 2031` | `30 de octubre de 2031`, `2031年10月30日`, `30.10.2031` |
//! | `1,5 Mio. Euro` | `€1,500,000` |
//! | `٤١٠` | `410` |
//!
//! A notation with two meanings, such as `1.500` or `03/04/2026`, has two readings; a comparison takes the one that fits.

mod date;
mod derive;
mod number;
mod unit;
mod words;

use std::ops::Range;

pub use date::Date;
pub use derive::{Derivation, derive_figure};
use number::Number;
pub use unit::Unit;
pub use words::{LanguageGuess, detect_language, guess_language, is_unspaced};
use words::{factors_at, units_at, units_before};

/// The relative difference of two equal quantities: rounding errors of a conversion.
const TOLERANCE: f64 = 1e-9;
/// Endings that make a time of a number.
const DAY_HALVES: [(&str, u32); 4] = [("a.m.", 0), ("am", 0), ("p.m.", 12), ("pm", 12)];

/// A figure in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its place in the text, in bytes.
    pub range: Range<usize>,
    /// The values that it can have, at least one.
    pub readings: Vec<Value>,
    /// `true` if its number is in words or Chinese numerals, which can be part of a phrase.
    pub is_in_words: bool,
}

/// The value of a figure.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number with its unit or currency, if it has one.
    Quantity {
        number: f64,
        unit: Option<Unit>,
    },
    Date(Date),
    /// Seconds since midnight.
    Time(u32),
    /// A name with digits in lower case: a version, a model, an address.
    Name(String),
}

/// Returns the figures of a text in order.
pub fn read_figures(text: &str) -> Vec<Figure> {
    read_figures_in(text, detect_language(text))
}

/// Returns the figures of a text in a language (its code, such as `de`). Without a language, numbers in words count in any.
pub fn read_figures_in(text: &str, language: Option<&str>) -> Vec<Figure> {
    let numbers = number::scan_numbers(text, language);
    let mut figures: Vec<Figure> = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let (figure, next) = read_figure(text, &numbers, at);
        let free_from = figures.last().map_or(0, |figure| figure.range.end);
        // The day's sign `일` is a number in words.
        if numbers[at].range.start >= free_from {
            figures.push(Figure { range: figure.range.start.max(free_from)..figure.range.end, ..figure });
        }
        at = next;
    }
    figures
}

/// Returns the figure of a number and those after it, and the next number.
fn read_figure(text: &str, numbers: &[Number], at: usize) -> (Figure, usize) {
    let number = &numbers[at];
    if let Some((name, range)) = name_around(text, number) {
        let next = numbers.iter().skip(at).take_while(|number| number.range.start < range.end).count();
        return (Figure { range, readings: vec![Value::Name(name)], is_in_words: false }, at + next);
    }
    if let Some(found) = date::read_date(text, numbers, at) {
        let readings = found.readings.into_iter().map(Value::Date).collect();
        let is_in_words = number.is_in_words && found.numbers.0 == found.numbers.1;
        return (Figure { range: found.range, readings, is_in_words }, found.numbers.1 + 1);
    }
    if let Some((seconds, range, next)) = read_time(text, numbers, at) {
        return (Figure { range, readings: vec![Value::Time(seconds)], is_in_words: false }, next);
    }
    match &number.name {
        Some(name) => {
            let readings = vec![Value::Name(name.clone())];
            (Figure { range: number.range.clone(), readings, is_in_words: false }, at + 1)
        }
        None => (read_quantity(text, number), at + 1),
    }
}

/// Returns the word that a number is a part of, such as `IP67`, `COVID-19` and `5G`. Letters in lower case are an ending or a
/// beginning of a number: `3rd`, `mid-1990s`.
fn name_around(text: &str, number: &Number) -> Option<(String, Range<usize>)> {
    if number.is_in_words {
        return None;
    }
    let is_part = |c: char| c.is_alphanumeric() && !is_unspaced(c) || c == '_' || c == '-';
    let Range { start, end } = number.range;
    let before = text[..start].chars().rev().take_while(|c| is_part(*c)).map(char::len_utf8).sum::<usize>();
    let is_letter = |c: char| c.is_alphabetic() && !is_unspaced(c);
    let has_letter_after = text[end..].chars().next().is_some_and(is_letter);
    let after =
        match has_letter_after && units_at(&text[end..]).is_none() && factors_at(&text[end..]).is_none() {
            true => text[end..].chars().take_while(|c| is_part(*c)).map(char::len_utf8).sum::<usize>(),
            false => 0,
        };
    let (head, tail) = (&text[start - before..start], &text[end..end + after]);
    let is_glued = head.ends_with(is_letter)
        || tail.starts_with(is_letter)
        || (head.ends_with('-') && head.contains(is_letter));
    let is_name = is_glued
        && (head.contains(char::is_uppercase)
            || tail.contains(char::is_uppercase)
            || head.ends_with(is_letter));
    let tail_end = if is_name && after == 0 {
        // The rest of the word: `ISO-9001-2`.
        end + text[end..].chars().take_while(|c| is_part(*c)).map(char::len_utf8).sum::<usize>()
    } else {
        end + after
    };
    let range = start - before..tail_end;
    is_name.then(|| (text[range.clone()].trim_end_matches('-').to_lowercase(), range))
}

/// Reads `14:30`, `14:30:05`, `2:30 pm`, `9 a.m.`
fn read_time(text: &str, numbers: &[Number], at: usize) -> Option<(u32, Range<usize>, usize)> {
    let whole = |at: usize| numbers.get(at).filter(|number| !number.is_in_words).and_then(Number::whole);
    let follows = |at: usize| {
        let (one, next) = (numbers.get(at)?, numbers.get(at + 1)?);
        let is_two_digits = next.range.len() == 2 || text[next.range.clone()].chars().count() == 2;
        (&text[one.range.end..next.range.start] == ":" && is_two_digits).then(|| whole(at + 1)).flatten()
    };
    let hour = whole(at).filter(|hour| *hour < 25)?;
    let minute = follows(at).filter(|minute| *minute < 60);
    let second = minute.and_then(|_| follows(at + 1)).filter(|second| *second < 60);
    let last = at + usize::from(minute.is_some()) + usize::from(second.is_some());
    let end = numbers[last].range.end;
    let rest = text[end..].trim_start_matches([' ', '\u{a0}', '\u{202f}']);
    let half = DAY_HALVES.iter().find(|(half, _)| {
        rest.get(..half.len()).is_some_and(|start| start.eq_ignore_ascii_case(half))
            && !rest[half.len()..].starts_with(char::is_alphanumeric)
    });
    if minute.is_none() && half.is_none() {
        return None;
    }
    let hour = half.map_or(hour, |(_, half)| hour % 12 + half);
    let end = half.map_or(end, |(half, _)| text.len() - rest.len() + half.len());
    let seconds = hour * 3_600 + minute.unwrap_or_default() * 60 + second.unwrap_or_default();
    Some((seconds, numbers[at].range.start..end, last + 1))
}

/// Reads the power of ten and the unit around a number.
fn read_quantity(text: &str, number: &Number) -> Figure {
    let Range { mut start, mut end } = number.range;
    let mut values = number.values.clone();
    // Two after one another: `hundred thousand`.
    for _ in 0..2 {
        let rest = after_blank(&text[end..]);
        let Some((factors, length)) = factors_at(rest) else { break };
        values = values.iter().flat_map(|value| factors.iter().map(move |factor| value * factor)).collect();
        end = text.len() - rest.len() + length;
    }
    let rest = after_blank(&text[end..]);
    let after = units_at(rest);
    let head = text[..start].trim_end_matches([' ', '\u{a0}', '\u{202f}']);
    let units = match (after, units_before(head)) {
        (Some((units, length)), _) => {
            end = text.len() - rest.len() + length;
            units
        }
        (None, Some((units, length))) => {
            start = head.len() - length;
            units
        }
        (None, None) => Vec::new(),
    };
    // `1998年` and `1998 году` are years, and no time of 1998 years.
    let is_year = |number: f64, unit: &Unit| {
        unit.base == "month" && number.fract() == 0.0 && (1_000.0..3_000.0).contains(&number)
    };
    let units: Vec<Unit> =
        units.into_iter().filter(|unit| !values.iter().any(|number| is_year(*number, unit))).collect();
    let readings = values.iter().flat_map(|number| {
        let bare = units.is_empty().then_some(Value::Quantity { number: *number, unit: None });
        bare.into_iter()
            .chain(units.iter().map(|unit| Value::Quantity { number: *number, unit: Some(*unit) }))
    });
    Figure { range: start..end, readings: readings.collect(), is_in_words: number.is_in_words }
}

/// A text without the blank or hyphen between a number and its unit.
fn after_blank(text: &str) -> &str {
    let rest = text.strip_prefix([' ', '\u{a0}', '\u{202f}', '-', '‑']).unwrap_or(text);
    // A hyphen joins a number with a word only.
    if rest.starts_with(char::is_alphabetic) || !text.starts_with(['-', '‑']) { rest } else { text }
}

pub(crate) fn are_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
}

impl Value {
    /// `true` if `other` has this value. A number without a unit equals the number with any unit; one with a unit needs the unit.
    pub fn is_stated_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Quantity { number, unit: None }, Self::Quantity { number: stated, .. }) => {
                are_equal(*number, *stated)
            }
            (
                Self::Quantity { number, unit: Some(unit) },
                Self::Quantity { number: stated, unit: Some(other) },
            ) => unit.base == other.base && are_equal(unit.to_base(*number), other.to_base(*stated)),
            (Self::Date(date), Self::Date(stated)) => date.is_stated_by(stated),
            (Self::Time(time), Self::Time(stated)) => time == stated,
            (Self::Name(name), Self::Name(stated)) => name == stated,
            (Self::Quantity { .. } | Self::Date(_) | Self::Time(_) | Self::Name(_), _) => false,
        }
    }

    /// `true` if `other` can be this value when parts of it are elsewhere: the unit in the head of a table, the year in a
    /// heading, the year of a date alone.
    fn is_compatible_with(&self, other: &Self) -> bool {
        let is_part = |number: f64, date: &Date| {
            let parts = [date.year, date.day.map(i32::from)];
            parts.into_iter().flatten().any(|part| are_equal(number, f64::from(part)))
        };
        match (self, other) {
            (Self::Quantity { number, unit: Some(unit) }, Self::Quantity { number: stated, unit: None }) => {
                unit.all_forms(*number).any(|form| are_equal(form, *stated))
            }
            (Self::Quantity { number, unit: None }, Self::Date(date)) => is_part(*number, date),
            (Self::Date(date), Self::Date(stated)) => date.is_compatible_with(stated),
            (one, other) => one.is_stated_by(other),
        }
    }
}

impl Figure {
    /// `true` if `other` has one of its values.
    pub fn is_stated_by(&self, other: &Self) -> bool {
        self.readings.iter().any(|own| other.readings.iter().any(|stated| own.is_stated_by(stated)))
    }

    /// `true` if one of the figures can be this one. If none can, it is in none of their texts.
    pub fn is_found_in(&self, figures: &[Self]) -> bool {
        let years = |year: i32| {
            let value = Value::Quantity { number: f64::from(year), unit: None };
            figures.iter().flat_map(|figure| &figure.readings).any(|stated| value.is_compatible_with(stated))
        };
        let found = |own: &Value| {
            let stated = figures
                .iter()
                .flat_map(|figure| &figure.readings)
                .any(|stated| own.is_compatible_with(stated));
            // The year of a day may be elsewhere, but not missing.
            stated && !matches!(own, Value::Date(Date { year: Some(year), .. }) if !years(*year))
        };
        self.readings.iter().any(found)
    }

    /// `true` if it proves nothing that it is found nowhere: a number in words without a unit can be part of a phrase.
    pub fn can_be_a_phrase(&self) -> bool {
        let has_unit = |value: &Value| !matches!(value, Value::Quantity { unit: None, .. });
        self.is_in_words && !self.readings.iter().any(has_unit)
    }
}

/// Returns the figures of a text that are none of the known ones, and follow from none of them by rounding or one calculation.
pub fn find_invented_figures(text: &str, known: &[Figure]) -> Vec<Figure> {
    let is_invented = |figure: &Figure| {
        !figure.can_be_a_phrase() && !figure.is_found_in(known) && derive_figure(figure, known).is_none()
    };
    read_figures(text).into_iter().filter(is_invented).collect()
}

#[cfg(test)]
mod tests;
