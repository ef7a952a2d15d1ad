//! A second capability for tests besides `echo`: a program that takes some time and writes a line into the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::TaskSpec;
use serde_json::json;

use crate::history::History;

/// The name of the capability.
pub const MEASURE: &str = "measure";

/// The program writes its end as the second step of its attempt. The first step is its start, which its worker records.
const FILE: &str = r#"kind: command
name: measure
description: Measures something.
effect: idempotent
environment: [MILLRACE_ECHO_LEDGER]
command:
  - sh
  - -c
  - |
    task=$(cat)
    delay=${task#*'"delay":"'} key=${task#*'"key":"'}
    sleep "${delay%%'"'*}"
    IFS=/; set -- ${key%%'"'*}
    echo "$1 $2 $3 2" >> "$MILLRACE_ECHO_LEDGER"
    echo '{"measured": true}'
"#;

/// Writes the capability's file into a folder and returns its path.
///
/// # Panics
/// It can't be written.
#[must_use]
pub fn write_capability_file(folder: &Path) -> PathBuf {
    let path = folder.join("measure.yaml");
    std::fs::write(&path, FILE).expect("the file can be written");
    path
}

/// The same task, run by the program and lasting this long.
///
/// # Panics
/// The name of the capability is not valid.
#[must_use]
pub fn to_measured_task(task: TaskSpec, delay: Duration) -> TaskSpec {
    let seconds = json!(delay.as_secs_f64().to_string());
    TaskSpec {
        capability: Capability::new(MEASURE).expect("a valid capability name"),
        parameters: [("delay".to_owned(), seconds)].into_iter().collect(),
        ..task
    }
}

/// The ledger with the lines for the starts of the program, which only its worker records.
#[must_use]
pub fn with_start_lines(ledger: &str, history: &History) -> String {
    let plan = history.folded_plan();
    let is_measured = |name: &str| {
        let task = plan.tasks().iter().find(|task| task.spec.id.as_str() == name);
        task.is_some_and(|task| task.spec.capability.as_str() == MEASURE)
    };
    let begun = history.recorded_steps().into_iter().map(|(step, _)| step).filter(|step| {
        let words: Vec<&str> = step.split(' ').collect();
        is_measured(words[1]) && words[3] == "1"
    });
    begun.fold(ledger.to_owned(), |ledger, step| ledger + &step + "\n")
}
