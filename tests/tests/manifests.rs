//! Tests of `deploy/kubernetes`: every overlay is valid for Kubernetes, restricts its processes, and matches the
//! programs. The smallest overlay is also run with real processes, as far as that is possible without Kubernetes.

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
