//! What answers with citations have in common once these have their last names.

use millrace_protocol::result::Quotation;

/// A text in which a mark that stands right behind the same mark is left out: `[S1][S1]` is `[S1]`.
pub(super) fn without_repeats(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut rest, mut last) = (text, None);
    while let Some(first) = rest.chars().next() {
        let mark = rest.find(']').filter(|_| first == '[').map(|at| &rest[..=at]);
        let begin = first.len_utf8();
        let piece = mark.unwrap_or_else(|| {
            let end = rest[begin..].find('[').map_or(rest.len(), |at| begin + at);
            &rest[..end]
        });
        if mark.is_none() || mark != last {
            kept.push_str(piece);
        }
        (last, rest) = (mark, &rest[piece.len()..]);
    }
    kept
}

/// The same quotations, each once.
pub(super) fn unique(quotations: Vec<Quotation>) -> Vec<Quotation> {
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
    fn a_mark_right_behind_itself_is_left_out() {
        for (text, kept) in [
            ("a [S1][S1] b [S1]", "a [S1] b [S1]"),
            ("[1][2][1][1]ä", "[1][2][1]ä"),
            ("ä[", "ä["),
            ("x [a] [a]", "x [a] [a]"),
            ("é[1]", "é[1]"),
            ("", ""),
        ] {
            assert_eq!(without_repeats(text), kept);
        }
    }
}
