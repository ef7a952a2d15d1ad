//! Follows a run for an editor: sends its log so far and then each change, asks its questions, and at its end sends the report
//! and delivers the files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol::schema::v1::{
    PermissionOption, SessionUpdate, StopReason, ToolCall, ToolCallId, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use millrace_client::{TaskUpdate, follow_all_tasks, read_all_tasks};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{EndReason, Plan, RunQuestion};
use millrace_protocol::question::{Question, QuestionId, QuestionSubject};
use millrace_runtime::{Bus, Fault};
use millrace_views::journal::read_entry;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::editor::Editor;
use super::files::deliver_files;
use super::questions::ShownQuestion;
use super::updates::{RunUpdates, call_update, text_chunk, text_content};
use crate::commands::watch::{describe_pause, is_at_rest};
use crate::questions::{OutcomeKind, QuestionTracker, full_id, send_answer};
use crate::report::RunReport;
use crate::steer::patience;

/// The state of a run that a prompt waits for.
#[derive(Debug, Clone)]
pub enum RunProgress {
    Running,
    /// A question waits for a text, which the next prompt gives.
    NeedsText(Arc<TextQuestion>),
    /// Nothing happens until a person resumes it.
    AtRest,
    Ended(StopReason),
    /// The run can't be followed any more, for this reason.
    Lost(String),
}

#[derive(Debug)]
pub struct TextQuestion {
    pub id: QuestionId,
    pub question: Question,
}

/// A run that is shown in an editor. It is no longer followed when this is dropped.
pub struct FollowedRun {
    pub run: RunId,
    pub progress: watch::Receiver<RunProgress>,
    task: Option<AbortHandle>,
}

impl Drop for FollowedRun {
    fn drop(&mut self) {
        self.task.take().inspect(AbortHandle::abort);
    }
}

impl FollowedRun {
    pub fn has_ended(&self) -> bool {
        matches!(&*self.progress.borrow(), RunProgress::Ended(_) | RunProgress::Lost(_))
    }
}

/// A run, and the editor that shows it.
#[derive(Clone)]
pub struct ShownRun {
    pub bus: Bus,
    pub run: RunId,
    pub editor: Editor,
    /// The folder of the session.
    pub folder: PathBuf,
    /// The author of answers.
    pub by: String,
}

impl ShownRun {
    /// Sends the run as it is in the log, and follows it from there if it has not ended. A run that was loaded begins with its
    /// objective as a message of the user; `submitted` is the objective of one that no supervisor has started yet.
    pub async fn show_and_follow(self, loaded: Option<String>) -> Result<FollowedRun, Fault> {
        let past = read_all_tasks(&self.bus, &self.run).await?;
        // The entries after the last decision may be incomplete.
        let is_decision = |update: &&TaskUpdate| matches!(update, TaskUpdate::Decision { .. });
        let last = past.iter().rfind(is_decision).map_or(0, TaskUpdate::sequence);
        let (run, editor) = (self.run.clone(), self.editor.clone());
        let is_loaded = loaded.is_some();
        let mut follower = Follower::new(self);
        let past = past.into_iter().filter(|update| update.sequence() <= last).collect();
        let updates = follower.fold(past).await?;
        if let Some(submitted) = loaded {
            let start = follower.updates.plan().run.start.as_ref();
            let objective = start.map_or(submitted, |start| start.objective.clone());
            editor.send(SessionUpdate::UserMessageChunk(text_chunk(&objective)));
        }
        editor.send_all(updates);
        if follower.updates.plan().run.end.is_some() {
            let stop = follower.report(is_loaded).await;
            let (_, progress) = watch::channel(RunProgress::Ended(stop));
            return Ok(FollowedRun { run, progress, task: None });
        }
        let (sender, progress) = watch::channel(RunProgress::Running);
        let task = tokio::spawn(follower.follow(last, sender)).abort_handle();
        Ok(FollowedRun { run, progress, task: Some(task) })
    }
}

struct Follower {
    shown: ShownRun,
    updates: RunUpdates,
    questions: QuestionTracker,
    /// The open permission requests, with the tool calls that show them.
    asked: HashMap<QuestionId, (AbortHandle, ShownCall)>,
    asking: JoinSet<()>,
    /// The open questions that need a text, the oldest first.
    texts: Vec<Arc<TextQuestion>>,
    /// `true` if the user knows that nothing happens.
    is_at_rest: bool,
}

/// The tool call by which an editor shows a question.
#[derive(Debug, Clone)]
enum ShownCall {
    /// A call of an agent; its result comes later.
    OfAgent(ToolCallId),
    OfQuestion(ToolCallId),
}

