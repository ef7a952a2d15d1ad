//! `deploy/kubernetes` says what is so: every overlay is one that Kubernetes takes, keeps its processes in their
//! places, and names nothing that the programs don't know. And what the smallest overlay says is done for once, with real
//! processes, as far as that goes without a Kubernetes.

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
