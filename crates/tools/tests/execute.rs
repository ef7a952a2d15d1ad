//! `execute` with real commands: what they can and cannot access. Each escape is tested with all confinement that this
//! machine supports; if something is missing, the test is skipped with a message.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_agent::tool::{Call, Effect, Tool, ToolError};
use millrace_tools::execute::{
    CommandLimits, ConfinementKind, ExecuteError, ExecuteSettings, ExecuteTool, Launcher, NetworkAccess,
};
use serde_json::json;

fn launcher() -> Launcher {
    Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"))
}

async fn open(settings: ExecuteSettings) -> ExecuteTool {
    ExecuteTool::open(settings, launcher()).await.unwrap()
}

/// Returns settings without required confinement.
fn free(folder: &Path) -> ExecuteSettings {
    ExecuteSettings { folder: Some(folder.to_owned()), require: Vec::new(), ..ExecuteSettings::default() }
}

async fn sh(tool: &ExecuteTool, command: &str) -> String {
    call(tool, json!({"command": command})).await.unwrap()
}

async fn call(tool: &ExecuteTool, arguments: serde_json::Value) -> Result<String, ToolError> {
    tool.call(arguments, &Call::default()).await.map(|output| output.text)
}

const GOOD: &str = "[Command succeeded with exit code 0]";

#[tokio::test]
async fn output_is_returned_in_order_with_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    assert_eq!(tool.effect(), Effect::Effect);
    assert_eq!(sh(&tool, "echo one; echo two >&2; echo three").await, format!("one\ntwo\nthree\n{GOOD}"));
    assert_eq!(sh(&tool, "true").await, GOOD);
    assert_eq!(sh(&tool, "exit 7").await, "[Command failed with exit code 7]");
    assert_eq!(sh(&tool, "kill -TERM $$").await, "[Command failed with exit code 143: ended by signal 15]");
    assert!(sh(&tool, "no-such-program").await.ends_with("[Command failed with exit code 127]"));
    assert_eq!(sh(&tool, "cat").await, GOOD, "there is no input");
    assert_eq!(
        sh(&tool, "echo x > file && cat file && pwd").await,
        format!("x\n{}\n{GOOD}", real(folder.path()))
    );
    assert_eq!(fs::read_to_string(folder.path().join("file")).unwrap(), "x\n");
}

fn real(path: &Path) -> String {
    fs::canonicalize(path).unwrap().display().to_string()
}

#[tokio::test]
async fn arguments_and_input_of_a_program_are_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let run = async |words: &[&str], limit| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        tool.run_program(&words, b"in $HOME\n'x'", Duration::from_millis(limit)).await.unwrap()
    };
    for (words, code, output) in [
        (&["cat"][..], Some(0), "in $HOME\n'x'"),
        (
            &["printf", "%s|", "$HOME", "it's `id`; \"a\" \\", "< x"],
            Some(0),
            "$HOME|it's `id`; \"a\" \\|< x|",
        ),
        (&["sh", "-c", "cat > /dev/null; echo no >&2; exit 7"], Some(7), "no\n"),
        (&["sh", "-c", "kill -TERM $$"], Some(143), ""),
    ] {
        let ended = run(words, 20_000).await;
        assert_eq!((ended.code, ended.output.as_str()), (code, output), "{words:?}");
    }
    assert_eq!(run(&["no-such-program"], 20_000).await.code, Some(127));
    let began = Instant::now();
    assert_eq!(run(&["sleep", "60"], 300).await.code, None);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no file remains");
    assert!(tool.run_program(&["a\0b".to_owned()], b"", Duration::from_secs(1)).await.is_err());
}

#[tokio::test]
async fn commands_get_path_home_and_configured_variables() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ExecuteSettings { env: vec!["CARGO_PKG_NAME".into(), "NOT_THERE".into()], ..free(folder.path()) };
    let tool = open(settings).await;
    let text = sh(&tool, "env").await;
    let mut names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    // The shell sets PWD, and some shells set further variables.
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    assert_eq!(names, ["CARGO_PKG_NAME", "HOME", "PATH"]);
    assert!(text.contains(&format!("HOME={}\n", real(folder.path()))), "{text}");
}

