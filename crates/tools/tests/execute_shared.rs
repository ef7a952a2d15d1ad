//! The limits on all commands of a process together, and the defaults in a control group. They have processes of
//! their own, because commands of other tests would count.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_agent::tool::{Call, Tool};
use millrace_tests::program::run_in_own_process;
use millrace_tools::execute::{ExecuteSettings, ExecuteTool, Launcher};
use serde_json::json;

const MIB: u64 = 1024 * 1024;
const GOOD: &str = "[Command succeeded with exit code 0]";

async fn open() -> ExecuteTool {
    let settings = ExecuteSettings { require: Vec::new(), ..ExecuteSettings::default() };
    ExecuteTool::open(settings, Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"))).await.unwrap()
}

async fn sh(tool: &ExecuteTool, command: &str) -> String {
    let arguments = json!({"command": command, "timeout": 20});
    tool.call(arguments, &Call::default()).await.unwrap().text
}

/// A command that holds 100 MB in this number of processes for a while.
fn hold_memory(processes: u32, seconds: u32) -> String {
    let holder = format!("(head -c 100000000 /dev/zero | tail -c 100000000 | sleep {seconds}) &");
    format!("for n in $(seq {processes}); do {holder} done; wait")
}

#[tokio::test]
async fn concurrent_commands_share_memory_and_disk() {
    // The limits are those of all commands of a process.
    if run_in_own_process(concat!(module_path!(), "::concurrent_commands_share_memory_and_disk")) {
        return;
    }
    let (mut one, mut two) = (open().await, open().await);
    for tool in [&mut one, &mut two] {
        tool.set_shared_limits(400 * MIB, 40 * MIB);
    }
    // Together 500 MB: the command with more memory is killed, and the other one is not.
    let (small, large) = (hold_memory(2, 12), hold_memory(3, 15));
    let (small, large) = futures::join!(sh(&one, &small), sh(&two, &large));
    assert!(
        large.contains("all commands of this worker used more than 400 MiB of memory together"),
        "{large}"
    );
    assert_eq!(small, GOOD);
    assert_eq!(sh(&two, &hold_memory(3, 1)).await, GOOD, "alone it may use as much");

    assert_eq!(sh(&one, "head -c 20000000 /dev/zero > file").await, GOOD);
    let text = sh(&two, "head -c 30000000 /dev/zero > file; sleep 15").await;
    assert!(text.contains("the working folders of this worker have more than 40 MiB together"), "{text}");
    drop(two);
    assert_eq!(sh(&one, "head -c 15000000 /dev/zero > other").await, GOOD, "a removed folder does not count");
}

/// A control group with 1 GiB of memory. Removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let name = format!("millrace-test-{}", std::process::id());
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        versions.into_iter().find_map(|(root, file)| {
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(file), (1_024 * MIB).to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Not a test: the process that the next test starts in a control group.
#[tokio::test]
#[ignore = "part of another test"]
async fn commands_in_a_small_group() {
    let tool = open().await;
    let text = sh(&tool, "head -c 2147483648 /dev/zero | tail -c 2147483648 | wc -c").await;
    assert!(text.starts_with("tail: memory exhausted"), "one process: {text}");
    let text = sh(&tool, &hold_memory(8, 15)).await;
    assert!(text.contains("its processes used more than 512 MiB of memory together"), "{text}");
    let text = sh(&tool, "for n in $(seq 6); do head -c 400000000 /dev/zero > file$n; done").await;
    assert!(text.contains("its working folder grew by more than 512 MiB"), "{text}");
}

#[tokio::test]
async fn default_limits_fit_the_control_group() {
    let Some(group) = Group::new() else {
        eprintln!("skipped: no control group with a memory limit can be made here");
        return;
    };
    let inner = std::env::current_exe().unwrap();
    let test = "--exact execute_shared::commands_in_a_small_group --ignored";
    let script = format!("echo $$ > {}/cgroup.procs && exec {} {test}", group.0.display(), inner.display());
    let output = Command::new("/bin/sh").arg("-c").arg(script).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
