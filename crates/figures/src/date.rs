//! Dates as they are written: month names and the words between the parts of a date in the languages of the CLDR, numeric
//! forms, and years of other calendars. A date is compared in the Gregorian calendar.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::ops::Range;
use std::sync::LazyLock;

use icu_calendar::types::{Month, YearInput};
use icu_calendar::{AnyCalendar, AnyCalendarKind, Date as CalendarDate, Iso};
use icu_datetime::DateTimeFormatter;
use icu_datetime::fieldsets::YMD;
use icu_datetime::options::YearStyle;
use icu_datetime::parts;
use icu_locale_core::Locale;
use writeable::{Part, PartsWrite, Writeable};

use crate::number::Number;
use crate::words::{fold, is_boundary};

/// A date, of which some parts may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    pub year: Option<i32>,
    /// From 1.
    pub month: Option<u8>,
    /// From 1.
    pub day: Option<u8>,
}

impl Date {
    /// `true` if a text with `other` says this date: `other` has all parts of this one.
    pub fn is_stated_by(&self, other: &Self) -> bool {
        let has = |own: Option<i32>, other: Option<i32>| own.is_none() || own == other;
        has(self.year, other.year)
            && has(self.month.map(i32::from), other.month.map(i32::from))
            && has(self.day.map(i32::from), other.day.map(i32::from))
    }

    /// The same for a date without a year, which may be elsewhere.
    pub(crate) fn is_compatible_with(&self, other: &Self) -> bool {
        let year = self.year.filter(|_| other.year.is_some() || self.month.is_none());
        Self { year, ..*self }.is_stated_by(other)
    }
}

/// Languages whose month names are read.
const LANGUAGES: &[&str] = &[
    "en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "nb", "fi", "is", "pl", "cs", "sk", "hu", "ro",
    "bg", "el", "ru", "uk", "be", "sr", "hr", "sl", "mk", "sq", "lt", "lv", "et", "ga", "cy", "ca", "eu",
    "gl", "tr", "az", "uz", "kk", "ar", "fa", "he", "ur", "hi", "bn", "ta", "te", "ml", "mr", "gu", "kn",
    "pa", "ne", "si", "th", "lo", "km", "my", "vi", "id", "ms", "fil", "zh", "zh-Hant", "ja", "ko", "mn",
    "ka", "hy", "sw", "af",
];
/// Other calendars, by the CLDR's names, with the languages in which their names are read.
const CALENDARS: &[(&str, &[&str])] = &[
    ("persian", &["fa", "en", "ps"]),
    ("hebrew", &["he", "en"]),
    ("islamic-umalqura", &["ar", "en", "ur", "id", "tr"]),
    ("indian", &["hi", "en"]),
    ("coptic", &["ar", "en"]),
    ("ethiopic", &["am", "en"]),
    ("japanese", &["ja", "en"]),
    ("roc", &["zh-Hant", "zh", "en"]),
    ("buddhist", &["th", "en"]),
];
/// Signs and words between the parts of a date that the CLDR's formats do not have, and the endings of ordinal numbers.
const SIGNS: &[&str] = &["of", "năm", ".", ",", "-", "/", "،", "st", "nd", "rd", "th", "er", "º", "ª", "°"];
/// The last year that a date may have, and the first one of four digits.
const YEARS: Range<u32> = 1_000..10_000;

/// A month of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NamedMonth {
    /// The index of its calendar; `None` if it has the months of the Gregorian one.
    calendar: Option<usize>,
    number: u8,
    is_leap: bool,
}

/// The names that dates are read by.
#[derive(Default)]
struct DateNames {
    /// As the language writes them: English `May` is no `may`, French `mai` is also `Mai`.
    months: HashMap<String, BTreeSet<NamedMonth>>,
    /// The Gregorian year before the first one of an era, and its calendar.
    eras: HashMap<String, BTreeSet<(i32, usize)>>,
    /// Words and signs between the parts of a date.
    connectors: BTreeSet<String>,
    /// Words before the number of a month: `tháng`.
    month_prefixes: BTreeSet<String>,
    /// Words after a year, a month and a day: `年`, `月`, `日`.
    suffixes: [BTreeSet<String>; 3],
}

