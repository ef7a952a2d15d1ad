//! Whom an agent at the desk can ask, and with which model. It keeps nothing.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::Capability;
use millrace_protocol::result::CapabilityDescription;

use super::models::Models;
use super::{SourceError, Sources};
use crate::model::{Choice, Model};
use crate::tool::{Consultants, ToolError};

pub(super) struct Directory {
    own: Capability,
    sources: Arc<dyn Sources>,
    models: Arc<Models>,
    /// The model of the agent itself.
    model: Arc<dyn Model>,
}

impl Directory {
    pub fn new(
        own: Capability,
        sources: Arc<dyn Sources>,
        models: Arc<Models>,
        model: Arc<dyn Model>,
    ) -> Self {
        Self { own, sources, models, model }
    }
}

impl Consultants for Directory {
    fn own(&self) -> &Capability {
        &self.own
    }

    fn known(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
        let known = self.sources.capabilities();
        known
            .map(|known| {
                known.map_err(|error| match error {
                    SourceError::Unavailable(why) => ToolError::Unavailable(why),
                    SourceError::Broken(why) => {
                        ToolError::Failed { told: "who can be asked is not known now".into(), detail: why }
                    }
                })
            })
            .boxed()
    }

    fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        let Some(name) = name else { return Ok(self.model.clone()) };
        let choice = Choice::parse(name).map_err(|empty| empty.to_string())?;
        self.models.open(&choice).map_err(|error| error.to_string())
    }
}
