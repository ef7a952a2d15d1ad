//! The verifier of agents: its model, the calibration by its probe, and the sources of a result by line. The verdicts are decided in
//! [`millrace_verification`].

mod memory;
mod sources;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use millrace_verification::{Calibration, Form};

use crate::hooks::AttemptHooks;
use crate::model::{Model, ModelError, Reply, Request};

pub(crate) use memory::CalibrationMemory;
pub(crate) use sources::{LineSources, cited_lines};
pub use text::{VerifiedText, calibrate, find_invented_figures, verify_text};

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
