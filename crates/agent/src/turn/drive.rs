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
mod verify;

pub(crate) use verify::select_affordable;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::model::ProviderDeadline;
use millrace_protocol::result::TaskError;
use millrace_protocol::wait::ProviderStatus;
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::calls::TurnCalls;
use super::check::AnswerCheck;
use super::conversation::Conversation;

use super::outage::KeepaliveListener;
use super::outage::{Outage, OutageStep};

use super::outcome::{DriveError, decode_step, encode_step};

use super::record::{ModelStep, ModelStepOutcome, SentMessages, SinceLastRequest, to_millis};

use super::{Answer, Host, Machine, MachineStep, WorkFailure, WorkOutcome, WorkSummary};

use crate::model::{Delta, Image, ImageRoom, Message, Model, ModelError, Reply, Request, ToolResult};

/// The step that holds a conversation after its answer.
pub(crate) const CONVERSATION_STEP: &str = "conversation";

impl Conversation {
    /// Drives it to its end. Steps are named `model.<turn>`, `begin.<turn>` and `tool.<turn>.<index>.<tool>`, all
    /// counted from 0; the calls of one turn run concurrently and are recorded as they end. Dropping the future between
    /// two steps loses only unrecorded work.
    ///
    /// # Errors
    /// See [`DriveError`]. Reaching a limit is not an error: the outcome reports it.
    pub fn drive<'a, A: Answer>(
        mut self,
        host: &'a mut dyn Host,
        check: &'a dyn AnswerCheck<A>,
    ) -> BoxFuture<'a, Result<WorkSummary<A>, WorkFailure>> {
        let machine = self.begin();
        self.drive_machine(machine, host, check).boxed()
    }

    /// Checks and verifies an answer that is given, with the steps of an answer of its model. A check must not send it back.
    ///
    /// # Errors
    /// See [`DriveError`].
    pub(crate) fn drive_given_answer<'a, A: Answer>(
        mut self,
        answer: A,
        host: &'a mut dyn Host,
        check: &'a dyn AnswerCheck<A>,
    ) -> BoxFuture<'a, Result<WorkSummary<A>, WorkFailure>> {
        let machine = self.begin().with_given_answer(answer);
        self.drive_machine(machine, host, check).boxed()
    }

    async fn drive_machine<A: Answer>(
        self,
        mut machine: Machine<A>,
        host: &mut dyn Host,
        check: &dyn AnswerCheck<A>,
    ) -> Result<WorkSummary<A>, WorkFailure> {
        let mut driver = Driver { conversation: &self, host, check, images: BTreeMap::new() };
        driver.run_machine(&mut machine).await.map_err(|error| {
            let (spent, produced) = (machine.usage_so_far().clone(), machine.partial_result());
            WorkFailure { error: Box::new(error), spent, produced }
        })
    }
}

/// Drives a machine to its end with the model and the tools of a conversation.
struct Driver<'a, A> {
    conversation: &'a Conversation,
    host: &'a mut dyn Host,
    check: &'a dyn AnswerCheck<A>,
    /// The bytes of the images of the last request and of the results since, by SHA-256.
    images: BTreeMap<String, Arc<[u8]>>,
}

