//! Numbers as they are written: digits of any script with points, commas and blanks, numbers in words, Chinese numerals. A
//! notation with two meanings, such as `1.500`, has two values.

use std::ops::Range;

use icu_properties::CodePointMapData;
use icu_properties::props::GeneralCategory;

use crate::words::{factors_at, fold, is_boundary, is_unspaced, number_at};

/// Digits beyond which a number is a name, such as that of an account: a float would round it.
const MAX_DIGITS: usize = 15;
/// Chinese numerals by value; each group has the characters of one digit.
const CHINESE_DIGITS: [&str; 10] =
    ["〇零○", "一壹弌", "二贰貳两兩弐", "三叁參参", "四肆", "五伍", "六陆陸", "七柒", "八捌", "九玖"];
const CHINESE_POWERS: [(&str, f64); 7] =
    [("十拾", 1e1), ("百佰", 1e2), ("千仟", 1e3), ("万萬", 1e4), ("亿億", 1e8), ("兆", 1e12), ("廿", 20.0)];

/// A number in a text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Number {
    pub range: Range<usize>,
    /// The values that it can have; none for a name with digits.
    pub values: Vec<f64>,
    /// `true` if it is in words or Chinese numerals.
    pub is_in_words: bool,
    /// Its digits and separators, if it is a name: a version, an address, a telephone number.
    pub name: Option<String>,
}

impl Number {
    /// Its value, if it is a whole one that is written in digits without separators, as the parts of a date are.
    pub fn whole(&self) -> Option<u32> {
        let [value] = self.values[..] else { return None };
        let is_whole = value.fract() == 0.0 && (0.0..1e6).contains(&value);
        // The value was checked: it fits and has no fraction.
        is_whole.then_some(value as u32)
    }
}

/// Returns the numbers of a text in order.
pub(crate) fn scan_numbers(text: &str, language: Option<&str>) -> Vec<Number> {
    let mut numbers = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let found = match () {
            () if digit_of(c).is_some() => Some(scan_digits(text, at)),
            () if chinese_value(c).is_some() => scan_chinese(text, at),
            () if c.is_alphabetic() && is_boundary(text, at) => scan_words(text, at, language),
            () => None,
        };
        at = match found {
            Some(number) => {
                let end = number.range.end;
                numbers.push(number);
                end
            }
            None => at + c.len_utf8(),
        };
    }
    numbers
}

/// Returns the value of a decimal digit of any script.
pub(crate) fn digit_of(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    let is_digit =
        |c: char| CodePointMapData::<GeneralCategory>::new().get(c) == GeneralCategory::DecimalNumber;
    // Unicode keeps the digits of a script together, in order from 0.
    is_digit(c).then(|| {
        let below = (1..=9).take_while(|n| char::from_u32(c as u32 - n).is_some_and(is_digit));
        let start = c as u32 - below.last().unwrap_or_default();
        // Some blocks hold several sets of ten after one another; each starts at a multiple of ten from the first one.
        let first =
            (1..).take_while(|n| char::from_u32(start.saturating_sub(*n)).is_some_and(is_digit)).last();
        (c as u32 - (start - first.unwrap_or_default())) % 10
    })
}

/// Reads the digits from `start` on, with their separators.
fn scan_digits(text: &str, start: usize) -> Number {
    let mut groups = vec![String::new()];
    let mut separators: Vec<char> = Vec::new();
    let mut end = start;
    let is_day = is_day_of_date(text, start);
    loop {
        let mut rest = text[end..].chars();
        let Some(c) = rest.next() else { break };
        if let (Some(digit), Some(group)) = (digit_of(c), groups.last_mut()) {
            group.push(char::from_digit(digit, 10).unwrap_or('0'));
            end += c.len_utf8();
            continue;
        }
        let following = rest.as_str().chars().take_while(|c| digit_of(*c).is_some()).count();
        let is_blank = matches!(c, ' ' | '\u{a0}' | '\u{202f}' | '\u{2009}' | '\'' | '’');
        let is_point = matches!(c, '.' | ',' | '٫' | '٬' | '，');
        let size = groups.last().map_or(0, String::len);
        let is_whole_day = is_day && size == 2;
        let joins = (is_point && following > 0 && !is_whole_day)
            || (is_blank && following == 3 && size <= 3 && separators.iter().all(|other| *other == c));
        if !joins {
            break;
        }
        separators.push(c);
        groups.push(String::new());
        end += c.len_utf8();
    }
    let is_negative = is_minus_before(text, start);
    let start = if is_negative {
        text[..start].char_indices().next_back().map_or(start, |(at, _)| at)
    } else {
        start
    };
    let values = values_of_groups(&groups, &separators);
    let digits: usize = groups.iter().map(String::len).sum();
    let is_name = values.is_empty() || digits > MAX_DIGITS;
    let name = is_name.then(|| groups.join("."));
    let values = if is_name { Vec::new() } else { values };
    let values = values.into_iter().map(|value| if is_negative { -value } else { value }).collect();
    Number { range: start..end, values, is_in_words: false, name }
}

/// `true` after `2031-10-`: the comma after two more digits is one of a list, such as a row of a CSV file.
fn is_day_of_date(text: &str, start: usize) -> bool {
    let Some(before) = start.checked_sub(8).and_then(|from| text.as_bytes().get(from..start)) else {
        return false;
    };
    before.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    })
}

