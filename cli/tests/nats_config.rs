//! `millrace nats-config` and `millrace doctor`: the real binary writes a folder, a real nats-server uses it, and clients
//! try to connect. The permissions of each identity have tests of their own in `tests/`.

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
use millrace_runtime::nats::connection::{ConnectionSettings, Credentials, TlsFiles};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{MILLRACE, find_check_result, needs_nats_server};
const DEADLINE: Duration = Duration::from_secs(120);
/// The default identities of a folder.
const IDENTITIES: [&str; 13] = [
    "supervisor",
    "worker-echo",
    "worker-planner",
    "worker-producer",
    "worker-research",
    "worker-worker",
    "critic",
    "client",
    "gateway",
    "viewer",
    "answerer",
    "metrics",
    "backup",
];

// ---- the command ----

/// A folder written by the command, within a temporary one.
struct GeneratedConfig(TempDir);

impl GeneratedConfig {
    fn new(arguments: &[&str]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.run_successfully(arguments);
        folder
    }

    fn folder_path(&self) -> PathBuf {
        self.0.path().join("nats")
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.folder_path().join(name)
    }

    fn run_nats_config(&self, arguments: &[&str]) -> Output {
        Command::new(MILLRACE)
            .args(["nats-config", "--out"])
            .arg(self.folder_path())
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs the command, which must succeed, and returns its output.
    fn run_successfully(&self, arguments: &[&str]) -> String {
        let output = self.run_nats_config(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the command, which must refuse, and returns its error.
    fn run_refused(&self, arguments: &[&str]) -> String {
        let before = self.file_contents();
        let output = self.run_nats_config(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(self.file_contents(), before, "a refused command writes nothing");
        String::from_utf8(output.stderr).unwrap()
    }

    fn file_contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        read_files_recursively(&self.folder_path())
    }

    fn seed_path(&self, tenant: &str, identity: &str) -> PathBuf {
        self.file_path(&format!("seeds/{tenant}/{identity}.nk"))
    }

    fn credentials_path(&self, tenant: &str, identity: &str) -> PathBuf {
        self.file_path(&format!("seeds/{tenant}/{identity}.creds"))
    }

    fn tls_files(&self) -> TlsFiles {
        TlsFiles {
            authorities: Some(self.file_path("tls/ca.crt")),
            identity: Some((self.file_path("tls/client.crt"), self.file_path("tls/client.key"))),
        }
    }

    /// The environment of a process that may connect.
    fn client_environment(&self) -> BTreeMap<&'static str, PathBuf> {
        BTreeMap::from([
            ("MILLRACE_NATS_NKEY", self.seed_path("millrace", "client")),
            ("MILLRACE_NATS_CA", self.file_path("tls/ca.crt")),
            ("MILLRACE_NATS_CERT", self.file_path("tls/client.crt")),
            ("MILLRACE_NATS_KEY", self.file_path("tls/client.key")),
        ])
    }
}

fn read_files_recursively(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else { return files };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(read_files_recursively(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

// ---- the server ----

/// A nats-server on a folder; killed when dropped.
struct ServerProcess {
    child: Child,
    lines: Receiver<String>,
    port: u16,
    _store: TempDir,
}

impl ServerProcess {
    fn start(program: &Path, folder: &GeneratedConfig) -> Self {
        let store = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.file_path("nats.conf")).envs([
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
            .env("NATS_TLS_CERT", folder.file_path("tls/server.crt"))
            .env("NATS_TLS_KEY", folder.file_path("tls/server.key"))
            .env("NATS_TLS_CA", folder.file_path("tls/ca.crt"));
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = read_lines_in_thread(child.stderr.take().unwrap());
        let mut server = Self { child, lines, port: 0, _store: store };
        let listening = server.wait_for_log_line("Listening for client connections on ");
        server.port = listening.rsplit(':').next().unwrap().trim().parse().unwrap();
        server.wait_for_log_line("Server is ready");
        server
    }

    /// Waits for the next line that contains `text`.
    fn wait_for_log_line(&self, text: &str) -> String {
        let started = Instant::now();
        let mut output = String::new();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE.saturating_sub(started.elapsed())) {
            if line.contains(text) {
                return line;
            }
            output += &line;
            output.push('\n');
        }
        panic!("no line with {text:?} in:\n{output}");
    }

    /// Reloads the configuration.
    fn reload_config(&self) {
        kill_process(self.pid(), Signal::HUP).unwrap();
        self.wait_for_log_line("Reloaded server configuration");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn url(&self) -> String {
        format!("nats://localhost:{}", self.port)
    }

    /// Connects a client.
    async fn connect_with(
        &self,
        credentials: Credentials,
        tls: TlsFiles,
    ) -> Result<Client, ConnectErrorKind> {
        let connection = ConnectionSettings { url: self.url(), credentials, tls };
        let options = connection.build_connect_options().await.unwrap().connection_timeout(DEADLINE);
        options.connect(connection.server_urls()).await.map_err(|error| error.kind())
    }

    async fn connect_with_seed(
        &self,
        folder: &GeneratedConfig,
        seed: PathBuf,
    ) -> Result<Client, ConnectErrorKind> {
        self.connect_with(Credentials::NkeyFile(seed), folder.tls_files()).await
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_lines_in_thread(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
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

/// Sends a request that only the server can answer: JetStream account information.
async fn request_account_info(client: &Client) -> jetstream::account::Account {
    jetstream::new(client.clone()).query_account().await.unwrap()
}

/// Waits until the server closes a connection.
async fn wait_for_disconnect(client: &Client) {
    let started = Instant::now();
    while client.connection_state() == State::Connected {
        assert!(started.elapsed() < DEADLINE, "the server still accepts a revoked key");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const REFUSED: Result<(), ConnectErrorKind> = Err(ConnectErrorKind::AuthorizationViolation);

fn without_client(admitted: Result<Client, ConnectErrorKind>) -> Result<(), ConnectErrorKind> {
    admitted.map(drop)
}

// ---- authentication ----

#[tokio::test]
async fn each_identity_can_connect_with_its_seed() {
    let program = needs_nats_server!();
    let folder = GeneratedConfig::new(&[]);
    let server = ServerProcess::start(program, &folder);
    for identity in IDENTITIES {
        let client = server.connect_with_seed(&folder, folder.seed_path("millrace", identity)).await.unwrap();
        request_account_info(&client).await;
    }
    let system = server.connect_with_seed(&folder, folder.file_path("seeds/SYS/system.nk")).await.unwrap();
    let answer = system.request("$SYS.REQ.SERVER.PING", "".into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["server"]["name"], "alone");
}

#[tokio::test]
async fn unknown_identities_are_rejected() {
    let program = needs_nats_server!();
    let (folder, other) = (GeneratedConfig::new(&[]), GeneratedConfig::new(&[]));
    let server = ServerProcess::start(program, &folder);
    let password = Credentials::Password { user: "millrace".into(), password: "millrace".into() };
    for credentials in [
        Credentials::None,
        password,
        Credentials::NkeyFile(other.seed_path("millrace", "supervisor")),
        Credentials::NkeyFile(other.file_path("seeds/SYS/system.nk")),
    ] {
        assert_eq!(without_client(server.connect_with(credentials, folder.tls_files()).await), REFUSED);
    }
}

#[tokio::test]
async fn only_certificates_of_the_own_authority_are_accepted() {
    let program = needs_nats_server!();
    let (folder, other) = (GeneratedConfig::new(&[]), GeneratedConfig::new(&[]));
    let server = ServerProcess::start(program, &folder);
    let knows = |folder: &GeneratedConfig| folder.tls_files().authorities;
    let shows = |folder: &GeneratedConfig| folder.tls_files().identity;
    for (authorities, identity) in [
        (None, None),
        (knows(&folder), None),
        (knows(&folder), shows(&other)),
        (knows(&other), shows(&folder)),
        (None, shows(&folder)),
    ] {
        let seed = Credentials::NkeyFile(folder.seed_path("millrace", "client"));
        let admitted = server.connect_with(seed, TlsFiles { authorities, identity }).await;
        assert_eq!(without_client(admitted), Err(ConnectErrorKind::Io));
    }
    let seed = folder.seed_path("millrace", "client");
    assert_eq!(without_client(server.connect_with_seed(&folder, seed).await), Ok(()));
}

#[tokio::test]
async fn without_tls_only_the_identity_is_checked() {
    let program = needs_nats_server!();
    let folder = GeneratedConfig::new(&["--no-tls"]);
    assert!(!folder.file_path("tls").exists());
    let server = ServerProcess::start(program, &folder);
    let seed = || Credentials::NkeyFile(folder.seed_path("millrace", "client"));
    assert_eq!(without_client(server.connect_with(seed(), TlsFiles::default()).await), Ok(()));
    assert_eq!(without_client(server.connect_with(Credentials::None, TlsFiles::default()).await), REFUSED);
}

#[tokio::test]
async fn permissions_are_enforced_and_inboxes_are_private() {
    let program = needs_nats_server!();
    for mode in [&[][..], &["--jwt"]] {
        let folder = GeneratedConfig::new(mode);
        let server = ServerProcess::start(program, &folder);
        let credentials = |identity| match mode {
            [] => Credentials::NkeyFile(folder.seed_path("millrace", identity)),
            _ => Credentials::File(folder.credentials_path("millrace", identity)),
        };
        let (events, mut received) = tokio::sync::mpsc::unbounded_channel();
        let connection = ConnectionSettings {
            url: server.url(),
            credentials: credentials("viewer"),
            tls: folder.tls_files(),
        };
        let options = connection.build_connect_options().await.unwrap().event_callback(move |event| {
            drop(events.send(event.to_string()));
            std::future::ready(())
        });
        let viewer = options.connect(connection.server_urls()).await.unwrap();
        // The reply arrives below the inbox prefix of this identity.
        request_account_info(&viewer).await;

        let critic = fs::read_to_string(folder.seed_path("millrace", "critic")).unwrap();
        let critic = nkeys::KeyPair::from_seed(critic.trim()).unwrap().public_key();
        let _foreign = viewer.subscribe(format!("_INBOX.{critic}.>")).await.unwrap();
        viewer.publish("lane.0.run.x.plan", "forged".into()).await.unwrap();
        viewer.flush().await.unwrap();
        for refused in ["Subscription to \"_INBOX.", "Publish to \"lane.0.run.x.plan\""] {
            loop {
                let event = tokio::time::timeout(DEADLINE, received.recv()).await.unwrap().unwrap();
                let event = event.to_ascii_lowercase();
                if event.contains("permissions violation") && event.contains(&refused.to_ascii_lowercase()) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn tenants_are_isolated_and_have_their_own_storage() {
    let program = needs_nats_server!();
    for mode in [&[][..], &["--jwt"]] {
        let folder = GeneratedConfig::new(&[&["--tenant", "red", "--max-store", "64MB"], mode].concat());
        folder.run_successfully(&["--tenant", "blue", "--max-store", "32MB"]);
        let server = ServerProcess::start(program, &folder);
        let enter = async |tenant, identity| {
            let credentials = match mode {
                [] => Credentials::NkeyFile(folder.seed_path(tenant, identity)),
                _ => Credentials::File(folder.credentials_path(tenant, identity)),
            };
            server.connect_with(credentials, folder.tls_files()).await.unwrap()
        };
        let (red, blue) = (enter("red", "supervisor").await, enter("blue", "supervisor").await);
        let made = stream::Config {
            name: "KV_runs".into(),
            subjects: vec!["$KV.runs.>".into()],
            ..stream::Config::default()
        };
        jetstream::new(red.clone()).create_stream(made).await.unwrap();
        let (red, blue) = (request_account_info(&red).await, request_account_info(&blue).await);
        assert_eq!((red.streams, blue.streams), (1, 0));
        assert_eq!((red.limits.max_storage, blue.limits.max_storage), (Some(64 << 20), Some(32 << 20)));
        let limits = [red.limits.max_streams, blue.limits.max_streams];
        assert!(limits.iter().all(|limit| limit.is_some_and(|limit| limit > 16)), "{limits:?}");
    }
}

#[tokio::test]
async fn subscriptions_of_a_tenant_are_limited() {
    let program = needs_nats_server!();
    for mode in [&[][..], &["--jwt"]] {
        let folder = GeneratedConfig::new(mode);
        let accounts = folder.file_path("accounts.conf");
        let text = fs::read_to_string(&accounts).unwrap();
        if mode.is_empty() {
            for limit in ["max_connections: 5000", "max_subscriptions: 200000", "max_consumers: 10000"] {
                assert!(text.contains(limit), "{limit}: {text}");
            }
            // The server enforces them: with a lower limit a second connection is refused.
            fs::write(&accounts, text.replace("max_connections: 5000", "max_connections: 1")).unwrap();
        }
        let server = ServerProcess::start(program, &folder);
        let credentials = || match mode {
            [] => Credentials::NkeyFile(folder.seed_path("millrace", "viewer")),
            _ => Credentials::File(folder.credentials_path("millrace", "viewer")),
        };
        let first = server.connect_with(credentials(), folder.tls_files()).await.unwrap();
        if mode.is_empty() {
            assert!(server.connect_with(credentials(), folder.tls_files()).await.is_err());
        }
        first.flush().await.unwrap();
    }
}

// ---- key rotation ----

#[tokio::test]
async fn both_keys_work_during_a_rotation() {
    let program = needs_nats_server!();
    let folder = GeneratedConfig::new(&[]);
    let server = ServerProcess::start(program, &folder);
    let seed = folder.seed_path("millrace", "worker-research");
    let old = folder.0.path().join("a copy");
    fs::copy(&seed, &old).unwrap();
    let at_work = server.connect_with_seed(&folder, old.clone()).await.unwrap();

    folder.run_successfully(&["--rotate", "worker-research"]);
    assert_ne!(fs::read(&seed).unwrap(), fs::read(&old).unwrap());
    let old_seed = folder.file_path("seeds/millrace/worker-research.old.nk");
    assert_eq!(fs::read(&old_seed).unwrap(), fs::read(&old).unwrap());
    server.reload_config();
    request_account_info(&at_work).await;
    for seed in [&old, &seed] {
        assert_eq!(without_client(server.connect_with_seed(&folder, seed.clone()).await), Ok(()));
    }

    folder.run_successfully(&["--retire", "worker-research"]);
    server.reload_config();
    wait_for_disconnect(&at_work).await;
    assert!(!old_seed.exists());
    assert_eq!(without_client(server.connect_with_seed(&folder, old).await), REFUSED);
    assert_eq!(without_client(server.connect_with_seed(&folder, seed).await), Ok(()));
}

#[tokio::test]
async fn both_credentials_files_work_during_a_rotation() {
    let program = needs_nats_server!();
    let folder = GeneratedConfig::new(&["--jwt"]);
    let server = ServerProcess::start(program, &folder);
    let credentials = folder.credentials_path("millrace", "worker-research");
    let old = folder.0.path().join("a copy");
    fs::copy(&credentials, &old).unwrap();
    let enter = async |path: &Path| {
        without_client(server.connect_with(Credentials::File(path.to_owned()), folder.tls_files()).await)
    };
    assert_eq!(enter(&credentials).await, Ok(()));

    folder.run_successfully(&["--rotate", "worker-research"]);
    server.reload_config();
    assert_ne!(fs::read(&credentials).unwrap(), fs::read(&old).unwrap());
    assert_eq!((enter(&old).await, enter(&credentials).await), (Ok(()), Ok(())));
    let at_work = server.connect_with(Credentials::File(old.clone()), folder.tls_files()).await.unwrap();

    folder.run_successfully(&["--retire", "worker-research"]);
    server.reload_config();
    wait_for_disconnect(&at_work).await;
    assert_eq!((enter(&old).await, enter(&credentials).await), (REFUSED, Ok(())));
    // Later changes do not affect it.
    folder.run_successfully(&["--worker", "analyst"]);
    server.reload_config();
    assert_eq!((enter(&old).await, enter(&credentials).await), (REFUSED, Ok(())));
    assert_eq!(enter(&folder.credentials_path("millrace", "worker-analyst")).await, Ok(()));
}

#[test]
fn a_rotation_must_finish_before_the_next_one() {
    let folder = GeneratedConfig::new(&[]);
    assert!(folder.run_refused(&["--retire", "critic"]).contains("millrace/critic has only one key"));
    folder.run_successfully(&["--rotate", "critic"]);
    assert!(folder.run_refused(&["--rotate", "critic"]).contains("finish that rotation with --retire first"));
    let stderr = folder.run_refused(&["--rotate", "worker-reserch"]);
    assert!(
        stderr.contains("unknown identity \"worker-reserch\"; existing ones: ")
            && stderr.contains("worker-research")
    );
}

// ---- the folder ----

#[test]
fn a_second_run_changes_nothing() {
    for mode in [&[][..], &["--jwt"], &["--no-tls"]] {
        let folder = GeneratedConfig::new(mode);
        let before = folder.file_contents();
        assert!(folder.run_successfully(&[]).contains("no changes"));
        assert_eq!(folder.file_contents(), before);
    }
}

#[test]
fn a_new_worker_adds_an_identity_and_changes_little_else() {
    let folder = GeneratedConfig::new(&["--host", "nats.example.org", "--lanes", "4"]);
    let before = folder.file_contents();
    folder.run_successfully(&["--worker", "vision,analyst"]);
    let after = folder.file_contents();
    let mut changed: Vec<String> = after
        .iter()
        .filter(|(path, text)| before.get(*path) != Some(text))
        .map(|(path, _)| path.strip_prefix(folder.folder_path()).unwrap().display().to_string())
        .collect();
    changed.sort();
    assert_eq!(
        changed,
        ["accounts.conf", "kustomization.yaml", "seeds/millrace/worker-analyst-vision.nk", "settings.json"]
    );
    assert!(before.keys().all(|path| after.contains_key(path)));
}

#[test]
fn workers_with_the_same_name_are_refused() {
    let folder = GeneratedConfig::new(&["--worker", "a-b"]);
    assert!(
        folder
            .run_refused(&["--worker", "a,b"])
            .contains("worker-a-b and worker-a-b would have the same name")
    );
    assert!(folder.run_refused(&["--worker", "A_b"]).contains("would have the same name"));
}

#[test]
fn the_number_of_lanes_never_decreases() {
    let folder = GeneratedConfig::new(&["--lanes", "4"]);
    let stderr = folder.run_refused(&["--lanes", "3"]);
    assert!(
        stderr.contains("settings.json has 4 lanes") && stderr.contains("fixed when a cluster is created")
    );
    folder.run_successfully(&["--lanes", "4"]);
    folder.run_successfully(&["--lanes", "5"]);
    assert!(folder.run_refused(&["--lanes", "4"]).contains("settings.json has 5 lanes"));
}

#[test]
fn a_limit_needs_a_tenant_if_there_are_several() {
    let folder = GeneratedConfig::new(&["--tenant", "red"]);
    let stderr = folder.run_refused(&["--tenant", "blue", "--max-store", "2GB"]);
    assert!(stderr.contains("--tenant red --max-store SIZE"), "red has no limit yet: {stderr}");
    folder.run_successfully(&["--max-store", "1GB"]);
    let stderr = folder.run_refused(&["--tenant", "blue"]);
    assert!(stderr.contains("--tenant blue --max-store SIZE"), "{stderr}");
    folder.run_successfully(&["--tenant", "blue", "--max-store", "3GB"]);
    let stderr = folder.run_refused(&["--max-store", "2GB"]);
    assert!(stderr.contains("none is given; existing tenants: blue, red"), "{stderr}");
    folder.run_successfully(&["--tenant", "blue", "--max-store", "2GB"]);
    let settings: Value =
        serde_json::from_slice(&fs::read(folder.file_path("settings.json")).unwrap()).unwrap();
    let limit = |tenant: &str| settings["tenants"][tenant]["max_store"].as_u64();
    assert_eq!((limit("red"), limit("blue")), (Some(1 << 30), Some(2 << 30)));
}

#[test]
fn git_ignores_the_folder() {
    let folder = GeneratedConfig::new(&["--jwt"]);
    assert_eq!(fs::read_to_string(folder.file_path(".gitignore")).unwrap(), "*\n");
    let git =
        |arguments: &[&str]| Command::new("git").arg("-C").arg(folder.0.path()).args(arguments).output();
    let Ok(made) = git(&["init", "--quiet"]) else { return eprintln!("skipped: git is not on PATH") };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(folder.0.path().join("other"), "").unwrap();
    let seen = git(&["status", "--porcelain", "--untracked-files=all"]).unwrap();
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "?? other\n");

    fs::write(folder.file_path(".gitignore"), "# its owner's\n*\n").unwrap();
    let before = folder.file_contents();
    folder.run_successfully(&[]);
    assert_eq!(folder.file_contents(), before);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = GeneratedConfig(tempfile::tempdir().unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(MILLRACE);
    command.args(["nats-config", "--out"]).arg(folder.folder_path()).stdout(writer);
    let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn an_operating_system_error_is_printed_once() {
    let folder = GeneratedConfig(tempfile::tempdir().unwrap());
    let file = folder.0.path().join("file");
    fs::write(&file, "").unwrap();
    let output =
        Command::new(MILLRACE).args(["nats-config", "--out"]).arg(file.join("inside")).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.matches("Not a directory").count()), (Some(4), 1), "{stderr}");
    assert!(stderr.contains("inside can't be used"), "{stderr}");
}

#[test]
fn only_the_owner_can_read_the_folder() {
    let folder = GeneratedConfig::new(&[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (path, _) in folder.file_contents() {
        let is_secret = path.extension().is_some_and(|end| end == "nk" || end == "key" || end == "creds");
        assert_eq!(mode(&path), if is_secret { 0o600 } else { 0o644 }, "{}", path.display());
    }
    for folder in [
        folder.folder_path(),
        folder.file_path("seeds"),
        folder.file_path("seeds/millrace"),
        folder.file_path("tls"),
    ] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }

    fs::set_permissions(folder.folder_path(), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(folder.run_refused(&[]).contains("is readable by other users (mode 750)"));

    let empty = GeneratedConfig(tempfile::tempdir().unwrap());
    fs::create_dir(empty.folder_path()).unwrap();
    fs::set_permissions(empty.folder_path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(empty.run_successfully(&[]).contains("made inaccessible to other users"));
    assert_eq!(mode(&empty.folder_path()), 0o700);
}

#[test]
fn no_seed_is_ever_printed() {
    let folder = GeneratedConfig::new(&["--jwt"]);
    let output = [
        folder.run_successfully(&["--rotate", "critic"]),
        folder.run_successfully(&["--retire", "critic", "--tenant", "millrace"]),
        folder.run_successfully(&["--tenant", "millrace", "--tenant", "two", "--max-store", "1GB"]),
        folder.run_refused(&["--retire", "critic"]),
    ]
    .concat();
    for (path, text) in folder.file_contents() {
        if path.extension().is_some_and(|end| end == "nk") {
            let seed = String::from_utf8(text).unwrap();
            assert!(!output.contains(seed.trim()), "{}", path.display());
        }
    }
}

#[test]
fn an_invalid_seed_file_is_reported_and_kept() {
    let folder = GeneratedConfig::new(&[]);
    let seed = folder.seed_path("millrace", "critic");
    fs::write(&seed, "not one\n").unwrap();
    let stderr = folder.run_refused(&[]);
    assert!(stderr.contains("critic.nk contains no usable seed") && !stderr.contains("not one"), "{stderr}");
    fs::copy(folder.file_path("tls/ca.key"), folder.file_path("tls/ca.crt")).unwrap();
    fs::copy(folder.seed_path("millrace", "client"), &seed).unwrap();
    assert!(folder.run_refused(&[]).contains("ca.crt contains no certificate in PEM"));
}

#[test]
fn kubernetes_secrets_are_built_from_the_files() {
    let tenants = ["--tenant", "millrace", "--tenant", "two", "--max-store", "1GB"];
    let folder = GeneratedConfig::new(&[&["--worker", "My_Tool"], &tenants[..]].concat());
    let text = fs::read_to_string(folder.file_path("kustomization.yaml")).unwrap();
    let read: Value = serde_saphyr::from_str(&text).unwrap();
    let mut secrets = BTreeMap::new();
    for secret in read["secretGenerator"].as_array().unwrap() {
        let name = format!("{}/{}", secret["namespace"].as_str().unwrap(), secret["name"].as_str().unwrap());
        let files: Vec<&str> =
            secret["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
        for file in &files {
            assert!(folder.file_path(file.split_once('=').unwrap().1).is_file(), "{file}");
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
    for person in ["client", "viewer", "answerer"] {
        let secret = format!("millrace-nkey-{person}");
        assert!(!secrets.keys().any(|name| name.ends_with(&secret)), "no pod is a {person}");
        assert!(folder.seed_path("millrace", person).is_file(), "people take theirs from files");
    }
    assert_eq!(read["generatorOptions"]["disableNameSuffixHash"], true);
}

#[test]
fn kubernetes_restrictions_are_reported_every_time() {
    let folder = GeneratedConfig::new(&["--worker", "plain-1", "--tenant", "one"]);
    assert!(!folder.run_successfully(&[]).contains("note:"));
    let output =
        folder.run_successfully(&["--worker", "My_Tool,plain-2", "--worker", "ends-", "--tenant", "one"]);
    for output in [output, folder.run_successfully(&[])] {
        for name in ["My_Tool", "ends-"] {
            let note = format!("note: the manifests can't serve {name} under that name");
            assert_eq!(output.matches(&note).count(), 1, "{output}");
        }
        assert_eq!(output.matches("note:").count(), 2, "{output}");
    }

    let large = GeneratedConfig::new(&["--no-tls", "--lanes", "256"]);
    let output = large.run_successfully(&[]);
    assert!(!output.contains("note:") && output.contains("kubectl apply --server-side -k "), "{output}");
    let output = large.run_successfully(&["--tenant", "millrace", "--tenant", "two", "--max-store", "1GB"]);
    let bytes = fs::metadata(large.file_path("accounts.conf")).unwrap().len();
    assert!(
        bytes > 1 << 20 && output.contains(&format!("note: accounts.conf has {bytes} bytes")),
        "{output}"
    );
}

// ---- error messages ----

/// Runs a command with a server that it can't use; returns standard output and standard error.
fn run_with_unusable_server(
    url: &str,
    environment: &BTreeMap<&str, PathBuf>,
    command: &[&str],
) -> (String, String) {
    let mut process = Command::new(MILLRACE);
    process.args(command).args(["--nats", url]);
    for name in ["NKEY", "CREDS", "NKEY_SEED", "USER", "PASSWORD", "CA", "CERT", "KEY", "URL"] {
        process.env_remove(format!("MILLRACE_NATS_{name}"));
    }
    let output = process.envs(environment).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stdout));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Changed variables, the check of doctor that fails, its message, and the message of any other command.
type InvalidCredentialsCase<'a> = (&'a [(&'a str, PathBuf)], &'a str, &'a str, &'a str);

#[test]
fn connection_problems_are_explained() {
    let program = needs_nats_server!();
    let (folder, other) = (GeneratedConfig::new(&[]), GeneratedConfig::new(&[]));
    let server = ServerProcess::start(program, &folder);
    let seed = "MILLRACE_NATS_NKEY";
    let (authority, certificate, key) = ("MILLRACE_NATS_CA", "MILLRACE_NATS_CERT", "MILLRACE_NATS_KEY");
    let file = |name| folder.file_path(name);
    let of_other = |name| other.file_path(name);
    let cases: [InvalidCredentialsCase<'_>; 11] = [
        (
            &[(authority, file("gone.crt"))],
            "certificates",
            "gone.crt can't be read",
            "gone.crt, which can't be used: No such file",
        ),
        (
            &[(authority, file("nats.conf"))],
            "certificates",
            "nats.conf contains no certificate",
            "set MILLRACE_NATS_CA to the certificate of that authority",
        ),
        (
            &[(authority, of_other("tls/ca.crt"))],
            "certificates",
            "signed by another authority, not by the one in MILLRACE_NATS_CA",
            "presents a certificate of an unknown authority",
        ),
        (
            &[(certificate, of_other("tls/client.crt")), (key, of_other("tls/client.key"))],
            "cluster",
            "does not trust the authority that signed the certificate in MILLRACE_NATS_CERT",
            "does not trust the authority that signed the certificate in MILLRACE_NATS_CERT",
        ),
        (
            &[(certificate, PathBuf::new()), (key, PathBuf::new())],
            "cluster",
            "requires a client certificate",
            "requires a client certificate; set MILLRACE_NATS_CERT and MILLRACE_NATS_KEY",
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
            "nats.conf contains no user seed",
            "nats.conf, which can't be used",
        ),
        (
            &[(seed, other.seed_path("millrace", "client"))],
            "cluster",
            "the server does not know this identity",
            "refuses these credentials; set others with MILLRACE_NATS_NKEY",
        ),
        (
            &[(seed, PathBuf::new())],
            "cluster",
            "set MILLRACE_NATS_NKEY to the seed of an identity of the server",
            "refuses these credentials; set others with MILLRACE_NATS_NKEY",
        ),
    ];
    for (otherwise, line, of_doctor, of_any) in cases {
        let mut environment = folder.client_environment();
        environment.extend(otherwise.iter().map(|(name, path)| (*name, path.clone())));
        let (report, _) = run_with_unusable_server(&server.url(), &environment, &["doctor", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        let check = find_check_result(&report, line);
        assert_eq!(check["status"], "missing", "{of_doctor}: {report:#}");
        assert!(check.to_string().contains(of_doctor), "{of_doctor}: {report:#}");
        let (_, stderr) = run_with_unusable_server(&server.url(), &environment, &["list"]);
        assert!(stderr.contains(of_any), "{of_any}: {stderr}");
    }
}

#[test]
fn doctor_reports_no_problem_for_a_working_setup() {
    let program = needs_nats_server!();
    let folder = GeneratedConfig::new(&[]);
    let server = ServerProcess::start(program, &folder);
    let output = Command::new(MILLRACE)
        .args(["doctor", "--json", "--nats", &server.url()])
        .envs(folder.client_environment())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for line in ["identity", "certificates", "cluster"] {
        assert_eq!(find_check_result(&report, line)["status"], "ok", "{report:#}");
    }
}
