//! The commands, one file each. Each reads its arguments, asks [`crate::client`] or [`crate::local`], and prints.

pub mod cancel;
pub mod files;
pub mod limits;
pub mod list;
pub mod replay;
pub mod run;
pub mod schema;
pub mod show;
pub mod submit;
pub mod up;
pub mod watch;
