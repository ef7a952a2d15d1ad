//! The labels of recorded requests: the work that a request belongs to. They are set around a call of a model, since models
//! are shared by all agents of a process.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::model::{DeltaListener, Model, ModelError, Reply, Request};

tokio::task_local! {
    static CURRENT: CallLabels;
}

/// The work that a request belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLabels {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The role of the agent: its capability, `planner` or `critic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The task; none for the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The attempt at the task, or at the planner's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl CallLabels {
    /// Returns the labels of the call that this code is part of.
    pub(super) fn of_current_call() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }
}

/// A model whose requests are labelled.
pub struct LabelledModel {
    pub inner: Arc<dyn Model>,
    pub labels: CallLabels,
}

impl Model for LabelledModel {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn inner(&self) -> Option<&dyn Model> {
        Some(self.inner.as_ref())
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        CURRENT.scope(self.labels.clone(), self.inner.reply(request, listener)).boxed()
    }
}
