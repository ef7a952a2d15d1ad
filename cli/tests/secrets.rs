//! Secrets in every place of a capability file that takes one, with services, MCP servers, programs, hooks and a model that send back what
//! they get, refuse and cut: nothing that is kept or shown has any of them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Value, json};

use crate::support::needs_nats_server;
use crate::support::user::{CliUser, PATIENCE};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/echo.py");

/// Makes secrets, and the environment that holds some of them.
#[derive(Default)]
struct Planter {
    secrets: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Planter {
    /// Returns a new secret. Its beginning is unique; its end has characters that encodings change.
    fn plant(&mut self) -> String {
        let core = uuid::Uuid::new_v4().simple().to_string();
        let ends = ["", "+/=", "%&\"<", " x'>\\", "ü?#€"];
        let end = ends[self.secrets.len() % ends.len()];
        self.secrets.push(core[..20].to_owned());
        format!("{}{end}", &core[..20])
    }

    /// Returns a secret that a header can hold.
    fn plant_ascii(&mut self) -> String {
        self.plant().replace(['ü', '€'], "~")
    }

    /// Returns the name of a variable with a new secret.
    fn plant_variable(&mut self) -> String {
        let name = format!("SECRET_{}", self.environment.len());
        let value = self.plant_ascii();
        self.environment.push((name.clone(), value));
        name
    }

    fn plant_in_url(&mut self, port: u16, path: &str) -> String {
        let mut url = url::Url::parse(&format!("http://127.0.0.1:{port}{path}")).unwrap();
        let (password, key) = (self.plant(), self.plant());
        url.set_username("user").unwrap();
        url.set_password(Some(&password)).unwrap();
        url.query_pairs_mut().append_pair("api_key", &key);
        url.to_string()
    }
}

struct EchoServer(Child);

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start_echo_server(user: &CliUser) -> (EchoServer, u16) {
    let file = user.path_of("port");
    let child = Command::new("python3").arg(SCRIPT).arg(format!("port={}", file.display())).spawn().unwrap();
    let started = Instant::now();
    while !file.exists() {
        assert!(started.elapsed() < PATIENCE, "the server does not start");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    (EchoServer(child), fs::read_to_string(file).unwrap().parse().unwrap())
}

fn build_capabilities(planter: &mut Planter, port: u16) -> Vec<Value> {
    let mut all = Vec::new();
    for path in ["/text", "/data", "/refuse", "/cut", "/wait", "/data-more"] {
        let (literal, variable) = (planter.plant_ascii(), planter.plant_variable());
        all.push(json!({
            "kind": "http", "name": format!("service-{}", &path[1..]), "description": "x", "timeout": 5, "effect": "pure",
            "url": planter.plant_in_url(port, path),
            "headers": {"X-Literal": literal, "X-Variable": format!("Token token=${{{variable}}}")},
        }));
    }
    for mode in ["text", "data", "fail"] {
        let environment = [planter.plant_variable(), planter.plant_variable()];
        let argument = format!("--token={}", planter.plant());
        all.push(json!({
            "kind": "command", "name": format!("program-{mode}"), "description": "x", "effect": "pure",
            "command": ["python3", SCRIPT, "program", mode, argument], "environment": environment,
        }));
    }
    let hook = [planter.plant_variable(), planter.plant_variable()];
    let hook_argument = format!("--secret={}", planter.plant());
    let (header, own_key) = (planter.plant_ascii(), planter.plant_variable());
    let mut mcp: Vec<Value> = ["near", "far"]
        .into_iter()
        .map(|name| {
            let headers =
                json!({"X-One": planter.plant_variable(), "Authorization": planter.plant_variable()});
            json!({"name": name, "url": planter.plant_in_url(port, "/mcp"), "headers": headers})
        })
        .collect();
    let env = [planter.plant_variable(), planter.plant_variable()];
    let args = [
        SCRIPT.to_owned(),
        "--password".to_owned(),
        planter.plant(),
        format!("--api-key={}", planter.plant()),
    ];
    mcp.push(json!({"name": "local", "command": "python3", "args": args, "env": env}));
    let agent = |name: &str, mcp: Value| {
        json!({
            "name": name, "description": "x", "instructions": "Tell.", "mcp": mcp,
            "model": {
                "name": "openai:echo", "base_url": format!("http://127.0.0.1:{port}/v1"), "key_variable": own_key,
                "extra_headers": {"X-Model": header},
            },
            "hooks": [{
                "on": ["before_tool", "after_tool", "after_model"], "environment": hook,
                "command": ["python3", SCRIPT, "hook", hook_argument],
            }],
        })
    };
    all.push(agent("agent", json!(mcp)));
    let away = json!([{"name": "away", "url": planter.plant_in_url(1, "/mcp"), "headers": {"X-One": planter.plant_variable()}}]);
    all.push(agent("lost", away));
    all
}

fn read_all(folder: &Path, bytes: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, bytes);
        } else if let Ok(content) = fs::read(&path) {
            bytes.push((path.display().to_string(), content));
        }
    }
}

