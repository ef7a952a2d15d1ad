//! The verdicts in a text: where each statement stands in its final form, and the footnotes of those that are not verified.

use std::ops::Range;

use millrace_protocol::result::{StatementVerdict, VerifiedStatement};

use crate::lines::CharacterPositions;
use crate::phrases::Phrases;
use crate::statement::split_statements;

/// Finds statements again in a text that was renumbered or got a title since. One that is gone counts as removed.
pub fn place_statements(
    text: &str,
    is_mark: &dyn Fn(&str) -> bool,
    statements: Vec<VerifiedStatement>,
) -> Vec<VerifiedStatement> {
    let split = split_statements(text, is_mark).statements;
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let mut next = 0;
    let mut characters = CharacterPositions::new(text);
    let place = |one: VerifiedStatement| {
        let wanted = plain(&one.text);
        let found = split[next..].iter().position(|other| plain(&other.text) == wanted).map(|at| next + at);
        match found {
            Some(at) => {
                next = at + 1;
                let range = &split[at].range;
                let (start, end) = (characters.before(range.start), characters.before(range.end));
                VerifiedStatement { start, end, ..one }
            }
            None => {
                let at = split.get(next).map_or(0, |other| characters.before(other.range.start));
                VerifiedStatement { start: at, end: at, removed: true, ..one }
            }
        }
    };
    statements.into_iter().map(place).collect()
}

/// Takes the refuted statements out of a text; of a line that has nothing else, such as a list item, the whole line. The positions of the
/// others are those in the shorter text.
pub fn remove_refuted_statements(
    text: &str,
    mut statements: Vec<VerifiedStatement>,
) -> (String, Vec<VerifiedStatement>) {
    let mut letters: Vec<char> = text.chars().collect();
    for at in (0..statements.len()).rev() {
        let one = &statements[at];
        if !one.is_refuted() || one.removed {
            continue;
        }
        let cut = widen_cut(&letters, one.start as usize..(one.end as usize).min(letters.len()));
        letters.drain(cut.clone());
        let [from, to] = [cut.start, cut.end].map(|place| u32::try_from(place).unwrap_or(u32::MAX));
        let shift = |place: u32| if place >= to { place - (to - from) } else { place.min(from) };
        for other in &mut statements {
            (other.start, other.end) = (shift(other.start), shift(other.end));
        }
        statements[at].removed = true;
    }
    (letters.into_iter().collect(), statements)
}

/// The part of a text to take out with a statement: its line if that has no other words, or else a blank beside it.
fn widen_cut(letters: &[char], statement: Range<usize>) -> Range<usize> {
    let line_start = letters[..statement.start].iter().rposition(|c| *c == '\n').map_or(0, |at| at + 1);
    let line_end = letters[statement.end..].iter().position(|c| *c == '\n').map(|at| statement.end + at + 1);
    let line_end = line_end.unwrap_or(letters.len());
    let (before, after) = (&letters[line_start..statement.start], &letters[statement.end..line_end]);
    let is_list_number =
        before.iter().filter(|c| !c.is_whitespace()).all(|c| c.is_ascii_digit() || ".)".contains(*c));
    let has_words = |part: &[char]| part.iter().any(|c| c.is_alphanumeric());
    if !has_words(after) && (is_list_number || !has_words(before)) {
        return line_start..line_end;
    }
    if after.first() == Some(&' ') {
        return statement.start..statement.end + 1;
    }
    let blanks = before.iter().rev().take_while(|c| **c == ' ').count();
    statement.start - blanks..statement.end
}

/// Adds a footnote to each statement that is not verified, in the language of the phrases. The positions of the statements are those in the marked text.
pub fn mark_statements(
    text: &str,
    statements: Vec<VerifiedStatement>,
    phrases: &Phrases,
) -> (String, Vec<VerifiedStatement>) {
    let (mut marked, mut notes) = (String::with_capacity(text.len()), String::new());
    let (mut placed, mut count) = (Vec::with_capacity(statements.len()), last_footnote(text));
    let (mut letters, mut done, mut added) = (text.chars(), 0, 0);
    for one in statements {
        let end = one.end.max(done);
        marked.extend(letters.by_ref().take((end - done) as usize));
        done = end;
        let (start, mut length) = (one.start + added, one.end - one.start);
        if one.verdict != StatementVerdict::Supported && !one.removed {
            count += 1;
            let mark = format!("[^v{count}]");
            marked.push_str(&mark);
            let reason = one.reason.split_whitespace().collect::<Vec<_>>().join(" ");
            notes.push_str(&format!("{mark}: {}: {reason}\n", phrases.describe_outcome(&one)));
            let characters = u32::try_from(mark.len()).unwrap_or_default();
            (length, added) = (length + characters, added + characters);
        }
        placed.push(VerifiedStatement { start, end: start + length, ..one });
    }
    marked.extend(letters);
    if !notes.is_empty() {
        marked.push_str(if marked.ends_with('\n') { "\n" } else { "\n\n" });
        marked.push_str(&notes);
    }
    (marked, placed)
}

