//! The only loop that carries out the steps of a [`Machine`]. It owns the order of requesting and recording: a model reply
//! or tool result is in the journal before the machine sees it. It makes no decisions about the work itself.
//!
//! # Invariants
//!
//! - I19: A resumed turn repeats no recorded model or tool call; an invalid call never runs.
//!   (`crates/agent/tests/turn.rs::resume_from_any_step_gives_the_same_end_without_repeats`,
//!   `crates/agent/tests/turn.rs::invalid_call_is_reported_to_the_model_and_never_runs`)
//! - I27: A worker killed after any step of an agent: no recorded model or tool call is repeated, and no effect runs twice.
//!   (`tests/tests/agents.rs::worker_killed_after_any_step_repeats_no_call`,
//!   `crates/agent/tests/turn/effects.rs::interrupted_effect_is_reported_and_never_repeated`)

mod shorten;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millrace_models::model::ProviderDeadline;
use millrace_protocol::plan::DEFAULT_PROVIDER_TIMEOUT;
use millrace_protocol::provider::ProviderStatus;
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::calls::ToolCallRunner;
use super::drive_error::{DriveError, decode_step, encode_step};
use super::keepalive::KeepaliveListener;
use super::outage::{Outage, OutageStep};
use super::record::{InheritedState, ModelStep, ModelStepOutcome, SentMessages, SinceLastRequest, to_millis};
use super::{
    Answer, AttemptName, ContextSettings, Journal, JournalError, Machine, MachineStep, ReadLines,
    WorkFailure, WorkOutcome, WorkSummary,
};
use crate::approval::ApprovalRules;
use crate::corpus::pages::AttemptPages;
use crate::files::{AgentFiles, Files};
use crate::model::{
    Delta, DeltaListener, Image, ImageRoom, Message, Model, ModelAbility, ModelError, Reply, Request,
    ToolResult,
};
use crate::skills::SkillEntry;
use crate::state::StateRules;
use crate::tool::{ModelCallBudget, Toolbox};

/// The step that holds a conversation after its answer.
pub(crate) const CONVERSATION_STEP: &str = "conversation";

/// Validates an answer against facts outside the answer, and returns it in its final form; or returns the mistake, worded
/// so that the model can correct it. It is called again on resume and must then return the same.
pub type AnswerCheck<'a, A> = dyn Fn(A) -> Result<A, String> + Send + Sync + 'a;

/// Drives a machine to its end with a model, tools and a journal.
pub struct Driver<'a, A> {
    model: &'a dyn Model,
    toolbox: &'a Toolbox,
    journal: &'a mut dyn Journal,
    watch: &'a dyn DeltaListener,
    attempt: AttemptName,
    files: Option<Arc<dyn Files>>,
    agent_files: Option<AgentFiles>,
    pages: Option<Arc<AttemptPages>>,
    read_lines: Option<Arc<ReadLines>>,
    check: Option<&'a AnswerCheck<'a, A>>,
    provider_timeout: Duration,
    approvals: ApprovalRules,
    can_wait: bool,
    records_conversation: bool,
    inherited: InheritedState,
    context: Option<ContextSettings>,
    summarizer: Option<&'a dyn Model>,
    /// The bytes of the images of the last request and of the results since, by SHA-256.
    images: BTreeMap<String, Arc<[u8]>>,
}

impl<'a, A: Answer> Driver<'a, A> {
    /// A driver without an attempt name, watcher, workspace or answer check.
    pub fn new(model: &'a dyn Model, toolbox: &'a Toolbox, journal: &'a mut dyn Journal) -> Self {
        let attempt = AttemptName::default();
        Self {
            model,
            toolbox,
            journal,
            watch: &(),
            attempt,
            files: None,
            agent_files: None,
            pages: None,
            read_lines: None,
            check: None,
            provider_timeout: DEFAULT_PROVIDER_TIMEOUT,
            approvals: ApprovalRules::default(),
            can_wait: true,
            records_conversation: false,
            inherited: InheritedState::default(),
            context: None,
            summarizer: None,
            images: BTreeMap::new(),
        }
    }

    /// Sets how long to wait for a provider that does not answer.
    #[must_use]
    pub fn provider_timeout(self, provider_timeout: Duration) -> Self {
        Self { provider_timeout, ..self }
    }

    /// Sets the rules for calls that need a person's approval. Where the work can't be parked, such calls are refused.
    #[must_use]
    pub fn with_approvals(self, approvals: ApprovalRules, can_wait: bool) -> Self {
        Self { approvals, can_wait, ..self }
    }

    /// Sets whether the conversation is recorded at its end, for a task that continues it.
    #[must_use]
    pub fn recording_conversation(self, records_conversation: bool) -> Self {
        Self { records_conversation, ..self }
    }

