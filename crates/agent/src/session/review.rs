//! Reviews: from a critic's order to a verdict. Judges are models; each is asked in turn until the quorum of the panel
//! is decided. The brief and the counting of votes are in [`crate::critic`].
//!
//! ```text
//! journal, one model:       model.0 …
//!          several models:  judge.0.model.0 … judge.1.lost judge.2.model.0 …
//! ```
//!
//! # Invariants
//!
//! - I42: No check runs twice and no judge gets a request twice, also after a takeover of the review.
//!   (`critic/tests/review.rs::a_check_before_a_crash_is_not_repeated`,
//!   `crates/agent/tests/judge.rs::review_resumed_after_any_step_repeats_no_request`)

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{CriterionOutcome, ErrorKind, TaskError, Verdict};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::wait::ProviderStatus;
use millrace_protocol::work::{Assignment, InputResult, JudgePanel, Order, ReviewBrief};
use serde_json::Value;

use super::environment::{
    SessionEnvironment, SessionError, host_error, invalid_order_error, read_beginning, restore_prompt,
};

use super::host::AgentHost;
use super::inputs::InputResults;
use super::models::RunModels;
use crate::critic::checks::build_verdict;
use crate::critic::standing::{ReviewedResult, check_standing_criteria, select_asked_criteria};

use crate::critic::{
    JudgementCheck, LateVerdicts, ModelVerdict, ReviewEvidence, ReviewPanel, ReviewTask, build_review_brief,
};

use crate::files::Files;
use crate::model::{DeltaListener, Model, ModelSelection};

use crate::roles::DocumentList;
use crate::sources::OrderInputs;
use crate::tool::TaskResultSource;
use crate::turn::{AttemptName, Conversation, Host, RecordedBeginning, UsageTotals};
use crate::verification::Verifier;

/// The maximum number of results that a result is compared with.
const MAX_COMPARED: usize = 12;

/// The part of a review that is the same for all judges.
struct PanelReview<'a> {
    order: &'a Order,
    sheet: ReviewTask,
    evidence: ReviewEvidence,
    /// The model that verifies a result which its worker did not verify, and its verdicts.
    verifier: Option<Verifier>,
    late: LateVerdicts,
    /// Receives the output of the judges.
    observer: Arc<dyn DeltaListener>,
    /// The part of the run's budget that is reserved for all of them.
    allowance: ResourceAmounts,
    provider_timeout: Duration,
}

/// The outcome of one judge of a panel.
enum JudgeOutcome {
    Verdict(Verdict, UsageTotals),
    /// It failed for a reason of its own, so that the others may still reach a verdict.
    Failed(TaskError),
}

impl AgentHost {
    /// Reviews the result that an order refers to, by the order's criteria and `criteria`: asks the models of the
    /// order's panel one after another until their quorum is decided.
    ///
    /// # Errors
    /// As for [`AgentSession::run_planning`](super::AgentSession::run_planning); the order is not a review of a result; or
    /// too many judges failed.
    pub async fn run_review(
        &self,
        order: &Order,
        criteria: &[String],
        env: SessionEnvironment<'_>,
    ) -> Result<Verdict, SessionError> {
        let (Assignment::Review { task, review, brief: requirements, .. }, Some(input)) =
            (&order.assignment, order.inputs.first())
        else {
            return Err(invalid_order_error("it is not a review of a result").into());
        };
        let criteria = merge_criteria(requirements, criteria);
        let asked = select_asked_criteria(&criteria);
        let (sources, files) = (env.sources.clone(), env.files.clone());
        let (sheet, evidence) =
            self.collect_evidence((task, *review), input, order, &asked, sources, files).await?;
        let checked = check_result(&sheet, &evidence, requirements, &criteria, env.sources.as_ref()).await?;
        if checked.iter().any(|outcome| !outcome.met) {
            return Ok(build_verdict(checked, &[]));
        }
        let SessionEnvironment { observer, allowance, provider_timeout, .. } = env;
        let (verifier, late) = (self.open_verifier(order)?, LateVerdicts::default());
        let case =
            PanelReview { order, sheet, evidence, verifier, late, observer, allowance, provider_timeout };
        let judged = self.ask_judges(&case, requirements, env.host).await?;
        Ok(add_checked_criteria(judged, checked))
    }

