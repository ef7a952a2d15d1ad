//! A worker of one's own: it offers `word-count`, which tasks of any plan can then name. Start it beside a cluster with
//! `MILLRACE_NATS_URL=nats://… cargo run -p millrace-custom-worker`.

use millrace_worker::{
    Attempt, Config, Connection, Error, TaskError, TaskResult, capability, on_signals, run, telemetry,
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    telemetry::init("info");
    let url = std::env::var("MILLRACE_NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".into());
    let word_count = capability("word-count", "Counts the words of the parameter `text`.", |attempt| {
        Box::pin(count(attempt))
    });
    run(Config::new(Connection::with_environment(url), vec![word_count]), on_signals()?).await
}

async fn count(attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
    // A wrong or missing parameter ends the task with an error that names it.
    let text: String = attempt.parameter("text")?;
    // A step is in the journal once it is done: if this process dies now, another goes on without doing it again.
    let words = attempt.step("count", async { Ok(text.split_whitespace().count()) }).await?;
    attempt.note(format!("counted {words} words")).await?;
    Ok(TaskResult { output: format!("The text has {words} words."), ..TaskResult::default() })
}