static NAMES: LazyLock<DateNames> = LazyLock::new(|| {
    let mut names = DateNames::default();
    names.connectors.extend(SIGNS.iter().map(|sign| (*sign).to_owned()));
    for language in LANGUAGES {
        names.read_language(language, None);
    }
    for (at, (calendar, languages)) in CALENDARS.iter().enumerate() {
        for language in *languages {
            names.read_language(&format!("{language}-u-ca-{calendar}"), Some(at));
        }
    }
    names
});

impl DateNames {
    /// Reads the names of a language's months from dates of more than a year.
    fn read_language(&mut self, locale: &str, calendar: Option<usize>) {
        let Ok(locale) = locale.parse::<Locale>() else { return };
        let formatter = |field| DateTimeFormatter::try_new(locale.clone().into(), field).ok();
        let with_era = calendar.map(|_| YMD::long().with_year_style(YearStyle::WithEra));
        for field in [Some(YMD::long()), Some(YMD::medium()), with_era].into_iter().flatten() {
            let Some(formatter) = formatter(field) else { continue };
            for iso in sample_days(calendar) {
                let written = WrittenDate::of(&formatter.format(&iso));
                let own = iso.to_calendar(formatter.calendar());
                let month = own.month().to_input();
                let named = NamedMonth {
                    calendar: calendar.filter(|_| !is_gregorian_month(calendar)),
                    number: month.number(),
                    is_leap: month.is_leap(),
                };
                let years_before = iso.year().extended_year() - own.year().era_year_or_related_iso();
                self.add(&written, named, calendar, years_before);
            }
        }
    }

    fn add(&mut self, written: &WrittenDate, month: NamedMonth, calendar: Option<usize>, years_before: i32) {
        let name = written.month.trim_matches('.').replace(['\u{a0}', '\u{202f}'], " ");
        if name.chars().any(|c| c.is_numeric()) {
            // Months by number: the text around each number tells which part it is.
            let (before, after) =
                (name.trim_end_matches(char::is_numeric), name.trim_start_matches(char::is_numeric));
            match (before.len() < name.len(), after.len() < name.len()) {
                (true, false) => drop(self.month_prefixes.insert(fold(before.trim()))),
                (false, true) => drop(self.suffixes[1].insert(fold(after.trim()))),
                (_, _) => {}
            }
            for (set, after) in self.suffixes.iter_mut().zip(&written.after) {
                let word = after.trim();
                if !word.is_empty() && !word.chars().any(|c| c.is_ascii_punctuation() || c.is_numeric()) {
                    set.insert(fold(word));
                }
            }
        } else if name.chars().count() > 1 {
            self.months.entry(name).or_default().insert(month);
            let words = written.after.iter().flat_map(|after| after.split_whitespace());
            self.connectors.extend(words.map(fold).filter(|word| !word.chars().any(char::is_numeric)));
        }
        // One letter is a word or an initial as often.
        if let (Some(era), Some(calendar)) =
            (written.era.as_ref().filter(|era| era.chars().count() > 1), calendar)
        {
            self.eras.entry(era.clone()).or_default().insert((years_before, calendar));
        }
    }
}

/// `true` for calendars that only count years in another way.
fn is_gregorian_month(calendar: Option<usize>) -> bool {
    calendar.is_some_and(|at| ["japanese", "roc", "buddhist"].contains(&CALENDARS[at].0))
}