impl Follower {
    fn new(shown: ShownRun) -> Self {
        let updates = RunUpdates::new(&shown.run);
        Self {
            shown,
            updates,
            questions: QuestionTracker::default(),
            asked: HashMap::new(),
            asking: JoinSet::new(),
            texts: Vec::new(),
            is_at_rest: false,
        }
    }

    async fn fold(&mut self, batch: Vec<TaskUpdate>) -> Result<Vec<SessionUpdate>, Fault> {
        let mut updates = Vec::new();
        for update in batch {
            updates.extend(match update {
                TaskUpdate::Decision { decision, .. } => self.updates.add_decision(&decision),
                TaskUpdate::Entry(entry) => {
                    self.updates.add_entry(&read_entry(&self.shown.bus, *entry).await?)
                }
            });
        }
        Ok(updates)
    }

    async fn follow(mut self, after: u64, progress: watch::Sender<RunProgress>) {
        let mut log = follow_all_tasks(&self.shown.bus, &self.shown.run, after);
        loop {
            self.follow_questions();
            self.tell_of_rest();
            progress.send_if_modified(|old| self.change_progress(old));
            let batch = tokio::select! {
                batch = log.recv() => batch,
                Some(_) = self.asking.join_next() => continue,
            };
            let lost = match batch {
                Some(Ok(batch)) => match self.fold(batch).await {
                    Ok(updates) => {
                        self.shown.editor.send_all(updates);
                        None
                    }
                    Err(fault) => Some(fault.to_string()),
                },
                Some(Err(fault)) => Some(fault.to_string()),
                None => Some("the cluster no longer reports it".to_owned()),
            };
            if self.updates.plan().run.end.is_some() {
                self.follow_questions();
                let stop = self.report(false).await;
                progress.send_replace(RunProgress::Ended(stop));
                return;
            }
            if let Some(reason) = lost {
                let text = format!("lost track of run {}: {reason}", self.shown.run);
                progress.send_replace(RunProgress::Lost(text));
                return;
            }
        }
    }

    /// Sets the progress, and returns `true` if it is another one.
    fn change_progress(&self, old: &mut RunProgress) -> bool {
        let new = match self.texts.first() {
            Some(question) => RunProgress::NeedsText(Arc::clone(question)),
            None if self.is_at_rest => RunProgress::AtRest,
            None => RunProgress::Running,
        };
        let is_same = match (&*old, &new) {
            (RunProgress::NeedsText(old), RunProgress::NeedsText(new)) => old.id == new.id,
            (old, new) => std::mem::discriminant(old) == std::mem::discriminant(new),
        };
        *old = new;
        !is_same
    }

    /// Tells once that a run does nothing until it is resumed.
    fn tell_of_rest(&mut self) {
        let plan = self.updates.plan();
        let is_at_rest = is_at_rest(plan);
        if let Some(text) = describe_pause(&self.shown.run, plan).filter(|_| is_at_rest && !self.is_at_rest) {
            self.shown.editor.say(&format!("{text}, or send `/continue` here"));
        }
        self.is_at_rest = is_at_rest;
    }

    /// Asks the questions that have opened, and withdraws those that have closed.
    fn follow_questions(&mut self) {
        let changes = self.questions.take_changes(&self.updates.history.plan);
        let opened: Vec<OpenedQuestion> =
            changes.opened.iter().map(|record| OpenedQuestion::new(&self.shown.run, record)).collect();
        let closed: Vec<QuestionId> = changes.closed.into_iter().map(|record| record.id).collect();
        let is_open = |plan: &Plan, id: &QuestionId| plan.open_questions().any(|record| record.id == *id);
        let plan = &self.updates.history.plan;
        let gone: Vec<QuestionId> =
            self.asked.keys().filter(|id| closed.contains(id) || !is_open(plan, id)).cloned().collect();
        self.texts.retain(|text| is_open(plan, &text.id));
        for (asking, call) in gone.iter().filter_map(|id| self.asked.remove(id)) {
            asking.abort();
            let (id, status) = match call {
                ShownCall::OfAgent(id) if self.updates.is_open(&id) => (id, ToolCallStatus::InProgress),
                ShownCall::OfAgent(_) => continue,
                ShownCall::OfQuestion(id) => (id, ToolCallStatus::Completed),
            };
            self.shown.editor.send(call_update(id, ToolCallUpdateFields::new().status(status)));
        }
        for opened in opened {
            self.ask(opened);
        }
    }

