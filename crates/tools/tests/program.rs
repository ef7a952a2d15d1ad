//! Foreign programs whose processes hide from them in every way, and end with them all the same.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millrace_tools::execute::Launcher;
use millrace_tools::program::{ExchangeError, Program, RunningProgram};
use rustix::process::{Pid, Signal, kill_process};

/// Processes that a program can start. All have the mark in their command line.
const SORTS: [&str; 9] = [
    "sleep MARK &",
    "setsid sleep MARK &",
    "(trap '' HUP INT TERM QUIT; exec sleep MARK) &",
    "(setsid sh -c 'sleep MARK & :' &)",
    "sh -c 'sh -c \"sleep MARK; :\"; :' &",
    "env -i /usr/bin/setsid /bin/sleep MARK &",
    "(trap '' HUP INT TERM; (setsid sh -c '(env -i setsid sleep MARK &); :' &))",
    "setsid sh -c 'while :; do sleep MARK; done' &",
    "setsid sh -c 'kill -STOP $$; : MARK' &",
];

fn launcher() -> Launcher {
    Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"))
}

/// Returns a mark that no other process has: a number that `sleep` takes.
fn next_mark() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("9{:05}.{}", NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id())
}

fn shell(script: &str, mark: &str) -> Program {
    let script = script.replace("MARK", mark);
    Program { command: vec!["/bin/sh".into(), "-c".into(), script.into()], ..Program::default() }
        .pass_variables(["PATH"])
}

fn processes_with(mark: &str) -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    processes.filter(|(_, line)| line.contains(mark)).collect()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_none_is_left(what: &str, mark: &str) {
    until(&format!("{what} leaves no process"), || processes_with(mark).is_empty()).await;
}

/// Waits until the keeper, the program and at least one more process of it run.
async fn until_started(mark: &str) {
    let is_other = |line: &str| !line.contains("program-keeper") && !line.contains(" exit-or-stay ");
    until("its processes run", || processes_with(mark).iter().any(|(_, line)| is_other(line))).await;
}

#[tokio::test]
async fn no_process_of_any_sort_outlives_its_program() {
    for sort in SORTS {
        // Exits, and has its answer.
        let mark = next_mark();
        let script = format!("{sort}\n: exit-or-stay ; sleep 0.1; echo answered; exit 3");
        let mut program = RunningProgram::start(Some(&launcher()), &shell(&script, &mark)).await.unwrap();
        let (status, output) = program.exchange(b"", 100).await.unwrap();
        assert_eq!((status.code(), output.as_slice()), (Some(3), &b"answered\n"[..]), "{sort}");
        let left = processes_with(&mark).into_iter().filter(|(_, line)| !line.contains("program-keeper"));
        assert_eq!(left.collect::<Vec<_>>(), [], "{sort}");
        // Is dropped, or asked to end.
        for is_dropped in [true, false] {
            let mark = next_mark();
            let script = format!("{sort}\n: exit-or-stay ; trap '' TERM; while :; do sleep 0.05; done");
            let program = RunningProgram::start(Some(&launcher()), &shell(&script, &mark)).await.unwrap();
            until_started(&mark).await;
            if is_dropped {
                drop(program);
                until_none_is_left(sort, &mark).await;
            } else {
                program.end(Duration::from_millis(50)).await;
                assert_eq!(processes_with(&mark), [], "{sort}");
            }
        }
    }
}

/// Not a test: the process that the next test starts and kills.
#[tokio::test]
#[ignore = "part of another test"]
async fn held_until_killed() {
    let mark = std::env::var("HELD_MARK").unwrap();
    let script = format!("{}\n: exit-or-stay ; sleep {mark}", SORTS.join("\n"));
    let _program = RunningProgram::start(Some(&launcher()), &shell(&script, &mark)).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn no_process_outlives_a_killed_worker() {
    let mark = next_mark();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program::held_until_killed", "--ignored"])
        .env("HELD_MARK", &mark)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("all sorts run", || processes_with(&mark).len() >= SORTS.len() + 2).await;
    // A service manager that stops a service signals all of its processes.
    for (keeper, _) in processes_with(&mark).iter().filter(|(_, line)| line.starts_with("program-keeper")) {
        kill_process(*keeper, Signal::TERM).unwrap();
    }
    assert!(processes_with(&mark).len() >= SORTS.len() + 2);
    holder.kill().unwrap();
    holder.wait().unwrap();
    until_none_is_left("a killed worker", &mark).await;
}

#[tokio::test]
async fn a_program_that_has_exited_has_answered() {
    for launcher in [Some(launcher()), None] {
        let mark = next_mark();
        let script = "setsid sleep MARK & printf answered; exit 0";
        let mut program = RunningProgram::start(launcher.as_ref(), &shell(script, &mark)).await.unwrap();
        let began = Instant::now();
        let (status, output) = program.exchange(&[0; 1_000_000], 100).await.unwrap();
        assert!(
            status.success() && began.elapsed() < Duration::from_secs(5),
            "{status} {:?}",
            began.elapsed()
        );
        assert_eq!(output, b"answered");
        for (pid, _) in processes_with(&mark) {
            // Without a launcher, it is left.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn the_end_of_a_program_is_that_of_its_own_process() {
    for (script, code, signal) in [
        ("exit 137", Some(137), None),
        ("kill -TERM $$", None, Some(15)),
        ("kill -SEGV $$", None, Some(11)),
        ("kill -PIPE $$", None, Some(13)),
        ("kill -KILL 0", None, Some(9)),
    ] {
        use std::os::unix::process::ExitStatusExt;
        let mut program = RunningProgram::start(Some(&launcher()), &shell(script, "")).await.unwrap();
        let (status, _) = program.exchange(b"", 100).await.unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
    let mut program = RunningProgram::start(Some(&launcher()), &shell("yes", "")).await.unwrap();
    let endless = program.exchange(b"", 100_000).await;
    assert!(matches!(endless, Err(ExchangeError::TooLong(100_000))), "{endless:?}");
}

#[tokio::test]
async fn the_death_of_a_keeper_ends_its_program() {
    let mark = next_mark();
    let mut program = RunningProgram::start(Some(&launcher()), &shell("sleep MARK; :", &mark)).await.unwrap();
    until("it sleeps", || processes_with(&mark).iter().any(|(_, line)| line.starts_with("sleep"))).await;
    let keeper = processes_with(&mark).into_iter().find(|(_, line)| line.starts_with("program-keeper"));
    kill_process(keeper.unwrap().0, Signal::KILL).unwrap();
    let error = program.exchange(b"", 100).await.unwrap_err().to_string();
    assert_eq!(error, "can't wait for it: its keeper was killed");
    drop(program);
    until_none_is_left("a program without keeper", &mark).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_not_started() {
    for launcher in [Some(launcher()), None] {
        let missing = Program { command: vec!["/no/such/program".into()], ..Program::default() };
        let error = RunningProgram::start(launcher.as_ref(), &missing).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        let homeless = Program { folder: Some(Path::new("/no/such/folder").into()), ..shell("exit 0", "") };
        assert!(RunningProgram::start(launcher.as_ref(), &homeless).await.is_err());
    }
}
