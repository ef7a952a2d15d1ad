//! Exit codes of every program, for every way to start it: 2 for refused input, 4 for an unusable environment, 0 for an
//! ordinary stop. Scripts and process managers rely on them.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use millrace_tests::cluster::{remove_millrace_variables, wait_for_exit};
use millrace_tests::program::{millrace_program, role_program};
use millrace_tests::{NatsServer, wait_for_value, web};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const STOPPED: i32 = 0;
const REFUSED: i32 = 2;
const ENVIRONMENT: i32 = 4;
const DEADLINE: Duration = Duration::from_secs(120);

/// A port on which nothing listens.
const UNREACHABLE: &str = "nats://127.0.0.1:1";

/// The roles. Each can be started in two ways, see [`role_programs`].
const ROLES: [&str; 3] = ["supervisor", "worker", "critic"];

/// A folder with files that the arguments below refer to.
fn create_input_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("broken.yaml", "name: a b\n");
    write("unknown-field.yaml", "{name: a, description: A., instructions: Do it., colour: red}");
    write("no-plan.yaml", "objective: x\ntasks: []\n");
    fs::create_dir(folder.path().join("empty")).unwrap();
    folder
}

fn program_command(program: &Path, folder: &Path, arguments: &str) -> Command {
    let mut command = remove_millrace_variables(Command::new(program));
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command.env("MILLRACE_DATA", folder.join("data"));
    command.env("MILLRACE_DOCUMENT_CACHE", folder.join("documents"));
    for key in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"] {
        command.env_remove(key);
    }
    command
}

/// The two ways to start a role: `millrace ROLE` and `millrace-ROLE`, each as a program and its first argument.
fn role_programs(role: &str) -> [(std::path::PathBuf, String); 2] {
    [
        (millrace_program().to_owned(), role.to_owned()),
        (role_program(&format!("millrace-{role}")), String::new()),
    ]
}

