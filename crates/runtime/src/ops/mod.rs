//! Operating a process: health checks, metrics, logging and shutdown.

pub mod cluster_metrics;
pub mod cluster_status;
pub mod health;
pub mod metrics;
pub mod runtime;
pub mod telemetry;