    /// Sets the state that the attempt takes over from earlier ones. It is recorded with the first request.
    #[must_use]
    pub(crate) fn inheriting(self, inherited: InheritedState) -> Self {
        Self { inherited, ..self }
    }

    /// Sets the settings of the conversation's context, which are recorded with the first request, and the model that summarises
    /// it; `None` is the model of the conversation.
    #[must_use]
    pub fn with_context(self, context: Option<ContextSettings>, summarizer: Option<&'a dyn Model>) -> Self {
        Self { context, summarizer, ..self }
    }

    /// Sets the attempt's name, used in the keys of its calls and the paths of long results.
    #[must_use]
    pub fn with_attempt_name(self, attempt: AttemptName) -> Self {
        Self { attempt, ..self }
    }

    /// Streams replies to a watcher while they are being written.
    #[must_use]
    pub fn with_listener(self, watch: &'a dyn DeltaListener) -> Self {
        Self { watch, ..self }
    }

    /// Stores long results in a workspace, if there is one.
    #[must_use]
    pub fn with_files(self, files: Option<Arc<dyn Files>>) -> Self {
        Self { files, ..self }
    }

    /// Sets the files that programs work on.
    #[must_use]
    pub fn with_agent_files(self, agent_files: Option<AgentFiles>) -> Self {
        Self { agent_files, ..self }
    }

    /// Keeps the web pages that tools read, if they can be cited.
    #[must_use]
    pub fn with_pages(self, pages: Option<Arc<AttemptPages>>) -> Self {
        Self { pages, ..self }
    }

    /// Notes the lines that the calls show, so that they can be cited.
    #[must_use]
    pub(crate) fn noting_read_lines(self, read_lines: Arc<ReadLines>) -> Self {
        Self { read_lines: Some(read_lines), ..self }
    }

    /// Sets the check that answers must pass.
    #[must_use]
    pub fn with_check(self, check: &'a AnswerCheck<'a, A>) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Drives a machine to its end. Steps are named `model.<turn>`, `begin.<turn>` and `tool.<turn>.<index>.<tool>`, all
    /// counted from 0; the calls of one turn run concurrently and are recorded as they end. Dropping the future between
    /// two steps loses only unrecorded work.
    ///
    /// # Errors
    /// See [`DriveError`]. Reaching a limit is not an error: the machine's outcome reports it.
    pub async fn drive(mut self, machine: Machine<A>) -> Result<WorkSummary<A>, WorkFailure> {
        let mut machine = machine.with_context(self.context);
        match self.run_machine(&mut machine).await {
            Ok(ended) => Ok(ended),
            Err(error) => {
                let (spent, produced) = (machine.usage_so_far().clone(), machine.partial_result());
                Err(WorkFailure { error: Box::new(error), spent, produced })
            }
        }
    }

    async fn run_machine(&mut self, machine: &mut Machine<A>) -> Result<WorkSummary<A>, DriveError> {
        let mut since = SinceLastRequest::default();
        loop {
            let (turn, left, ability) = (machine.request_count(), machine.time_left(), machine.ability());
            let rules = machine.agent_state().filter(|_| turn == 0).map(|state| state.rules().clone());
            let skills = if turn == 0 { machine.skills().to_vec() } else { Vec::new() };
            let refused = self.find_refused_request(machine);
            match machine.next_step() {
                MachineStep::AskModel(request) => {
                    let sent = || SentMessages::new_in(request, &since);
                    let reply = self
                        .request_or_replay_model_step(
                            request,
                            (turn, ability, rules, skills),
                            left,
                            refused,
                            sent,
                        )
                        .await?;
                    let is_compacted =
                        matches!(reply.outcome, ModelStepOutcome::Overflow(_)) && self.context.is_none();
                    since = SinceLastRequest { is_compacted, recorded_calls: Vec::new() };
                    machine.feed_model_step(reply, self.model.name())?;
                }
                MachineStep::CallTools(calls) => {
                    let (attempt, toolbox, files) = (&self.attempt, self.toolbox, self.files.as_ref());
                    let (approvals, can_wait) = (&self.approvals, self.can_wait);
                    // A call belongs to the turn of its reply.
                    let left_amounts = machine.amounts_left_for_calls();
                    let budget = ModelCallBudget::new(left_amounts);
                    let number = turn.saturating_sub(1);
                    let mut tools = calls.iter().filter_map(|call| toolbox.get(&call.tool));
                    let fork = tools.any(|tool| tool.delegated_tasks() > 0).then(|| machine.fork());
                    let turn = ToolCallRunner {
                        number,
                        attempt,
                        toolbox,
                        files,
                        agent_files: self.agent_files.as_ref(),
                        left,
                        budget,
                        approvals,
                        can_wait,
                        left_amounts,
                        pages: self.pages.as_deref(),
                        fork,
                    };
                    let mut results = turn.run_calls(calls, self.journal).await?;
                    results.iter_mut().for_each(|call| self.detach_images(&mut call.result));
                    if let Some(read) = &self.read_lines {
                        calls.iter().zip(&results).for_each(|(call, record)| read.note_result(call, record));
                    }
                    since.recorded_calls = results.iter().map(|call| call.result.call_id.clone()).collect();
                    machine.feed_results(results)?;
                }
                MachineStep::Shorten(shortening) => {
                    let shortening = shortening.clone();
                    let step = self.shorten_or_replay(&shortening, left).await?;
                    // The notice of a summary is new.
                    since.is_compacted |= shortening.summary.is_some() && step.history.is_saved();
                    machine.feed_shortened(step)?;
                }
                MachineStep::CheckAnswer(answer) => {
                    let answer = answer.clone();
                    machine.feed_checked_answer(match self.check {
                        None => Ok(answer),
                        Some(check) => check(answer),
                    })?;
                }
                MachineStep::Done(ended) => {
                    if self.records_conversation && matches!(ended.outcome, WorkOutcome::Answered(_)) {
                        self.record_conversation(machine).await?;
                    }
                    return Ok(ended);
                }
            }
        }
    }

