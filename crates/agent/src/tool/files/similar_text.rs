//! Finds a text that differs in a file only in characters that look alike or can't be seen: spaces and line ends, Unicode
//! forms, quotation marks, dashes, invisible characters. It names the differences, since they can't be seen in the text itself.

use std::borrow::Cow;
use std::fmt::Write;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use unicode_segmentation::UnicodeSegmentation;

/// The maximum number of differences in a hint.
const MAX_NAMED: usize = 3;
/// The maximum number of characters of one difference in a hint.
const MAX_CHARACTERS: usize = 8;

/// A part of a file that looks like the wanted text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SimilarText<'a> {
    /// Its place, in bytes.
    pub start: usize,
    /// The part.
    pub text: &'a str,
    /// The kind of its differences, to follow "with".
    pub kind: String,
    pub differences: String,
}

/// Finds the first part of a text that looks like the wanted one.
pub(super) fn find_similar_text<'a>(text: &'a str, wanted: &str) -> Option<SimilarText<'a>> {
    let wanted_form = fold_text(wanted);
    let place = fold_text(text).find(Some(wanted_form.trim()).filter(|form| !form.is_empty())?)?;
    let (first, last) = (place, place + wanted_form.trim().len() - 1);
    let (mut folded, mut at, mut range) = (0, 0, None);
    for unit in split_into_units(text) {
        folded += fold_unit(unit).len();
        if range.is_none() && folded > first {
            range = Some(at..at);
        }
        at += unit.len();
        if let Some(range) = &mut range
            && folded > last
        {
            range.end = at;
            break;
        }
    }
    let mut range = range?;
    // White space at the ends counts as a part of the wanted text.
    if wanted.starts_with(char::is_whitespace) {
        range.start = text[..range.start].trim_end().len();
    }
    if wanted.ends_with(char::is_whitespace) {
        range.end = text.len() - text[range.end..].trim_start().len();
    }
    let found = &text[range.clone()];
    let differences = find_differences(found, wanted);
    let named: Vec<String> = differences.iter().take(MAX_NAMED).map(Difference::to_string).collect();
    let mut named = named.join("; ");
    if differences.len() > MAX_NAMED {
        let _ = write!(named, "; and {} more differences", differences.len() - MAX_NAMED);
    }
    Some(SimilarText { start: range.start, text: found, kind: list_kinds(&differences), differences: named })
}

/// Names the first difference of two lines if it can't be seen in them, as with letters of different alphabets.
pub(super) fn name_hidden_difference(file: &str, wanted: &str) -> Option<String> {
    let mut pairs = file.graphemes(true).zip(wanted.graphemes(true));
    let (file, wanted) = pairs.find(|(file, wanted)| file != wanted)?;
    let is_visible = file.is_ascii() && wanted.is_ascii();
    (!is_visible).then(|| Difference { file: file.to_owned(), wanted: wanted.to_owned() }.to_string())
}

/// Characters of the file and of the wanted text in the same place.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    file: String,
    wanted: String,
}

/// The reason that the characters of a difference look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DifferenceKind {
    Space,
    UnicodeForm,
    Quotation,
    Dash,
    Other,
}

impl DifferenceKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Space => "different spaces or line ends",
            Self::UnicodeForm => "another Unicode form",
            Self::Quotation => "other quotation marks",
            Self::Dash => "other dashes",
            Self::Other => "other or invisible characters",
        }
    }
}

impl Difference {
    fn kind(&self) -> DifferenceKind {
        let is_space = |text: &str| text.chars().all(char::is_whitespace);
        let composed = |text: &str| ComposingNormalizerBorrowed::new_nfc().normalize(text).into_owned();
        match fold_text(&self.file).as_str() {
            _ if is_space(&self.file) && is_space(&self.wanted) => DifferenceKind::Space,
            _ if composed(&self.file) == composed(&self.wanted) => DifferenceKind::UnicodeForm,
            "\"" | "'" => DifferenceKind::Quotation,
            "-" => DifferenceKind::Dash,
            _ => DifferenceKind::Other,
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, wanted) = (name_characters(&self.file), name_characters(&self.wanted));
        write!(f, "the file has {file} where old_string has {wanted}")
    }
}

