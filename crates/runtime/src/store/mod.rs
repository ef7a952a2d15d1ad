//! Data that outlives runs and processes: blobs, archives, files, rate limits, sessions, tokens, and backups of all of it.

pub mod admission;
pub mod archive;
pub mod audit;
pub mod backup;
pub mod blobs;
pub mod bucket;
pub mod export_position;
pub mod idempotency;
pub mod rate_limits;
pub mod retention;
pub mod sessions;
pub mod tokens;
pub mod webhooks;
pub mod workspace;