#[tokio::test]
async fn a_timeout_kills_all_processes_of_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let began = Instant::now();
    let text =
        call(&tool, json!({"command": "echo begun; sleep 1000 & sleep 1000", "timeout": 1})).await.unwrap();
    assert_eq!(text, "begun\n[Command failed with exit code 124: timed out after 1 s and was killed]");
    let soon = Call { deadline: Some(Instant::now() + Duration::from_millis(300)), ..Call::default() };
    let text = tool.call(json!({"command": "sleep 1000"}), &soon).await.unwrap().text;
    assert!(text.contains("exit code 124"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(10));
    for wrong in [-1, 0, 3_601] {
        let refused = call(&tool, json!({"command": "true", "timeout": wrong})).await;
        assert!(
            matches!(&refused, Err(ToolError::Refused(text)) if text.contains("1 to 3600")),
            "{refused:?}"
        );
    }
}

/// Waits until no process on this machine has `mark` in its command line; `false` after a timeout.
async fn none_left(mark: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    let marked = || {
        fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let own = entry.file_name().to_str() == Some(&std::process::id().to_string());
            !own && String::from_utf8_lossy(&line).contains(mark)
        })
    };
    while marked() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Returns a command that starts daemons: forked twice, in their own session, ignoring signals.
fn daemon(seconds: &str) -> String {
    format!(
        "(trap '' HUP TERM INT; setsid sleep {seconds} & setsid sh -c '(sleep {seconds} &) ; :') >/dev/null 2>&1 &"
    )
}

#[tokio::test]
async fn no_process_outlives_its_command() {
    for (namespaces, seconds) in [(true, "98761"), (false, "98762")] {
        let folder = tempfile::tempdir().unwrap();
        let mut tool = open(free(folder.path())).await;
        if namespaces && !tool.confinement().namespaces {
            eprintln!("skipped: no namespaces on this machine");
            continue;
        }
        tool.without_namespaces(!namespaces);
        let text = sh(&tool, &format!("{} sleep 0.2; echo done", daemon(seconds))).await;
        assert_eq!(text, format!("done\n{GOOD}"));
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
        // The same after a timeout, and after the call was cancelled.
        let killed = json!({"command": format!("{} sleep {seconds}", daemon(seconds)), "timeout": 1});
        assert!(call(&tool, killed.clone()).await.unwrap().contains("exit code 124"));
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
        let forgotten = tokio::time::timeout(Duration::from_millis(500), call(&tool, killed)).await;
        assert!(forgotten.is_err());
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
    }
}

#[tokio::test]
async fn long_output_keeps_its_head_and_tail() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let text = sh(&tool, "echo first; yes 0123456789 | head -c 30000000; echo last").await;
    assert!(text.len() < 101_000, "{}", text.len());
    assert!(text.starts_with("first\n") && text.ends_with(&format!("last\n{GOOD}")));
    assert!(text.contains("bytes omitted"));
    let endless = json!({"command": "yes", "timeout": 1});
    assert!(call(&tool, endless).await.unwrap().ends_with("was killed]"));
}

/// Paragraphs of a name and a command that must neither print `LEAK` nor write outside its folder.
const ESCAPES: &str = include_str!("corpora/escapes.txt");

#[tokio::test]
async fn no_escape_of_the_corpus_succeeds() {
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = outside.path().join("work");
    fs::create_dir(&folder).unwrap();
    fs::write(outside.path().join("secret"), "LEAK").unwrap();
    for namespaces in [true, false] {
        let mut tool = open(free(&folder)).await;
        if !tool.confinement().landlock || (namespaces && !tool.confinement().namespaces) {
            eprintln!("skipped: this machine only supports {}", tool.confinement());
            continue;
        }
        tool.without_namespaces(!namespaces);
        // Scripts that send signals to all processes only run if a harmless signal is blocked.
        let reached = sh(&tool, &format!("kill -0 {} && echo reached", std::process::id())).await;
        let signals_stay = !reached.contains("reached");
        assert_eq!(signals_stay, tool.confinement().signals || tool.confinement().namespaces);
        let mut tried = 0;
        for case in ESCAPES.split("\n---\n") {
            let (name, script) = case.split_once('\n').unwrap();
            if script.contains("kill ") && (!signals_stay || (script.contains("-1") && !namespaces)) {
                eprintln!("skipped: {name}: signals are not confined, or only by landlock");
                continue;
            }
            let script = script
                .replace("@OUTSIDE@", &real(outside.path()))
                .replace("@TEST@", &std::process::id().to_string());
            let before = listing(outside.path());
            let text = call(&tool, json!({"command": script, "timeout": 8})).await.unwrap();
            assert!(!text.contains("LEAK"), "{name} (namespaces: {namespaces}): {text}");
            assert!(!text.contains("root:x:0"), "{name} (namespaces: {namespaces}): {text}");
            assert_eq!(listing(outside.path()), before, "{name} (namespaces: {namespaces}): {text}");
            assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "LEAK", "{name}");
            assert_eq!(sh(&tool, "echo alive").await, format!("alive\n{GOOD}"), "after {name}");
            tried += 1;
        }
        assert!(tried > 20, "{tried}");
    }
}

fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_fork_bomb_is_limited_and_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.processes = 64;
    let tool = open(settings).await;
    if !tool.confinement().processes {
        eprintln!(
            "skipped: root's processes are not limited on this machine, and a bomb would take all of it"
        );
        return;
    }
    let began = Instant::now();
    let bomb = "bomb() { bomb 98763 | bomb 98763 & }; bomb; sleep 98763";
    let text = call(&tool, json!({"command": bomb, "timeout": 5})).await.unwrap();
    assert!(text.contains("[Command failed"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(none_left("98763").await);
    assert_eq!(sh(&tool, "echo alive").await, format!("alive\n{GOOD}"));
}

#[tokio::test]
async fn memory_files_and_cpu_time_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.file_size_mb = Some(1);
    settings.limits.memory_mb = Some(64);
    settings.limits.cpu_s = 1;
    let tool = open(settings).await;
    assert!(!sh(&tool, "head -c 3000000 /dev/zero > large").await.contains(GOOD));
    assert_eq!(fs::metadata(folder.path().join("large")).unwrap().len(), 1024 * 1024);
    assert!(
        !sh(&tool, "head -c 200000000 /dev/zero | tail -c 200000000 | wc -c").await.contains("200000000")
    );
    let began = Instant::now();
    assert!(sh(&tool, "while :; do :; done").await.contains("[Command failed"));
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// Returns the tool with and without namespaces, as far as this machine supports them.
async fn with_and_without_namespaces(settings: &ExecuteSettings) -> Vec<ExecuteTool> {
    let mut tools = vec![open(settings.clone()).await];
    if tools[0].confinement().namespaces {
        let mut without = open(settings.clone()).await;
        without.without_namespaces(true);
        tools.push(without);
    }
    tools
}

/// A shell command that holds 100 MB in this number of processes for a minute.
fn hold_memory(processes: u32) -> String {
    let holder = "head -c 100000000 /dev/zero | tail -c 100000000 | sleep 60 &";
    format!("for n in $(seq {processes}); do {holder} done; wait")
}

#[tokio::test]
async fn smallest_limits_let_a_command_run_and_smaller_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let smallest = json!({
        "cpu_s": 1, "memory_mb": 64, "total_memory_mb": 64, "files": 16, "processes": 1, "file_size_mb": 1,
        "total_disk_mb": 1
    });
    let mut settings = free(folder.path());
    settings.limits = serde_json::from_value(smallest.clone()).unwrap();
    for tool in with_and_without_namespaces(&settings).await {
        assert_eq!(sh(&tool, "echo alive").await, format!("alive\n{GOOD}"), "{}", tool.confinement());
    }
    for (name, value) in smallest.as_object().unwrap() {
        let less = json!({ name: value.as_u64().unwrap() - 1 });
        let error = serde_json::from_value::<CommandLimits>(less).unwrap_err().to_string();
        assert!(error.contains(&format!("it must be at least {value}")), "{name}: {error}");
    }
}

#[tokio::test]
async fn memory_of_all_processes_is_limited_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.total_memory_mb = Some(250);
    for tool in with_and_without_namespaces(&settings).await {
        let began = Instant::now();
        let text = sh(&tool, &hold_memory(4)).await;
        let expected =
            "[Command failed with exit code 137: its processes used more than 250 MiB of memory together]";
        assert_eq!(text, expected, "{}", tool.confinement());
        assert!(began.elapsed() < Duration::from_secs(20));
        let text = call(&tool, json!({"command": hold_memory(1), "timeout": 3})).await.unwrap();
        assert!(text.contains("timed out after 3 s"), "{text}");
        assert_eq!(sh(&tool, "echo alive").await, format!("alive\n{GOOD}"));
    }
}

