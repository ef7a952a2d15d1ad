//! A session of the editor: its prompts, one at a time, and the runs that it shows. A prompt is a run of the session of the same name
//! in the cluster, or the answer to a question of the run before.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent_client_protocol::schema::v1::{ContentBlock, StopReason};
use millrace_agent::session::ModelPreferences;
use millrace_client::{list_runs, submit_run};
use millrace_plan_file::{PlanFile, RunDescription};
use millrace_protocol::ids::{Capability, RunId, SessionId, TaskId};
use millrace_protocol::labels::{Labels, find_labels_problem};
use millrace_protocol::plan::{Budget, CommandAction, Submission, TaskSpec};
use millrace_protocol::question::{Answer, AnswerScope, QuestionId};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::SubmittedRuns;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use millrace_views::sort_runs_of_session;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::editor::Editor;
use super::follow::{FollowedRun, RunProgress, ShownRun, TextQuestion};
use super::prompt::Prompt;
use crate::commands::run::EXTRACTIVE_NOTICE;
use crate::commands::submit::refuse_full_cluster;
use crate::documents::upload_documents;
use crate::exit::{CommandError, CommandExit};
use crate::questions::{AnswerRequest, OutcomeKind, send_answer};
use crate::steer::{patience, send_command_and_await_decision};

/// The label of a run with the folder of its session in the editor.
pub const FOLDER_LABEL: &str = "acp.folder";
/// The prompt that continues to follow a run, and resumes it if it was interrupted or paused.
pub const CONTINUE: &str = "continue";
/// The prompt that declines to answer a question.
pub const DECLINE: &str = "decline";
/// The time for which a cancelled prompt waits for the end of its run.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// The description of the runs that prompts start.
#[derive(Debug, Clone)]
pub struct RunDefaults {
    /// The capability that gets each prompt as one task; `None` for a planner.
    pub capability: Option<Capability>,
    pub models: ModelPreferences,
    pub budget: Budget,
    pub approve_plan: bool,
    /// The author of commands and answers.
    pub by: String,
}

/// The properties of the cluster that a prompt depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterTraits {
    /// `true` if it has no language model, and only quotes documents.
    pub is_extractive: bool,
    /// `true` if this process has started it, so that its workers may not have announced themselves yet.
    pub is_new: bool,
}

/// A session that an editor has opened.
pub struct EditorSession {
    pub id: SessionId,
    /// The folder of the session, and the further ones.
    folders: Vec<PathBuf>,
    /// The runs that are shown and have not ended, the oldest first.
    runs: Mutex<Vec<FollowedRun>>,
    /// The prompt in progress.
    prompt: Mutex<Option<CancellationToken>>,
}

/// The prompt of a session in progress.
struct PromptSlot<'a>(&'a EditorSession);

impl Drop for PromptSlot<'_> {
    fn drop(&mut self) {
        *lock(&self.0.prompt) = None;
    }
}

