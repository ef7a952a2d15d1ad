//! The table in `tests/PARITY.md` has every required row and names only existing tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn workspace_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace").to_owned()
}

/// The required rows: planning, reviews and budgets; agents, models, tools and capabilities; what goes beyond the predecessors; and the
/// behaviours, which have numbers only.
fn required_rows() -> Vec<String> {
    let of = |kind: &str, last: u32| (1..=last).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
    let more = ["PA12a", "B3", "B4", "B10", "B11", "B13"].map(str::to_owned).to_vec();
    [of("PT", 37), of("DF", 11), of("DU", 33), of("PA", 23), more, of("", 40)].concat()
}

#[test]
fn every_row_names_existing_tests() {
    let page =
        std::fs::read_to_string(workspace_folder().join("tests/PARITY.md")).expect("the table can be read");
    let cells: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?, cells.nth(1)?))
        })
        .collect();
    for row in required_rows() {
        let answer = cells.get(row.as_str()).unwrap_or_else(|| panic!("{row} is missing"));
        let tests: Vec<&str> =
            answer.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect();
        let has_reason = ["not wanted", "not there yet"].iter().any(|reason| answer.starts_with(reason));
        assert!(!tests.is_empty() || has_reason, "{row} names no test");
        for name in tests {
            let (file, test) = name.split_once("::").expect("a file and a test");
            let source = std::fs::read_to_string(workspace_folder().join(file))
                .unwrap_or_else(|error| panic!("{row}: {file}: {error}"));
            assert!(source.contains(&format!("fn {test}(")), "{row}: {file} has no test {test}");
        }
    }
}