fn list_kinds(differences: &[Difference]) -> String {
    let mut kinds: Vec<DifferenceKind> = differences.iter().map(Difference::kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

/// Returns the differences between two texts that look alike, each once: first the white space around them, then the others in
/// order.
fn find_differences(file: &str, wanted: &str) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut add = |file: &str, wanted: &str| {
        let difference = Difference { file: file.to_owned(), wanted: wanted.to_owned() };
        if file != wanted && !differences.contains(&difference) {
            differences.push(difference);
        }
    };
    let ends = |text: &'_ str| (text.len() - text.trim_start().len(), text.trim_end().len());
    let ((file_start, file_end), (wanted_start, wanted_end)) = (ends(file), ends(wanted));
    add(&file[..file_start], &wanted[..wanted_start]);
    add(&file[file_end..], &wanted[wanted_end..]);
    let (mut file, mut wanted) = (split_into_units(file.trim()), split_into_units(wanted.trim()));
    loop {
        let (mut one, mut other) = (Aligned::default(), Aligned::default());
        let has_more = one.extend(file.next()) | other.extend(wanted.next());
        while one.folded != other.folded {
            let (shorter, more) = match one.folded < other.folded {
                true => (&mut one, file.next()),
                false => (&mut other, wanted.next()),
            };
            if !shorter.extend(more) {
                break;
            }
        }
        add(&one.text, &other.text);
        if !has_more {
            return differences;
        }
    }
}

/// A text and the length of its folded form.
#[derive(Default)]
struct Aligned {
    text: String,
    folded: usize,
}

impl Aligned {
    /// Appends a unit; returns `false` if there is none.
    fn extend(&mut self, unit: Option<&str>) -> bool {
        let Some(unit) = unit else { return false };
        self.text.push_str(unit);
        self.folded += fold_unit(unit).len();
        true
    }
}

/// Splits a text into runs of white space and single characters as people see them.
fn split_into_units(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let space = rest.len() - rest.trim_start().len();
        let next = || rest.chars().nth(1).is_none_or(|next| next.is_ascii());
        let length = match space {
            0 if first.is_ascii() && next() => 1,
            0 => rest.graphemes(true).next().map_or(first.len_utf8(), str::len),
            space => space,
        };
        let (unit, after) = rest.split_at(length);
        rest = after;
        Some(unit)
    })
}

/// Returns the form in which texts that look alike are equal.
fn fold_text(text: &str) -> String {
    split_into_units(text).map(fold_unit).collect()
}

fn fold_unit(unit: &str) -> Cow<'_, str> {
    if unit.starts_with(char::is_whitespace) {
        return Cow::Borrowed(" ");
    }
    if unit.is_ascii() && unit != "`" {
        return Cow::Borrowed(unit);
    }
    let plain: String = unit.chars().filter(|c| !is_invisible(*c)).map(fold_character).collect();
    let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(&plain);
    Cow::Owned(decomposed.chars().map(fold_character).collect())
}

