//! The environment of the command.

use schemars::JsonSchema;
use serde::Serialize;

use super::tagged;

/// The result of `millrace doctor`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "doctor")]
#[schemars(transform = tagged("doctor"))]
pub struct DoctorJson<'a> {
    /// `true` if a run can start.
    pub usable: bool,
    /// The checks.
    pub checks: &'a [millrace_views::CheckResult],
}
