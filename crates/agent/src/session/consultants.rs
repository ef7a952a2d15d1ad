//! The capabilities that an agent can consult, and the models it can consult them with. It caches nothing.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::Capability;
use millrace_protocol::result::CapabilityDescription;

use super::models::{ModelPool, RunModels};
use crate::model::{Model, ModelSelection};
use crate::sources::{OrderInputError, OrderInputs};
use crate::tool::{ConsultableCapabilities, ToolError};

pub(super) struct ModelConsultants {
    own: Capability,
    sources: Arc<dyn OrderInputs>,
    models: Arc<ModelPool>,
    run: RunModels,
    /// The model of the agent itself; consultations use it by default.
    model: Arc<dyn Model>,
}

impl ModelConsultants {
    pub fn new(
        own: Capability,
        sources: Arc<dyn OrderInputs>,
        models: Arc<ModelPool>,
        run: RunModels,
        model: Arc<dyn Model>,
    ) -> Self {
        Self { own, sources, models, run, model }
    }
}

impl ConsultableCapabilities for ModelConsultants {
    fn own_capability(&self) -> &Capability {
        &self.own
    }

    fn list_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
        let listing = self.sources.read_capabilities();
        listing
            .map(|listing| {
                listing.map_err(|error| match error {
                    OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
                    OrderInputError::Broken(why) => ToolError::Failed {
                        message: "the list of capabilities can't be read".into(),
                        detail: why,
                    },
                })
            })
            .boxed()
    }

    fn open_model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        let Some(name) = name else { return Ok(self.model.clone()) };
        let selection = ModelSelection::parse(name).map_err(|empty| empty.to_string())?;
        self.models.open_for_run(&self.run, &selection).map_err(|error| error.to_string())
    }
}
