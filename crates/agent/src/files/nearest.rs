//! Suggestions for names that do not exist.

use strsim::osa_distance;

/// The maximum number of suggestions.
const MOST: usize = 3;

/// Returns the names most similar to `wanted`, best first, at most three: those with the same last part, then those that
/// differ in few characters. Empty if nothing is similar.
#[must_use]
pub fn find_nearest_names<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let folded = wanted.to_lowercase();
    let mut near: Vec<(usize, &str)> =
        names.into_iter().filter_map(|name| Some((name_distance(&folded, name)?, name))).collect();
    near.sort_unstable();
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// The distance of a name from the wanted one; `None` if they are not similar.
fn name_distance(wanted: &str, name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    if last_path_part(&name) == last_path_part(wanted) {
        return Some(0);
    }
    let in_name = osa_distance(last_path_part(wanted), last_path_part(&name)) + 1;
    let near = osa_distance(wanted, &name).min(in_name);
    (near <= 1 + last_path_part(wanted).chars().count() / 4).then_some(near)
}

fn last_path_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["/notes/plan.md", "/report.md", "/data/table.csv", "/Report2.md"];
        for (wanted, expected) in [
            ("/plan.md", vec!["/notes/plan.md"]),
            ("/reprot.md", vec!["/report.md", "/Report2.md"]),
            ("/report.txt", vec!["/report.md"]),
            ("/REPORT.md", vec!["/report.md", "/Report2.md"]),
            ("/other", vec![]),
        ] {
            assert_eq!(find_nearest_names(wanted, names), expected, "{wanted}");
        }
    }
}
