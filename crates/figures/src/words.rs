//! The words of figures: names of units, of powers of ten and of numbers in some eighty languages, from the Unicode CLDR
//! (`data/words.tsv`, which `scripts/words.py` writes), and the symbols that all languages share.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::unit::{CURRENCIES, SYMBOLS, Unit, unit_of_name};

/// The longest word of the tables, in bytes.
const MAX_WORD: usize = 48;
/// Languages of the detector by the CLDR's codes, if they differ from the first two letters.
const DETECTED: &[(&str, &str)] = &[
    ("deu", "de"),
    ("spa", "es"),
    ("por", "pt"),
    ("swe", "sv"),
    ("pol", "pl"),
    ("ces", "cs"),
    ("slk", "sk"),
    ("tur", "tr"),
    ("ukr", "uk"),
    ("srp", "sr"),
    ("slv", "sl"),
    ("est", "et"),
    ("pes", "fa"),
    ("heb", "he"),
    ("ben", "bn"),
    ("mar", "mr"),
    ("mal", "ml"),
    ("mya", "my"),
    ("khm", "km"),
    ("vie", "vi"),
    ("ind", "id"),
    ("cmn", "zh"),
    ("jpn", "ja"),
    ("kat", "ka"),
    ("hye", "hy"),
    ("aze", "az"),
    ("kaz", "kk"),
    ("cat", "ca"),
    ("tgl", "fil"),
    ("jav", "jv"),
    ("lav", "lv"),
    ("lit", "lt"),
    ("nob", "nb"),
];

/// A number in words.
struct NumberWord {
    value: f64,
    languages: &'static str,
}

#[derive(Default)]
struct WordTable {
    units: HashMap<&'static str, Vec<Unit>>,
    units_before: HashMap<&'static str, Vec<Unit>>,
    factors: HashMap<&'static str, Vec<f64>>,
    numbers: HashMap<&'static str, Vec<NumberWord>>,
}

static WORDS: LazyLock<WordTable> = LazyLock::new(|| {
    let mut table = WordTable::default();
    for line in include_str!("../data/words.tsv").lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.split('\t');
        let (Some(word), Some(kind), Some(value)) = (columns.next(), columns.next(), columns.next()) else {
            continue;
        };
        match kind {
            "unit" => table.units.entry(word).or_default().extend(unit_of_name(value)),
            "before" => table.units_before.entry(word).or_default().extend(unit_of_name(value)),
            "times" => table.factors.entry(word).or_default().extend(value.parse::<f64>().ok()),
            _ => {
                let languages = columns.next().unwrap_or_default();
                let number = value.parse().ok().map(|value| NumberWord { value, languages });
                table.numbers.entry(word).or_default().extend(number);
            }
        }
    }
    table
});

/// The likely language of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LanguageGuess {
    /// Its code, such as `de`.
    pub code: &'static str,
    /// From 0 to 1.
    pub confidence: f64,
    pub is_reliable: bool,
}

/// Returns the likely language of a text that has letters.
pub fn guess_language(text: &str) -> Option<LanguageGuess> {
    let found = whatlang::detect(text)?;
    let code = found.lang().code();
    let code = DETECTED.iter().find(|(known, _)| *known == code).map_or(&code[..2], |(_, language)| language);
    Some(LanguageGuess { code, confidence: found.confidence(), is_reliable: found.is_reliable() })
}

/// Returns the code of a text's language, if it can be detected.
pub fn detect_language(text: &str) -> Option<&'static str> {
    guess_language(text).filter(|guess| guess.is_reliable).map(|guess| guess.code)
}

/// Returns the units whose name a text begins with, and the length of the longest name.
pub(crate) fn units_at(text: &str) -> Option<(Vec<Unit>, usize)> {
    let symbol = |end: usize| {
        let exact = SYMBOLS.iter().chain(CURRENCIES).filter(|(symbol, _)| *symbol == &text[..end]);
        let units: Vec<Unit> = exact.filter_map(|(_, name)| unit_of_name(name)).collect();
        let code = (units.is_empty() && end == 3).then(|| unit_of_name(&text[..end])).flatten();
        let units: Vec<Unit> = units.into_iter().chain(code).collect();
        (!units.is_empty()).then_some(units)
    };
    let exact = longest_prefix(text, |end, folded| symbol(end).or_else(|| WORDS.units.get(folded).cloned()));
    exact.or_else(|| inflected_unit_at(text))
}

