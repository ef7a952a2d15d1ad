//! `execute` by real commands: what they get, and what they can't get at. Each escape is tried with everything that
//! this machine has to confine it; where it lacks something, the test says so and is passed over.
#![allow(clippy::unwrap_used, reason = "helpers of tests too")]
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_agent::tool::{Call, Effect, Tool, ToolError};
use millrace_tools::execute::{Confined, Execute, Launcher, Network, OpenError, Settings};
use serde_json::json;

fn launcher() -> Launcher {
    Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"))
}

async fn open(settings: Settings) -> Execute {
    Execute::open(settings, launcher()).await.unwrap()
}

/// Settings that require nothing.
fn free(folder: &Path) -> Settings {
    Settings { folder: Some(folder.to_owned()), require: Vec::new(), ..Settings::default() }
}

async fn sh(tool: &Execute, command: &str) -> String {
    call(tool, json!({"command": command})).await.unwrap()
}

async fn call(tool: &Execute, arguments: serde_json::Value) -> Result<String, ToolError> {
    tool.call(arguments, &Call::default()).await.map(|output| output.text)
}

const GOOD: &str = "[Command succeeded with exit code 0]";

#[tokio::test]
async fn a_command_gives_back_what_it_prints_in_order_and_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    assert_eq!(tool.effect(), Effect::Effect);
    assert_eq!(sh(&tool, "echo one; echo two >&2; echo three").await, format!("one\ntwo\nthree\n{GOOD}"));
    assert_eq!(sh(&tool, "true").await, GOOD);
    assert_eq!(sh(&tool, "exit 7").await, "[Command failed with exit code 7]");
    assert_eq!(sh(&tool, "kill -TERM $$").await, "[Command failed with exit code 143: signal 15 ended it]");
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
async fn a_program_gets_its_words_and_its_input_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let run = async |words: &[&str], limit| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        tool.program(&words, b"in $HOME\n'x'", Duration::from_millis(limit)).await.unwrap()
    };
    for (words, code, said) in [
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
        assert_eq!((ended.code, ended.said.as_str()), (code, said), "{words:?}");
    }
    assert_eq!(run(&["no-such-program"], 20_000).await.code, Some(127));
    let began = Instant::now();
    assert_eq!(run(&["sleep", "60"], 300).await.code, None);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    assert!(tool.program(&["a\0b".to_owned()], b"", Duration::from_secs(1)).await.is_err());
}

#[tokio::test]
async fn a_command_gets_path_home_and_what_the_settings_name() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { env: vec!["CARGO_PKG_NAME".into(), "NOT_THERE".into()], ..free(folder.path()) };
    let tool = open(settings).await;
    let text = sh(&tool, "env").await;
    let mut names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    // The shell sets PWD, and some shells more of their own.
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    assert_eq!(names, ["CARGO_PKG_NAME", "HOME", "PATH"]);
    assert!(text.contains(&format!("HOME={}\n", real(folder.path()))), "{text}");
}

#[tokio::test]
async fn what_does_not_end_in_time_is_killed_whole() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let began = Instant::now();
    let text =
        call(&tool, json!({"command": "echo begun; sleep 1000 & sleep 1000", "timeout": 1})).await.unwrap();
    assert_eq!(text, "begun\n[Command failed with exit code 124: it did not end within 1 s and was killed]");
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

/// Waits until no process on this machine has `mark` in its command line, and says whether that came to pass.
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

/// Daemons as they are made: forked twice, in a session of their own, deaf to what can be ignored.
fn daemon(seconds: &str) -> String {
    format!(
        "(trap '' HUP TERM INT; setsid sleep {seconds} & setsid sh -c '(sleep {seconds} &) ; :') >/dev/null 2>&1 &"
    )
}

#[tokio::test]
async fn nothing_that_a_command_starts_outlives_it_with_namespaces_or_without() {
    for (namespaces, seconds) in [(true, "98761"), (false, "98762")] {
        let folder = tempfile::tempdir().unwrap();
        let mut tool = open(free(folder.path())).await;
        if namespaces && !tool.confinement().namespaces {
            eprintln!("passed over: no namespaces on this machine");
            continue;
        }
        tool.without_namespaces(!namespaces);
        let text = sh(&tool, &format!("{} sleep 0.2; echo done", daemon(seconds))).await;
        assert_eq!(text, format!("done\n{GOOD}"));
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
        // The same when it is killed, and when nobody waits for it any more.
        let killed = json!({"command": format!("{} sleep {seconds}", daemon(seconds)), "timeout": 1});
        assert!(call(&tool, killed.clone()).await.unwrap().contains("exit code 124"));
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
        let forgotten = tokio::time::timeout(Duration::from_millis(500), call(&tool, killed)).await;
        assert!(forgotten.is_err());
        assert!(none_left(seconds).await, "namespaces: {namespaces}");
    }
}

#[tokio::test]
async fn a_flood_of_output_is_cut_to_its_head_and_tail() {
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    let text = sh(&tool, "echo first; yes 0123456789 | head -c 30000000; echo last").await;
    assert!(text.len() < 101_000, "{}", text.len());
    assert!(text.starts_with("first\n") && text.ends_with(&format!("last\n{GOOD}")));
    assert!(text.contains("bytes left out"));
    let endless = json!({"command": "yes", "timeout": 1});
    assert!(call(&tool, endless).await.unwrap().ends_with("was killed]"));
}

