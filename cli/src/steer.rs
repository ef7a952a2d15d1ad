//! Steering a run: a command goes into the log, and what the rules decide on it is waited for and told. A command has a
//! name that is made once, so that it is carried out once however often it is written.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Answer, Cause, Command, Control, Decision, Event, Plan, Refusal};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::log::tell;
use millrace_runtime::record::Record;
use millrace_runtime::tail::Tail;
use millrace_runtime::{Bus, Fault, archive};
use tokio_util::sync::CancellationToken;

use crate::client::{Target, archived, find, patiently, story};
use crate::commands::run::until;
use crate::exit::{Exit, Stop};
use crate::report::how_to_go_on;
use crate::view::{one_line, say};

/// How long an answer is waited for before that is told.
const QUIET: Duration = Duration::from_secs(3);
/// How many tasks are named in a line.
const MAX_NAMED: usize = 10;

/// Whose command it is, and of which cluster.
#[derive(Args, Debug)]
pub struct Steering {
    /// The run, the beginning of its id, or `latest`
    run: String,
    /// Who gives the command; it is written into the log [default: the name you are logged in by]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    target: Target,
}

impl Steering {
    /// Gives the command that `make` makes of the run's plan, waits for what is decided on it, and tells that.
    ///
    /// # Errors
    /// The run is over, the rules refused the command, or the cluster does not answer.
    pub async fn command(
        self,
        interrupt: &CancellationToken,
        make: impl AsyncFnOnce(&Bus, &Plan) -> Result<Control, Stop>,
    ) -> Result<Exit, Stop> {
        let Self { run, by, target } = self;
        let work = async {
            let bus = target.connect().await?;
            let run = find(&bus, &run).await?;
            let plan = story(&bus, &run).await?.plan;
            refuse_over(&run, &plan)?;
            let control = make(&bus, &plan).await?;
            match give(&bus, &run, author(by), control, interrupt).await? {
                Some(events) => {
                    say(&format!("millrace: {}", decided(&run, &events)));
                    Ok(Exit::Completed)
                }
                None => Ok(Exit::Interrupted),
            }
        };
        until(interrupt, Box::pin(work)).await
    }
}

/// The name of whoever gives a command: what was said, or the name that they are logged in by.
pub fn author(said: Option<String>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    said.or_else(|| variable("LOGNAME"))
        .or_else(|| variable("USER"))
        .or_else(login)
        .unwrap_or_else(|| "unknown".into())
}

fn login() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let known = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = known.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

/// Writes a command into the log and waits for the decision on it: its events, or `None` if the user interrupts.
///
/// # Errors
/// The rules refused it, the run came to its end before it, or the cluster does not answer.
pub async fn give(
    bus: &Bus,
    run: &RunId,
    by: String,
    control: Control,
    interrupt: &CancellationToken,
) -> Result<Option<Vec<Event>>, Stop> {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let command = Command { id: id.clone(), by, control };
    let sequence = tell(bus, bus.lane(run), run, &Topic::Control, &command, &id).await?;
    let answered = tokio::select! {
        answered = answer(bus, run, sequence) => answered?,
        () = interrupt.cancelled() => {
            say(&format!("millrace: the command is in the log; run {run} takes it when a supervisor is there"));
            return Ok(None);
        }
    };
    match answered {
        Some(Ok(events)) => Ok(Some(events)),
        // It was written a second time because its first answer was lost, and carried out then.
        Some(Err(Refusal::AlreadyApplied(applied))) if applied == id => Ok(Some(Vec::new())),
        Some(Err(refusal)) => Err(Stop::refused(anyhow!("{refusal}"))),
        None => {
            let plan = story(bus, run).await?.plan;
            refuse_over(run, &plan)?;
            Err(Stop::environment(anyhow!("run {run} can't be followed any more")))
        }
    }
}

/// What was decided on a fact; `None` if the run was archived without that.
async fn answer(bus: &Bus, run: &RunId, fact: u64) -> Result<Option<Result<Vec<Event>, Refusal>>, Fault> {
    let lane = bus.lane(run);
    let (to, mut arrived) = tokio::sync::mpsc::channel(16);
    let mut tail = Tail::subject(bus, lane, subject::topic(lane, run, &Topic::Plan), fact);
    // The reader may not be cancelled in mid-read, so that it has a task of its own, which ends when it is not heard.
    let reader = tokio::spawn(async move { while to.send(tail.next().await).await.is_ok() {} });
    let mut is_told = false;
    let answered = loop {
        match tokio::time::timeout(QUIET, arrived.recv()).await {
            Ok(Some(records)) => {
                if let Some(found) = among(bus, &records, fact).await? {
                    break Some(found);
                }
            }
            Ok(None) => break None,
            Err(_) => {
                if patiently(|| archived(bus, run)).await?.is_some() {
                    let records = archive::find_run(bus, lane, run).await?;
                    break among(bus, &records, fact).await?;
                }
                if !std::mem::replace(&mut is_told, true) {
                    say(
                        "millrace: no supervisor has answered yet; the command waits in the log (Ctrl-C leaves it there)",
                    );
                }
            }
        }
    };
    reader.abort();
    Ok(answered)
}

