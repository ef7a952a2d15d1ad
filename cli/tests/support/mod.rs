//! Shared helpers: the program, and the nats-server of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

pub mod terminal;
pub mod user;

pub const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");

pub fn find_check_result<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

/// Returns the nats-server for all tests of this process: the machine's own, or one fetched into a permanent cache.
pub fn find_or_fetch_nats_server() -> Option<&'static Path> {
    static SERVER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let output = Command::new(MILLRACE)
            .args(["doctor", "--fetch", "--json"])
            .env_remove("MILLRACE_NATS_URL")
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let check = find_check_result(&report, "nats-server");
        let server = check["found"].as_str().unwrap();
        if check["status"] != "ok" {
            eprintln!("skipped: no nats-server: {server}");
            return None;
        }
        let path = server.split(" at ").nth(1).unwrap().split(" (").next().unwrap();
        Some(path.into())
    });
    server.as_deref()
}

macro_rules! needs_nats_server {
    () => {
        match crate::support::find_or_fetch_nats_server() {
            Some(server) => server,
            None => return,
        }
    };
}
pub(crate) use needs_nats_server;