    fn ask(&mut self, opened: OpenedQuestion) {
        let OpenedQuestion { id, question, shown } = opened;
        let editor = &self.shown.editor;
        if shown.choices.is_empty() {
            editor.say(&format!("{}\n\nYour next message is the answer.", shown.text));
            self.texts.push(Arc::new(TextQuestion { id, question }));
            return;
        }
        let tool = match &question.subject {
            QuestionSubject::Approval { tool, .. } => tool.as_str(),
            QuestionSubject::Input { .. } | QuestionSubject::Review { .. } | QuestionSubject::Plan { .. } => {
                ""
            }
        };
        let call = match self.updates.call_of_question(&id, tool, &shown.arguments) {
            Some(call) => ShownCall::OfAgent(call),
            None => {
                let call = ToolCallId::new(full_id(&self.shown.run, &id));
                let new = ToolCall::new(call.clone(), shown.title.clone()).kind(shown.kind);
                editor.send(SessionUpdate::ToolCall(new.content(vec![text_content(shown.text.clone())])));
                ShownCall::OfQuestion(call)
            }
        };
        let (ShownCall::OfAgent(call_id) | ShownCall::OfQuestion(call_id)) = call.clone();
        let asking = ask_and_answer(self.shown.clone(), (id.clone(), question), shown, call_id);
        self.asked.insert(id, (self.asking.spawn(asking), call));
    }

    /// Sends the report of a run that has ended, and delivers its files, which are only named if the run had ended before. Returns
    /// the reason for the end of the prompt.
    async fn report(&mut self, had_ended: bool) -> StopReason {
        let ShownRun { bus, run, editor, folder, .. } = &self.shown;
        let history = std::mem::take(&mut self.updates.history);
        let report = match RunReport::fetch_if_ended(bus, run, history).await {
            Ok(Ok(report)) => report,
            Ok(Err(_)) => return StopReason::EndTurn,
            Err(error) => {
                editor.say(&format!("The run has ended, and its report can't be read: {:#}", error.error));
                return StopReason::EndTurn;
            }
        };
        let text = report.deliverable_markdown();
        let reason = report.run_end().reason;
        if reason != EndReason::Completed || text.is_none() {
            editor.say(&report.summary_lines().join("\n\n"));
        }
        text.iter().for_each(|text| editor.say(text));
        let files = (report.artifacts(), had_ended);
        if let Err(fault) = deliver_files(editor, folder, (bus, run), files).await {
            editor.say(&format!("The files of the run can't be read: {fault}"));
        }
        stop_reason(reason)
    }
}

struct OpenedQuestion {
    id: QuestionId,
    question: Question,
    shown: ShownQuestion,
}

impl OpenedQuestion {
    fn new(run: &RunId, record: &RunQuestion<'_>) -> Self {
        let shown = ShownQuestion::new(run, record);
        Self { id: record.id.clone(), question: record.question.clone(), shown }
    }
}

/// Asks the user, and sends the answer. A question that the user leaves open stays open: others can answer it.
async fn ask_and_answer(
    run: ShownRun,
    (id, question): (QuestionId, Question),
    shown: ShownQuestion,
    call: ToolCallId,
) {
    let fields = ToolCallUpdateFields::new()
        .title(shown.title.clone())
        .kind(shown.kind)
        .status(ToolCallStatus::Pending)
        .content(vec![text_content(shown.text.clone())])
        .raw_input((!shown.arguments.is_null()).then(|| shown.arguments.clone()));
    let options: Vec<PermissionOption> = shown.choices.iter().map(|choice| choice.option.clone()).collect();
    let chosen = run.editor.ask_permission(ToolCallUpdate::new(call, fields), options).await;
    let Some(choice) = chosen.and_then(|chosen| shown.find_choice(&chosen.0)) else { return };
    let answer = (choice.answer.clone(), choice.scope, run.by.as_str());
    let uninterrupted = CancellationToken::new();
    let sent = send_answer(&run.bus, &run.run, (&id, &question), answer, patience(&uninterrupted)).await;
    match sent {
        Ok(outcome) if outcome.kind == OutcomeKind::Answered => {}
        Ok(outcome) => run.editor.say(&outcome.line()),
        Err(error) => run.editor.say(&format!("The answer could not be sent: {error}")),
    }
}

fn stop_reason(reason: EndReason) -> StopReason {
    match reason {
        EndReason::Cancelled => StopReason::Cancelled,
        EndReason::BudgetExhausted | EndReason::MaxSteps => StopReason::MaxTurnRequests,
        EndReason::Completed
        | EndReason::CompletedPartial
        | EndReason::Failed
        | EndReason::NoProgress
        | EndReason::PlannerUnavailable => StopReason::EndTurn,
    }
}