/// Days of more than a year, so that each month has one; for the Japanese calendar, of each of its eras.
fn sample_days(calendar: Option<usize>) -> impl Iterator<Item = CalendarDate<Iso>> {
    let years: &[i32] = match calendar {
        Some(at) if CALENDARS[at].0 == "japanese" => &[2023, 2000, 1950, 1920, 1900],
        Some(_) | None => &[2023],
    };
    let first_days = years.iter().filter_map(|year| CalendarDate::try_new_iso(*year, 1, 3).ok());
    first_days.flat_map(|day| {
        (0..27).map(move |step| CalendarDate::from_rata_die(day.to_rata_die() + step * 15, Iso))
    })
}

/// The parts of a formatted date.
#[derive(Debug, Default)]
struct WrittenDate {
    month: String,
    era: Option<String>,
    /// The text after the year, the month and the day.
    after: [String; 3],
    current: Option<Part>,
    last: Option<usize>,
}

impl WrittenDate {
    fn of(formatted: &impl Writeable) -> Self {
        let mut written = Self::default();
        // Writing to a string does not fail.
        let _ = formatted.write_to_parts(&mut written);
        written
    }
}

impl Write for WrittenDate {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.current {
            Some(part) if part == parts::MONTH => self.month.push_str(text),
            Some(part) if part == parts::ERA => self.era.get_or_insert_default().push_str(text),
            Some(_) => {}
            None => {
                if let Some(last) = self.last {
                    self.after[last].push_str(text);
                }
            }
        }
        Ok(())
    }
}

impl PartsWrite for WrittenDate {
    type SubPartsWrite = Self;

    fn with_part(&mut self, part: Part, mut write: impl FnMut(&mut Self) -> fmt::Result) -> fmt::Result {
        // The digits of a part are parts of their own.
        let before = self.current;
        self.current = before.or(Some(part));
        let written = write(self);
        self.current = before;
        self.last = match part {
            part if part == parts::YEAR => Some(0),
            part if part == parts::MONTH => Some(1),
            part if part == parts::DAY => Some(2),
            _ => self.last,
        };
        written
    }
}

/// A date in a text: the numbers of its parts, and the days that it can be.
#[derive(Debug)]
pub(crate) struct FoundDate {
    /// The first and the last one of its numbers.
    pub numbers: (usize, usize),
    pub range: Range<usize>,
    pub readings: Vec<Date>,
}

/// Returns the date that begins at a number, or at the month before it.
pub(crate) fn read_date(text: &str, numbers: &[Number], at: usize) -> Option<FoundDate> {
    let reader = DateReader { text, numbers };
    reader
        .numeric(at)
        .or_else(|| reader.by_suffixes(at))
        .or_else(|| reader.by_prefix(at))
        .or_else(|| reader.by_name(at))
}

struct DateReader<'t> {
    text: &'t str,
    numbers: &'t [Number],
}

