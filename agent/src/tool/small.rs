//! Two small tools that need nothing: a place to think, and the time.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Tool, typed};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Think {
    /// What you want to get clear about: what is known, what is missing, what to do next.
    thought: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Now {}

/// `think{thought}`: lets a model write down a thought between two steps. It changes nothing.
#[must_use]
pub fn think() -> Arc<dyn Tool> {
    typed(
        "think",
        "Write down a thought before the next step. It changes nothing and fetches nothing.",
        |Think { thought }: Think, _| async move { Ok(format!("noted ({} characters)", thought.chars().count())) },
    )
}

/// `now{}`: the time of day, as seconds since 1970-01-01 UTC.
#[must_use]
pub fn now() -> Arc<dyn Tool> {
    typed("now", "The present time, in whole seconds since 1970-01-01 UTC.", |Now {}: Now, _| async {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(since.as_secs().to_string())
    })
}
