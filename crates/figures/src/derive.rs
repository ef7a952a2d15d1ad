//! Figures that follow from others by rounding or by one calculation, so that they are not invented. Terms of a calculation
//! have units: among numbers without any, some pair gives nearly every small number.

use std::fmt;

use icu_calendar::Date as CalendarDate;

use crate::{Figure, Unit, Value, are_equal};

/// The most figures that calculations are tried with: each pair is one.
const MAX_FIGURES: usize = 200;
/// The least number of digits that a rounded number keeps.
const MIN_DIGITS: i32 = 2;
const SECONDS_OF_DAY: f64 = 86_400.0;

/// The way in which a figure follows from others.
#[derive(Debug, Clone, PartialEq)]
pub enum Derivation {
    Rounded(f64),
    Sum(f64, f64),
    Difference(f64, f64),
    Product(f64, f64),
    /// The first as a percentage of the second.
    Share(f64, f64),
    /// The change from the first to the second, in percent.
    Change(f64, f64),
    /// The time between two days or years.
    Between(String, String),
    /// A day that is this many days after another.
    After(String, f64),
}

impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rounded(from) => write!(f, "{from} rounded"),
            Self::Sum(a, b) => write!(f, "{a} + {b}"),
            Self::Difference(a, b) => write!(f, "{a} − {b}"),
            Self::Product(a, b) => write!(f, "{a} × {b}"),
            Self::Share(a, b) => write!(f, "{a} of {b}"),
            Self::Change(a, b) => write!(f, "from {a} to {b}"),
            Self::Between(from, to) => write!(f, "from {from} to {to}"),
            Self::After(day, days) => write!(f, "{day} + {days} days"),
        }
    }
}

/// A number of a source, in the base unit of its kind.
#[derive(Clone, Copy)]
struct Term {
    written: f64,
    value: f64,
    base: Option<&'static str>,
}

/// Returns a calculation with at most two of the figures whose result is this one.
pub fn derive_figure(figure: &Figure, sources: &[Figure]) -> Option<Derivation> {
    let sources = &sources[..sources.len().min(MAX_FIGURES)];
    let readings =
        || sources.iter().filter(|source| !source.can_be_a_phrase()).flat_map(|source| &source.readings);
    let terms: Vec<Term> = readings().filter_map(Term::of).collect();
    let days: Vec<(f64, String)> = readings().filter_map(day_of).collect();
    figure.readings.iter().find_map(|value| match value {
        Value::Quantity { number, unit } => {
            derive_number(*number, *unit, &terms).or_else(|| derive_interval(*number, *unit, &days))
        }
        Value::Date(_) => {
            let (day, _) = day_of(value)?;
            let spans = terms
                .iter()
                .filter(|term| term.base == Some("second"))
                .map(|term| term.value / SECONDS_OF_DAY);
            let spans: Vec<f64> = spans.collect();
            days.iter().find_map(|(from, written)| {
                let span = spans
                    .iter()
                    .find(|span| are_equal(from + **span, day) || are_equal(from - **span, day))?;
                Some(Derivation::After(written.clone(), (day - from).signum() * span))
            })
        }
        Value::Time(_) | Value::Name(_) => None,
    })
}

impl Term {
    fn of(value: &Value) -> Option<Self> {
        let Value::Quantity { number, unit } = value else { return None };
        let in_base = unit.map_or(*number, |unit| unit.to_base(*number));
        Some(Self { written: *number, value: in_base, base: unit.map(|unit| unit.base) })
    }
}