/// Returns the units of a word with another ending than the CLDR has: `граммов`.
fn inflected_unit_at(text: &str) -> Option<(Vec<Unit>, usize)> {
    /// The least characters of a stem, and the most of an ending.
    const STEM: usize = 4;
    const ENDING: usize = 3;
    let length = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let word = fold(&text[..length]);
    let ends: Vec<usize> = word.char_indices().map(|(at, _)| at).skip(STEM).collect();
    let stem = ends.iter().rev().take(ENDING).find_map(|end| WORDS.units.get(&word[..*end]));
    Some((stem.filter(|_| length <= MAX_WORD)?.clone(), length))
}

/// Returns the units that a text ends with, and the length of the longest name.
pub(crate) fn units_before(text: &str) -> Option<(Vec<Unit>, usize)> {
    let starts = text.char_indices().rev().map(|(at, _)| at).take_while(|at| text.len() - at <= MAX_WORD);
    let starts: Vec<usize> = starts.filter(|at| is_boundary(text, *at)).collect();
    starts.into_iter().rev().find_map(|start| {
        let word = &text[start..];
        let signs: Vec<Unit> = CURRENCIES
            .iter()
            .filter(|(sign, _)| *sign == word)
            .filter_map(|(_, name)| unit_of_name(name))
            .collect();
        let code = (word.len() == 3).then(|| unit_of_name(word)).flatten();
        let units = match signs.is_empty() {
            false => signs,
            true => code
                .map(|unit| vec![unit])
                .or_else(|| WORDS.units_before.get(fold(word).as_str()).cloned())?,
        };
        Some((units, word.len()))
    })
}

/// Returns the powers of ten whose name a text begins with, and the length of the longest name.
pub(crate) fn factors_at(text: &str) -> Option<(Vec<f64>, usize)> {
    let found = longest_prefix(text, |_, folded| WORDS.factors.get(folded).cloned())?;
    // `min` is a thousand in one language, and minutes in many.
    let is_unit = units_at(text).is_some_and(|(_, length)| length >= found.1);
    (!is_unit).then_some(found)
}

/// Returns the value of a number's name that a text begins with, and its length. `language` is that of the text; without it,
/// the name counts in any language, unless it is so short that it is another word in most.
pub(crate) fn number_at(text: &str, language: Option<&str>) -> Option<(f64, usize)> {
    longest_prefix(text, |_, folded| {
        let numbers = WORDS.numbers.get(folded)?;
        let is_of = |number: &&NumberWord| match language {
            Some(language) => number.languages.split(' ').any(|one| one == language),
            None => folded.len() > 2,
        };
        numbers.iter().find(is_of).map(|number| number.value)
    })
}

/// Tries the beginnings of a text that end between two words, the longest first.
fn longest_prefix<T>(text: &str, look_up: impl Fn(usize, &str) -> Option<T>) -> Option<(T, usize)> {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_WORD);
    let ends: Vec<usize> = ends.filter(|end| is_boundary(text, *end)).collect();
    ends.into_iter().rev().find_map(|end| Some((look_up(end, &fold(&text[..end]))?, end)))
}

/// `true` if a word can end or begin here. In scripts without spaces it can everywhere.
pub(crate) fn is_boundary(text: &str, at: usize) -> bool {
    let (before, after) = (text[..at].chars().next_back(), text[at..].chars().next());
    match (before, after) {
        (Some(before), Some(after)) => {
            !before.is_alphabetic() || !after.is_alphanumeric() || is_unspaced(before) || is_unspaced(after)
        }
        (None, _) | (_, None) => true,
    }
}

/// `true` for letters of scripts that write no spaces between words.
pub fn is_unspaced(c: char) -> bool {
    use icu_properties::props::Script;
    let script = icu_properties::CodePointMapData::<Script>::new().get(c);
    [
        Script::Han,
        Script::Hiragana,
        Script::Katakana,
        Script::Hangul,
        Script::Thai,
        Script::Lao,
        Script::Khmer,
        Script::Myanmar,
    ]
    .contains(&script)
}

/// The form in which words are compared.
pub(crate) fn fold(word: &str) -> String {
    word.replace(['\u{a0}', '\u{202f}'], " ").to_lowercase()
}
