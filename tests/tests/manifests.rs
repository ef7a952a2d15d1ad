//! Tests of `deploy/kubernetes`: every overlay is valid for Kubernetes, restricts its processes, and matches the
//! programs. The smallest overlay is also run with real processes, as far as that is possible without Kubernetes.
//!
//! # Invariants
//!
//! - I53: Manifests, dashboards and alerts name nothing that the code does not have.
//!   (`tests/tests/manifests/drift.rs::programs_accept_their_command_lines`,
//!   `tests/tests/manifests/drift.rs::scalers_watch_the_queue_of_their_deployment`,
//!   `tests/tests/observability.rs::dashboards_and_rules_use_existing_metrics_and_labels`)
//! - I54: A new capability is ten lines of manifest and needs no other change.
//!   (`tests/tests/manifests/capability.rs::added_capability_is_ten_lines_and_changes_nothing_else`)

#[path = "manifests/backup.rs"]
mod backup;
#[path = "manifests/capability.rs"]
mod capability;
#[path = "manifests/drift.rs"]
mod drift;
#[path = "manifests/overlay.rs"]
mod overlay;
#[path = "manifests/page.rs"]
mod page;
#[path = "manifests/policy.rs"]
mod policy;
#[path = "manifests/real.rs"]
mod real;
#[path = "manifests/routes.rs"]
mod routes;
#[path = "manifests/schemas.rs"]
mod schemas;
#[path = "manifests/secrets.rs"]
mod secrets;
#[path = "manifests/tenants.rs"]
mod tenants;
