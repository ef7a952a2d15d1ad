//! `millrace nats-config` and `millrace doctor` as a user has them: the real binary writes a folder, a real nats-server
//! is started on it, and clients try to get in. What each identity may do there is tested with the permissions.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectErrorKind};
use millrace_runtime::connection::{Connection, Credentials, Tls};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

mod support;

use support::{MILLRACE, check_of, needs_nats_server};
const DEADLINE: Duration = Duration::from_secs(20);
/// Those that a folder has without being asked for more.
const IDENTITIES: [&str; 11] = [
    "supervisor",
    "worker-echo",
    "worker-planner",
    "worker-producer",
    "worker-research",
    "worker-worker",
    "critic",
    "client",
    "viewer",
    "metrics",
    "backup",
];

// ---- the command ----

/// A folder that the command writes, with room beside it.
struct Folder(TempDir);

impl Folder {
    fn new(arguments: &[&str]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.configure(arguments);
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("nats")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(MILLRACE)
            .args(["nats-config", "--out"])
            .arg(self.path())
            .args(arguments)
            .output()
            .unwrap()
    }

    /// What it says, when it does what it is asked to.
    fn configure(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says, when it refuses.
    fn refuse(&self, arguments: &[&str]) -> String {
        let before = self.contents();
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(self.contents(), before, "what refuses writes nothing");
        String::from_utf8(output.stderr).unwrap()
    }

    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        contents(&self.path())
    }

    fn seed(&self, tenant: &str, identity: &str) -> PathBuf {
        self.file(&format!("seeds/{tenant}/{identity}.nk"))
    }

    fn credentials(&self, tenant: &str, identity: &str) -> PathBuf {
        self.file(&format!("seeds/{tenant}/{identity}.creds"))
    }

    fn tls(&self) -> Tls {
        Tls {
            authorities: Some(self.file("tls/ca.crt")),
            identity: Some((self.file("tls/client.crt"), self.file("tls/client.key"))),
        }
    }

    /// The environment of a process that is let in.
    fn environment(&self) -> BTreeMap<&'static str, PathBuf> {
        BTreeMap::from([
            ("MILLRACE_NATS_NKEY", self.seed("millrace", "client")),
            ("MILLRACE_NATS_CA", self.file("tls/ca.crt")),
            ("MILLRACE_NATS_CERT", self.file("tls/client.crt")),
            ("MILLRACE_NATS_KEY", self.file("tls/client.key")),
        ])
    }
}

fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

// ---- the server ----

/// A nats-server on a folder; killed when dropped.
struct Server {
    child: Child,
    lines: Receiver<String>,
    port: u16,
    _store: TempDir,
}

