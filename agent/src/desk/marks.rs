//! What answers with citations have in common once these have their last names.

use millrace_protocol::result::Quotation;

/// A text in which a mark that stands right behind the same mark is left out: `[S1][S1]` is `[S1]`.
pub(super) fn without_repeats(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut last = "";
    let mut rest = text;
    while !rest.is_empty() {
        let end = if rest.starts_with('[') { rest.find(']').map(|at| at + 1) } else { None };
        let end = end.unwrap_or_else(|| rest[1..].find('[').map_or(rest.len(), |at| at + 1));
        let end = (end..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        if !(piece.starts_with('[') && piece == last) {
            kept.push_str(piece);
        }
        (last, rest) = (piece, after);
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