impl<'a, A: Answer> Driver<'a, A> {
    async fn run_machine(&mut self, machine: &mut Machine<A>) -> Result<WorkSummary<A>, DriveError> {
        let mut since = SinceLastRequest::default();
        loop {
            let left = machine.time_left();
            match machine.next_step() {
                MachineStep::AskModel(request) => {
                    let reply = self.request_or_replay_model_step(machine, request, &since).await?;
                    let is_compacted = matches!(reply.outcome, ModelStepOutcome::Overflow(_))
                        && self.conversation.context.is_none();
                    since = SinceLastRequest { is_compacted, recorded_calls: Vec::new() };
                    machine.feed_model_step(reply, self.conversation.model.name())?;
                }
                MachineStep::CallTools(calls) => {
                    let mut results =
                        TurnCalls::new(self.conversation, machine, calls).run(self.host).await?;
                    results.iter_mut().for_each(|call| self.detach_images(&mut call.result));
                    let read = &self.conversation.read_lines;
                    calls.iter().zip(&results).for_each(|(call, record)| read.note_result(call, record));
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
                    let checked = match self.check.check(answer) {
                        Ok(answer) => self.verify_answer(machine, answer).await?,
                        Err(mistake) => Err(mistake),
                    };
                    machine.feed_checked_answer(checked)?;
                }
                MachineStep::Done(ended) => {
                    if self.conversation.is_recorded && matches!(ended.outcome, WorkOutcome::Answered(_)) {
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
        if self.host.replay(&step).await?.is_none() {
            self.host.record(CONVERSATION_STEP, &encode_step(&machine.fork())).await?;
        }
        Ok(())
    }

    /// Returns why the next request must not be sent: it is more than the attempt's reservation, or its cost is limited and
    /// can't be counted.
    fn find_refused_request(&self, machine: &Machine<A>) -> Option<DriveError> {
        let uncounted = self.conversation.model.uncounted_cost().filter(|_| machine.limits_cost());
        let uncounted = uncounted.map(|model| DriveError::UncountedCost { model: model.to_owned() });
        uncounted.or_else(|| machine.unaffordable_first_request().map(DriveError::ReservationTooSmall))
    }

    async fn request_or_replay_model_step(
        &mut self,
        machine: &Machine<A>,
        request: &Request,
        since: &SinceLastRequest,
    ) -> Result<ModelStep, DriveError> {
        let turn = machine.request_count();
        let name = format!("model.{turn}");
        if let Some((_, value)) = self.host.replay(std::slice::from_ref(&name)).await? {
            return decode_step(&name, value);
        }
        if let Some(refused) = self.find_refused_request(machine) {
            return Err(refused);
        }
        let attached = self.attach_images(request).await?;
        let model = self.conversation.model.as_ref();
        debug!(step = name, model = model.name(), messages = request.messages.len(), "sending model request");
        let (outcome, took) =
            self.reply_through_outages(model, attached.as_ref(), machine.time_left()).await?;
        let outcome = match outcome {
            Some(Ok(reply)) => ModelStepOutcome::Reply(Box::new(reply)),
            Some(Err(ModelError::ContextOverflow { message })) => ModelStepOutcome::Overflow(message),
            Some(Err(error)) => return Err(error.into()),
            None => ModelStepOutcome::TimeUp,
        };
        let is_first = turn == 0;
        let inherited = &self.conversation.inherited;
        let step = ModelStep {
            outcome,
            sent: SentMessages::new_in(request, since),
            ability: is_first.then(|| machine.ability()),
            state: machine.agent_state().filter(|_| is_first).map(|state| state.rules().clone()),
            inherited: (is_first && !inherited.is_empty()).then(|| inherited.clone()),
            context: self.conversation.context.filter(|_| is_first),
            skills: if is_first { machine.skills().to_vec() } else { Vec::new() },
            model: Some(model.name().to_owned()),
            took_ms: to_millis(took),
        };
        self.host.record(&name, &encode_step(&step)).await?;
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
        let bytes = self.host.load_value(&InlineOrStoredBytes::Stored(blob)).await?;
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
        let mut deadline = ProviderDeadline::new(self.conversation.provider_timeout);
        let mut outage = match self.host.provider_status() {
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
                        self.host.report_provider(text, &ProviderStatus::Recovered).await?;
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
            self.host.report_provider(&text, &status).await?;
            sleep_until(until.min(Instant::now() + self.host.keepalive_interval())).await;
        }
        self.host.interrupt_wait();
        self.conversation.listener.on_delta(Delta::Restart);
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
    ) -> Result<Option<Result<Reply, ModelError>>, TaskError> {
        let keepalive = KeepaliveListener::new(self.conversation.listener.as_ref(), deadline);
        let mut reply = match &self.conversation.hooks {
            Some(hooks) => hooks.reply(model, request, &keepalive).boxed(),
            None => model.reply(request, &keepalive),
        };
        let time_up = left.map_or_else(|| pending().boxed(), |left| tokio::time::sleep(left).boxed());
        tokio::pin!(time_up);
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return Ok(Some(reply)),
                () = &mut time_up => return Ok(None),
                () = tokio::time::sleep(self.host.keepalive_interval()) => {
                    if let Some(status) = keepalive.take_status() {
                        self.host.note(&status).await?;
                    }
                }
            }
        }
    }
}