#[tokio::test]
async fn files_in_private_folders_count_as_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.total_memory_mb = Some(200);
    let tool = open(settings).await;
    if !tool.confinement().namespaces {
        eprintln!("skipped: no namespaces on this machine");
        return;
    }
    let text =
        sh(&tool, "head -c 60000000 /dev/zero > /tmp/a; head -c 60000000 /dev/zero > /tmp/b; echo end").await;
    assert!(text.contains("No space left on device"), "{text}");
    let text = sh(
        &tool,
        &format!(
            "head -c 45000000 /dev/zero > /tmp/a; head -c 45000000 /dev/zero > /dev/shm/b; {}",
            hold_memory(2)
        ),
    )
    .await;
    assert!(text.contains("more than 200 MiB of memory together"), "{text}");
}

#[tokio::test]
async fn growth_of_the_working_folder_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("before"), vec![1; 30_000_000]).unwrap();
    let mut settings = free(folder.path());
    settings.limits.total_disk_mb = Some(50);
    for tool in with_and_without_namespaces(&settings).await {
        let expected = "[Command failed with exit code 137: its working folder grew by more than 50 MiB]";
        // Each file is smaller than the limit per file.
        let fill =
            |more: &str| format!("for n in 1 2 3; do head -c 20000000 /dev/zero > large$n; done; {more}");
        let began = Instant::now();
        assert_eq!(sh(&tool, &fill("sleep 60")).await, expected);
        assert!(began.elapsed() < Duration::from_secs(20));
        // The files remain; a command may remove them.
        assert_eq!(sh(&tool, "rm large1; sleep 1; rm large*; sleep 1; ls").await, format!("before\n{GOOD}"));
        assert_eq!(sh(&tool, &fill("")).await, expected, "also if it ends at once");
        assert_eq!(sh(&tool, "rm large*").await, GOOD);
        let text = sh(&tool, "head -c 60000000 /dev/zero > large").await;
        assert!(text.contains("[Command failed"), "{text}");
        let size = fs::metadata(folder.path().join("large")).unwrap().len();
        assert_eq!(size, 50 * 1024 * 1024, "one file is limited by the kernel");
        assert_eq!(sh(&tool, "rm large*").await, GOOD);
    }
}

