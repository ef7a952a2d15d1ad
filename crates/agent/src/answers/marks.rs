//! Clean-up of citations after they were renumbered.

use millrace_protocol::result::Quotation;

/// Removes a citation that directly follows the same citation: `[S1][S1]` becomes `[S1]`.
pub(super) fn remove_repeated_citations(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let (mut rest, mut last) = (text, None);
    while let Some(first) = rest.chars().next() {
        let mark = rest.find(']').filter(|_| first == '[').map(|at| &rest[..=at]);
        let begin = first.len_utf8();
        let piece = mark.unwrap_or_else(|| {
            let end = rest[begin..].find('[').map_or(rest.len(), |at| begin + at);
            &rest[..end]
        });
        if mark.is_none() || mark != last {
            cleaned.push_str(piece);
        }
        (last, rest) = (mark, &rest[piece.len()..]);
    }
    cleaned
}

pub(super) fn remove_duplicate_quotations(quotations: Vec<Quotation>) -> Vec<Quotation> {
    let mut unique: Vec<Quotation> = Vec::with_capacity(quotations.len());
    for quotation in quotations {
        if !unique.contains(&quotation) {
            unique.push(quotation);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_citation_is_removed() {
        for (text, cleaned) in [
            ("a [S1][S1] b [S1]", "a [S1] b [S1]"),
            ("[1][2][1][1]ä", "[1][2][1]ä"),
            ("ä[", "ä["),
            ("x [a] [a]", "x [a] [a]"),
            ("é[1]", "é[1]"),
            ("", ""),
        ] {
            assert_eq!(remove_repeated_citations(text), cleaned);
        }
    }
}
