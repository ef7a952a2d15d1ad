//! Data that outlives runs and processes: blobs, archives, files, rate limits, and backups of all of it.

pub mod archive;
pub mod backup;
pub mod blobs;
pub mod idempotency;
pub mod rate_limits;
pub mod workspace;
