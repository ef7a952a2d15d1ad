//! The verifier of agents: its model, the calibration by its probe, and the sources of a result by line. The verdicts are decided in
//! [`millrace_verification`].

mod memory;
mod sources;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use millrace_protocol::result::Usage;
use millrace_verification::{Calibration, Form};

use crate::hooks::AttemptHooks;
use crate::model::{Model, ModelError, Reply, Request};

pub(crate) use memory::CalibrationMemory;
pub(crate) use sources::{LineSources, cited_lines};
pub(crate) use text::begin_text_verification;
pub use text::{VerifiedText, verify_text};

/// The largest text, in bytes, that a run verifies: each of its statements may cost a request.
pub const MAX_TEXT: usize = 256 * 1024;
/// The number of questions that a verifier gets at once.
const SIDE_BY_SIDE: usize = 4;

/// A model that verifies statements.
#[derive(Clone)]
pub struct Verifier {
    model: Arc<dyn Model>,
    memory: Arc<CalibrationMemory>,
}

impl Verifier {
    /// A verifier of a process without an agent host; its calibration is stored in the cache folder.
    pub fn open(model: Arc<dyn Model>, cache: Option<PathBuf>) -> Self {
        Self::new(model, Arc::new(CalibrationMemory::new(cache)))
    }

    pub(crate) fn new(model: Arc<dyn Model>, memory: Arc<CalibrationMemory>) -> Self {
        Self { model, memory }
    }

    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    pub(crate) fn share_model(&self) -> Arc<dyn Model> {
        self.model.clone()
    }

    /// The form of its questions.
    pub fn form(&self) -> Form {
        Form::for_ability(self.model.ability())
    }

    /// Sends requests, a few at a time, and returns each outcome with the number of its request.
    pub(crate) fn ask_side_by_side<'a>(
        &'a self,
        requests: Vec<(usize, &'a Request)>,
        hooks: Option<&'a AttemptHooks>,
    ) -> BoxStream<'a, (usize, Result<Reply, ModelError>)> {
        let ask = move |(number, request): (usize, &'a Request)| async move {
            let outcome = match hooks {
                Some(hooks) => hooks.reply(self.model(), request, &()).await,
                None => self.model.reply(request, &()).await,
            };
            (number, outcome)
        };
        stream::iter(requests).map(ask).buffer_unordered(SIDE_BY_SIDE).boxed()
    }

    /// Sends requests, a few at a time. Returns the replies with the numbers of their requests, and adds their usage.
    async fn ask_all(
        &self,
        requests: &[Request],
        usage: &mut Usage,
    ) -> Result<Vec<(usize, Reply)>, ModelError> {
        let mut running = self.ask_side_by_side(requests.iter().enumerate().collect(), None);
        let mut replies = Vec::with_capacity(requests.len());
        while let Some((number, outcome)) = running.next().await {
            match outcome {
                Ok(reply) => {
                    usage.add(Usage { model_calls: 1, ..reply.usage });
                    replies.push((number, reply));
                }
                Err(error) if error.is_transient() || error.is_refusal() => return Err(error),
                // It refuses this question, not the others.
                Err(error) => tracing::debug!(%error, "no verdict"),
            }
        }
        Ok(replies)
    }

    /// Returns the remembered calibration, or probes the model and adds the usage of the probe.
    ///
    /// # Errors
    /// The model can't be reached, or refuses all requests.
    pub async fn recall_or_probe(&self, usage: &mut Usage) -> Result<Calibration, ModelError> {
        if let Some(known) = self.remembered_calibration() {
            return Ok(known);
        }
        let replies = self.ask_all(&self.probe_requests(), usage).await?;
        let calibration = self.calibrate(&replies);
        self.remember(&calibration);
        Ok(calibration)
    }

    /// The calibration by an earlier probe, if that is remembered.
    pub fn remembered_calibration(&self) -> Option<Calibration> {
        self.memory.recall(self.model.name(), self.form())
    }

    pub(crate) fn remember(&self, calibration: &Calibration) {
        self.memory.remember(calibration);
    }

    /// The requests of the probe.
    pub fn probe_requests(&self) -> Vec<Request> {
        millrace_verification::probe_questions(self.form())
            .into_iter()
            .map(|question| question.request)
            .collect()
    }

    /// The calibration by the replies to the probe's requests, each with the number of its request.
    pub fn calibrate(&self, replies: &[(usize, Reply)]) -> Calibration {
        Calibration::of_replies(self.model.name(), self.form(), replies)
    }
}
