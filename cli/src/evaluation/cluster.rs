//! Measures samples as runs on a cluster: submits a run or continues one that an interrupted evaluation has left, follows
//! it to its end, and records its outcome.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use millrace_agent::citations::{CitationCount, count_resolving_citations};
use millrace_agent::corpus::Corpus;
use millrace_agent::session::{AgentHost, HostSettings};
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_client::{
    FindError, find_run, follow_run, read_plan, read_task_result, store_document_list, submit_run,
};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{
    Budget, CommandAction, Document, DocumentSet, Plan, PlanningMode, RunEnd, Submission, work_in_flight,
};
use millrace_protocol::result::{SourceKind, TaskResult};
use millrace_protocol::work::InputResult;
use millrace_runtime::Bus;
use millrace_views::AnswerState;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::input::file::{Configuration, Objective};
use super::invention::find_unmarked_numbers;
use super::selection::SampleJob;
use super::setup::SampleConditions;
use super::store::{ResultsFolder, SampleRecord};
use crate::exit::{CommandError, CommandExit};
use crate::history::RunHistory;
use crate::steer::{author_name, send_command_and_await_decision};
use crate::submission::parse_model_preferences;

/// Time after the limit of a sample in which its run can end by itself, before it is cancelled.
const GRACE: Duration = Duration::from_secs(60);
/// The longest wait of a run for a provider that does not answer, unless the evaluation sets one.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub enum SampleEnd {
    Finished(SampleRecord),
    /// There is no outcome, for this reason, which is not the model's fault.
    Unmeasured(String),
    Interrupted,
}

/// Measures the samples of one configuration on a cluster.
pub struct ClusterSampler<'a> {
    pub bus: &'a Bus,
    pub configuration: &'a Configuration,
    /// The documents, uploaded.
    pub documents: Vec<Document>,
    /// The documents, for checks of citations.
    pub corpus: &'a Corpus,
    pub conditions: &'a SampleConditions,
    /// Ends the measurement.
    pub interrupt: &'a CancellationToken,
}

enum FollowedRun {
    Ended(Box<RunHistory>),
    PausedForProvider(String),
    Interrupted,
}