/// Locks a value whose changes are single assignments, so that a panic leaves it usable.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EditorSession {
    pub fn new(id: SessionId, folder: PathBuf, more: Vec<PathBuf>) -> Self {
        let folders = std::iter::once(folder).chain(more).collect();
        Self { id, folders, runs: Mutex::default(), prompt: Mutex::default() }
    }

    fn shown_run(&self, bus: &Bus, run: RunId, editor: &Editor, by: &str) -> ShownRun {
        let (bus, editor, folder) = (bus.clone(), editor.clone(), self.folders[0].clone());
        ShownRun { bus, run, editor, folder, by: by.to_owned() }
    }

    /// Shows the runs of the session, and continues to follow those that have not ended.
    ///
    /// # Errors
    /// There are none, or the cluster does not answer.
    pub async fn load(&self, bus: &Bus, editor: &Editor, by: &str) -> Result<(), CommandError> {
        let runs = runs_of_session(bus, &self.id).await?;
        if runs.is_empty() {
            return Err(refused!("no run belongs to session {}; start a new session", self.id));
        }
        for (run, objective) in runs {
            let followed = self.shown_run(bus, run, editor, by).show_and_follow(Some(objective)).await?;
            self.keep(followed);
        }
        Ok(())
    }

    fn keep(&self, followed: FollowedRun) {
        let mut runs = lock(&self.runs);
        runs.retain(|run| !run.has_ended());
        runs.push(followed);
    }

    /// Cancels the prompt in progress with its run, or else the newest run that is shown.
    pub async fn cancel(&self, bus: &Bus, by: &str) -> Result<(), CommandError> {
        if let Some(prompt) = lock(&self.prompt).as_ref() {
            prompt.cancel();
            return Ok(());
        }
        let newest = lock(&self.runs).iter().rev().find(|run| !run.has_ended()).map(|run| run.run.clone());
        match newest {
            Some(run) => cancel_run(bus, &run, by).await,
            None => Ok(()),
        }
    }

    /// Carries out a prompt. Returns when its run has ended, waits for a text or is at rest, or when `stop` is cancelled.
    pub async fn carry_out_prompt(
        &self,
        bus: &Bus,
        editor: &Editor,
        blocks: Vec<ContentBlock>,
        (defaults, stop, traits): (&RunDefaults, CancellationToken, ClusterTraits),
    ) -> Result<StopReason, CommandError> {
        let _slot = {
            let mut slot = lock(&self.prompt);
            if slot.is_some() {
                return Err(refused!("session {} has a prompt in progress; cancel it first", self.id));
            }
            *slot = Some(stop.clone());
            PromptSlot(self)
        };
        let prompt = Prompt::from_blocks(blocks, &self.folders[0]).map_err(|why| refused!(why))?;
        let command = prompt.text.strip_prefix('/').filter(|_| !prompt.has_attachments());
        let newest = self.newest_run();
        if let Some((run, RunProgress::NeedsText(question))) = &newest
            && command != Some(CONTINUE)
        {
            let answer = match command {
                Some(DECLINE) => AnswerRequest::Given(Answer::Decline),
                Some(_) | None => AnswerRequest::from_value(&prompt.text).map_err(|why| refused!(why))?,
            };
            let is_answered = answer_in_text(bus, run, question, &answer, (editor, &defaults.by)).await?;
            if !is_answered {
                return Ok(StopReason::EndTurn);
            }
            return self.wait_for_run(bus, run, Some(&question.id), (&stop, &defaults.by)).await;
        }
        if command == Some(CONTINUE) {
            let Some((run, progress)) = newest else {
                editor.say("No run of this session is in progress.");
                return Ok(StopReason::EndTurn);
            };
            if matches!(progress, RunProgress::AtRest) {
                let resume = CommandAction::Resume { budget: None };
                send_command_and_await_decision(bus, &run, defaults.by.clone(), resume, &stop).await?;
            }
            return self.wait_for_run(bus, &run, None, (&stop, &defaults.by)).await;
        }
        let submitting = self.submit(bus, editor, prompt, (defaults, traits));
        let followed = tokio::select! {
            followed = submitting => followed?,
            () = stop.cancelled() => return Ok(StopReason::Cancelled),
        };
        let run = followed.run.clone();
        self.keep(followed);
        self.wait_for_run(bus, &run, None, (&stop, &defaults.by)).await
    }

    /// Returns the newest run that is shown and has not ended, with its progress.
    fn newest_run(&self) -> Option<(RunId, RunProgress)> {
        let runs = lock(&self.runs);
        let newest = runs.iter().rev().find(|run| !run.has_ended())?;
        Some((newest.run.clone(), newest.progress.borrow().clone()))
    }

    /// Submits the run of a prompt.
    async fn submit(
        &self,
        bus: &Bus,
        editor: &Editor,
        prompt: Prompt,
        (defaults, traits): (&RunDefaults, ClusterTraits),
    ) -> Result<FollowedRun, CommandError> {
        if traits.is_extractive {
            if !prompt.has_attachments() && runs_of_session(bus, &self.id).await?.is_empty() {
                return Err(refused!(
                    "there is nothing to answer from: no documents and no language model; mention files in the prompt, or \
                     choose a language model with --model provider:model in the editor's settings"
                ));
            }
            editor.say(EXTRACTIVE_NOTICE.trim_start_matches("millrace: "));
        }
        let submission = self.describe_run(prompt.text.clone(), defaults)?;
        let files = prompt.read_documents(editor, &self.folders).await.map_err(|why| refused!(why))?;
        let documents = if files.is_empty() { None } else { Some(upload_documents(bus, files).await?) };
        refuse_full_cluster(bus).await?;
        if let Some(capability) = defaults.capability.as_ref().filter(|_| !traits.is_new)
            && !registry::read_capability_names(bus).await?.contains(capability)
        {
            editor.say(&format!("No worker provides {capability} yet; the run waits for one."));
        }
        let run = submit_run(bus, &Submission { documents, ..submission }).await?;
        Ok(self.shown_run(bus, run, editor, &defaults.by).show_and_follow(None).await?)
    }

    fn describe_run(&self, objective: String, defaults: &RunDefaults) -> Result<Submission, CommandError> {
        let plan = defaults.capability.as_ref().map(|capability| {
            let id = TaskId::new("task").expect("it is a valid task id");
            let task = TaskSpec { is_final: true, ..TaskSpec::new(id, objective.trim(), capability.clone()) };
            PlanFile { tasks: vec![task], ..PlanFile::default() }
        });
        let folder = self.folders[0].to_string_lossy().into_owned();
        let labels = Labels::from([(FOLDER_LABEL.to_owned(), folder)]);
        let description = RunDescription {
            objective: Some(objective),
            mode: None,
            consult: None,
            models: defaults.models.clone(),
            budget: Some(defaults.budget.clone()),
            fail_fast: false,
            approve_plan: defaults.approve_plan,
            verification: None,
            criteria: Vec::new(),
            // A folder with a very long path is not in the list of sessions.
            labels: if find_labels_problem(&labels).is_none() { labels } else { Labels::new() },
            session: Some(self.id.clone()),
        };
        description.into_submission(plan).map_err(|mistake| refused!("{mistake}"))
    }

    /// Waits until a run has ended, is at rest, or waits for a text in another question than `answered`. Cancels it with `stop`.
    async fn wait_for_run(
        &self,
        bus: &Bus,
        run: &RunId,
        answered: Option<&QuestionId>,
        (stop, by): (&CancellationToken, &str),
    ) -> Result<StopReason, CommandError> {
        let progress = lock(&self.runs).iter().find(|one| one.run == *run).map(|one| one.progress.clone());
        let Some(mut progress) = progress else { return Ok(StopReason::EndTurn) };
        let mut is_resumed = false;
        loop {
            match progress.borrow_and_update().clone() {
                RunProgress::Ended(reason) => return Ok(reason),
                RunProgress::Lost(reason) => {
                    return Err(CommandError::unusable_environment(anyhow::anyhow!(reason)));
                }
                RunProgress::NeedsText(question) if answered != Some(&question.id) => {
                    return Ok(StopReason::EndTurn);
                }
                RunProgress::AtRest if is_resumed => return Ok(StopReason::EndTurn),
                RunProgress::Running => is_resumed = true,
                RunProgress::NeedsText(_) | RunProgress::AtRest => {}
            }
            tokio::select! {
                changed = progress.changed() => {
                    if changed.is_err() {
                        return Ok(StopReason::EndTurn);
                    }
                }
                () = stop.cancelled() => {
                    match cancel_run(bus, run, by).await {
                        // The run has ended meanwhile.
                        Err(error) if error.exit == CommandExit::Refused => {}
                        sent => sent?,
                    }
                    let ended = progress.wait_for(|now| matches!(now, RunProgress::Ended(_)));
                    // Its end is shown later, if it takes longer.
                    let _ = timeout(CANCEL_GRACE, ended).await;
                    return Ok(StopReason::Cancelled);
                }
            }
        }
    }
}