impl Server {
    fn start(program: &Path, folder: &Folder) -> Self {
        let store = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.file("nats.conf")).envs([
            ("NATS_SERVER_NAME", "alone"),
            ("NATS_LISTEN", "127.0.0.1:-1"),
            ("NATS_HTTP", "127.0.0.1:-1"),
            ("NATS_CLUSTER_LISTEN", "127.0.0.1:0"),
            ("NATS_ROUTES", "[]"),
            ("NATS_ROUTES_BY_NAME", "false"),
            ("NATS_MAX_FILE_STORE", "1GB"),
        ]);
        command
            .env("NATS_STORE_DIR", store.path())
            .env("NATS_TLS_CERT", folder.file("tls/server.crt"))
            .env("NATS_TLS_KEY", folder.file("tls/server.key"))
            .env("NATS_TLS_CA", folder.file("tls/ca.crt"));
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stderr.take().unwrap());
        let mut server = Self { child, lines, port: 0, _store: store };
        let listening = server.wait_for("Listening for client connections on ");
        server.port = listening.rsplit(':').next().unwrap().trim().parse().unwrap();
        server.wait_for("Server is ready");
        server
    }

    /// The next line that has this in it.
    fn wait_for(&self, text: &str) -> String {
        let started = Instant::now();
        let mut said = String::new();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE.saturating_sub(started.elapsed())) {
            if line.contains(text) {
                return line;
            }
            said += &line;
            said.push('\n');
        }
        panic!("waited in vain for {text:?}; it said:\n{said}");
    }

    /// Has it read its files again.
    fn reload(&self) {
        kill_process(self.pid(), Signal::HUP).unwrap();
        self.wait_for("Reloaded server configuration");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn url(&self) -> String {
        format!("nats://localhost:{}", self.port)
    }

    /// Lets a client in, or says why not.
    async fn admit(&self, credentials: Credentials, tls: Tls) -> Result<Client, ConnectErrorKind> {
        let connection = Connection { url: self.url(), credentials, tls };
        let options = connection.options().await.unwrap().connection_timeout(DEADLINE);
        options.connect(connection.servers()).await.map_err(|error| error.kind())
    }

    async fn admit_as(&self, folder: &Folder, seed: PathBuf) -> Result<Client, ConnectErrorKind> {
        self.admit(Credentials::NkeyFile(seed), folder.tls()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn lines_of(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(std::io::BufReader::new(stream)).map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Says something that only the server can answer: the account's own JetStream.
async fn account(client: &Client) -> jetstream::account::Account {
    jetstream::new(client.clone()).query_account().await.unwrap()
}

/// Waits until the server has ended a client's connection.
async fn is_cut_off(client: &Client) {
    let started = Instant::now();
    while client.connection_state() == State::Connected {
        assert!(started.elapsed() < DEADLINE, "the server goes on with a key that it let in before");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const REFUSED: Result<(), ConnectErrorKind> = Err(ConnectErrorKind::AuthorizationViolation);

fn outcome(admitted: Result<Client, ConnectErrorKind>) -> Result<(), ConnectErrorKind> {
    admitted.map(drop)
}

// ---- who gets in ----

#[tokio::test]
async fn each_identity_gets_in_by_its_seed_and_the_system_has_an_account_of_its_own() {
    let program = needs_nats_server!();
    let folder = Folder::new(&[]);
    let server = Server::start(program, &folder);
    for identity in IDENTITIES {
        let client = server.admit_as(&folder, folder.seed("millrace", identity)).await.unwrap();
        account(&client).await;
    }
    let system = server.admit_as(&folder, folder.file("seeds/SYS/system.nk")).await.unwrap();
    let answer = system.request("$SYS.REQ.SERVER.PING", "".into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["server"]["name"], "alone");
}

#[tokio::test]
async fn nobody_gets_in_without_an_identity_or_with_another_one() {
    let program = needs_nats_server!();
    let (folder, other) = (Folder::new(&[]), Folder::new(&[]));
    let server = Server::start(program, &folder);
    let password = Credentials::Password { user: "millrace".into(), password: "millrace".into() };
    for credentials in [
        Credentials::None,
        password,
        Credentials::NkeyFile(other.seed("millrace", "supervisor")),
        Credentials::NkeyFile(other.file("seeds/SYS/system.nk")),
    ] {
        assert_eq!(outcome(server.admit(credentials, folder.tls()).await), REFUSED);
    }
}

#[tokio::test]
async fn nobody_gets_in_in_the_clear_or_with_no_certificate_or_with_one_of_another_authority() {
    let program = needs_nats_server!();
    let (folder, other) = (Folder::new(&[]), Folder::new(&[]));
    let server = Server::start(program, &folder);
    let knows = |folder: &Folder| folder.tls().authorities;
    let shows = |folder: &Folder| folder.tls().identity;
    for (authorities, identity) in [
        (None, None),
        (knows(&folder), None),
        (knows(&folder), shows(&other)),
        (knows(&other), shows(&folder)),
        (None, shows(&folder)),
    ] {
        let seed = Credentials::NkeyFile(folder.seed("millrace", "client"));
        let admitted = server.admit(seed, Tls { authorities, identity }).await;
        assert_eq!(outcome(admitted), Err(ConnectErrorKind::Io));
    }
    let seed = folder.seed("millrace", "client");
    assert_eq!(outcome(server.admit_as(&folder, seed).await), Ok(()));
}

#[tokio::test]
async fn without_tls_the_identity_alone_counts() {
    let program = needs_nats_server!();
    let folder = Folder::new(&["--no-tls"]);
    assert!(!folder.file("tls").exists());
    let server = Server::start(program, &folder);
    let seed = || Credentials::NkeyFile(folder.seed("millrace", "client"));
    assert_eq!(outcome(server.admit(seed(), Tls::default()).await), Ok(()));
    assert_eq!(outcome(server.admit(Credentials::None, Tls::default()).await), REFUSED);
}

#[tokio::test]
async fn what_is_not_allowed_is_refused_and_answers_reach_their_own_inbox_only() {
    let program = needs_nats_server!();
    for mode in [&[][..], &["--jwt"]] {
        let folder = Folder::new(mode);
        let server = Server::start(program, &folder);
        let credentials = |identity| match mode {
            [] => Credentials::NkeyFile(folder.seed("millrace", identity)),
            _ => Credentials::File(folder.credentials("millrace", identity)),
        };
        let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
        let connection =
            Connection { url: server.url(), credentials: credentials("viewer"), tls: folder.tls() };
        let options = connection.options().await.unwrap().event_callback(move |event| {
            drop(events.send(event.to_string()));
            std::future::ready(())
        });
        let viewer = options.connect(connection.servers()).await.unwrap();
        // An answer comes, below the prefix that is this identity's own.
        account(&viewer).await;

        let critic = fs::read_to_string(folder.seed("millrace", "critic")).unwrap();
        let critic = nkeys::KeyPair::from_seed(critic.trim()).unwrap().public_key();
        let _foreign = viewer.subscribe(format!("_INBOX.{critic}.>")).await.unwrap();
        viewer.publish("lane.0.run.x.plan", "forged".into()).await.unwrap();
        viewer.flush().await.unwrap();
        for refused in ["Subscription to \"_INBOX.", "Publish to \"lane.0.run.x.plan\""] {
            loop {
                let event = tokio::time::timeout(DEADLINE, told.recv()).await.unwrap().unwrap();
                let event = event.to_ascii_lowercase();
                if event.contains("permissions violation") && event.contains(&refused.to_ascii_lowercase()) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn tenants_are_invisible_to_each_other_and_each_has_its_own_store() {
    let program = needs_nats_server!();
    for mode in [&[][..], &["--jwt"]] {
        let folder = Folder::new(&[&["--tenant", "red", "--max-store", "64MB"], mode].concat());
        folder.configure(&["--tenant", "blue"]);
        let server = Server::start(program, &folder);
        let enter = async |tenant, identity| {
            let credentials = match mode {
                [] => Credentials::NkeyFile(folder.seed(tenant, identity)),
                _ => Credentials::File(folder.credentials(tenant, identity)),
            };
            server.admit(credentials, folder.tls()).await.unwrap()
        };
        let (red, blue) = (enter("red", "supervisor").await, enter("blue", "supervisor").await);
        let made = stream::Config {
            name: "KV_runs".into(),
            subjects: vec!["$KV.runs.>".into()],
            ..stream::Config::default()
        };
        jetstream::new(red.clone()).create_stream(made).await.unwrap();
        let (red, blue) = (account(&red).await, account(&blue).await);
        assert_eq!((red.streams, blue.streams), (1, 0));
        assert_eq!((red.limits.max_storage, blue.limits.max_storage), (Some(64 << 20), None));
    }
}

// ---- keys come and go ----

#[tokio::test]
async fn while_a_key_is_exchanged_both_get_in_and_then_the_new_one_alone() {
    let program = needs_nats_server!();
    let folder = Folder::new(&[]);
    let server = Server::start(program, &folder);
    let seed = folder.seed("millrace", "worker-research");
    let old = folder.0.path().join("a copy");
    fs::copy(&seed, &old).unwrap();
    let at_work = server.admit_as(&folder, old.clone()).await.unwrap();

    folder.configure(&["--rotate", "worker-research"]);
    assert_ne!(fs::read(&seed).unwrap(), fs::read(&old).unwrap());
    let kept = folder.file("seeds/millrace/worker-research.old.nk");
    assert_eq!(fs::read(&kept).unwrap(), fs::read(&old).unwrap());
    server.reload();
    account(&at_work).await;
    for seed in [&old, &seed] {
        assert_eq!(outcome(server.admit_as(&folder, seed.clone()).await), Ok(()));
    }

    folder.configure(&["--retire", "worker-research"]);
    server.reload();
    is_cut_off(&at_work).await;
    assert!(!kept.exists());
    assert_eq!(outcome(server.admit_as(&folder, old).await), REFUSED);
    assert_eq!(outcome(server.admit_as(&folder, seed).await), Ok(()));
}

#[tokio::test]
async fn while_a_credentials_file_is_exchanged_both_get_in_and_then_the_new_one_alone() {
    let program = needs_nats_server!();
    let folder = Folder::new(&["--jwt"]);
    let server = Server::start(program, &folder);
    let credentials = folder.credentials("millrace", "worker-research");
    let old = folder.0.path().join("a copy");
    fs::copy(&credentials, &old).unwrap();
    let enter =
        async |path: &Path| outcome(server.admit(Credentials::File(path.to_owned()), folder.tls()).await);
    assert_eq!(enter(&credentials).await, Ok(()));

    folder.configure(&["--rotate", "worker-research"]);
    server.reload();
    assert_ne!(fs::read(&credentials).unwrap(), fs::read(&old).unwrap());
    assert_eq!((enter(&old).await, enter(&credentials).await), (Ok(()), Ok(())));
    let at_work = server.admit(Credentials::File(old.clone()), folder.tls()).await.unwrap();

    folder.configure(&["--retire", "worker-research"]);
    server.reload();
    is_cut_off(&at_work).await;
    assert_eq!((enter(&old).await, enter(&credentials).await), (REFUSED, Ok(())));
    // It stays so, whatever is asked for later.
    folder.configure(&["--worker", "analyst"]);
    server.reload();
    assert_eq!((enter(&old).await, enter(&credentials).await), (REFUSED, Ok(())));
    assert_eq!(enter(&folder.credentials("millrace", "worker-analyst")).await, Ok(()));
}

#[test]
fn an_exchange_is_ended_before_the_next_one_begins() {
    let folder = Folder::new(&[]);
    assert!(folder.refuse(&["--retire", "critic"]).contains("millrace/critic has one key only"));
    folder.configure(&["--rotate", "critic"]);
    assert!(folder.refuse(&["--rotate", "critic"]).contains("end that exchange with --retire first"));
    let said = folder.refuse(&["--rotate", "worker-reserch"]);
    assert!(
        said.contains("nobody is called \"worker-reserch\"; there are ") && said.contains("worker-research")
    );
}

// ---- the folder ----

#[test]
fn a_second_run_leaves_every_byte() {
    for mode in [&[][..], &["--jwt"], &["--no-tls"]] {
        let folder = Folder::new(mode);
        let before = folder.contents();
        assert!(folder.configure(&[]).contains("as it was, nothing to do"));
        assert_eq!(folder.contents(), before);
    }
}

#[test]
fn one_more_capability_is_one_more_identity_and_nothing_else_changes_but_what_names_it() {
    let folder = Folder::new(&["--host", "nats.example.org", "--lanes", "4"]);
    let before = folder.contents();
    folder.configure(&["--worker", "vision,analyst"]);
    let after = folder.contents();
    let mut changed: Vec<String> = after
        .iter()
        .filter(|(path, text)| before.get(*path) != Some(text))
        .map(|(path, _)| path.strip_prefix(folder.path()).unwrap().display().to_string())
        .collect();
    changed.sort();
    assert_eq!(
        changed,
        ["accounts.conf", "kustomization.yaml", "seeds/millrace/worker-analyst-vision.nk", "settings.json"]
    );
    assert!(before.keys().all(|path| after.contains_key(path)));
}

#[test]
fn two_workers_that_would_have_one_name_are_refused() {
    let folder = Folder::new(&["--worker", "a-b"]);
    assert!(folder.refuse(&["--worker", "a,b"]).contains("worker-a-b and worker-a-b would have one name"));
    assert!(folder.refuse(&["--worker", "A_b"]).contains("would have one name"));
}

#[test]
fn lanes_never_become_fewer() {
    let folder = Folder::new(&["--lanes", "4"]);
    let said = folder.refuse(&["--lanes", "3"]);
    assert!(said.contains("settings.json holds 4 lanes") && said.contains("fixed when a cluster is made"));
    folder.configure(&["--lanes", "4"]);
    folder.configure(&["--lanes", "5"]);
    assert!(folder.refuse(&["--lanes", "4"]).contains("settings.json holds 5 lanes"));
}

#[test]
fn a_limit_is_for_the_tenants_that_are_named_or_for_the_only_one() {
    let folder = Folder::new(&["--tenant", "red"]);
    folder.configure(&["--max-store", "1GB"]);
    folder.configure(&["--tenant", "blue"]);
    let said = folder.refuse(&["--max-store", "2GB"]);
    assert!(said.contains("it names none; there are blue, red"), "{said}");
    folder.configure(&["--tenant", "blue", "--max-store", "2GB"]);
    let settings: Value = serde_json::from_slice(&fs::read(folder.file("settings.json")).unwrap()).unwrap();
    let limit = |tenant: &str| settings["tenants"][tenant]["max_store"].as_u64();
    assert_eq!((limit("red"), limit("blue")), (Some(1 << 30), Some(2 << 30)));
}

#[test]
fn git_sees_nothing_of_the_folder() {
    let folder = Folder::new(&["--jwt"]);
    assert_eq!(fs::read_to_string(folder.file(".gitignore")).unwrap(), "*\n");
    let git =
        |arguments: &[&str]| Command::new("git").arg("-C").arg(folder.0.path()).args(arguments).output();
    let Ok(made) = git(&["init", "--quiet"]) else { return eprintln!("passed over: git is not on PATH") };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(folder.0.path().join("other"), "").unwrap();
    let seen = git(&["status", "--porcelain", "--untracked-files=all"]).unwrap();
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "?? other\n");

    fs::write(folder.file(".gitignore"), "# its owner's\n*\n").unwrap();
    let before = folder.contents();
    folder.configure(&[]);
    assert_eq!(folder.contents(), before);
}

#[test]
fn that_nobody_reads_what_it_prints_is_no_fault() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(MILLRACE);
    command.args(["nats-config", "--out"]).arg(folder.path()).stdout(writer);
    let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn what_the_system_says_is_said_once() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let file = folder.0.path().join("file");
    fs::write(&file, "").unwrap();
    let output =
        Command::new(MILLRACE).args(["nats-config", "--out"]).arg(file.join("inside")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.matches("Not a directory").count()), (Some(4), 1), "{said}");
    assert!(said.contains("inside can't be used"), "{said}");
}

#[test]
fn only_its_owner_can_look_into_the_folder() {
    let folder = Folder::new(&[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (path, _) in folder.contents() {
        let is_secret = path.extension().is_some_and(|end| end == "nk" || end == "key" || end == "creds");
        assert_eq!(mode(&path), if is_secret { 0o600 } else { 0o644 }, "{}", path.display());
    }
    for folder in [folder.path(), folder.file("seeds"), folder.file("seeds/millrace"), folder.file("tls")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }

    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(folder.refuse(&[]).contains("others can read it (mode 750)"));

    let empty = Folder(tempfile::tempdir().unwrap());
    fs::create_dir(empty.path()).unwrap();
    fs::set_permissions(empty.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(empty.configure(&[]).contains("closed to others"));
    assert_eq!(mode(&empty.path()), 0o700);
}

#[test]
fn no_seed_is_ever_printed() {
    let folder = Folder::new(&["--jwt"]);
    let said = [
        folder.configure(&["--rotate", "critic"]),
        folder.configure(&["--retire", "critic", "--tenant", "millrace"]),
        folder.configure(&["--tenant", "two"]),
        folder.refuse(&["--retire", "critic"]),
    ]
    .concat();
    for (path, text) in folder.contents() {
        if path.extension().is_some_and(|end| end == "nk") {
            let seed = String::from_utf8(text).unwrap();
            assert!(!said.contains(seed.trim()), "{}", path.display());
        }
    }
}

#[test]
fn a_file_that_is_no_seed_is_named_and_kept() {
    let folder = Folder::new(&[]);
    let seed = folder.seed("millrace", "critic");
    fs::write(&seed, "not one\n").unwrap();
    let said = folder.refuse(&[]);
    assert!(said.contains("critic.nk holds no seed that can be used") && !said.contains("not one"), "{said}");
    fs::copy(folder.file("tls/ca.key"), folder.file("tls/ca.crt")).unwrap();
    fs::copy(folder.seed("millrace", "client"), &seed).unwrap();
    assert!(folder.refuse(&[]).contains("ca.crt holds no certificate in PEM"));
}

#[test]
fn the_secrets_of_kubernetes_are_made_of_the_files() {
    let folder = Folder::new(&["--worker", "My_Tool", "--tenant", "millrace", "--tenant", "two"]);
    let text = fs::read_to_string(folder.file("kustomization.yaml")).unwrap();
    let read: Value = serde_saphyr::from_str(&text).unwrap();
    let mut secrets = BTreeMap::new();
    for secret in read["secretGenerator"].as_array().unwrap() {
        let name = format!("{}/{}", secret["namespace"].as_str().unwrap(), secret["name"].as_str().unwrap());
        let files: Vec<&str> =
            secret["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
        for file in &files {
            assert!(folder.file(file.split_once('=').unwrap().1).is_file(), "{file}");
        }
        let keys = files.iter().map(|file| file.split_once('=').unwrap().0).collect::<Vec<_>>().join(" ");
        assert_eq!(secrets.insert(name, keys), None);
    }
    for (secret, keys) in [
        ("millrace/millrace-nats-accounts", "accounts.conf"),
        ("millrace/millrace-nats-tls", "ca.crt tls.crt tls.key"),
        ("millrace/millrace-client-tls", "ca.crt tls.crt tls.key"),
        ("millrace/millrace-nkey-supervisor", "nkey"),
        ("millrace/millrace-nkey-worker-my-tool", "nkey"),
        ("millrace/millrace-nkey-backup", "nkey"),
        ("two/millrace-client-tls", "ca.crt tls.crt tls.key"),
        ("two/millrace-nkey-worker-my-tool", "nkey"),
    ] {
        assert_eq!(secrets.get(secret).map(String::as_str), Some(keys), "{secret}");
    }
    for person in ["client", "viewer"] {
        let secret = format!("millrace-nkey-{person}");
        assert!(!secrets.keys().any(|name| name.ends_with(&secret)), "no pod is a {person}");
        assert!(folder.seed("millrace", person).is_file(), "people take theirs from files");
    }
    assert_eq!(read["generatorOptions"]["disableNameSuffixHash"], true);
}

#[test]
fn what_kubernetes_can_t_take_is_said_each_time() {
    let folder = Folder::new(&["--worker", "plain-1", "--tenant", "one"]);
    assert!(!folder.configure(&[]).contains("note:"));
    let said = folder.configure(&["--worker", "My_Tool,plain-2", "--worker", "ends-", "--tenant", "one"]);
    for said in [said, folder.configure(&[])] {
        for name in ["My_Tool", "ends-"] {
            let note = format!("note: the manifests can't serve {name} under that name");
            assert_eq!(said.matches(&note).count(), 1, "{said}");
        }
        assert_eq!(said.matches("note:").count(), 2, "{said}");
    }

    let large = Folder::new(&["--no-tls", "--lanes", "256"]);
    let said = large.configure(&[]);
    assert!(!said.contains("note:") && said.contains("kubectl apply --server-side -k "), "{said}");
    let said = large.configure(&["--tenant", "two"]);
    let bytes = fs::metadata(large.file("accounts.conf")).unwrap().len();
    assert!(bytes > 1 << 20 && said.contains(&format!("note: accounts.conf has {bytes} bytes")), "{said}");
}

// ---- what is wrong, in words ----

/// What a command for people says of a server that it can't use.
fn said_of(url: &str, environment: &BTreeMap<&str, PathBuf>, command: &[&str]) -> (String, String) {
    let mut process = Command::new(MILLRACE);
    process.args(command).args(["--nats", url]);
    for name in ["NKEY", "CREDS", "NKEY_SEED", "USER", "PASSWORD", "CA", "CERT", "KEY", "URL"] {
        process.env_remove(format!("MILLRACE_NATS_{name}"));
    }
    let output = process.envs(environment).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stdout));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// What is set otherwise, the line in which doctor says so, its words, and those of any other command.
type Case<'a> = (&'a [(&'a str, PathBuf)], &'a str, &'a str, &'a str);

#[test]
fn doctor_and_every_command_say_in_words_what_keeps_a_process_out() {
    let program = needs_nats_server!();
    let (folder, other) = (Folder::new(&[]), Folder::new(&[]));
    let server = Server::start(program, &folder);
    let seed = "MILLRACE_NATS_NKEY";
    let (authority, certificate, key) = ("MILLRACE_NATS_CA", "MILLRACE_NATS_CERT", "MILLRACE_NATS_KEY");
    let file = |name| folder.file(name);
    let of_other = |name| other.file(name);
    let cases: [Case<'_>; 10] = [
        (
            &[(authority, file("gone.crt"))],
            "certificates",
            "gone.crt can't be read",
            "gone.crt, which can't be used: No such file",
        ),
        (
            &[(authority, file("nats.conf"))],
            "certificates",
            "nats.conf holds no certificate",
            "MILLRACE_NATS_CA names those that it knows",
        ),
        (
            &[(authority, of_other("tls/ca.crt"))],
            "certificates",
            "signed by another authority than MILLRACE_NATS_CA",
            "shows a certificate of an authority that this process does not know",
        ),
        (
            &[(certificate, of_other("tls/client.crt")), (key, of_other("tls/client.key"))],
            "cluster",
            "does not know the authority that signed the certificate in MILLRACE_NATS_CERT",
            "does not know the authority that signed the certificate in MILLRACE_NATS_CERT",
        ),
        (
            &[(certificate, PathBuf::new()), (key, PathBuf::new())],
            "cluster",
            "lets nobody in without a certificate",
            "lets nobody in without a certificate; MILLRACE_NATS_CERT and MILLRACE_NATS_KEY name one",
        ),
        (
            &[(key, PathBuf::new())],
            "certificates",
            "one of MILLRACE_NATS_CERT and MILLRACE_NATS_KEY is set",
            "MILLRACE_NATS_CERT is set and MILLRACE_NATS_KEY is not; set both or neither",
        ),
        (&[(key, of_other("tls/client.key"))], "certificates", "is not the key of", "can't agree on TLS"),
        (
            &[(seed, file("gone.nk"))],
            "identity",
            "gone.nk can't be read",
            "gone.nk, which can't be used: No such file",
        ),
        (
            &[(seed, file("nats.conf"))],
            "identity",
            "nats.conf holds no seed of a user",
            "nats.conf, which can't be used",
        ),
        (
            &[(seed, other.seed("millrace", "client"))],
            "cluster",
            "the server does not know this identity",
            "refuses these credentials; name others with MILLRACE_NATS_NKEY",
        ),
    ];
    for (otherwise, line, of_doctor, of_any) in cases {
        let mut environment = folder.environment();
        environment.extend(otherwise.iter().map(|(name, path)| (*name, path.clone())));
        let (report, _) = said_of(&server.url(), &environment, &["doctor", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        let check = check_of(&report, line);
        assert_eq!(check["status"], "missing", "{of_doctor}: {report:#}");
        assert!(check.to_string().contains(of_doctor), "{of_doctor}: {report:#}");
        let (_, said) = said_of(&server.url(), &environment, &["list"]);
        assert!(said.contains(of_any), "{of_any}: {said}");
    }
}

#[test]
fn doctor_says_that_all_is_well_where_it_is() {
    let program = needs_nats_server!();
    let folder = Folder::new(&[]);
    let server = Server::start(program, &folder);
    let output = Command::new(MILLRACE)
        .args(["doctor", "--json", "--nats", &server.url()])
        .envs(folder.environment())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for line in ["identity", "certificates", "cluster"] {
        assert_eq!(check_of(&report, line)["status"], "ok", "{report:#}");
    }
}
