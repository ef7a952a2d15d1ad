//! Data that outlives runs and processes: blobs, archives, files, rate limits, sessions, tokens, and backups of all of it.

pub mod admission;
pub mod archive;
pub mod backup;
pub mod blobs;
pub mod bucket;
pub mod keys;
pub mod rate_limits;
pub mod retention;
pub mod tokens;
pub mod webhooks;
pub mod workspace;