async fn among(
    bus: &Bus,
    records: &[Record],
    fact: u64,
) -> Result<Option<Result<Vec<Event>, Refusal>>, Fault> {
    for record in records {
        let is_plan = matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan)));
        if record.sequence > fact && is_plan && !record.is_stray {
            let decision: Decision = bus.open(record).await?;
            if let Some(found) = answer_to(&decision, fact) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// What a decision says to a fact, if it answers it.
fn answer_to(decision: &Decision, fact: u64) -> Option<Result<Vec<Event>, Refusal>> {
    let mut at = 0;
    for Answer { cause, events, refusal } in &decision.answers {
        let end = at + *events as usize;
        if *cause == Cause::Fact(fact) {
            let made = || decision.events.get(at..end).unwrap_or_default().to_vec();
            return Some(refusal.clone().map_or_else(|| Ok(made()), Err));
        }
        at = end;
    }
    None
}

/// That a run is over, and what can be done then.
pub fn refuse_over(run: &RunId, plan: &Plan) -> Result<(), Stop> {
    let Some(end) = &plan.end else { return Ok(()) };
    let detail = if end.detail.is_empty() { String::new() } else { format!(": {}", one_line(&end.detail)) };
    let advice = how_to_go_on(run, plan)
        .map(|how| format!("go on with more first, as in: {how}"))
        .unwrap_or_else(|| {
            format!("`millrace show {run}` shows what it left; what is to be done more is a run of its own")
        });
    Err(Stop::refused(anyhow!("run {run} is over ({}{detail}); {advice}", end.reason)))
}

/// That a run has no such task. Before its first decision it has none, and the rules will say.
pub fn refuse_unknown(plan: &Plan, id: &TaskId) -> Result<(), Stop> {
    if plan.start.is_none() || plan.task(id).is_some() {
        return Ok(());
    }
    let known: Vec<&TaskId> = plan.tasks().iter().map(|task| &task.spec.id).collect();
    let hint = millrace_forms::did_you_mean(id.as_str(), known.iter().map(|id| id.as_str()));
    let there =
        if known.is_empty() { "there are none".into() } else { format!("there are {}", named_tasks(&known)) };
    Err(Stop::refused(anyhow!("there is no task {id} in this run{hint}; {there}")))
}

fn named_tasks(ids: &[&TaskId]) -> String {
    let names: Vec<&str> = ids.iter().take(MAX_NAMED).map(|id| id.as_str()).collect();
    match ids.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

// ---- what was decided, in a line

/// What a command changed, in a line: the run, or one task and what came with it.
pub fn decided(run: &RunId, events: &[Event]) -> String {
    let (first, named) = match events.iter().find_map(of_run) {
        Some(what) => (format!("run {run} {what}"), 0),
        None => match events.iter().find_map(of_task) {
            Some(what) => (what, 1),
            None => (format!("run {run}: the command is carried out"), 0),
        },
    };
    let also = consequences(events, named);
    if also.is_empty() { first } else { format!("{first}; {}", also.join("; ")) }
}

/// What a command changed of the run as a whole.
fn of_run(event: &Event) -> Option<&'static str> {
    if let Event::RunEnded { .. } = event {
        Some("is cancelled")
    } else if let Event::Paused = event {
        Some("is paused: what runs goes on to its end, and nothing more is given out")
    } else if let Event::RunReopened | Event::Resumed { .. } = event {
        Some("goes on")
    } else if let Event::MessageReceived { .. } = event {
        Some("has a message for its planner")
    } else {
        None
    }
}

/// What a command changed of the task that it names.
fn of_task(event: &Event) -> Option<String> {
    if let Event::TaskCancelled { task, .. } = event {
        Some(format!("task {task} is cancelled"))
    } else if let Event::TaskReopened { task, attempt, ready, .. } = event {
        let when = if *ready { "" } else { ", when what it depends on is there" };
        Some(format!("task {task} runs once more, as attempt {attempt}{when}"))
    } else if let Event::TaskPatched { spec, .. } = event {
        Some(format!("task {} is changed", spec.id))
    } else if let Event::FinalMarked { task } = event {
        Some(format!("task {task} is the final one"))
    } else if let Event::TaskAdded { spec, .. } = event {
        Some(format!("task {} is added", spec.id))
    } else {
        None
    }
}

/// What came with it, of each kind those behind the first so many.
fn consequences(events: &[Event], named: usize) -> Vec<String> {
    let tasks = |what: &str, is_it: fn(&Event) -> bool, skip: usize| {
        let ids: Vec<&TaskId> =
            events.iter().filter(|event| is_it(event)).filter_map(Event::task).skip(skip).collect();
        (!ids.is_empty()).then(|| format!("{what} {}", named_tasks(&ids)))
    };
    let is_changed = events.iter().any(|event| matches!(event, Event::TaskPatched { .. }));
    [
        tasks("cancelled with it:", |event| matches!(event, Event::TaskCancelled { .. }), named),
        // A task that is changed and was to try again later does so at once: that is no other task.
        tasks(
            "again:",
            |event| matches!(event, Event::TaskReopened { .. }),
            named.max(usize::from(is_changed)),
        ),
        tasks("done again with it:", |event| matches!(event, Event::TaskInvalidated { .. }), 0),
        tasks("added too:", |event| matches!(event, Event::TaskAdded { .. }), named),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests;
