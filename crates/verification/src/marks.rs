//! The verdicts in a text: where each statement stands in its final form, and the footnotes of those that are not verified.

use millrace_protocol::result::{StatementVerdict, VerifiedStatement};

use crate::lines::CharacterPositions;
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

/// Adds a footnote to each statement that is not verified. The positions of the statements are those in the marked text.
pub fn mark_statements(text: &str, statements: Vec<VerifiedStatement>) -> (String, Vec<VerifiedStatement>) {
    let (mut marked, mut notes) = (String::with_capacity(text.len()), String::new());
    let (mut placed, mut count) = (Vec::with_capacity(statements.len()), 0);
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
            notes.push_str(&format!("{mark}: {}: {reason}\n", one.outcome()));
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
        let (marked, placed) = mark_statements(text, placed);
        assert!(marked.contains("heiß [1].[^v1] Er ist neu [2].\n"), "{marked}");
        assert!(marked.ends_with("\n\n[^v1]: not supported: No line says it.\n"), "{marked}");
        assert_eq!(cut(&marked, &placed[0]), "Der Ofen ist heiß [1].[^v1]");
        assert_eq!(cut(&marked, &placed[2]), "Er ist neu [2].");
    }
}