/// Answers a question with a text. Returns `false` if the answer does not count, after a message with the reason.
async fn answer_in_text(
    bus: &Bus,
    run: &RunId,
    asked: &TextQuestion,
    request: &AnswerRequest,
    (editor, by): (&Editor, &str),
) -> Result<bool, CommandError> {
    let TextQuestion { id, question } = asked;
    let answer = (request.answer_to(question), AnswerScope::Once, by);
    let uninterrupted = CancellationToken::new();
    let outcome = send_answer(bus, run, (id, question), answer, patience(&uninterrupted)).await?;
    let is_answered = outcome.kind == OutcomeKind::Answered;
    if !is_answered {
        editor.say(&outcome.line());
    }
    Ok(is_answered)
}

async fn cancel_run(bus: &Bus, run: &RunId, by: &str) -> Result<(), CommandError> {
    let cancel = CommandAction::CancelRun { reason: "cancelled in the editor".into() };
    let uninterrupted = CancellationToken::new();
    send_command_and_await_decision(bus, run, by.to_owned(), cancel, &uninterrupted).await.map(drop)
}

/// Returns the runs of a session with their objectives, in their order.
async fn runs_of_session(bus: &Bus, session: &SessionId) -> Result<Vec<(RunId, String)>, Fault> {
    let all = list_runs(bus).await?;
    let is_wanted = |summary: &&RunSummary| summary.session.as_ref() == Some(session);
    let mut started: Vec<&RunSummary> =
        all.iter().filter_map(|(_, summary)| summary.as_ref()).filter(is_wanted).collect();
    sort_runs_of_session(&mut started);
    let mut runs: Vec<(RunId, String)> =
        started.into_iter().map(|summary| (summary.run.clone(), summary.objective.clone())).collect();
    // Runs without a summary were submitted a moment ago.
    let mut pages = SubmittedRuns::default();
    while let Some(page) = pages.next_page(bus).await? {
        for submitted in page {
            let is_new = runs.iter().all(|(run, _)| *run != submitted.run);
            if is_new && submitted.submission.session.as_ref() == Some(session) {
                runs.push((submitted.run, submitted.submission.objective));
            }
        }
    }
    Ok(runs)
}