#[tokio::test]
async fn there_is_no_network_unless_enabled() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(python) =
        ["/usr/bin/python3", "/usr/bin/perl"].into_iter().find(|path| Path::new(path).exists())
    else {
        eprintln!("skipped: neither /usr/bin/python3 nor /usr/bin/perl is available to open a connection");
        return;
    };
    let connect = if python.ends_with("perl") {
        format!(
            "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => \"127.0.0.1:{port}\") ? \"in\" : \"out\"'"
        )
    } else {
        format!(
            "python3 -c 'import socket; print(\"out\" if socket.socket().connect_ex((\"127.0.0.1\", {port})) else \"in\")' \
             2>/dev/null || echo out"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let mut tool = open(free(folder.path())).await;
    assert_eq!(tool.confinement().network, NetworkAccess::None);
    assert!(sh(&tool, &connect).await.starts_with("out"));
    tool.without_namespaces(true);
    assert!(sh(&tool, &connect).await.starts_with("out"));
    let tool = open(ExecuteSettings { network: true, ..free(folder.path()) }).await;
    assert_eq!(tool.confinement().network, NetworkAccess::Open);
    assert!(sh(&tool, &connect).await.starts_with("in"));
}

/// Returns a Perl script that makes system calls and prints the name and the error number of each; 0 if it succeeded.
fn system_calls(calls: &[(String, Vec<i64>)]) -> String {
    let line = |(name, arguments): &(String, Vec<i64>)| {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        format!("$r = syscall({}); print \"{name} \", $r == -1 ? 0 + $! : 0, \"\\n\";", arguments.join(", "))
    };
    format!("perl -e '{}'", calls.iter().map(line).collect::<Vec<_>>().join(" "))
}

fn has_perl() -> bool {
    let has_perl = Path::new("/usr/bin/perl").exists();
    if !has_perl {
        eprintln!("skipped: /usr/bin/perl is not available to make system calls");
    }
    has_perl
}

#[tokio::test]
async fn no_datagram_leaves_without_network_access() {
    if !has_perl() {
        return;
    }
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let send = format!(
        "perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 0) or exit; \
         send(S, \"leak\", 0, sockaddr_in({port}, inet_aton(\"127.0.0.1\")))'"
    );
    let folder = tempfile::tempdir().unwrap();
    for network in [false, true] {
        let mut tool = open(ExecuteSettings { network, ..free(folder.path()) }).await;
        tool.without_namespaces(true);
        sh(&tool, &send).await;
        let received = receiver.recv(&mut [0; 10]);
        assert_eq!(received.is_ok(), network, "network: {network}: {received:?}");
    }
}

#[tokio::test]
async fn sockets_and_kernel_interfaces_are_refused() {
    if !has_perl() {
        return;
    }
    let named = |name: &str, arguments: &[i64]| (name.to_owned(), arguments.to_vec());
    let refused = [
        // The flag is CLONE_NEWUSER, which no capability is needed for.
        named("unshare", &[libc::SYS_unshare, 0x1000_0000]),
        named("setns", &[libc::SYS_setns, -1, 0]),
        named("clone", &[libc::SYS_clone, 0x1000_0011, 0, 0, 0, 0]),
        named("mount", &[libc::SYS_mount, 0, 0, 0, 0, 0]),
        named("umount2", &[libc::SYS_umount2, 0, 0]),
        named("fsopen", &[libc::SYS_fsopen, 0, 0]),
        named("open_tree", &[libc::SYS_open_tree, -1, 0, 0]),
        named("mount_setattr", &[libc::SYS_mount_setattr, -1, 0, 0, 0, 0]),
        named("ptrace", &[libc::SYS_ptrace, 0, 0, 0, 0]),
        named("process_vm_readv", &[libc::SYS_process_vm_readv, 0, 0, 0, 0, 0, 0]),
        named("bpf", &[libc::SYS_bpf, 0, 0, 0]),
        named("userfaultfd", &[libc::SYS_userfaultfd, 1]),
        named("io_uring_setup", &[libc::SYS_io_uring_setup, 1, 0]),
        named("io_uring_enter", &[libc::SYS_io_uring_enter, -1, 0, 0, 0, 0, 0]),
        named("perf_event_open", &[libc::SYS_perf_event_open, 0, 0, -1, -1, 0]),
        named("keyctl", &[libc::SYS_keyctl, 0, -3, 0]),
        named("add_key", &[libc::SYS_add_key, 0, 0, 0, 0, -3]),
        named("request_key", &[libc::SYS_request_key, 0, 0, 0, -3]),
        named("ioctl", &[libc::SYS_ioctl, 1, 0x5412, 0]),
    ];
    let absent = [
        named("clone3", &[libc::SYS_clone3, 0, 0]),
        named("memfd_create", &[libc::SYS_memfd_create, 0, 0]),
        named("a later call", &[463, 0]),
        #[cfg(target_arch = "x86_64")]
        named("getpid of x32", &[0x4000_0027]),
    ];
    let socket = |family: i64| (format!("family {family}"), vec![libc::SYS_socket, family, 2, 0]);
    let pair = |family: i64| (format!("pair {family}"), vec![libc::SYS_socketpair, family, 1, 0, 0]);
    // netlink, packet, alg, nfc, vsock, kcm, smc, xdp
    let never = [16, 17, 38, 39, 40, 41, 43, 44];
    let folder = tempfile::tempdir().unwrap();
    for (network, namespaces) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut tool = open(ExecuteSettings { network, ..free(folder.path()) }).await;
        if !tool.confinement().seccomp {
            eprintln!("skipped: no seccomp on this machine");
            return;
        }
        if namespaces && !tool.confinement().namespaces {
            eprintln!("skipped: no namespaces on this machine");
            continue;
        }
        tool.without_namespaces(!namespaces);
        let mut expected: Vec<(String, Vec<i64>, i32)> = Vec::new();
        let mut expect = |(name, arguments), error| expected.push((name, arguments, error));
        refused.clone().into_iter().for_each(|call| expect(call, libc::EPERM));
        absent.clone().into_iter().for_each(|call| expect(call, libc::ENOSYS));
        never.into_iter().for_each(|family| expect(socket(family), libc::EAFNOSUPPORT));
        let error = |is_allowed: bool| if is_allowed { 0 } else { libc::EAFNOSUPPORT };
        [2, 10].into_iter().for_each(|family| expect(socket(family), error(network)));
        expect(socket(1), error(namespaces));
        expect(pair(30), libc::EAFNOSUPPORT);
        // Without an address to write to, an allowed pair fails with EFAULT.
        expect(pair(1), libc::EFAULT);
        let own = |is_allowed: bool| if is_allowed { 0 } else { libc::EPERM };
        expect(named("shmget", &[libc::SYS_shmget, 0, 4096, 0o600]), own(namespaces));
        expect(named("getpid", &[libc::SYS_getpid]), 0);
        let calls: Vec<_> = expected.iter().map(|(name, call, _)| (name.clone(), call.clone())).collect();
        let text = sh(&tool, &system_calls(&calls)).await;
        let lines: Vec<String> = expected.iter().map(|(name, _, error)| format!("{name} {error}")).collect();
        assert_eq!(text, format!("{}\n{GOOD}", lines.join("\n")), "{network} {namespaces}");
    }
}