    /// Asks the models of the panel, or the critics' own model if it names none.
    async fn ask_judges(
        &self,
        case: &PanelReview<'_>,
        requirements: &ReviewBrief,
        host: &mut dyn Host,
    ) -> Result<Verdict, SessionError> {
        let order = case.order;
        let single = JudgePanel { models: Vec::new(), quorum: 1 };
        let panel = requirements.panel.as_ref().unwrap_or(&single);
        if panel.models.is_empty() {
            let role = Capability::new(CRITIC).expect("a valid name");
            let model = self.models.open_for_order(order, &role, None);
            let model = model.map_err(|error| invalid_order_error(&error.to_string()))?;
            let (verdict, spent) = case.run_judge(model, case.allowance, host).await?;
            return Ok(Verdict { usage: spent.usage, models: spent.models, ..verdict });
        }
        self.ask_panel(case, panel, host).await
    }

    /// Returns the review task for the brief, and the evidence for the judges' tools.
    async fn collect_evidence(
        &self,
        (task, review): (&TaskId, u32),
        input: &InputResult,
        order: &Order,
        criteria: &[String],
        sources: Arc<dyn OrderInputs>,
        files: Option<Arc<dyn Files>>,
    ) -> Result<(ReviewTask, ReviewEvidence), SessionError> {
        let result = sources.read_result(input).await?;
        let documents = match &order.documents {
            None => None,
            Some(set) => Some(self.documents.open_corpus(set, sources.as_ref()).await?),
        };
        let list = documents.as_deref().map(DocumentList::from_corpus).unwrap_or_default();
        let corpus = self.open_sources_of_result(order.documents.as_ref(), &result, sources.as_ref()).await?;
        let sheet = ReviewTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            capability: order.capability.to_string(),
            criteria: criteria.to_vec(),
            documents: list,
            result,
            is_cut: false,
            review,
        };
        let readable = order
            .review_brief()
            .into_iter()
            .flat_map(|brief| &brief.evidence)
            .chain([input])
            .cloned()
            .collect();
        let results: Arc<dyn TaskResultSource> = Arc::new(InputResults::new(readable, sources));
        let has_inputs = order.review_brief().is_some_and(|brief| !brief.evidence.is_empty());
        let has_files = match &files {
            None => false,
            // If the files can't be listed, the tools report why.
            Some(files) => files.list("/").await.map_or(true, |entries| !entries.is_empty()),
        };
        Ok((sheet, ReviewEvidence { corpus, results: Some(results), files, has_inputs, has_files }))
    }

    async fn ask_panel(
        &self,
        case: &PanelReview<'_>,
        panel: &JudgePanel,
        host: &mut dyn Host,
    ) -> Result<Verdict, SessionError> {
        let mut votes = ReviewPanel::new(panel.models.len(), panel.quorum);
        let (mut spent, mut failed) = (UsageTotals::default(), Vec::new());
        for (number, name) in panel.models.iter().enumerate() {
            let allowance = subtract_spent_amounts(case.allowance, &spent);
            let outcome = self.ask_judge(case, number, name, allowance, host).await;
            match outcome.map_err(|error| add_spent_to_error(error, &spent))? {
                JudgeOutcome::Verdict(verdict, used) => {
                    spent.add_totals(&used);
                    votes.add_verdict(ModelVerdict { model: name.clone(), verdict });
                }
                JudgeOutcome::Failed(error) => {
                    spent.add_totals(&UsageTotals { usage: error.usage, models: error.models.clone() });
                    failed.push((name, error));
                }
            }
            if votes.majority_decision().is_some() {
                break;
            }
        }
        match votes.into_verdict() {
            Some(verdict) => Ok(Verdict { usage: spent.usage, models: spent.models, ..verdict }),
            None => Err(add_spent_to_error(undecided_panel_error(panel, &failed).into(), &spent)),
        }
    }

    /// Asks one judge of a panel. A judge's failure is recorded, so that a critic that resumes the review skips it
    /// instead of matching its steps against those of the next judge.
    async fn ask_judge(
        &self,
        case: &PanelReview<'_>,
        number: usize,
        name: &str,
        allowance: ResourceAmounts,
        host: &mut dyn Host,
    ) -> Result<JudgeOutcome, SessionError> {
        let mut host = JudgeHost { host, prefix: format!("judge.{number}."), recorded_failure: None };
        let run = RunModels::of_order(case.order);
        let opened = ModelSelection::parse(name).map_err(|error| error.to_string());
        let opened = opened.and_then(|selection| {
            self.models.open_for_run(&run, &selection).map_err(|error| error.to_string())
        });
        let judged = match opened {
            Ok(model) => case.run_judge(model, allowance, &mut host).await,
            Err(reason) => {
                host.replay(&[]).await.map_err(host_error).and(Err(invalid_order_error(&reason).into()))
            }
        };
        match judged {
            Ok((verdict, spent)) => Ok(JudgeOutcome::Verdict(verdict, spent)),
            Err(error) => match (host.recorded_failure.take(), error) {
                (Some(failure), _) => Ok(JudgeOutcome::Failed(failure)),
                (None, SessionError::Task(error)) if is_judge_failure(error.kind) => {
                    host.record_failure(&error).await.map_err(host_error)?;
                    Ok(JudgeOutcome::Failed(error))
                }
                (None, error) => Err(error),
            },
        }
    }
}

