//! Colours and times of the output for people. A text gets its colours after it was made safe for a terminal, so that no
//! text from outside can bring colours in.

use jiff::SignedDuration;
use millrace_protocol::result::StatementVerdict;

/// `true` if colours are wanted on a stream: it is a terminal that has them, and `NO_COLOR` is not set.
pub fn wants_colours(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !is_set("NO_COLOR") && !is_dumb_terminal()
}

/// `true` if the terminal can't move its cursor.
pub fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Returns a line of the board with its symbol and state in colour.
pub fn paint_board_line(line: &str) -> String {
    let branch = ["├─ ", "└─ "].into_iter().find(|branch| line.starts_with(branch)).unwrap_or_default();
    let rest = &line[branch.len()..];
    let Some(symbol) = rest.chars().next() else { return line.to_owned() };
    let Some(colour) = colour_of_symbol(symbol) else { return line.to_owned() };
    // The symbol, a space, and the state, which is one word.
    let end = rest.char_indices().skip(2).find(|(_, c)| *c == ' ').map_or(rest.len(), |(at, _)| at);
    format!("{branch}\u{1b}[{colour}m{}\u{1b}[0m{}", &rest[..end], &rest[end..])
}

fn colour_of_symbol(symbol: char) -> Option<u8> {
    match symbol {
        '✓' => Some(32),
        '✗' => Some(31),
        '!' => Some(33),
        '●' => Some(36),
        '?' => Some(35),
        '·' | '○' | '-' => Some(2),
        _ => None,
    }
}

/// Returns a deliverable with the marks of its verdicts, and the verdicts in their footnotes, in colour.
pub fn paint_verdicts(text: &str) -> String {
    let notes: Vec<VerdictNote<'_>> = text.lines().filter_map(VerdictNote::read).collect();
    let paint = |line: &str| match VerdictNote::read(line) {
        Some(note) => {
            format!("\u{1b}[{}m{}: {}\u{1b}[0m{}", note.colour, note.mark, note.verdict, note.rest)
        }
        None => notes.iter().fold(line.to_owned(), |line, VerdictNote { mark, colour, .. }| {
            line.replace(mark, &format!("\u{1b}[{colour}m{mark}\u{1b}[0m"))
        }),
    };
    text.split('\n').map(paint).collect::<Vec<_>>().join("\n")
}

/// A footnote with the verdict on a statement, such as `[^v1]: not supported: No source has “9.7 kg”.`
struct VerdictNote<'t> {
    mark: &'t str,
    verdict: &'static str,
    rest: &'t str,
    colour: u8,
}

impl<'t> VerdictNote<'t> {
    fn read(line: &'t str) -> Option<Self> {
        use StatementVerdict::{Contradicted, Partly, Unsupported, Unverified};
        let (mark, text) = line.split_once(": ")?;
        let number = mark.strip_prefix("[^v")?.strip_suffix(']')?;
        number.parse::<u32>().ok()?;
        let verdicts = [(Partly, 33), (Contradicted, 31), (Unsupported, 35), (Unverified, 36)];
        verdicts.into_iter().find_map(|(verdict, colour)| {
            let verdict = verdict.name();
            Some(Self { mark, verdict, rest: text.strip_prefix(verdict)?, colour })
        })
    }
}

/// Returns the word before an error message, in colour if that is wanted.
pub fn error_label(wants_colours: bool) -> &'static str {
    if wants_colours { "\u{1b}[1;31merror:\u{1b}[0m" } else { "error:" }
}

/// Returns a duration as a person writes it, with tenths of a second below a minute.
pub fn format_short_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs_f64().max(0.0);
    if seconds < 60.0 { format!("{seconds:.1} s") } else { super::format_age(duration) }
}

/// Separates the thousands of all numbers of five digits and more: `34635 tokens` becomes `34,635 tokens`.
pub fn separate_thousands(text: &str) -> String {
    let mut result = String::new();
    let mut digits = String::new();
    let mut is_number = true;
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        result.push_str(&if is_number { group_digits(&digits) } else { std::mem::take(&mut digits) });
        digits.clear();
        if c != '\0' {
            result.push(c);
        }
        // Digits after a letter, a dash or a decimal point are part of a name or a fraction.
        is_number = !(c.is_alphanumeric() || "-_.:/".contains(c));
    }
    result
}

fn group_digits(digits: &str) -> String {
    if digits.len() < 5 {
        return digits.to_owned();
    }
    let first = digits.len() % 3;
    let mut groups: Vec<&str> = if first > 0 { vec![&digits[..first]] } else { Vec::new() };
    groups.extend((first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]));
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated_in_numbers_only() {
        for (text, expected) in [
            ("34635 tokens in 2 calls", "34,635 tokens in 2 calls"),
            ("1000 of 1234567", "1000 of 1,234,567"),
            ("worker-12345678 at 0.123456", "worker-12345678 at 0.123456"),
            ("", ""),
        ] {
            assert_eq!(separate_thousands(text), expected);
        }
    }

    #[test]
    fn verdicts_are_coloured_at_their_statements_and_in_their_footnotes() {
        let text = "It is old.[^v1] See [^v9].\n\n[^v1]: not supported: No line.\n[^2]: contradicted: by me\n[^v3]: my own";
        let painted = "It is old.\u{1b}[35m[^v1]\u{1b}[0m See [^v9].\n\n\u{1b}[35m[^v1]: not supported\u{1b}[0m: No line.\n\
                       [^2]: contradicted: by me\n[^v3]: my own";
        assert_eq!(paint_verdicts(text), painted);
    }

    #[test]
    fn states_are_coloured_and_other_lines_are_not() {
        assert_eq!(paint_board_line("├─ ✓ completed  a"), "├─ \u{1b}[32m✓ completed\u{1b}[0m  a");
        for plain in ["run r-1  running, 0 s", "├─ budget  5 of 10 tokens", "├─ and 3 more", ""] {
            assert_eq!(paint_board_line(plain), plain);
        }
    }
}