#[tokio::test]
async fn threads_and_processes_work_under_the_filters() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    // posix_spawn, pipes, and threads use clone3 where it exists.
    let text =
        sh(&tool, "seq 1 20 | xargs -P 4 -n 1 echo | sort -n | tail -1; sort --parallel=4 /dev/null").await;
    assert_eq!(text, format!("20\n{GOOD}"));
    if Path::new("/usr/bin/python3").exists() {
        let threads = "import threading as t\nx=[t.Thread(target=print, args=(n,)) for n in (1,2)]\n\
                       [(y.start(), y.join()) for y in x]";
        assert_eq!(sh(&tool, &format!("/usr/bin/python3 -c '{threads}'")).await, format!("1\n2\n{GOOD}"));
    }
}

#[tokio::test]
async fn configured_paths_are_readable_but_not_writable() {
    let (folder, named) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(named.path().join("data"), "readable").unwrap();
    let tool = open(ExecuteSettings { read: vec![named.path().to_owned()], ..free(folder.path()) }).await;
    let data = named.path().join("data");
    assert_eq!(sh(&tool, &format!("cat {}", data.display())).await, format!("readable\n{GOOD}"));
    if tool.confinement().landlock || tool.confinement().namespaces {
        assert!(sh(&tool, &format!("echo x > {}", data.display())).await.contains("[Command failed"));
    }
    assert_eq!(fs::read_to_string(data).unwrap(), "readable");
}

#[tokio::test]
async fn a_temporary_folder_is_removed_with_the_tool() {
    let tool = open(ExecuteSettings { require: Vec::new(), ..ExecuteSettings::default() }).await;
    let text = sh(&tool, "mkdir -p a/b && touch a/b/c && pwd").await;
    let folder = text.lines().next().unwrap().to_owned();
    assert!(Path::new(&folder).is_dir());
    drop(tool);
    assert!(!Path::new(&folder).exists());
}

#[tokio::test]
async fn missing_confinement_is_an_error_with_a_reason() {
    let missing = ExecuteSettings { folder: Some("/no/such/folder".into()), ..ExecuteSettings::default() };
    assert!(matches!(ExecuteTool::open(missing, launcher()).await, Err(ExecuteError::WorkFolder { .. })));
    let root = ExecuteSettings { folder: Some("/".into()), ..ExecuteSettings::default() };
    assert!(matches!(ExecuteTool::open(root, launcher()).await, Err(ExecuteError::WorkFolder { .. })));
    let short = ExecuteSettings { timeout_s: 0, ..ExecuteSettings::default() };
    assert!(matches!(ExecuteTool::open(short, launcher()).await, Err(ExecuteError::Timeout(0))));
    let deaf = ExecuteTool::open(ExecuteSettings::default(), Launcher::at("/bin/true")).await;
    assert!(matches!(deaf, Err(ExecuteError::Launcher { .. })));
    let none = ExecuteTool::open(ExecuteSettings::default(), Launcher::at("/no/such/launcher")).await;
    assert!(matches!(none, Err(ExecuteError::Launcher { .. })));
    let both = ExecuteSettings {
        require: vec![ConfinementKind::Landlock, ConfinementKind::Namespace],
        ..ExecuteSettings::default()
    };
    match ExecuteTool::open(both, launcher()).await {
        Ok(tool) => assert!(tool.confinement().landlock && tool.confinement().namespaces),
        Err(ExecuteError::NotConfined { detected, .. }) => {
            assert!(!(detected.landlock && detected.namespaces))
        }
        Err(ExecuteError::Root) => eprintln!("skipped: this is root, without a limit to its processes"),
        Err(other) => panic!("{other}"),
    }
}
