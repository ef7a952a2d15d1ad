//! The verifier as agents use it: the model, what its probe said, and the sources of a result by line. What a statement is worth is
//! decided in [`millrace_verification`].

mod memory;
mod sources;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

use millrace_verification::{Calibration, Form};

use crate::hooks::AttemptHooks;
use crate::model::{Model, ModelError, Reply, Request};

pub(crate) use memory::CalibrationMemory;
pub(crate) use sources::{LineSources, cited_lines};
pub use text::{VerifiedText, calibrate, verify_text};

/// The number of questions that a verifier gets at once.
pub(crate) const SIDE_BY_SIDE: usize = 4;

/// A model that verifies statements.
#[derive(Clone)]
pub struct Verifier {
    model: Arc<dyn Model>,
    memory: Arc<CalibrationMemory>,
}

impl Verifier {
    /// A verifier of a process without an agent host; what its probe says is remembered in the cache folder.
    pub fn open(model: Arc<dyn Model>, cache: Option<PathBuf>) -> Self {
        Self::new(model, Arc::new(CalibrationMemory::new(cache)))
    }

    pub(crate) fn new(model: Arc<dyn Model>, memory: Arc<CalibrationMemory>) -> Self {
        Self { model, memory }
    }

    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    /// The form in which it is asked.
    pub fn form(&self) -> Form {
        Form::for_ability(self.model.ability())
    }

    /// Asks it.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        hooks: Option<&AttemptHooks>,
    ) -> Result<Reply, ModelError> {
        match hooks {
            Some(hooks) => hooks.reply(self.model(), request, &()).await,
            None => self.model.reply(request, &()).await,
        }
    }

    /// What a probe said of it, if that is remembered.
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

    /// What the replies to the probe's requests, by their numbers, say of the model.
    pub fn calibrate(&self, replies: &[(usize, Reply)]) -> Calibration {
        Calibration::of_replies(self.model.name(), self.form(), replies)
    }
}