fn fold_character(c: char) -> char {
    match c {
        '“' | '”' | '„' | '‟' | '«' | '»' | '″' | '〝' | '〞' | '❝' | '❞' => '"',
        '‘' | '’' | '‚' | '‛' | '‹' | '›' | '′' | '`' | '´' | 'ʼ' | '❛' | '❜' => '\'',
        '‐' | '‑' | '‒' | '–' | '—' | '―' | '−' | '﹣' | '－' => '-',
        c => c,
    }
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{2069}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Names characters so that each differs from those that look alike: white space by its kind and number, others with their code points.
fn name_characters(text: &str) -> String {
    if text.is_empty() {
        return "nothing".to_owned();
    }
    if text.chars().all(char::is_whitespace) {
        return name_spaces(text);
    }
    let codes: Vec<String> =
        text.chars().take(MAX_CHARACTERS).map(|c| format!("U+{:04X}", u32::from(c))).collect();
    let shown: String = text.chars().take(MAX_CHARACTERS).filter(|c| !is_invisible(*c)).collect();
    format!("'{shown}' ({})", codes.join(" "))
}

fn name_spaces(text: &str) -> String {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for space in text.graphemes(true) {
        match runs.last_mut() {
            Some((last, count)) if *last == space => *count += 1,
            Some(_) | None => runs.push((space, 1)),
        }
    }
    let name = |(space, count): &(&str, usize)| {
        let plural = if *count == 1 { "" } else { "s" };
        match *space {
            " " => format!("{count} space{plural}"),
            "\t" => format!("{count} tab{plural}"),
            "\r\n" => format!("{count} line end{plural} (CRLF)"),
            "\n" => format!("{count} line end{plural} (LF)"),
            "\r" => format!("{count} line end{plural} (CR)"),
            "\u{a0}" => format!("{count} no-break space{plural} (U+00A0)"),
            other => {
                let code = other.chars().next().map_or(0, u32::from);
                format!("{count} space{plural} (U+{code:04X})")
            }
        }
    };
    let named: Vec<String> = runs.iter().take(MAX_CHARACTERS).map(name).collect();
    named.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_that_cannot_be_seen_are_named() {
        for (text, wanted, found, kind, difference) in [
            (
                "un cafe\u{301} noir",
                "caf\u{e9}",
                "cafe\u{301}",
                "another Unicode form",
                "the file has 'e\u{301}' (U+0065 U+0301) where old_string has '\u{e9}' (U+00E9)",
            ),
            (
                "say “hi” now",
                "say \"hi\"",
                "say “hi”",
                "other quotation marks",
                "the file has '“' (U+201C) where old_string has '\"' (U+0022); the file has '”' (U+201D) where old_string has \
                 '\"' (U+0022)",
            ),
            (
                "it’s here",
                "it's",
                "it’s",
                "other quotation marks",
                "the file has '’' (U+2019) where old_string has ''' (U+0027)",
            ),
            (
                "10\u{a0}km",
                "10 km",
                "10\u{a0}km",
                "different spaces or line ends",
                "the file has 1 no-break space (U+00A0) where old_string has 1 space",
            ),
            (
                "if x:\n\treturn\n",
                "if x:\n    return",
                "if x:\n\treturn",
                "different spaces or line ends",
                "the file has 1 line end (LF) and 1 tab where old_string has 1 line end (LF) and 4 spaces",
            ),
            (
                "a\r\nb  \r\nc",
                "a\nb\nc",
                "a\r\nb  \r\nc",
                "different spaces or line ends",
                "the file has 1 line end (CRLF) where old_string has 1 line end (LF); the file has 2 spaces and 1 line end (CRLF) \
                 where old_string has 1 line end (LF)",
            ),
            (
                "pages 3–5",
                "3-5",
                "3–5",
                "other dashes",
                "the file has '–' (U+2013) where old_string has '-' (U+002D)",
            ),
            (
                "zero\u{200b}width",
                "zerowidth",
                "zero\u{200b}width",
                "other or invisible characters",
                "the file has 'w' (U+200B U+0077) where old_string has 'w' (U+0077)",
            ),
            (
                "the ﬁle…",
                "file...",
                "ﬁle…",
                "other or invisible characters",
                "the file has 'ﬁ' (U+FB01) where old_string has 'fi' (U+0066 U+0069); the file has '…' (U+2026) where \
                 old_string has '...' (U+002E U+002E U+002E)",
            ),
            (
                "title = 1",
                "  title  = 1\n",
                "title = 1",
                "different spaces or line ends",
                "the file has nothing where old_string has 2 spaces; the file has nothing where old_string has 1 line end (LF); \
                 the file has 1 space where old_string has 2 spaces",
            ),
        ] {
            let similar = find_similar_text(text, wanted).unwrap_or_else(|| panic!("{wanted}"));
            assert_eq!((similar.text, similar.kind.as_str()), (found, kind), "{wanted}");
            assert_eq!(similar.differences, difference, "{wanted}");
            assert_eq!(&text[similar.start..similar.start + found.len()], found);
        }
    }

    #[test]
    fn other_texts_are_not_similar() {
        for (text, wanted) in [("café", "cave"), ("a b", "ab"), ("", "x"), ("x", " "), ("Été", "été")] {
            assert_eq!(find_similar_text(text, wanted), None, "{wanted}");
        }
    }

    #[test]
    fn letters_of_other_alphabets_are_named() {
        let difference = name_hidden_difference("n\u{43e} = 1", "no = 1").unwrap();
        assert_eq!(difference, "the file has '\u{43e}' (U+043E) where old_string has 'o' (U+006F)");
        assert_eq!(name_hidden_difference("brown", "brawn"), None);
    }
}
