//! Which names somebody may have meant who asked for one that is not there.

/// How many names are given.
const MOST: usize = 3;

/// The names nearest to `wanted`, nearest first, at most three: those with the same last part, then those that differ
/// in few characters. None if nothing is near.
#[must_use]
pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let folded = wanted.to_lowercase();
    let mut near: Vec<(usize, &str)> =
        names.into_iter().filter_map(|name| Some((distance(&folded, name)?, name))).collect();
    near.sort_unstable();
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// How far a name is from what was wanted; `None` if it is something else.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    if last_part(&name) == last_part(wanted) {
        return Some(0);
    }
    let near = edits(wanted, &name).min(edits(last_part(wanted), last_part(&name)) + 1);
    (near <= 1 + last_part(wanted).chars().count() / 4).then_some(near)
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// How many characters must be put in, left out or replaced to make one text of the other (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_named_and_nothing_else() {
        let names = ["/notes/plan.md", "/report.md", "/data/table.csv", "/Report2.md"];
        for (wanted, expected) in [
            ("/plan.md", vec!["/notes/plan.md"]),
            ("/reprot.md", vec!["/report.md", "/Report2.md"]),
            ("/report.txt", vec!["/report.md"]),
            ("/REPORT.md", vec!["/report.md", "/Report2.md"]),
            ("/other", vec![]),
        ] {
            assert_eq!(nearest(wanted, names), expected, "{wanted}");
        }
    }
}