impl ClusterSampler<'_> {
    pub async fn measure(
        &self,
        job: &SampleJob<'_, Objective>,
        results: &Mutex<ResultsFolder>,
    ) -> Result<SampleEnd, CommandError> {
        let started = results.lock().await.find_started_run(&job.key).cloned();
        let continued = match started {
            Some(run) => self.continue_run(run).await?,
            None => None,
        };
        let run = match continued {
            Some(run) => run,
            None => {
                let documents = self.store_documents(job.item).await?;
                let run = submit_run(self.bus, &self.build_submission(job.item, documents)?).await?;
                results.lock().await.record_start(&job.key, &run)?;
                run
            }
        };
        match self.follow_to_end(&run).await? {
            FollowedRun::Interrupted => Ok(SampleEnd::Interrupted),
            FollowedRun::PausedForProvider(reason) => Ok(SampleEnd::Unmeasured(reason)),
            FollowedRun::Ended(history) => self.read_outcome(&run, &history.plan, job.item).await,
        }
    }

    /// Continues the run of an interrupted evaluation. Returns `None` if a new one is needed.
    async fn continue_run(&self, run: RunId) -> Result<Option<RunId>, CommandError> {
        match find_run(self.bus, run.as_str()).await {
            Ok(_) => {}
            // The store of the cluster was deleted.
            Err(FindError::NotFound(_) | FindError::NoRuns) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let plan = read_plan(self.bus, &run).await?;
        match &plan.run.end {
            Some(end) if is_refused_by_provider(end) => return Ok(None),
            Some(_) => return Ok(Some(run)),
            None => {}
        }
        if plan.run.paused.is_some() {
            let resume = CommandAction::Resume { budget: None };
            self.send_command(&run, resume).await?;
        }
        Ok(Some(run))
    }

    /// Sends a command to a run. One that is refused because the run has ended is ignored.
    async fn send_command(&self, run: &RunId, command: CommandAction) -> Result<(), CommandError> {
        let author = author_name(Some("millrace eval".into()));
        match Box::pin(send_command_and_await_decision(self.bus, run, author, command, self.interrupt)).await
        {
            Ok(_) | Err(CommandError { exit: CommandExit::Refused, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores the list of an objective's documents; `None` if there are none.
    async fn store_documents(&self, objective: &Objective) -> Result<Option<DocumentSet>, CommandError> {
        let is_given = |document: &&Document| !objective.left_out.contains(&document.path);
        let documents: Vec<Document> = self.documents.iter().filter(is_given).cloned().collect();
        match documents.is_empty() {
            true => Ok(None),
            false => Ok(Some(store_document_list(self.bus, &documents).await?)),
        }
    }

    fn build_submission(
        &self,
        objective: &Objective,
        documents: Option<DocumentSet>,
    ) -> Result<Submission, CommandError> {
        let models = parse_model_preferences(&self.configuration.models)?;
        let limit = self.conditions.timeout;
        let budget = &self.conditions.budget;
        Ok(Submission {
            documents,
            model: models.default.map(|choice| choice.to_string()),
            models: models
                .by_capability
                .into_iter()
                .map(|(name, choice)| (name, choice.to_string()))
                .collect(),
            budget: Budget {
                wall_time: Some(budget.wall_time.map_or(limit, |time| time.min(limit))),
                provider_timeout: Some(budget.provider_timeout.unwrap_or(PROVIDER_TIMEOUT.min(limit))),
                ..budget.clone()
            },
            ..Submission::new(objective.text.clone(), PlanningMode::Llm)
        })
    }

    async fn follow_to_end(&self, run: &RunId) -> Result<FollowedRun, CommandError> {
        let mut history = RunHistory::default();
        let mut decisions = follow_run(self.bus, run);
        let cancelling = tokio::time::sleep(self.conditions.timeout + GRACE);
        tokio::pin!(cancelling);
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                decision = decisions.recv() => {
                    let Some(decision) = decision else { break };
                    history.add_decision(&decision?.1);
                    // The decisions may be those before a later resumption.
                    if is_paused_for_provider(&history.plan) {
                        let plan = read_plan(self.bus, run).await?;
                        if is_paused_for_provider(&plan) {
                            return Ok(FollowedRun::PausedForProvider(describe_provider_wait(&plan)));
                        }
                    }
                }
                () = &mut cancelling, if !is_cancelled => {
                    is_cancelled = true;
                    let reason = format!("no result within {:?}", self.conditions.timeout + GRACE);
                    self.send_command(run, CommandAction::CancelRun { reason }).await?;
                }
                () = self.interrupt.cancelled() => return Ok(FollowedRun::Interrupted),
            }
        }
        Ok(FollowedRun::Ended(Box::new(history)))
    }

    async fn read_outcome(
        &self,
        run: &RunId,
        plan: &Plan,
        objective: &Objective,
    ) -> Result<SampleEnd, CommandError> {
        let Some(end) = &plan.run.end else {
            return Ok(SampleEnd::Unmeasured(format!("the cluster no longer reports run {run}")));
        };
        if is_refused_by_provider(end) {
            return Ok(SampleEnd::Unmeasured(end.detail.clone()));
        }
        let result = match &end.deliverable {
            Some((task, _)) => read_task_result(self.bus, run, plan, task).await?,
            None => None,
        };
        let citations = match &result {
            Some(result) => self.count_citations(result).await?,
            None => CitationCount::default(),
        };
        let usage = plan.budget.spend.total;
        // The built-in model quotes and adds places, which no document has.
        let written = result.as_ref().filter(|_| usage.model_calls > 0);
        let find_invented = |result: &TaskResult| {
            find_unmarked_numbers(&result.output, &result.statements, objective, self.corpus)
        };
        Ok(SampleEnd::Finished(SampleRecord {
            at: Timestamp::now(),
            run: Some(run.clone()),
            end: Some(end.reason),
            detail: end.detail.clone(),
            state: result.as_ref().map_or(AnswerState::Answered, AnswerState::of),
            invented: written.map(find_invented).unwrap_or_default(),
            statements: result.as_ref().map(|result| result.statements.clone()).unwrap_or_default(),
            answer: result.map(|result| result.output),
            citations: citations.total,
            resolved_citations: citations.resolved,
            usage,
            elapsed_ms: crate::json::milliseconds(plan.worked_time(end.at)),
        }))
    }

    /// Counts the citations in a result. Web pages are those that the run has kept.
    async fn count_citations(&self, result: &TaskResult) -> Result<CitationCount, CommandError> {
        if result.sources.iter().all(|source| source.kind != SourceKind::Web) {
            return Ok(count_resolving_citations(result, self.corpus));
        }
        let sources = add_cited_pages(self.bus, self.corpus, result).await?;
        Ok(count_resolving_citations(result, &sources))
    }
}

fn is_refused_by_provider(end: &RunEnd) -> bool {
    end.is_refused_by_provider && end.deliverable.is_none()
}

fn is_paused_for_provider(plan: &Plan) -> bool {
    plan.is_live() && plan.run.paused_for_provider.is_some() && work_in_flight(plan).is_empty()
}

fn describe_provider_wait(plan: &Plan) -> String {
    plan.run.paused_for_provider.as_ref().map_or_else(
        || "the model's provider does not answer".into(),
        |wait| format!("the provider of {} does not answer: {}", wait.model, wait.error),
    )
}

/// The blob store, as the source of kept texts.
struct KeptTexts(Bus);

impl OrderInputs for KeptTexts {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        ready(Err(OrderInputError::Broken(format!("the result of task {} is no text", input.task)))).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        let reading = self.0.blobs().get(sha256);
        reading
            .map(|read| {
                read.map_err(|fault| match fault.is_transient() {
                    true => OrderInputError::Unavailable(fault.to_string()),
                    false => OrderInputError::Broken(fault.to_string()),
                })
            })
            .boxed()
    }
}

/// Returns the documents together with the web pages that a result cites. A page whose text is missing is left out.
pub async fn add_cited_pages(bus: &Bus, documents: &Corpus, result: &TaskResult) -> anyhow::Result<Corpus> {
    let host = AgentHost::new(HostSettings::default())?;
    let pages = host.open_sources_of_result(None, result, &KeptTexts(bus.clone())).await?;
    let pages = pages.iter().flat_map(|pages| pages.documents_and_pages()).cloned().map(Into::into);
    Ok(documents.with_pages(pages.collect()))
}