    /// Records the conversation after its answer, as the step [`CONVERSATION_STEP`].
    async fn record_conversation(&mut self, machine: &Machine<A>) -> Result<(), DriveError> {
        let step = [CONVERSATION_STEP.to_owned()];
        if self.journal.read_recorded_step(&step).await?.is_none() {
            self.journal.append_step(CONVERSATION_STEP, &encode_step(&machine.fork())).await?;
        }
        Ok(())
    }

    /// Returns why the next request must not be sent: it is more than the attempt's reservation, or its cost is limited and
    /// can't be counted.
    fn find_refused_request(&self, machine: &Machine<A>) -> Option<DriveError> {
        let uncounted = self.model.uncounted_cost().filter(|_| machine.limits_cost());
        let uncounted = uncounted.map(|model| DriveError::UncountedCost { model: model.to_owned() });
        uncounted.or_else(|| machine.unaffordable_first_request().map(DriveError::ReservationTooSmall))
    }

    async fn request_or_replay_model_step(
        &mut self,
        request: &Request,
        (turn, ability, state, skills): (u64, ModelAbility, Option<StateRules>, Vec<SkillEntry>),
        left: Option<Duration>,
        refused: Option<DriveError>,
        sent: impl FnOnce() -> Option<SentMessages> + Send,
    ) -> Result<ModelStep, DriveError> {
        let name = format!("model.{turn}");
        if let Some((_, value)) = self.journal.read_recorded_step(std::slice::from_ref(&name)).await? {
            return decode_step(&name, value);
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let attached = self.attach_images(request).await?;
        let request = attached.as_ref();
        debug!(
            step = name,
            model = self.model.name(),
            messages = request.messages.len(),
            "sending model request"
        );
        let (outcome, took) = self.reply_through_outages(self.model, request, left).await?;
        let outcome = match outcome {
            Some(Ok(reply)) => ModelStepOutcome::Reply(Box::new(reply)),
            Some(Err(ModelError::ContextOverflow { message })) => ModelStepOutcome::Overflow(message),
            Some(Err(error)) => return Err(error.into()),
            None => ModelStepOutcome::TimeUp,
        };
        let model = Some(self.model.name().to_owned());
        let ability = (turn == 0).then_some(ability);
        let inherited = Some(self.inherited.clone()).filter(|earlier| turn == 0 && !earlier.is_empty());
        let context = self.context.filter(|_| turn == 0);
        let step = ModelStep {
            outcome,
            sent: sent(),
            ability,
            state,
            inherited,
            context,
            skills,
            model,
            took_ms: to_millis(took),
        };
        self.journal.append_step(&name, &encode_step(&step)).await?;
        Ok(step)
    }

    /// Returns the request with the bytes of the newest images, as many as fit a request.
    async fn attach_images<'r>(&mut self, request: &'r Request) -> Result<Cow<'r, Request>, DriveError> {
        let lacks_bytes = |message: &Message| match message {
            Message::Tool(result) => result.images.iter().any(|image| image.bytes().is_none()),
            Message::User { .. } | Message::Assistant { .. } => false,
        };
        if !request.messages.iter().any(lacks_bytes) {
            return Ok(Cow::Borrowed(request));
        }
        let (mut request, mut room, mut sent) = (request.clone(), ImageRoom::default(), BTreeMap::new());
        for message in request.messages.iter_mut().rev() {
            let Message::Tool(result) = message else { continue };
            for image in &mut result.images {
                if room.take(image) {
                    let bytes = self.load_image(image).await?;
                    sent.insert(image.sha256.clone(), bytes.clone());
                    *image = image.clone().with_content(bytes);
                }
            }
        }
        self.images = sent;
        Ok(Cow::Owned(request))
    }

    /// Moves the bytes of images out of a result, so that the conversation does not hold them.
    fn detach_images(&mut self, result: &mut ToolResult) {
        for image in &mut result.images {
            if let Some(bytes) = image.bytes() {
                self.images.insert(image.sha256.clone(), bytes.clone());
                *image = image.clone().without_content();
            }
        }
    }

    /// Returns the bytes of an image: those of the last request, or as they are stored.
    async fn load_image(&mut self, image: &Image) -> Result<Arc<[u8]>, DriveError> {
        if let Some(bytes) = self.images.get(&image.sha256) {
            return Ok(bytes.clone());
        }
        let blob = BlobRef { sha256: image.sha256.clone(), size: image.size };
        let bytes = self.journal.load_value(&InlineOrStoredBytes::Stored(blob)).await?;
        let bytes: Arc<[u8]> = bytes.into();
        self.images.insert(image.sha256.clone(), bytes.clone());
        Ok(bytes)
    }

    /// Returns the model's reply, as [`Self::request_reply_with_keepalive`] does, and how long it took. While the provider is away, it waits: that
    /// costs neither the attempt nor its working time.
    async fn reply_through_outages(
        &mut self,
        model: &dyn Model,
        request: &Request,
        left: Option<Duration>,
    ) -> Result<(Option<Result<Reply, ModelError>>, Duration), DriveError> {
        let mut deadline = ProviderDeadline::new(self.provider_timeout);
        let mut outage = match self.journal.provider_status() {
            Some(ProviderStatus::Waiting(wait)) => Some(Outage::resume(&wait, &deadline)),
            // The run was paused and resumed since: its user wants to know if the provider answers now.
            Some(ProviderStatus::GivenUp(_)) => {
                deadline = deadline.trying_at_once();
                None
            }
            Some(ProviderStatus::Recovered) | None => None,
        };
        loop {
            let began = Instant::now();
            let replied = self.request_reply_with_keepalive(model, request, left, &deadline).await?;
            let took = began.elapsed();
            match replied {
                Some(Err(error)) if error.is_transient() && model.has_provider() => {
                    let outage = outage.get_or_insert_with(|| Outage::begin(&deadline));
                    let step = outage.record_failure(model.name(), &error);
                    self.wait_for_provider(step).await?;
                }
                replied => {
                    if outage.is_some() {
                        let text = "the model's provider answers again";
                        self.journal.report_provider(text, &ProviderStatus::Recovered).await?;
                    }
                    return Ok((replied, took));
                }
            }
        }
    }

    /// Reports the wait for the provider, and waits until the next try.
    async fn wait_for_provider(&mut self, step: OutageStep) -> Result<(), DriveError> {
        let (until, wait) = match step {
            OutageStep::TryAt(until, wait) => (until, wait),
            OutageStep::GiveUp(wait) => return Err(DriveError::ProviderAway(wait)),
        };
        warn!(model = wait.model, tries = wait.tries, next_try = %wait.next_try, error = wait.error, "waiting for provider");
        let text = format!("waiting for {wait}");
        let status = ProviderStatus::Waiting(wait);
        while Instant::now() < until {
            self.journal.report_provider(&text, &status).await?;
            sleep_until(until.min(Instant::now() + self.journal.keepalive_interval())).await;
        }
        self.journal.interrupt_wait();
        self.watch.on_delta(Delta::Restart);
        Ok(())
    }

    /// Returns the model's reply; `None` if the time ran out first. While the reply is being written or the request waits,
    /// the journal gets a keepalive per interval, so that a provider's delay does not look like a dead worker.
    async fn request_reply_with_keepalive(
        &mut self,
        model: &dyn Model,
        request: &Request,
        left: Option<Duration>,
        deadline: &ProviderDeadline,
    ) -> Result<Option<Result<Reply, ModelError>>, JournalError> {
        let keepalive = KeepaliveListener::new(self.watch, deadline);
        let mut reply = model.reply(request, &keepalive);
        let time_up = left.map_or_else(|| pending().boxed(), |left| tokio::time::sleep(left).boxed());
        tokio::pin!(time_up);
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return Ok(Some(reply)),
                () = &mut time_up => return Ok(None),
                () = tokio::time::sleep(self.journal.keepalive_interval()) => {
                    if let Some(status) = keepalive.take_status() {
                        self.journal.append_note(&status).await?;
                    }
                }
            }
        }
    }
}