impl DateReader<'_> {
    fn whole(&self, at: usize) -> Option<u32> {
        self.numbers.get(at)?.whole()
    }

    fn start(&self, at: usize) -> usize {
        self.numbers[at].range.start
    }

    fn end(&self, at: usize) -> usize {
        self.numbers[at].range.end
    }

    /// The text between a number and the next one; up to the end after the last one.
    fn gap_after(&self, at: usize) -> &str {
        let Some(number) = self.numbers.get(at) else { return "" };
        let end = self.numbers.get(at + 1).map_or(self.text.len(), |next| next.range.start);
        &self.text[number.range.end.min(end)..end]
    }

    /// The text between a number and the one before it.
    fn gap_before(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(0, |before| self.end(before));
        &self.text[start.min(self.start(at))..self.start(at)]
    }

    /// `2031-10-30`, `30.10.2031`, `10/30/2031`.
    fn numeric(&self, at: usize) -> Option<FoundDate> {
        let number = &self.numbers[at];
        if let Some(name) = &number.name {
            let parts: Option<Vec<u32>> = name.split('.').map(|part| part.parse().ok()).collect();
            return self.found((at, at), number.range.clone(), &numeric_readings(&parts?));
        }
        let separator = self.gap_after(at).chars().next().filter(|c| "-/.–".contains(*c))?;
        let is_separated = |at: usize| self.gap_after(at).chars().eq([separator]);
        if !is_separated(at) || !is_separated(at + 1) {
            return None;
        }
        let parts = [self.whole(at)?, self.whole(at + 1)?, self.whole(at + 2)?];
        self.found((at, at + 2), self.start(at)..self.end(at + 2), &numeric_readings(&parts))
    }

    /// `2031年10月30日`, `2031年10月`, `10月30日`.
    fn by_suffixes(&self, at: usize) -> Option<FoundDate> {
        let ends_with = |at: usize, part: usize| {
            let all = &self.text[self.numbers.get(at)?.range.end..];
            let rest = all.trim_start();
            let suffixes = NAMES.suffixes[part].iter().filter(|suffix| rest.starts_with(suffix.as_str()));
            Some(all.len() - rest.len() + suffixes.map(String::len).max()?)
        };
        let (mut next, mut end) = (at, 0);
        let mut take = |part: usize| {
            let length = ends_with(next, part).filter(|_| next < self.numbers.len())?;
            let is_near = next == at || self.start(next).saturating_sub(end) <= 1;
            let value = self.whole(next).filter(|_| is_near)?;
            end = self.end(next) + length;
            next += 1;
            Some(value)
        };
        let year = take(0);
        let month = if at + usize::from(year.is_some()) < self.numbers.len() { take(1) } else { None };
        let month = u8::try_from(month?).ok()?;
        let day = if next < self.numbers.len() && ends_with(next, 2).is_some() {
            let is_near = self.start(next).saturating_sub(end) <= 1;
            let day = self.whole(next).filter(|_| is_near);
            if day.is_some() {
                end = self.end(next) + ends_with(next, 2).unwrap_or_default();
                next += 1;
            }
            day
        } else {
            None
        };
        if year.is_none() && day.is_none() {
            return None;
        }
        let day = day.and_then(|day| u8::try_from(day).ok());
        let years: Vec<Option<i32>> = year.map_or_else(|| vec![None], |year| self.years(year, at));
        let readings: Vec<Date> =
            years.into_iter().map(|year| Date { year, month: Some(month), day }).collect();
        self.found((at, next - 1), self.start(at)..end, &readings)
    }

    /// `30 tháng 10 năm 2031`.
    fn by_prefix(&self, at: usize) -> Option<FoundDate> {
        let (day, month) = (self.whole(at)?, self.whole(at + 1)?);
        if !NAMES.month_prefixes.contains(&fold(self.gap_after(at).trim())) {
            return None;
        }
        // The word for a year is also the number five.
        let is_word = |at: usize| {
            self.numbers
                .get(at)
                .is_some_and(|one| one.is_in_words && are_connectors(&self.text[one.range.clone()]))
        };
        let year_at = at + 2 + usize::from(is_word(at + 2));
        let year =
            self.whole(year_at).filter(|year| YEARS.contains(year) && are_connectors(self.gap_after(at + 1)));
        let part = |value: u32| u8::try_from(value).ok();
        let date = Date {
            year: year.and_then(|year| i32::try_from(year).ok()),
            month: Some(part(month)?),
            day: Some(part(day)?),
        };
        let last = if year.is_some() { year_at } else { at + 1 };
        self.found((at, last), self.start(at)..self.end(last), &[date])
    }

    /// `30 October 2031`, `October 30, 2031`, `October 2031`, `30 de octubre`.
    fn by_name(&self, at: usize) -> Option<FoundDate> {
        let after = self.gap_after(at);
        let value = self.whole(at)?;
        if let Some(month) = find_month(after).filter(|month| month.is_first) {
            let next = (month.is_last && at + 1 < self.numbers.len()).then(|| self.whole(at + 1)).flatten();
            let parts = match next {
                Some(other) if YEARS.contains(&other) => Some((Some(other), Some(value), at + 1)),
                Some(other) if YEARS.contains(&value) => Some((Some(value), Some(other), at)),
                Some(_) | None => None,
            };
            if let Some((year, day, year_at)) = parts
                && let Some(found) = self.found(
                    (at, at + 1),
                    self.start(at)..self.end(at + 1),
                    &self.named(&month, year, day, year_at),
                )
            {
                return Some(found);
            }
            let range = self.start(at)..self.end(at) + month.end;
            let (year, day) = if YEARS.contains(&value) { (Some(value), None) } else { (None, Some(value)) };
            return self.found((at, at), range, &self.named(&month, year, day, at));
        }
        let month = find_month(self.gap_before(at)).filter(|month| month.is_last)?;
        let start = self.start(at) - self.gap_before(at).len() + month.start;
        if YEARS.contains(&value) {
            return self.found((at, at), start..self.end(at), &self.named(&month, Some(value), None, at));
        }
        let year = self.whole(at + 1).filter(|year| YEARS.contains(year) && are_connectors(after));
        let last = at + usize::from(year.is_some());
        self.found((at, last), start..self.end(last), &self.named(&month, year, Some(value), last))
    }

    /// The days of a named month, in the Gregorian calendar.
    fn named(&self, month: &FoundMonth, year: Option<u32>, day: Option<u32>, year_at: usize) -> Vec<Date> {
        let day = day.and_then(|day| u8::try_from(day).ok());
        let days = month.months.iter().flat_map(|month| match (month.calendar, year) {
            (None, None) => vec![Date { year: None, month: Some(month.number), day }],
            (None, Some(year)) => {
                let years = self.years(year, year_at).into_iter();
                years.map(|year| Date { year, month: Some(month.number), day }).collect()
            }
            (Some(calendar), Some(year)) => convert(calendar, year, *month, day).into_iter().collect(),
            (Some(_), None) => Vec::new(),
        });
        days.collect()
    }

    /// The Gregorian years that a year can be: as written, or by its era.
    fn years(&self, year: u32, at: usize) -> Vec<Option<i32>> {
        let year = i32::try_from(year).unwrap_or_default();
        let before = self.gap_before(at).trim_end();
        let is_before =
            |name: &str| before.strip_suffix(name).is_some_and(|rest| is_boundary(before, rest.len()));
        let eras = NAMES.eras.iter().filter(|(name, _)| is_before(name));
        let named: Vec<Option<i32>> =
            eras.flat_map(|(_, eras)| eras).map(|(years, _)| Some(year + years)).collect();
        if !named.is_empty() {
            return named;
        }
        // Thai texts count from 543 BC, with or without the era.
        let buddhist = (2_400..2_700).contains(&year).then_some(Some(year - 543));
        [Some(year)].into_iter().chain(buddhist).collect()
    }

    fn found(&self, numbers: (usize, usize), range: Range<usize>, readings: &[Date]) -> Option<FoundDate> {
        let is_valid = |date: &&Date| {
            date.month.is_none_or(|month| (1..=12).contains(&month))
                && date.day.is_none_or(|day| (1..=31).contains(&day))
        };
        let readings: Vec<Date> = readings.iter().filter(is_valid).copied().collect();
        (!readings.is_empty()).then_some(FoundDate { numbers, range, readings })
    }
}