/// The forms in which the beginning of a secret would show.
fn forms(secret: &str) -> [String; 8] {
    let start = &secret[..12];
    let hex = data_encoding::HEXLOWER.encode(start.as_bytes());
    let inside = |before: &str| {
        let encoded = data_encoding::BASE64_NOPAD.encode(format!("{before}{start}").as_bytes());
        encoded[(before.len() * 4).div_ceil(3)..].to_owned()
    };
    let units: String = start.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let percent: String = start.bytes().map(|byte| format!("%{byte:02x}")).collect();
    [start.to_owned(), hex.to_uppercase(), hex, inside(""), inside("a"), inside("ab"), units, percent]
}

#[test]
fn planted_secrets_are_in_nothing_that_is_kept() {
    needs_nats_server!();
    let user = CliUser::new();
    let (_server, port) = start_echo_server(&user);
    let mut planter = Planter::default();
    let capabilities = build_capabilities(&mut planter, port);
    assert!(planter.secrets.len() >= 50, "{} secrets", planter.secrets.len());
    let mut plan = "objective: tell everything\ntasks:\n".to_owned();
    let mut arguments =
        vec!["run".to_owned(), "--plan".into(), "plan.yaml".into(), "--workers".into(), "1".into()];
    for capability in &capabilities {
        let name = capability["name"].as_str().unwrap();
        user.write_file(&format!("{name}.yaml"), &capability.to_string());
        plan.push_str(&format!(
            "  - {{id: {name}, objective: tell, capability: {name}, limits: {{max_attempts: 1}}}}\n"
        ));
        arguments.extend(["--capability".to_owned(), format!("{name}.yaml")]);
    }
    user.write_file("plan.yaml", &plan);
    let run = |arguments: &[&str]| {
        let mut command = user.millrace_command(arguments);
        let output = command.envs(planter.environment.iter().cloned()).output().unwrap();
        [output.stdout, output.stderr].concat()
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut kept = vec![("run".to_owned(), run(&[&arguments[..], &["--detach"]].concat()))];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown: Value = serde_json::from_slice(
            &user.millrace_command(&["show", "latest", "--json"]).output().unwrap().stdout,
        )
        .unwrap_or_default();
        if shown["state"].as_str().is_some_and(|state| state != "running" && state != "submitted") {
            break;
        }
        assert!(Instant::now() < deadline, "{shown:#}\n{}", String::from_utf8_lossy(&kept[0].1));
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    let tasks: Vec<Vec<&str>> = capabilities
        .iter()
        .map(|it| vec!["show", "latest", it["name"].as_str().unwrap(), "--json"])
        .collect();
    let views =
        [&["show", "latest", "--json"][..], &["show", "latest"], &["audit"], &["capabilities", "--json"]];
    for arguments in views.into_iter().chain(tasks.iter().map(Vec::as_slice)) {
        kept.push((arguments.join(" "), run(arguments)));
    }
    kept.push(("backup".into(), run(&["backup", "copy"])));
    read_all(&user.path_of("copy"), &mut kept);
    read_all(&user.path_of("data"), &mut kept);

    let names: Vec<&String> = kept.iter().map(|(name, _)| name).collect();
    for told in ["[hidden]", "told and cut [hidden]", "hooked", "echo [hidden]"] {
        let told_pattern = Regex::new(&regex::escape(told)).unwrap();
        assert!(kept.iter().any(|(_, bytes)| told_pattern.is_match(bytes)), "{told} is nowhere: {names:?}");
    }
    let all: Vec<String> =
        planter.secrets.iter().flat_map(|secret| forms(secret)).map(|form| regex::escape(&form)).collect();
    let secret_pattern = RegexBuilder::new(&all.join("|")).size_limit(1 << 28).build().unwrap();
    let mut leaks = Vec::new();
    for (name, bytes) in &kept {
        for found in secret_pattern.find_iter(bytes) {
            let around = &bytes[found.start().saturating_sub(150)..(found.end() + 60).min(bytes.len())];
            leaks.push(format!("in {name}: {}", String::from_utf8_lossy(around).escape_debug()));
        }
    }
    assert!(leaks.is_empty(), "{} leaks, such as\n{}", leaks.len(), leaks[..leaks.len().min(12)].join("\n"));
}
