//! A custom worker that provides the capability `word-count` to the tasks of any plan. Start it next to a cluster with
//! `cargo run -p millrace-custom-worker -- --nats nats://…`; it has the arguments of `millrace worker`.

use std::process::ExitCode;

use millrace_worker::{Attempt, TaskError, TaskResult, capability, run_worker_program};

/// The parameters of a task. They are checked against this type before the task starts, and the planner reads the comments.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// The text to count the words of.
    text: String,
}

fn main() -> ExitCode {
    let word_count =
        capability!("word-count", "Counts the words of a text.", async |attempt, parameters: Parameters| {
            count(attempt, &parameters.text).await
        });
    run_worker_program("millrace-custom-worker", vec![word_count.expect("the name is valid")])
}

async fn count(attempt: &mut Attempt<'_>, text: &str) -> Result<TaskResult, TaskError> {
    // A completed step is in the journal: if this process dies now, another one resumes without repeating it.
    let words = attempt.run_step("count", async { Ok(text.split_whitespace().count()) }).await?;
    attempt.record_note(format!("counted {words} words")).await?;
    Ok(TaskResult { output: format!("The text has {words} words."), ..TaskResult::default() })
}
