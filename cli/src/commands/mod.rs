//! The commands, one file each. Each reads its arguments, asks [`crate::client`], [`crate::steer`] or [`crate::local`],
//! and prints.

pub mod add;
pub mod backup;
pub mod cancel;
pub mod edit;
pub mod files;
pub mod limits;
pub mod list;
pub mod metrics;
pub mod nats_config;
pub mod pause;
pub mod replay;
pub mod restore;
pub mod resume;
pub mod retry;
pub mod run;
pub mod schema;
pub mod show;
pub mod submit;
pub mod tell;
pub mod up;
pub mod watch;