impl PanelReview<'_> {
    /// Asks one model for a judgement.
    async fn run_judge(
        &self,
        model: Arc<dyn Model>,
        allowance: ResourceAmounts,
        host: &mut dyn Host,
    ) -> Result<(Verdict, UsageTotals), SessionError> {
        let new = RecordedBeginning { ability: model.ability(), ..RecordedBeginning::default() };
        let beginning = read_beginning(host).await?.unwrap_or(new);
        let ability = beginning.ability;
        let sheet = ReviewTask { result: self.late.add_to(self.sheet.result.clone()), ..self.sheet.clone() };
        let toolbox = self.evidence.open_tools(&sheet, ability);
        let brief = restore_prompt(build_review_brief(&sheet, &toolbox, ability), beginning);
        // Without files, large tool results stay in the conversation: a judge must not write to the workspace.
        let conversation = Conversation {
            attempt: AttemptName::from_order(self.order),
            listener: self.observer.clone(),
            can_wait: false,
            allowance,
            provider_timeout: self.provider_timeout,
            is_verified: self.verifier.is_some(),
            verifier: self.verifier.clone(),
            ..Conversation::new(brief, model, toolbox)
        };
        let check = JudgementCheck::new(ability, &sheet, self.evidence.corpus.as_deref(), &self.late);
        let judged = conversation.drive(host, &check).await?.into_result()?;
        Ok((judged.answer.to_verdict(), judged.spent))
    }
}

/// Returns the outcomes of the criteria that code checks.
async fn check_result(
    sheet: &ReviewTask,
    evidence: &ReviewEvidence,
    requirements: &ReviewBrief,
    criteria: &[String],
    sources: &dyn OrderInputs,
) -> Result<Vec<CriterionOutcome>, SessionError> {
    let mut inputs = Vec::new();
    for input in requirements.evidence.iter().take(MAX_COMPARED) {
        inputs.push((input.task.clone(), sources.read_result(input).await?));
    }
    let reviewed = ReviewedResult {
        result: &sheet.result,
        capability: &sheet.capability,
        corpus: evidence.corpus.as_deref(),
        inputs: &inputs,
    };
    Ok(check_standing_criteria(&reviewed, criteria))
}

/// Adds the outcomes of the criteria that code checked, unless a judge gave them too.
fn add_checked_criteria(judged: Verdict, checked: Vec<CriterionOutcome>) -> Verdict {
    let mut criteria = judged.criteria;
    for outcome in checked {
        if criteria.iter().all(|given| given.criterion != outcome.criterion) {
            criteria.push(outcome);
        }
    }
    Verdict { criteria, ..judged }
}

/// Returns the criteria of the order and those of its capability, without duplicates.
fn merge_criteria(requirements: &ReviewBrief, more: &[String]) -> Vec<String> {
    let mut merged: Vec<String> = Vec::new();
    for criterion in requirements.criteria.iter().chain(more) {
        if !criterion.trim().is_empty() && !merged.contains(criterion) {
            merged.push(criterion.clone());
        }
    }
    merged
}

/// `true` if an error concerns one judge, so that others may succeed, rather than something that all judges need.
fn is_judge_failure(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Model | ErrorKind::Limit | ErrorKind::InvalidTask | ErrorKind::WrongParameters => true,
        ErrorKind::Tool | ErrorKind::Panic | ErrorKind::Abandoned | ErrorKind::Unclear | ErrorKind::Other => {
            false
        }
    }
}

