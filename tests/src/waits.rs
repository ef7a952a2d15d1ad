//! Waiting runs in tests: signals, answers to questions, and waits for the states of tasks.

use std::time::Duration;

use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, Plan, RunCommand, RunQuestion, Submission, TaskState};
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope, QuestionId, RunAnswer};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::WireMessage;
use millrace_runtime::Bus;
use millrace_runtime::log::publish_message;

use crate::cluster::TestCluster;
use crate::history::History;
use crate::plans::submit_run;
use crate::wait_for_value;

/// The longest wait for a state.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until so many tasks of a run are in a state.
pub async fn wait_for_task_count(bus: &Bus, run: &RunId, state: TaskState, count: u32) {
    wait_for_value(TIMEOUT, &format!("{count} tasks that are {state}"), async || {
        let history = History::read_from_log(bus, run).await.ok()?;
        (history.folded_plan().task_count_in_state(state) == count).then_some(())
    })
    .await;
}

/// Waits until a run of lane 0 has so many messages in the log, or has ended with fewer: facts that arrive together get one decision.
pub async fn wait_for_append_or_end(bus: &Bus, run: &RunId, count: usize) {
    tokio::select! {
        () = wait_for_append(bus, run, count) => {}
        _ = read_ended_run(bus, run) => {}
    }
}

async fn wait_for_append(bus: &Bus, run: &RunId, count: usize) {
    let context = async_nats::jetstream::new(bus.client().clone());
    let lane = context.get_stream("LANE_0").await.expect("the lane exists");
    let filter_subject = format!("lane.0.run.{run}.>");
    let consumer = lane.create_consumer(OrderedConfig { filter_subject, ..OrderedConfig::default() }).await;
    let messages = consumer.expect("the lane has a consumer").messages().await.expect("the consumer answers");
    messages.take(count).for_each(async |_| ()).await;
}

/// Waits for the end of a run and returns its history.
pub async fn read_ended_run(bus: &Bus, run: &RunId) -> History {
    wait_for_value(TIMEOUT, &format!("the end of {run}"), async || {
        let history = History::read_from_log(bus, run).await.ok()?;
        history.folded_plan().run.end.is_some().then_some(history)
    })
    .await
}

/// Signals an event to a run.
pub async fn signal_event(bus: &Bus, run: &RunId, name: &str, data: &str) {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let control = CommandAction::Signal { name: name.into(), data: data.into() };
    publish_until_accepted(
        bus,
        run,
        &Topic::Control,
        &RunCommand { id: id.clone(), by: "test".into(), control },
        &id,
    )
    .await;
}

/// An open question: its id, its digest and its text.
#[derive(Debug, Clone)]
pub struct OpenQuestion {
    /// The id.
    pub id: QuestionId,
    /// The digest that an answer must name.
    pub digest: String,
    /// The text.
    pub text: String,
    /// The allowed answers.
    pub decisions: Vec<AnswerKind>,
}

impl OpenQuestion {
    /// The task that asks; empty for the plan.
    pub fn task(&self) -> &str {
        self.id.task().map_or("", |task| task.as_str())
    }

    /// The answer of a person who agrees with everything, and answers an input with its own text.
    pub fn agreeing_answer(&self) -> Answer {
        match self.decisions[0] {
            AnswerKind::Approve => Answer::Approve,
            AnswerKind::Pass => Answer::Pass,
            AnswerKind::Edit
            | AnswerKind::Reject
            | AnswerKind::Respond
            | AnswerKind::Answer
            | AnswerKind::Decline
            | AnswerKind::Fail => {
                Answer::Answer { value: serde_json::Value::from(self.text.as_str()).to_string() }
            }
        }
    }
}

fn questions_of(plan: &Plan) -> Vec<OpenQuestion> {
    let open = plan.open_questions().map(|RunQuestion { id, question, .. }| {
        let (digest, text) = (question.digest.clone(), question.text.clone());
        OpenQuestion { id, digest, text, decisions: question.decisions.clone() }
    });
    open.collect()
}

