//! Operating a process: health checks, metrics, logging and shutdown.

pub mod cluster_metrics;
pub mod cluster_status;
pub mod health;
pub mod log_limit;
pub mod long_work;
pub mod metrics;
pub mod shutdown;
pub mod telemetry;