/// The days that three numbers can be.
fn numeric_readings(parts: &[u32]) -> Vec<Date> {
    let date = |year: u32, month: u32, day: u32| {
        Some(Date {
            year: Some(i32::try_from(year).ok()?),
            month: Some(u8::try_from(month).ok()?),
            day: Some(u8::try_from(day).ok()?),
        })
    };
    match *parts {
        [year, month, day] if YEARS.contains(&year) => date(year, month, day).into_iter().collect(),
        [first, second, year] if YEARS.contains(&year) => {
            [date(year, second, first), date(year, first, second)].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// Converts a day of another calendar.
fn convert(calendar: usize, year: u32, month: NamedMonth, day: Option<u8>) -> Option<Date> {
    let kind = match CALENDARS[calendar].0 {
        "persian" => AnyCalendarKind::Persian,
        "hebrew" => AnyCalendarKind::Hebrew,
        "islamic-umalqura" => AnyCalendarKind::HijriUmmAlQura,
        "indian" => AnyCalendarKind::Indian,
        "coptic" => AnyCalendarKind::Coptic,
        _ => AnyCalendarKind::Ethiopian,
    };
    let named = if month.is_leap { Month::leap(month.number) } else { Month::new(month.number) };
    let year: YearInput = i32::try_from(year).ok()?.into();
    let own = CalendarDate::try_new(year, named, day?, AnyCalendar::new(kind)).ok()?;
    let iso = own.to_calendar(Iso);
    Some(Date {
        year: Some(iso.year().extended_year()),
        month: Some(iso.month().number()),
        day: Some(iso.day_of_month().0),
    })
}

/// A month's name between two numbers.
struct FoundMonth {
    months: Vec<NamedMonth>,
    start: usize,
    end: usize,
    /// `true` if nothing but words and signs of dates is before it.
    is_first: bool,
    /// The same for the text after it.
    is_last: bool,
}

/// Returns the month in the text between two numbers: one that belongs to the number before it or after it.
fn find_month(gap: &str) -> Option<FoundMonth> {
    /// The longest text between a number and the month that belongs to it, in bytes.
    const MAX_DISTANCE: usize = 40;
    let starts = gap.char_indices().map(|(at, _)| at).filter(|at| is_boundary(gap, *at));
    let is_near = |at: usize| at <= MAX_DISTANCE || gap.len() - at <= 2 * MAX_DISTANCE;
    let found = starts.filter(|at| is_near(*at)).filter_map(|start| {
        let rest = &gap[start..];
        let ends =
            rest.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_DISTANCE);
        let ends: Vec<usize> = ends.filter(|end| is_boundary(rest, *end)).collect();
        let (months, length) =
            ends.into_iter().rev().find_map(|end| Some((months_of(&rest[..end])?, end)))?;
        let (is_first, is_last) = (are_connectors(&gap[..start]), are_connectors(&gap[start + length..]));
        (is_first || is_last).then_some(FoundMonth { months, start, end: start + length, is_first, is_last })
    });
    // The first one that both numbers may share, or else that of the number before.
    let found: Vec<FoundMonth> = found.collect();
    let best = |month: &FoundMonth| (month.is_first, month.is_last);
    found.into_iter().rev().max_by_key(best)
}

/// The months of a name, as the language writes it or with more capital letters.
fn months_of(name: &str) -> Option<Vec<NamedMonth>> {
    let exact = NAMES.months.get(name);
    let lower = || NAMES.months.get(&name.to_lowercase());
    let title = || {
        // Capitals only: `OCTOBER` is `October`.
        let mut letters = name.chars();
        let first = letters.next().filter(|_| name.chars().all(|c| !c.is_lowercase()))?;
        NAMES.months.get(&format!("{first}{}", letters.as_str().to_lowercase()))
    };
    exact.or_else(lower).or_else(title).map(|months| months.iter().copied().collect())
}

/// `true` if a text has only words and signs that separate the parts of a date.
fn are_connectors(text: &str) -> bool {
    let mut rest = text.trim();
    while !rest.is_empty() {
        let longest = NAMES
            .connectors
            .iter()
            .filter(|word| fold(rest).starts_with(word.as_str()))
            .map(String::len)
            .max();
        match longest.and_then(|length| rest.get(length..)) {
            Some(after) => rest = after.trim_start(),
            None => return false,
        }
    }
    true
}
