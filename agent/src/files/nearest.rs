//! Which names somebody may have meant who asked for one that is not there.

use strsim::osa_distance;

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
    let in_name = osa_distance(last_part(wanted), last_part(&name)) + 1;
    let near = osa_distance(wanted, &name).min(in_name);
    (near <= 1 + last_part(wanted).chars().count() / 4).then_some(near)
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
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