/// Returns the open questions of a run; `None` if the run can't be read at the moment.
pub async fn read_open_questions(bus: &Bus, run: &RunId) -> Option<Vec<OpenQuestion>> {
    let history = History::read_from_log(bus, run).await.ok()?;
    Some(questions_of(history.folded_plan()))
}

/// Waits until a run has so many open questions, and returns them.
pub async fn wait_for_questions(bus: &Bus, run: &RunId, count: usize) -> Vec<OpenQuestion> {
    wait_for_value(TIMEOUT, &format!("{count} open questions"), async || {
        read_open_questions(bus, run).await.filter(|open| open.len() == count)
    })
    .await
}

/// Answers a question, as this person; returns the sequence of the answer in the lane.
pub async fn answer_question(
    bus: &Bus,
    run: &RunId,
    by: &str,
    question: &OpenQuestion,
    answer: Answer,
) -> u64 {
    answer_with_scope(bus, run, by, question, answer, AnswerScope::Once).await
}

/// Answers a question, possibly for further calls too.
pub async fn answer_with_scope(
    bus: &Bus,
    run: &RunId,
    by: &str,
    question: &OpenQuestion,
    answer: Answer,
    scope: AnswerScope,
) -> u64 {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let (question, digest) = (question.id.clone(), question.digest.clone());
    let given = RunAnswer { id: id.clone(), by: by.into(), question, digest, answer, scope };
    publish_until_accepted(bus, run, &Topic::Answer, &given, &id).await
}

/// Publishes a fact; while the server is away it is sent again, with the same id.
async fn publish_until_accepted<M: WireMessage>(
    bus: &Bus,
    run: &RunId,
    topic: &Topic,
    message: &M,
    id: &str,
) -> u64 {
    wait_for_value(TIMEOUT, "the server", async || {
        publish_message(bus, bus.lane_of_run(run), run, topic, message, id).await.ok()
    })
    .await
}

/// A person who answers every question of a run in the same way, and signals the events that it waits for, until the run ends.
pub async fn answer_every_question(bus: &Bus, run: &RunId) {
    let mut answered = std::collections::BTreeSet::new();
    while let Some(open) = next_questions(bus, run).await {
        for question in open {
            if answered.insert(question.id.clone()) {
                answer_question(bus, run, "ann", &question, question.agreeing_answer()).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Submits a run whose questions are answered, calls `kill` after its append `count`, and returns the history of the ended run;
/// `None` if it does not end in time.
pub async fn end_run_with_kill(
    cluster: &mut TestCluster,
    (bus, run): (&Bus, &RunId),
    submission: &Submission,
    count: usize,
    kill: impl FnOnce(&mut TestCluster),
) -> Option<History> {
    let kill = async {
        wait_for_append_or_end(bus, run, count).await;
        kill(cluster);
        read_ended_run(bus, run).await
    };
    let ended = async {
        submit_run(bus, run, submission).await;
        let (history, ()) = tokio::join!(kill, answer_every_question(bus, run));
        history
    };
    Box::pin(tokio::time::timeout(TIMEOUT, ended)).await.ok()
}

/// Kills processes and starts them again; with the server, it is killed first and is back before they start.
pub fn kill_and_restart(cluster: &mut TestCluster, processes: &[&str], with_server: bool) {
    if with_server {
        cluster.server.kill();
    }
    processes.iter().for_each(|name| cluster.kill_process(name));
    if with_server {
        cluster.server.restart();
    }
    processes.iter().for_each(|name| cluster.restart_process(name));
}

/// The open questions of a run, after its events were signalled; `None` if it has ended.
async fn next_questions(bus: &Bus, run: &RunId) -> Option<Vec<OpenQuestion>> {
    let Ok(history) = History::read_from_log(bus, run).await else { return Some(Vec::new()) };
    let plan = history.folded_plan();
    if plan.run.end.is_some() {
        return None;
    }
    let waits = plan.parked_attempts().flat_map(|(_, attempt)| attempt.open_waits());
    let event = waits.filter_map(|wait| wait.condition.event()).next().map(str::to_owned);
    if let Some(event) = event.filter(|_| plan.run.signals.is_empty()) {
        signal_event(bus, run, &event, "1").await;
    }
    Some(questions_of(plan))
}