/// A hyphen after a letter, a digit or another sign is none: `5-10`, `covid-19`.
fn is_minus_before(text: &str, start: usize) -> bool {
    let mut before = text[..start].chars().rev();
    matches!(before.next(), Some('-' | '\u{2212}'))
        && before.next().is_none_or(|c| c.is_whitespace() || "([{|".contains(c))
}

/// The values of groups of digits with these separators between them; none if it is no number.
fn values_of_groups(groups: &[String], separators: &[char]) -> Vec<f64> {
    let value = |digits: String| digits.parse::<f64>().ok();
    let joined = |groups: &[String]| value(groups.concat());
    let is_group = |at: usize, group: &String| match at {
        0 => (1..=3).contains(&group.len()) && group != "0",
        // India groups by two before the last three.
        at if at + 1 < groups.len() => (2..=3).contains(&group.len()),
        _ => group.len() == 3,
    };
    let is_grouped =
        |groups: &[String]| groups.len() > 1 && groups.iter().enumerate().all(|(at, one)| is_group(at, one));
    let decimal = |groups: &[String]| {
        let (fraction, whole) = groups.split_last()?;
        value(format!("{}.{fraction}", whole.concat()))
    };
    let Some(last) = separators.last() else { return joined(groups).into_iter().collect() };
    let is_one_kind = separators.iter().all(|one| one == last);
    let is_decimal_sign = matches!(last, '.' | ',' | '٫' | '，');
    match (separators.len(), is_one_kind) {
        (1, _) => {
            let as_decimal = if is_decimal_sign { decimal(groups) } else { None };
            let as_groups = if is_grouped(groups) && *last != '٫' { joined(groups) } else { None };
            as_decimal.into_iter().chain(as_groups).collect()
        }
        (_, true) => joined(groups).filter(|_| is_grouped(groups)).into_iter().collect(),
        (_, false) => {
            let (_, whole) = separators.split_at(separators.len() - 1).0.split_at(0);
            let is_number = is_decimal_sign && whole.iter().all(|one| *one == whole[0] && one != last);
            let whole_groups = &groups[..groups.len() - 1];
            let sizes = whole_groups.iter().skip(1).all(|group| (2..=3).contains(&group.len()));
            if is_number && sizes { decimal(groups).into_iter().collect() } else { Vec::new() }
        }
    }
}

fn chinese_value(c: char) -> Option<f64> {
    let digit = CHINESE_DIGITS.iter().position(|group| group.contains(c));
    let power = CHINESE_POWERS.iter().find(|(group, _)| group.contains(c)).map(|(_, power)| *power);
    digit.map(|digit| digit as f64).or(power)
}

/// Reads Chinese numerals: by place (`二〇三一`) or with powers of ten (`三百五十万`).
fn scan_chinese(text: &str, start: usize) -> Option<Number> {
    let run: Vec<char> = text[start..].chars().take_while(|c| chinese_value(*c).is_some()).collect();
    let end = start + run.iter().map(|c| c.len_utf8()).sum::<usize>();
    let digit = |c: char| CHINESE_DIGITS.iter().position(|group| group.contains(c)).map(|digit| digit as f64);
    let value = if run.iter().all(|c| digit(*c).is_some()) {
        run.iter().fold(0.0, |value, c| value * 10.0 + digit(*c).unwrap_or_default())
    } else {
        let (mut total, mut section, mut last) = (0.0, 0.0, None);
        for c in &run {
            match (digit(*c), chinese_value(*c)) {
                (Some(digit), _) => last = Some(digit),
                (None, Some(power)) if power == 20.0 => section += power,
                (None, Some(power)) if power < 1e4 => section += last.take().unwrap_or(1.0) * power,
                (None, Some(power)) => {
                    total = (total + section + last.take().unwrap_or_default()).max(1.0) * power;
                    section = 0.0;
                }
                (None, None) => {}
            }
        }
        total + section + last.unwrap_or_default()
    };
    // A lone power of ten is a word as often.
    let is_number =
        run.len() > 1 || digit(run[0]).is_some() || text[end..].chars().next().is_some_and(is_unspaced);
    is_number.then(|| Number { range: start..end, values: vec![value], is_in_words: true, name: None })
}

/// Reads a number in words: `twenty-four`, `two hundred thousand`.
fn scan_words(text: &str, start: usize, language: Option<&str>) -> Option<Number> {
    let (first, length) = number_at(&text[start..], language)?;
    let (mut total, mut section, mut end) = (0.0, first, start + length);
    let mut last = first;
    loop {
        let gap = text[end..]
            .chars()
            .take_while(|c| matches!(c, ' ' | '-' | '\u{a0}'))
            .map(char::len_utf8)
            .sum::<usize>();
        let rest = &text[end + gap..];
        if gap > 1 || rest.is_empty() || (gap == 0 && !is_boundary(text, end)) {
            break;
        }
        if let Some((value, length)) =
            number_at(rest, language).filter(|(value, _)| *value < last && *value < 10.0 && last >= 20.0)
        {
            section += value;
            last = value;
            end += gap + length;
        } else if let Some((factors, length)) = factors_at(rest).filter(|_| !fold(rest).is_empty()) {
            let factor = factors[0];
            if factor < 1e3 {
                section *= factor;
            } else {
                total += section * factor;
                section = 0.0;
            }
            last = factor;
            end += gap + length;
        } else if let Some((value, length)) =
            number_at(rest, language).filter(|(value, _)| *value < last && last >= 100.0)
        {
            section += value;
            last = value;
            end += gap + length;
        } else {
            break;
        }
    }
    Some(Number { range: start..end, values: vec![total + section], is_in_words: true, name: None })
}
