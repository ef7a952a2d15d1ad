//! `millrace bench` as a user runs it: the real program, with plans so small that nothing is learnt about speed. It is
//! tested that everything is measured, told and cleaned up. Passed over, with a message, where no nats-server is to be had.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

mod support;

use support::{MILLRACE, needs_nats_server};

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    let data = folder.to_str().unwrap();
    Command::new(MILLRACE).args(["bench", "--rounds=1", "--data", data]).args(arguments).output().unwrap()
}

#[test]
fn every_benchmark_tells_its_figure_beside_the_bare_one_and_leaves_nothing() {
    needs_nats_server!();
    let folder = tempfile::tempdir().unwrap();
    let output = bench(folder.path(), &["--tasks=60", "--slots=16", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["agents", "fan_out", "fan_out_reviewed", "chain", "layered", "replay"] {
        for figure in ["figure", "bare", "ratio"] {
            let found = report[name][figure].as_f64();
            assert!(found.is_some_and(|figure| figure > 0.0), "{name}.{figure} is {found:?}");
        }
    }
    for name in [
        "agents_time",
        "agents_memory",
        "ten_times_the_tasks",
        "fold_in_memory",
        "supervisor_memory",
        "takeover",
    ] {
        let found = report["growth"][name]["figure"].as_f64();
        assert!(
            found.is_some_and(|figure| figure > 0.0) || !cfg!(target_os = "linux"),
            "{name} is {found:?}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the clusters' folders are removed");
}

#[test]
fn a_folder_that_can_not_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = bench(&file, &["chain"]);
    assert_eq!(output.status.code(), Some(4));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("can't be made") && told.contains("Not a directory"), "{told}");
}

#[test]
fn an_interrupted_benchmark_leaves_no_process_and_no_folder() {
    needs_nats_server!();
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Command::new(MILLRACE)
        .args(["bench", "chain", "--tasks=100000", "--data", folder.path().to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let cluster = await_file(folder.path(), "cluster.json");
    let url = serde_json::from_slice::<Value>(&fs::read(cluster).unwrap()).unwrap()["url"].clone();
    let address = url.as_str().unwrap().strip_prefix("nats://").unwrap().to_owned();
    TcpStream::connect(&address).unwrap();
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert!(TcpStream::connect(&address).is_err(), "the server is still there");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Waits until a file is in one of the folders in `folder`.
fn await_file(folder: &Path, name: &str) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let made = fs::read_dir(folder).unwrap().flatten().map(|made| made.path().join(name));
        if let Some(found) = made.into_iter().find(|path| path.exists()) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} was not made in a minute");
}
