//! `millrace bench` with tiny plans: all figures are measured and reported, and all folders are removed. The figures
//! themselves are meaningless. Skipped, with a message, without a nats-server.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{MILLRACE, needs_nats_server};

fn run_bench_command(folder: &Path, arguments: &[&str]) -> Output {
    let data = folder.to_str().unwrap();
    Command::new(MILLRACE).args(["bench", "--rounds=1", "--data", data]).args(arguments).output().unwrap()
}

#[test]
fn every_benchmark_reports_figure_and_baseline() {
    needs_nats_server!();
    let folder = tempfile::tempdir().unwrap();
    let output = run_bench_command(folder.path(), &["--tasks=60", "--slots=16", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_optimized = !cfg!(debug_assertions);
    assert_eq!(report["machine"]["is_optimized"], is_optimized);
    let warns = String::from_utf8_lossy(&output.stderr).contains("this build is not optimised");
    assert_eq!(warns, !is_optimized);
    for name in ["agents", "fan_out", "fan_out_reviewed", "chain", "layered", "replay"] {
        for figure in ["figure", "bare", "ratio"] {
            let value = report[name][figure].as_f64();
            assert!(value.is_some_and(|figure| figure > 0.0), "{name}.{figure} is {value:?}");
        }
    }
    for name in [
        "agents_time",
        "agents_memory",
        "ten_times_the_tasks",
        "fold_in_memory",
        "supervisor_memory",
        "takeover",
        "parked_wake",
        "waiting_takeover",
        "waiting_memory",
        "waiting_wake",
        "delegate_start",
        "delegate_end",
        "delegate_hop",
        "archived_submit",
        "archived_list",
        "archived_delete",
    ] {
        let value = report["growth"][name]["figure"].as_f64();
        assert!(
            value.is_some_and(|figure| figure > 0.0) || !cfg!(target_os = "linux"),
            "{name} is {value:?}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the clusters' folders are removed");
}

#[test]
fn a_replicated_benchmark_has_three_servers_that_store_the_messages() {
    needs_nats_server!();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["chain", "--tasks=200", "--replicated", "--json"];
    let output = run_bench_command(folder.path(), &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["machine"]["replicated"], true);
    for server in ["nats-server", "nats-server-2", "nats-server-3"] {
        let seconds = report["chain"]["processor_seconds"][server].as_f64();
        assert!(seconds.is_some_and(|seconds| seconds > 0.0), "{server} used {seconds:?} s");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the clusters' folders are removed");
}

#[test]
fn a_folder_that_cannot_be_created_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = run_bench_command(&file, &["chain"]);
    assert_eq!(output.status.code(), Some(4));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("can't create the folder") && stderr.contains("Not a directory"), "{stderr}");
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
    let cluster = await_file_in_subfolder(folder.path(), "cluster.json");
    let url = serde_json::from_slice::<Value>(&fs::read(cluster).unwrap()).unwrap()["url"].clone();
    let address = url.as_str().unwrap().strip_prefix("nats://").unwrap().to_owned();
    TcpStream::connect(&address).unwrap();
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert!(TcpStream::connect(&address).is_err(), "the server is still running");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Waits until one of the subfolders of `folder` has this file.
fn await_file_in_subfolder(folder: &Path, name: &str) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let files = fs::read_dir(folder).unwrap().flatten().map(|folder| folder.path().join(name));
        if let Some(value) = files.into_iter().find(|path| path.exists()) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} was not created within a minute");
}