/// Starts all commands at the same time, waits for all, and returns those with another exit code than `code`.
fn commands_with_other_code(commands: Vec<Command>, code: i32) -> Vec<String> {
    let started: Vec<(Command, Child)> = commands
        .into_iter()
        .map(|mut command| {
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            (command, child)
        })
        .collect();
    let ended = started.into_iter().map(|(command, child)| (command, child.wait_with_output().unwrap()));
    let wrong = ended.filter(|(_, output)| output.status.code() != Some(code));
    wrong
        .map(|(command, output)| format!("{command:?}: {:?} {}", output.status, stderr_text(&output)))
        .collect()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn refused_input_exits_with_2_in_every_role() {
    let folder = create_input_folder();
    let mut commands = Vec::new();
    for (role, arguments) in [
        ("supervisor", "--nosuch"),
        ("supervisor", "--lanes 0"),
        ("supervisor", "--replicas 2"),
        ("supervisor", "--lane-lease soon"),
        ("supervisor", "--http nowhere"),
        ("supervisor", "--id a.b"),
        ("worker", "--nosuch"),
        ("worker", "--slots 0"),
        ("worker", "--id a.b"),
        ("worker", "--http nowhere"),
        ("worker", "--model nosuch:x"),
        ("worker", "--model openai:a,"),
        ("worker", "--model research=nosuch:x"),
        ("worker", "--capability nosuch"),
        ("worker", "--capability nosuch.yaml"),
        ("worker", "--capability broken.yaml"),
        ("worker", "--capability unknown-field.yaml"),
        ("critic", "--nosuch"),
        ("critic", "--slots 0"),
        ("critic", "--id a.b"),
        ("critic", "--model nosuch:x"),
        ("critic", "--model openai:a,"),
    ] {
        for (program, first) in role_programs(role) {
            commands.push(program_command(&program, folder.path(), &format!("{first} {arguments}")));
        }
    }
    assert_eq!(commands_with_other_code(commands, REFUSED), Vec::<String>::new());
}

#[test]
fn a_capability_that_is_offered_twice_exits_with_2() {
    let folder = create_input_folder();
    let file = "{name: twice, description: A., instructions: Do it.}";
    fs::write(folder.path().join("a.yaml"), file).unwrap();
    fs::write(folder.path().join("b.yaml"), file).unwrap();
    let start = |(program, first): &(std::path::PathBuf, String)| {
        program_command(program, folder.path(), &format!("{first} --capability a.yaml --capability b.yaml"))
    };
    let commands = role_programs("worker").iter().map(start).collect();
    assert_eq!(commands_with_other_code(commands, REFUSED), Vec::<String>::new());
}

#[test]
fn refused_input_exits_with_2_in_every_command() {
    let folder = create_input_folder();
    let commands = [
        "",
        "nosuch",
        "run",
        "run x --nosuch",
        "run x --model nosuch:x",
        "run x --capability broken.yaml",
        "run x --docs empty",
        "run --plan no-plan.yaml",
        "run x --workers 100000",
        "run x --log nonsense=foo=bar",
        "run x --out not/there/x.md",
        "resume --result not/there/x.json",
        "resume --nosuch",
        "up --nosuch",
        "up --model nosuch:x",
        "up --capability broken.yaml",
        "down --nosuch",
        "submit",
        "submit x --model nosuch:x",
        "submit --plan no-plan.yaml",
        "watch --nosuch",
        "list --nosuch",
        "show --nosuch",
        "cancel --nosuch",
        "pause --nosuch",
        "edit",
        "retry",
        "add",
        "tell",
        "files --nosuch",
        "limits --nosuch",
        "limits set a:b --requests 1",
        "replay --nosuch",
        "backup",
        "restore",
        "schema nosuch",
        "doctor --nosuch",
        "nats-config --lanes 0",
        "bench nosuch",
        "metrics",
        "metrics --http nowhere",
        "serve --api nowhere",
        "serve --api 0.0.0.0:7070",
    ];
    let commands = commands
        .iter()
        .map(|arguments| program_command(millrace_program(), folder.path(), arguments))
        .collect();
    assert_eq!(commands_with_other_code(commands, REFUSED), Vec::<String>::new());
}

#[test]
fn an_unreachable_server_exits_with_4() {
    let folder = create_input_folder();
    let mut commands = Vec::new();
    for (program, first) in ROLES.iter().flat_map(|role| role_programs(role)) {
        commands.push(program_command(&program, folder.path(), &format!("{first} --nats {UNREACHABLE}")));
    }
    for arguments in [
        "metrics --http 127.0.0.1:0",
        "submit x",
        "watch abc",
        "list",
        "show abc",
        "cancel abc",
        "pause abc",
        "retry abc a",
        "tell abc x",
        "files abc",
        "limits",
        "replay abc",
        "backup to",
    ] {
        commands.push(program_command(
            millrace_program(),
            folder.path(),
            &format!("{arguments} --nats {UNREACHABLE}"),
        ));
    }
    // Without --nats: no cluster runs on the data folder.
    for arguments in ["list", "show abc", "submit x", "pause abc"] {
        commands.push(program_command(millrace_program(), folder.path(), arguments));
    }
    assert_eq!(commands_with_other_code(commands, ENVIRONMENT), Vec::<String>::new());
}

#[test]
fn a_missing_key_exits_with_4() {
    let folder = create_input_folder();
    let mut commands: Vec<Command> = ["run x --model openai:a", "up --model openai:a"]
        .map(|arguments| program_command(millrace_program(), folder.path(), arguments))
        .into();
    for (program, first) in ["worker", "critic"].iter().flat_map(|role| role_programs(role)) {
        commands.push(program_command(&program, folder.path(), &format!("{first} --model openai:a")));
    }
    assert_eq!(commands_with_other_code(commands, ENVIRONMENT), Vec::<String>::new());
}

#[test]
fn a_missing_mcp_program_exits_with_4() {
    let folder = create_input_folder();
    let file =
        "{name: clock, description: A., instructions: Do it., mcp: [{name: time, command: no-such-mcp}]}";
    fs::write(folder.path().join("clock.yaml"), file).unwrap();
    let command = |text| program_command(millrace_program(), folder.path(), text);
    let commands = ["run x --capability clock.yaml", "up --capability clock.yaml"].map(command).into();
    assert_eq!(commands_with_other_code(commands, ENVIRONMENT), Vec::<String>::new());
}

#[test]
fn a_setting_that_differs_from_that_of_the_cluster_exits_with_4() {
    let folder = create_input_folder();
    fs::write(
        folder.path().join("one.yaml"),
        "objective: x\ntasks: [{id: a, objective: x, capability: echo}]",
    )
    .unwrap();
    let run = |more: &str| {
        program_command(millrace_program(), folder.path(), &format!("run --plan one.yaml {more}"))
            .output()
            .unwrap()
    };
    let first = run("");
    assert!(first.status.success(), "{}", stderr_text(&first));
    let second = run("--lane-lease 7s");
    assert_eq!(second.status.code(), Some(ENVIRONMENT), "{}", stderr_text(&second));
    assert!(
        stderr_text(&second).contains("lane lease is 2000 ms, requested 7000 ms"),
        "{}",
        stderr_text(&second)
    );
    assert!(!stderr_text(&second).contains("run started"), "nothing is submitted: {}", stderr_text(&second));
}

#[test]
fn an_address_in_use_exits_with_4() {
    let folder = create_input_folder();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut programs: Vec<_> = ROLES.iter().flat_map(|role| role_programs(role)).collect();
    programs.push((millrace_program().to_owned(), "metrics".into()));
    let start = |(program, first): &(std::path::PathBuf, String)| {
        program_command(program, folder.path(), &format!("{first} --http {address} --nats {UNREACHABLE}"))
    };
    let commands = programs.iter().map(start).collect();
    assert_eq!(commands_with_other_code(commands, ENVIRONMENT), Vec::<String>::new());
}

/// A process with a page, which is killed when the test fails.
struct RoleProcess {
    child: Child,
    name: String,
    port: u16,
}

impl RoleProcess {
    fn start(program: &Path, first: &str, folder: &Path, server: &str) -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let arguments = format!("{first} --nats {server} --http 127.0.0.1:{port}");
        let mut command = program_command(program, folder, &arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, name: format!("{command:?}"), port }
    }

    async fn wait_for_http_ok(&self, page: &str) {
        wait_for_value(DEADLINE, &format!("{page} of {}", self.name), async || {
            let (status, _) = web::http_get(Ipv4Addr::LOCALHOST, self.port, page).await?;
            (status == 200).then_some(())
        })
        .await;
    }

    fn stop_and_check_exit_code(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = wait_for_exit(&self.name, &mut self.child);
        assert_eq!(status.code(), Some(STOPPED), "{}", self.name);
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start_all_processes(folder: &Path, server: &str) -> Vec<RoleProcess> {
    let mut programs: Vec<_> = ROLES.iter().flat_map(|role| role_programs(role)).collect();
    programs.push((millrace_program().to_owned(), "metrics".into()));
    programs.iter().map(|(program, first)| RoleProcess::start(program, first, folder, server)).collect()
}

#[tokio::test]
async fn a_process_of_a_cluster_that_is_stopped_exits_with_0() {
    let (folder, server) = (create_input_folder(), NatsServer::start());
    let processes = start_all_processes(folder.path(), &server.url);
    for process in &processes {
        process.wait_for_http_ok("/readyz").await;
    }
    processes.into_iter().for_each(RoleProcess::stop_and_check_exit_code);
}

#[tokio::test]
async fn a_process_that_is_stopped_before_it_joins_exits_with_0() {
    let folder = create_input_folder();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let processes = start_all_processes(folder.path(), &format!("nats://{}", silent.local_addr().unwrap()));
    for process in &processes {
        process.wait_for_http_ok("/livez").await;
    }
    processes.into_iter().for_each(RoleProcess::stop_and_check_exit_code);
}

#[tokio::test]
async fn a_local_cluster_that_is_stopped_exits_with_0() {
    let folder = create_input_folder();
    let mut up = program_command(millrace_program(), folder.path(), "up");
    let mut child = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The cluster exists when the command refuses an unknown run, rather than failing to find a cluster.
    let is_up = async || {
        let pause = program_command(millrace_program(), folder.path(), "pause nosuch").output().unwrap();
        (pause.status.code() == Some(REFUSED)).then_some(())
    };
    wait_for_value(DEADLINE, "a local cluster", is_up).await;
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(wait_for_exit("millrace up", &mut child).code(), Some(STOPPED));
}

/// Returns the environment of a running process, as other processes see it.
fn visible_environment(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', "\n").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[cfg(target_os = "linux")]
async fn no_role_shows_its_environment_after_the_start() {
    let (folder, server) = (create_input_folder(), NatsServer::start());
    let mut programs: Vec<_> = ROLES.iter().flat_map(|role| role_programs(role)).collect();
    programs.push((millrace_program().to_owned(), "metrics".into()));
    programs.push((millrace_program().to_owned(), "serve".into()));
    // The first supervisor creates the cluster.
    let mut started: Vec<(String, Child)> = Vec::new();
    for (program, first) in &programs {
        let arguments = match first.as_str() {
            "serve" => format!("serve --api 127.0.0.1:0 --nats {}", server.url),
            first => format!("{first} --http 127.0.0.1:0 --nats {}", server.url),
        };
        let mut command = program_command(program, folder.path(), &arguments);
        command.env("SOME_PROVIDER_API_KEY", "canary-key").env("MILLRACE_TEST_MARK", "marked");
        command.env("NAME_WITHOUT_VALUE", "").env("ÜMLAUT", "canary-ü");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        started.push((format!("{} {arguments}", program.display()), child));
    }
    for (name, child) in &started {
        wait_for_value(DEADLINE, &format!("the environment of {name} is hidden"), async || {
            (visible_environment(child.id()) == "MILLRACE_TEST_MARK=marked").then_some(())
        })
        .await;
    }
    for (name, child) in &mut started {
        assert!(child.try_wait().unwrap().is_none(), "{name} has ended");
        kill_process(Pid::from_child(child), Signal::KILL).unwrap();
        wait_for_exit(name, child);
    }
}