fn subtract_spent_amounts(allowance: ResourceAmounts, spent: &UsageTotals) -> ResourceAmounts {
    let mut remaining = allowance;
    for (dimension, amount) in allowance.iter() {
        remaining.set(dimension, Some(amount.saturating_sub(dimension.amount_used(&spent.usage))));
    }
    remaining
}

/// Adds the usage of the judges before to an error.
fn add_spent_to_error(error: SessionError, before: &UsageTotals) -> SessionError {
    match error {
        SessionError::Source(error) => SessionError::Source(error),
        SessionError::ProviderAway(wait) => SessionError::ProviderAway(wait),
        SessionError::Parked(waits, children) => SessionError::Parked(waits, children),
        // The usage of the earlier judges is part of the need.
        SessionError::ReservationTooSmall(needs) => {
            let mut all = needs;
            for (dimension, amount) in needs.iter() {
                all.set(dimension, Some(amount.saturating_add(dimension.amount_used(&before.usage))));
            }
            SessionError::ReservationTooSmall(all)
        }
        SessionError::Task(error) => {
            let mut spent = before.clone();
            spent.add_totals(&UsageTotals { usage: error.usage, models: error.models.clone() });
            SessionError::Task(TaskError { usage: spent.usage, models: spent.models, ..error })
        }
    }
}

fn undecided_panel_error(panel: &JudgePanel, failed: &[(&String, TaskError)]) -> TaskError {
    let errors: Vec<String> =
        failed.iter().map(|(name, error)| format!("{name}: {}", error.message)).collect();
    let message = format!(
        "{} of {} judges failed, and the verdicts of the others do not decide whether {} accept the result; {}",
        failed.len(),
        panel.models.len(),
        panel.quorum,
        errors.join("; ")
    );
    // Retryable if one of the failures is: that judge may succeed the next time.
    let kind = failed.iter().map(|(_, error)| error.kind).find(|kind| kind.is_retryable());
    TaskError::new(kind.unwrap_or(ErrorKind::InvalidTask), message)
}

/// The host of one judge: its part of the journal are the steps with its prefix.
struct JudgeHost<'a> {
    host: &'a mut dyn Host,
    prefix: String,
    /// The failure that the journal holds for this judge.
    recorded_failure: Option<TaskError>,
}

impl JudgeHost<'_> {
    fn failure_step_name(&self) -> String {
        format!("{}lost", self.prefix)
    }

    async fn record_failure(&mut self, error: &TaskError) -> Result<(), TaskError> {
        let value = serde_json::to_value(error).expect("an error holds only texts and numbers");
        self.host.record(&self.failure_step_name(), &value).await
    }
}

impl Host for JudgeHost<'_> {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        async move {
            let own = names.iter().map(|name| format!("{}{name}", self.prefix));
            let steps: Vec<String> = own.chain([self.failure_step_name()]).collect();
            let Some((at, value)) = self.host.replay(&steps).await? else {
                return Ok(None);
            };
            if at < names.len() {
                return Ok(Some((at, value)));
            }
            let unreadable =
                |mistake: serde_json::Error| TaskError::new(ErrorKind::Other, mistake.to_string());
            self.recorded_failure = Some(serde_json::from_value(value).map_err(unreadable)?);
            Err(TaskError::new(ErrorKind::Other, "this judge failed before"))
        }
        .boxed()
    }

    /// The next step of this judge. If the next one belongs to another judge, this one has none.
    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        async move {
            let next = self.host.peek().await?;
            Ok(next.and_then(|(name, value)| Some((name.strip_prefix(&self.prefix)?.to_owned(), value))))
        }
        .boxed()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        async move { self.host.record(&format!("{}{name}", self.prefix), value).await }.boxed()
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), TaskError>> {
        self.host.note(text)
    }

    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        self.host.report_provider(text, status)
    }

    fn interrupt_wait(&mut self) {
        self.host.interrupt_wait();
    }

    fn provider_status(&self) -> Option<ProviderStatus> {
        self.host.provider_status()
    }

    fn keepalive_interval(&self) -> Duration {
        self.host.keepalive_interval()
    }
}