/// The greatest number of a footnote that the text has from an earlier verification; 0 if it has none.
fn last_footnote(text: &str) -> u32 {
    let numbers = text.split("[^v").skip(1).filter_map(|rest| rest.split_once(']')?.0.parse().ok());
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(text: &str, verdict: StatementVerdict) -> VerifiedStatement {
        VerifiedStatement {
            text: text.into(),
            start: 0,
            end: 0,
            verdict,
            lines: Vec::new(),
            found_by: None,
            reason: "No line says it.".into(),
            probability: None,
            removed: false,
        }
    }

    #[test]
    fn refuted_statements_are_taken_out_with_their_lines() {
        let text = "The kiln is hot [1]. It is blue. It is old.\n\n1. It cracked.\n2. It sings.\n\n| a | It is 3 m. |\n| b | It is 4 m. |\n";
        let verdicts = vec![
            statement("The kiln is hot.", StatementVerdict::Supported),
            statement("It is blue.", StatementVerdict::Contradicted),
            statement("It is old.", StatementVerdict::Unsupported),
            statement("It cracked.", StatementVerdict::Contradicted),
            statement("It sings.", StatementVerdict::Supported),
        ];
        let placed = place_statements(text, &|mark| mark == "1", verdicts);
        let (left, placed) = remove_refuted_statements(text, placed);
        assert!(left.starts_with("The kiln is hot [1]. It is old.\n\n2. It sings.\n"), "{left}");
        let cut = |one: &VerifiedStatement| -> String {
            left.chars().skip(one.start as usize).take((one.end - one.start) as usize).collect()
        };
        let cuts: Vec<String> = placed.iter().map(cut).collect();
        assert_eq!(cuts, ["The kiln is hot [1].", "", "It is old.", "", "It sings."]);
        let removed: Vec<bool> = placed.iter().map(|one| one.removed).collect();
        assert_eq!(removed, [false, true, false, true, false]);
    }

    #[test]
    fn verdicts_become_footnotes_at_their_statements() {
        let text = "# Öfen\n\nDer Ofen ist heiß [1]. Er ist neu [2].\n\n## Sources\n\n- [1] a.md\n";
        let is_mark = |mark: &str| mark == "1" || mark == "2";
        let verdicts = vec![
            statement("Der Ofen ist heiß.", StatementVerdict::Unsupported),
            statement("Er ist alt.", StatementVerdict::Supported),
            statement("Er ist neu.", StatementVerdict::Supported),
        ];
        let placed = place_statements(text, &is_mark, verdicts);
        let cut = |text: &str, one: &VerifiedStatement| -> String {
            text.chars().skip(one.start as usize).take((one.end - one.start) as usize).collect()
        };
        assert_eq!(cut(text, &placed[0]), "Der Ofen ist heiß [1].");
        assert!(placed[1].removed && cut(text, &placed[1]).is_empty());
        let (marked, placed) = mark_statements(text, placed, Phrases::english());
        assert!(marked.contains("heiß [1].[^v1] Er ist neu [2].\n"), "{marked}");
        assert!(marked.ends_with("\n\n[^v1]: not supported: No line says it.\n"), "{marked}");
        assert_eq!(cut(&marked, &placed[0]), "Der Ofen ist heiß [1].[^v1]");
        assert_eq!(cut(&marked, &placed[2]), "Er ist neu [2].");
        // A text that was marked before keeps its footnotes.
        let again =
            place_statements(&marked, &is_mark, vec![statement("Er ist neu.", StatementVerdict::Partly)]);
        let (marked, _) = mark_statements(&marked, again, Phrases::english());
        assert!(marked.contains("heiß [1].[^v1] Er ist neu [2].[^v2]"), "{marked}");
    }

    #[test]
    fn mark_of_a_row_stands_in_its_last_cell_and_one_of_code_after_it() {
        let text = "| day | opens |\n|---|---|\n| Monday | 9:00 [1] |\n| Sunday | |\n\n- run `kiln`\n- salt &amp; ash &amp;\n";
        let is_mark = |mark: &str| mark == "1";
        let words = ["day: Monday; opens: 9:00", "day: Sunday", "run kiln", "salt & ash &"];
        let verdicts = words.map(|words| statement(words, StatementVerdict::Unverified)).to_vec();
        let (marked, _) =
            mark_statements(text, place_statements(text, &is_mark, verdicts), Phrases::english());
        let expected = "| Monday | 9:00 [1][^v1] |\n| Sunday[^v2] | |\n\n- run `kiln`[^v3]\n- salt &amp; ash &amp;[^v4]\n";
        assert!(marked.contains(expected), "{marked}");
    }
}