/// `name`, then a command that must not print `LEAK` or leave a mark outside, in paragraphs.
const ESCAPES: &str = include_str!("corpora/escapes.txt");

#[tokio::test]
async fn no_escape_of_the_corpus_leaves_its_folder() {
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = outside.path().join("work");
    fs::create_dir(&folder).unwrap();
    fs::write(outside.path().join("secret"), "LEAK").unwrap();
    for namespaces in [true, false] {
        let mut tool = open(free(&folder)).await;
        if !tool.confinement().landlock || (namespaces && !tool.confinement().namespaces) {
            eprintln!("passed over: this machine has only {}", tool.confinement());
            continue;
        }
        tool.without_namespaces(!namespaces);
        // Scripts that signal whatever they can are tried only where a harmless signal does not arrive.
        let reached = sh(&tool, &format!("kill -0 {} && echo reached", std::process::id())).await;
        let signals_stay = !reached.contains("reached");
        assert_eq!(signals_stay, tool.confinement().signals || tool.confinement().namespaces);
        let mut tried = 0;
        for case in ESCAPES.split("\n---\n") {
            let (name, script) = case.split_once('\n').unwrap();
            if script.contains("kill ") && (!signals_stay || (script.contains("-1") && !namespaces)) {
                eprintln!("passed over: {name}: signals are not confined, or only by landlock");
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
async fn a_fork_bomb_stays_small_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.processes = 64;
    let tool = open(settings).await;
    if !tool.confinement().processes {
        eprintln!(
            "passed over: root's processes are not limited on this machine, and a bomb would take all of it"
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
async fn sizes_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = free(folder.path());
    settings.limits.file_size_mb = 1;
    settings.limits.memory_mb = 64;
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

#[tokio::test]
async fn there_is_no_network_unless_it_is_opened() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(python) =
        ["/usr/bin/python3", "/usr/bin/perl"].into_iter().find(|path| Path::new(path).exists())
    else {
        eprintln!(
            "passed over: neither /usr/bin/python3 nor /usr/bin/perl is here to open a connection with"
        );
        return;
    };
    let connect = if python.ends_with("perl") {
        format!(
            "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => \"127.0.0.1:{port}\") ? \"in\" : \"out\"'"
        )
    } else {
        format!(
            "python3 -c 'import socket; print(\"out\" if socket.socket().connect_ex((\"127.0.0.1\", {port})) else \"in\")'"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let tool = open(free(folder.path())).await;
    if tool.confinement().network == Network::Open {
        eprintln!("passed over: this machine has only {}", tool.confinement());
    } else {
        assert!(sh(&tool, &connect).await.starts_with("out"));
    }
    let tool = open(Settings { network: true, ..free(folder.path()) }).await;
    assert_eq!(tool.confinement().network, Network::Open);
    assert!(sh(&tool, &connect).await.starts_with("in"));
}

#[tokio::test]
async fn what_the_settings_name_can_be_read_and_not_written() {
    let (folder, named) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(named.path().join("data"), "readable").unwrap();
    let tool = open(Settings { read: vec![named.path().to_owned()], ..free(folder.path()) }).await;
    let data = named.path().join("data");
    assert_eq!(sh(&tool, &format!("cat {}", data.display())).await, format!("readable\n{GOOD}"));
    if tool.confinement().landlock || tool.confinement().namespaces {
        assert!(sh(&tool, &format!("echo x > {}", data.display())).await.contains("[Command failed"));
    }
    assert_eq!(fs::read_to_string(data).unwrap(), "readable");
}

#[tokio::test]
async fn a_folder_of_its_own_goes_with_the_tool() {
    let tool = open(Settings { require: Vec::new(), ..Settings::default() }).await;
    let text = sh(&tool, "mkdir -p a/b && touch a/b/c && pwd").await;
    let folder = text.lines().next().unwrap().to_owned();
    assert!(Path::new(&folder).is_dir());
    drop(tool);
    assert!(!Path::new(&folder).exists());
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let missing = Settings { folder: Some("/no/such/folder".into()), ..Settings::default() };
    assert!(matches!(Execute::open(missing, launcher()).await, Err(OpenError::Folder { .. })));
    let root = Settings { folder: Some("/".into()), ..Settings::default() };
    assert!(matches!(Execute::open(root, launcher()).await, Err(OpenError::Folder { .. })));
    let short = Settings { timeout_s: 0, ..Settings::default() };
    assert!(matches!(Execute::open(short, launcher()).await, Err(OpenError::Timeout(0))));
    let deaf = Execute::open(Settings::default(), Launcher::at("/bin/true")).await;
    assert!(matches!(deaf, Err(OpenError::Launcher { .. })));
    let none = Execute::open(Settings::default(), Launcher::at("/no/such/launcher")).await;
    assert!(matches!(none, Err(OpenError::Launcher { .. })));
    let both = Settings { require: vec![Confined::Landlock, Confined::Namespace], ..Settings::default() };
    match Execute::open(both, launcher()).await {
        Ok(tool) => assert!(tool.confinement().landlock && tool.confinement().namespaces),
        Err(OpenError::NotConfined { found, .. }) => assert!(!(found.landlock && found.namespaces)),
        Err(OpenError::Root) => eprintln!("passed over: this is root, without a limit to its processes"),
        Err(other) => panic!("{other}"),
    }
}
