//! A second capability for tests beside `echo`: a program that takes a while and leaves a line in the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::TaskSpec;
use serde_json::json;

use crate::history::History;

/// Its name.
pub const MEASURE: &str = "measure";

/// It says when it came to its end, as the second step of its attempt: the first is that it was begun, which its worker
/// writes down.
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

/// Writes its file into a folder, and gives the path.
///
/// # Panics
/// It can't be written.
#[must_use]
pub fn file(folder: &Path) -> PathBuf {
    let path = folder.join("measure.yaml");
    std::fs::write(&path, FILE).expect("the file is written");
    path
}

/// The same task, done by the program in this time.
///
/// # Panics
/// The name of the capability is none.
#[must_use]
pub fn measured(task: TaskSpec, delay: Duration) -> TaskSpec {
    let seconds = json!(delay.as_secs_f64().to_string());
    TaskSpec {
        capability: Capability::new(MEASURE).expect("it is letters"),
        parameters: [("delay".to_owned(), seconds)].into_iter().collect(),
        ..task
    }
}

/// The ledger of a fleet, with the lines that the program's worker owes it: that it was begun.
#[must_use]
pub fn with_beginnings(ledger: &str, history: &History) -> String {
    let plan = history.plan();
    let is_measured = |name: &str| {
        let task = plan.tasks().iter().find(|task| task.spec.id.as_str() == name);
        task.is_some_and(|task| task.spec.capability.as_str() == MEASURE)
    };
    let begun = history.steps().into_iter().map(|(step, _)| step).filter(|step| {
        let words: Vec<&str> = step.split(' ').collect();
        is_measured(words[1]) && words[3] == "1"
    });
    begun.fold(ledger.to_owned(), |ledger, step| ledger + &step + "\n")
}
