//! What tests of the command share: the program, and the nats-server of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

pub const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");

pub fn check_of<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

/// The nats-server that all tests of this process use: the machine's own, or one fetched into a lasting cache.
pub fn nats_server() -> Option<&'static Path> {
    static SERVER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = SERVER.get_or_init(|| {
        let output = Command::new(MILLRACE)
            .args(["doctor", "--fetch", "--json"])
            .env_remove("MILLRACE_NATS_URL")
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let check = check_of(&report, "nats-server");
        let found = check["found"].as_str().unwrap();
        if check["status"] != "ok" {
            eprintln!("passed over: no nats-server: {found}");
            return None;
        }
        let path = found.split(" at ").nth(1).unwrap().split(" (").next().unwrap();
        Some(path.into())
    });
    found.as_deref()
}

macro_rules! needs_nats_server {
    () => {
        match support::nats_server() {
            Some(server) => server,
            None => return,
        }
    };
}
pub(crate) use needs_nats_server;