fn derive_number(number: f64, unit: Option<Unit>, terms: &[Term]) -> Option<Derivation> {
    let wanted = unit.map_or(number, |unit| unit.to_base(number));
    let base = unit.map(|unit| unit.base);
    let is_of_kind = |term: &&Term| term.base == base;
    // The written number is rounded, in its own unit.
    let in_unit = |term: &Term| unit.map_or(term.value, |unit| (term.value - unit.offset) / unit.factor);
    if let Some(term) = terms.iter().filter(is_of_kind).find(|term| is_rounded(in_unit(term), number)) {
        return Some(Derivation::Rounded(term.written));
    }
    base?;
    let of_kind: Vec<Term> = terms.iter().filter(is_of_kind).copied().collect();
    let simple = pairs(&of_kind).find_map(|(a, b)| {
        let (x, y) = (a.value, b.value);
        match () {
            () if are_equal(x + y, wanted) => Some(Derivation::Sum(a.written, b.written)),
            () if are_equal(x - y, wanted) => Some(Derivation::Difference(a.written, b.written)),
            () => None,
        }
    });
    simple.or_else(|| {
        pairs(terms).find_map(|(a, b)| {
            let share = 100.0 * a.value / b.value;
            let change = 100.0 * (b.value - a.value) / a.value;
            match base {
                Some("percent") if a.base.is_some() && a.base == b.base && is_near(share, number) => {
                    Some(Derivation::Share(a.written, b.written))
                }
                Some("percent") if a.base.is_some() && a.base == b.base && is_near(change.abs(), number) => {
                    Some(Derivation::Change(a.written, b.written))
                }
                Some("percent") => None,
                // One of two factors has the unit.
                _ if a.base.is_none() && b.base == base && are_equal(a.value * b.value, wanted) => {
                    Some(Derivation::Product(a.written, b.written))
                }
                _ => None,
            }
        })
    })
}

/// All ordered pairs of two terms.
fn pairs(terms: &[Term]) -> impl Iterator<Item = (Term, Term)> {
    let others =
        move |a: usize| terms.iter().enumerate().filter(move |(b, _)| *b != a).map(|(_, term)| *term);
    terms.iter().enumerate().flat_map(move |(a, term)| others(a).map(move |other| (*term, other)))
}

/// The time between two days or years, in the unit of the number.
fn derive_interval(number: f64, unit: Option<Unit>, days: &[(f64, String)]) -> Option<Derivation> {
    let unit = unit.filter(|unit| ["second", "month"].contains(&unit.base))?;
    days.iter().enumerate().find_map(|(at, (from, from_text))| {
        days[at + 1..].iter().find_map(|(to, to_text)| {
            let days = (to - from).abs();
            let months = days / 365.2425 * 12.0;
            let is_equal = match unit.base {
                "month" => {
                    (months / unit.factor).floor() == number || (months / unit.factor).round() == number
                }
                _ => are_equal(days * SECONDS_OF_DAY, unit.to_base(number)),
            };
            is_equal.then(|| Derivation::Between(from_text.clone(), to_text.clone()))
        })
    })
}

/// The number of a day, with the day in words.
fn day_of(value: &Value) -> Option<(f64, String)> {
    let Value::Date(date) = value else { return None };
    let (year, month, day) = (date.year?, date.month?, date.day?);
    let days = CalendarDate::try_new_iso(year, month, day).ok()?.to_rata_die().to_i64_date();
    // Days of the calendar are small.
    Some((days as f64, format!("{year:04}-{month:02}-{day:02}")))
}

/// `true` if `rounded` is `exact` with fewer digits.
fn is_rounded(exact: f64, rounded: f64) -> bool {
    if rounded == 0.0 || exact == 0.0 || exact.signum() != rounded.signum() {
        return false;
    }
    let size = exact.abs().log10().floor() as i32 + 1;
    (MIN_DIGITS..size.max(MIN_DIGITS) + 6).any(|digits| {
        let step = 10f64.powi(size - digits);
        are_equal((exact / step).round() * step, rounded)
    })
}

/// `true` if a percentage is `exact` with the decimals that it is written with, at most two.
fn is_near(exact: f64, written: f64) -> bool {
    [1.0, 10.0, 100.0].iter().any(|scale| are_equal((exact * scale).round() / scale, written))
}
