//! `builtin:extractive`: a model that reads instead of writing.

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::model::{Model, ModelError, Reply, Request};

/// The model `builtin:extractive`: deterministic and offline. It answers with what stands in the documents, found
/// and read through the same tools as any model's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extractive;

impl Extractive {
    /// Its full name.
    pub const NAME: &'static str = "builtin:extractive";
}

impl Model for Extractive {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn reply<'a>(&'a self, _request: &'a Request) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let reply = Err(ModelError::Protocol { message: "not yet".into() });
        futures::future::ready(reply).boxed()
    }
}
