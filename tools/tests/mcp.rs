//! MCP servers for real: `mcp-server-time`, and one by the official Python package, over both transports. Where they
//! can't be had, the tests say what is missing and pass over.
#![allow(clippy::unwrap_used, reason = "helpers of tests too")]
#![cfg(feature = "mcp")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_agent::tool::{Call, Effect, ToolError, Toolbox};
use millrace_tests::python::python;
use millrace_tools::execute::Launcher;
use millrace_tools::mcp::{Pool, Server};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

/// The packages that the servers are in.
const PACKAGES: [&str; 2] = ["mcp==2.3.0", "mcp-server-time"];

/// A program of the environment that those packages are in.
fn installed(program: &str) -> Option<PathBuf> {
    let found = python(&PACKAGES).map(|python| python.with_file_name(program));
    found.inspect_err(|why| eprintln!("passed over: no {program}: {why}")).ok()
}

fn pool() -> Pool {
    Pool::new(Some(Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"))))
}

fn server(settings: Value) -> Server {
    serde_json::from_value(settings).unwrap()
}

/// The stub, and the folder in which it says what it does.
struct Stub {
    folder: tempfile::TempDir,
    python: PathBuf,
    served: Option<(Child, u16)>,
}

impl Stub {
    fn new() -> Option<Self> {
        Some(Self { folder: tempfile::tempdir().unwrap(), python: installed("python")?, served: None })
    }

    fn script() -> &'static str {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/stub.py")
    }

    fn stdio(&self) -> Server {
        let args = [Self::script(), self.folder.path().to_str().unwrap()];
        server(json!({"name": "stub", "command": self.python, "args": args, "timeout_s": 20}))
    }

    /// Serves over HTTP; at the port it had, if it has served before.
    async fn http(&mut self) -> Server {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port = self.served.as_ref().map_or_else(free, |(_, port)| *port);
        let child = Command::new(&self.python)
            .args([Self::script(), self.folder.path().to_str().unwrap(), &port.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.served = Some((child, port));
        until("the stub serves", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        server(json!({"name": "stub", "url": format!("http://127.0.0.1:{port}/mcp"), "timeout_s": 20}))
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.folder.path().join("notes")).unwrap_or_default()
    }

    fn pid(&self) -> Pid {
        let text = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        Pid::from_raw(text.parse().unwrap()).unwrap()
    }

    fn kill(&mut self) {
        match &mut self.served {
            Some((child, _)) => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            None => kill_process(self.pid(), Signal::KILL).unwrap(),
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if self.served.is_some() {
            self.kill();
        }
    }
}

/// Waits until something is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn toolbox(pool: &Pool, server: &Server) -> Toolbox {
    Toolbox::new(pool.tools(server).await.unwrap()).unwrap()
}

fn names(tools: &Toolbox) -> Vec<String> {
    tools.specs().iter().map(|spec| spec.name.clone()).collect()
}

async fn call(tools: &Toolbox, name: &str, arguments: Value) -> Result<String, ToolError> {
    tools.get(name).unwrap().call(arguments, &Call::default()).await.map(|output| output.text)
}

fn told(result: Result<String, ToolError>) -> String {
    match result {
        Err(ToolError::Failed { told, .. } | ToolError::Refused(told)) => told,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_time_is_asked_of_a_server_that_others_wrote() {
    let Some(program) = installed("mcp-server-time") else { return };
    let pool = pool();
    let settings = json!({"name": "time", "command": program, "args": ["--local-timezone", "Europe/Berlin"]});
    let tools = toolbox(&pool, &server(settings.clone())).await;
    assert_eq!(names(&tools), ["time_convert_time", "time_get_current_time"]);
    let spec = tools.get("time_get_current_time").unwrap().spec();
    assert_eq!(spec.schema["properties"]["timezone"]["type"], "string");
    let text = call(&tools, "time_get_current_time", json!({"timezone": "Asia/Tokyo"})).await.unwrap();
    assert!(text.contains("\"timezone\"") && text.contains("Asia/Tokyo"), "{text}");
    let wrong = told(call(&tools, "time_get_current_time", json!({"timezone": "Mars/Olympus"})).await);
    assert!(wrong.contains("Mars"), "{wrong}");
    let mut some = server(settings);
    some.include = vec!["get_*".into()];
    some.prefix = Some(String::new());
    assert_eq!(names(&toolbox(&pool, &some).await), ["get_current_time"]);
    pool.close().await;
}

/// What holds over either transport.
async fn speaks(pool: &Pool, server: &Server) {
    let tools = toolbox(pool, server).await;
    let expected = ["child", "fail", "flood", "grow", "header", "put", "read", "who_is_it", "write"];
    assert_eq!(names(&tools), expected.map(|name| format!("stub_{name}")));
    let effect = |name: &str| tools.get(name).unwrap().effect();
    assert_eq!(effect("stub_write"), Effect::Effect);
    assert_eq!(effect("stub_read"), Effect::Pure);
    assert_eq!(effect("stub_put"), Effect::Idempotent);
    assert_eq!(call(&tools, "stub_read", json!({"seconds": 0})).await.unwrap(), "read done");
    assert!(told(call(&tools, "stub_fail", json!({})).await).contains("it never works"));
    let both = futures::join!(
        call(&tools, "stub_read", json!({"seconds": 0.5})),
        call(&tools, "stub_put", json!({"seconds": 0.5}))
    );
    assert_eq!((both.0.unwrap().as_str(), both.1.unwrap().as_str()), ("read done", "put done"));
    let short = Server { max_result: Some(10), ..server.clone() };
    let flood = call(&toolbox(pool, &short).await, "stub_flood", json!({"chars": 300_000})).await.unwrap();
    assert!(flood.starts_with("xxxxxxxxxx\n[cut: the result has 300000 characters"), "{}", flood.len());
}

#[tokio::test]
async fn a_server_speaks_over_standard_input_and_output() {
    let Some(stub) = Stub::new() else { return };
    let pool = pool();
    speaks(&pool, &stub.stdio()).await;
    let tools = toolbox(&pool, &stub.stdio()).await;
    let who = call(&tools, "stub_who_is_it", json!({})).await.unwrap();
    assert!(who.contains("'PATH'") && !who.contains("CARGO"), "{who}");
    pool.close().await;
}

#[tokio::test]
async fn a_server_speaks_over_http_and_gets_its_headers() {
    let Some(mut stub) = Stub::new() else { return };
    let server = stub.http().await;
    let pool = pool();
    speaks(&pool, &server).await;
    let with_header =
        Server { headers: [("x-test".into(), "CARGO_PKG_NAME".into())].into(), ..server.clone() };
    let text = call(&toolbox(&pool, &with_header).await, "stub_header", json!({})).await.unwrap();
    assert_eq!(text, "millrace-tools");
    let lacking = Server { headers: [("x-test".into(), "NO_SUCH_VARIABLE".into())].into(), ..server };
    let error = pool.tools(&lacking).await.err().unwrap().to_string();
    assert!(error.contains("needs NO_SUCH_VARIABLE"), "{error}");
    pool.close().await;
}

#[tokio::test]
async fn a_tool_that_a_server_adds_is_there_when_it_is_asked_again() {
    let Some(stub) = Stub::new() else { return };
    let pool = pool();
    let tools = toolbox(&pool, &stub.stdio()).await;
    call(&tools, "stub_grow", json!({})).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !names(&toolbox(&pool, &stub.stdio()).await).contains(&"stub_grown".to_owned()) {
        assert!(Instant::now() < deadline, "the change was never noticed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool.close().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_and_the_connection_stays() {
    let Some(stub) = Stub::new() else { return };
    let pool = pool();
    let hasty = Server { timeout_s: Some(1), ..stub.stdio() };
    let tools = toolbox(&pool, &hasty).await;
    let text = told(call(&tools, "stub_write", json!({"seconds": 60})).await);
    assert!(text.contains("did not answer within 1 s") && text.contains("outcome is unknown"), "{text}");
    until("the server hears of it", || stub.notes().contains("write cancelled")).await;
    let before = stub.pid();
    assert_eq!(call(&tools, "stub_read", json!({"seconds": 0})).await.unwrap(), "read done");
    assert_eq!(stub.pid(), before);
    pool.close().await;
}

/// A server killed in mid-call: what the model is told, and that the next call finds it back.
async fn killed(pool: &Pool, server: &Server, mut stub: Stub, over_http: bool) {
    let tools = Arc::new(toolbox(pool, server).await);
    for (name, expected) in [
        ("write", "its outcome is unknown"),
        ("read", "it changes nothing: call it again"),
        ("put", "doing it twice does no harm"),
    ] {
        let running = tokio::spawn({
            let tools = Arc::clone(&tools);
            async move { call(&tools, &format!("stub_{name}"), json!({"seconds": 60})).await }
        });
        until("the call runs", || stub.notes().contains(&format!("{name} begins"))).await;
        let began = Instant::now();
        stub.kill();
        let text = told(running.await.unwrap());
        assert!(text.contains("was cut off") && text.contains(expected), "{text}");
        assert!(began.elapsed() < Duration::from_secs(10), "{name} noticed after {:?}", began.elapsed());
        if over_http {
            stub.http().await;
        }
        let again = call(&tools, "stub_read", json!({"seconds": 0})).await;
        assert_eq!(again, Ok("read done".to_owned()), "after {name}");
    }
    assert_eq!(stub.notes().matches("write begins").count(), 1, "nothing is sent twice in silence");
    pool.close().await;
}

#[tokio::test]
async fn a_program_killed_in_mid_call_is_told_of_and_comes_back() {
    let Some(stub) = Stub::new() else { return };
    let (pool, server) = (pool(), stub.stdio());
    killed(&pool, &server, stub, false).await;
}

#[tokio::test]
async fn an_http_server_killed_in_mid_call_is_told_of_and_comes_back() {
    let Some(mut stub) = Stub::new() else { return };
    let (pool, server) = (pool(), stub.http().await);
    killed(&pool, &server, stub, true).await;
}

#[tokio::test]
async fn closing_the_pool_ends_the_programs_and_what_they_started() {
    let Some(stub) = Stub::new() else { return };
    let pool = pool();
    let tools = toolbox(&pool, &stub.stdio()).await;
    let child: i32 = call(&tools, "stub_child", json!({})).await.unwrap().parse().unwrap();
    let child = Pid::from_raw(child).unwrap();
    assert!(test_kill_process(child).is_ok());
    drop(tools);
    pool.close().await;
    until("the server is gone", || test_kill_process(stub.pid()).is_err()).await;
    until("what it started is gone", || test_kill_process(child).is_err()).await;
}

/// Not a test: what the next one starts and kills.
#[tokio::test]
#[ignore = "a part of another test"]
async fn held_until_killed() {
    let folder = std::env::var("HELD_FOLDER").unwrap();
    let python = std::env::var("HELD_PYTHON").unwrap();
    // A program that goes on when its standard input closes.
    let stays = format!("echo $$ > {folder}/shell; {python} {} {folder}; exec sleep 98765", Stub::script());
    let settings = server(json!({"name": "stays", "command": "/bin/sh", "args": ["-c", stays]}));
    let pool = pool();
    pool.tools(&settings).await.unwrap();
    fs::write(format!("{folder}/held"), "").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_process_that_is_killed_takes_its_servers_with_it() {
    let Some(stub) = Stub::new() else { return };
    let folder = stub.folder.path();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "held_until_killed", "--ignored"])
        .env("HELD_FOLDER", folder)
        .env("HELD_PYTHON", &stub.python)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it holds its server", || folder.join("held").exists()).await;
    let shell = fs::read_to_string(folder.join("shell")).unwrap();
    let shell = Pid::from_raw(shell.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(shell).is_ok());
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the program is gone", || test_kill_process(shell).is_err()).await;
    until("the server is gone", || test_kill_process(stub.pid()).is_err()).await;
}

#[tokio::test]
async fn a_server_that_is_none_is_told_of_and_tried_less_and_less_often() {
    let pool = pool();
    let none = server(json!({"name": "none", "command": "/no/such/program"}));
    let error = pool.tools(&none).await.err().unwrap().to_string();
    assert!(error.contains("\"none\""), "{error}");
    let mute = server(json!({"name": "mute", "command": "/bin/true"}));
    let error = pool.tools(&mute).await.err().unwrap().to_string();
    assert!(error.contains("does not speak MCP"), "{error}");
    let began = Instant::now();
    for _ in 0..3 {
        assert!(pool.tools(&mute).await.is_err());
    }
    // 200, 400 and 800 ms.
    assert!(began.elapsed() > Duration::from_millis(1_300), "{:?}", began.elapsed());
    let wrong = server(json!({"name": "wrong"}));
    assert!(pool.tools(&wrong).await.err().unwrap().to_string().contains("command or url is missing"));
}
