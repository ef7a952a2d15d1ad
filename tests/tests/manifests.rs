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

mod backup;
mod capability;
mod drift;
mod overlay;
mod page;
mod policy;
mod real;
mod routes;
mod schemas;
mod secrets;
mod tenants;
