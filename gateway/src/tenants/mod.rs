//! The tenants of a gateway with `--tenants`: connected at the start, connected again when their files change, and added and
//! removed with their entries in the folder. A tenant that can't be connected is retried for ever; the others are served
//! meanwhile.
//!
//! # Invariants
//!
//! - I241: The account of a tenant that hangs or is away holds no request of another tenant up; tenants are added and removed
//!   while the gateway runs. (`tests/tests/gateway_tenants.rs::tenant_that_is_away_holds_no_other_up`)

mod folder;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::tenant::TenantName;
use millrace_runtime::ops::health::ServerPoller;
use millrace_runtime::ops::metrics::Gauge;
use millrace_runtime::ops::metrics::names::TENANT_CONNECTED;
use millrace_runtime::{Bus, ConnectionSettings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::access::TenantDirectory;
use crate::account::{AccountSettings, ServedAccount};
use folder::{FolderContents, TenantEntry, read_folder};

/// The interval at which the folder is read.
const INTERVAL: Duration = Duration::from_secs(2);
/// The time of an attempt to connect a tenant.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The time that the first attempts have before requests are served.
const START_TIME: Duration = Duration::from_secs(6);

pub struct TenantSettings {
    pub folder: PathBuf,
    /// The server and the certificates of tenants without their own.
    pub connection: ConnectionSettings,
    pub account: AccountSettings,
    /// Polls the servers for the health of the process.
    pub poller: Option<ServerPoller>,
}

/// A tenant that is connected, or being connected.
struct RunningTenant {
    version: String,
    stop: CancellationToken,
}

/// Keeps the tenants of a folder connected.
pub struct TenantKeeper {
    settings: Arc<TenantSettings>,
    directory: Arc<TenantDirectory>,
    running: BTreeMap<TenantName, RunningTenant>,
    tasks: TaskTracker,
    /// The problems of the folder as they were logged last.
    problems: Vec<String>,
    shutdown: CancellationToken,
}

impl TenantKeeper {
    /// Reads the folder and starts to connect its tenants. Returns when each was tried once, or after some seconds.
    pub async fn start(settings: TenantSettings, shutdown: CancellationToken) -> std::io::Result<Self> {
        let contents = read_folder(&settings.folder, &settings.connection)?;
        let mut keeper = Self {
            settings: Arc::new(settings),
            directory: Arc::default(),
            running: BTreeMap::new(),
            tasks: TaskTracker::new(),
            problems: Vec::new(),
            shutdown,
        };
        let attempts = keeper.apply(contents);
        if attempts.is_empty() {
            warn!(folder = %keeper.settings.folder.display(), "there is no tenant in the folder yet");
        }
        let attempts = async {
            for attempt in attempts {
                attempt.cancelled().await;
            }
        };
        let _ = tokio::time::timeout(START_TIME, attempts).await;
        Ok(keeper)
    }

    /// Returns the tenants for the checks of requests.
    pub fn directory(&self) -> Arc<TenantDirectory> {
        self.directory.clone()
    }

    /// Follows the folder until the process stops, and then waits for the work of all tenants.
    #[must_use]
    pub fn follow_folder(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            let shutdown = self.shutdown.clone();
            while shutdown.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
                self.read_again().await;
            }
            self.tasks.close();
            self.tasks.wait().await;
        })
    }

    async fn read_again(&mut self) {
        let settings = self.settings.clone();
        let reading = move || read_folder(&settings.folder, &settings.connection);
        match tokio::task::spawn_blocking(reading).await {
            Ok(Ok(contents)) => drop(self.apply(contents)),
            // The tenants stay: a folder that is being replaced may be away for a moment.
            Ok(Err(error)) => self.report_problems(vec![format!("it can't be read: {error}")]),
            Err(error) => self.report_problems(vec![format!("reading it failed: {error}")]),
        }
    }

    /// Stops the tenants that are gone or have changed, and starts new ones. Returns tokens that are cancelled after the first
    /// attempt to connect each of those.
    fn apply(&mut self, contents: FolderContents) -> Vec<CancellationToken> {
        let FolderContents { tenants, problems } = contents;
        self.report_problems(problems);
        let has_version = |name: &TenantName, running: &RunningTenant| {
            tenants.get(name).is_some_and(|entry| entry.version == running.version)
        };
        for (name, running) in self.running.extract_if(.., |name, running| !has_version(name, running)) {
            info!(tenant = %name, "tenant removed or changed; its streams end");
            running.stop.cancel();
            self.directory.remove(&name);
        }
        let new: Vec<_> = tenants.into_iter().filter(|(name, _)| !self.running.contains_key(name)).collect();
        new.into_iter().map(|(name, entry)| self.start_tenant(name, entry)).collect()
    }

    fn start_tenant(&mut self, name: TenantName, entry: TenantEntry) -> CancellationToken {
        let TenantEntry { connection, version } = entry;
        let (stop, first_attempt) = (self.shutdown.child_token(), CancellationToken::new());
        self.directory.add(&name);
        let connector = TenantConnector {
            name: name.clone(),
            connection,
            settings: self.settings.clone(),
            directory: self.directory.clone(),
            is_connected: TENANT_CONNECTED.with_labels(&[name.as_str()]),
            stop: stop.clone(),
            first_attempt: first_attempt.clone(),
        };
        self.tasks.spawn(connector.run());
        self.running.insert(name, RunningTenant { version, stop });
        first_attempt
    }

    fn report_problems(&mut self, problems: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            warn!(folder = %self.settings.folder.display(), %problem, "ignoring an entry of the folder of tenants");
        }
        self.problems = problems;
    }
}

/// Connects a tenant and serves it until it is stopped.
struct TenantConnector {
    name: TenantName,
    connection: ConnectionSettings,
    settings: Arc<TenantSettings>,
    directory: Arc<TenantDirectory>,
    is_connected: Gauge,
    stop: CancellationToken,
    first_attempt: CancellationToken,
}

impl TenantConnector {
    async fn run(self) {
        let connected = self.stop.run_until_cancelled(self.connect()).await;
        let Some(account) = connected else { return };
        let poller = self.settings.poller.clone();
        let is_connected = self.is_connected.clone();
        is_connected.set(1.0);
        let polling = poller.map(|poller| {
            let on_round = move |has_response| is_connected.set(if has_response { 1.0 } else { 0.0 });
            tokio::spawn(poller.poll(account.bus().clone(), on_round))
        });
        self.directory.connect(&self.name, account.access(), &self.stop);
        self.first_attempt.cancel();
        info!(tenant = %self.name, "serving the tenant");
        self.stop.cancelled().await;
        if let Some(polling) = polling {
            polling.abort();
        }
        account.stop().await;
    }

    /// Connects the tenant, however long that takes.
    async fn connect(&self) -> ServedAccount {
        let mut attempt: u32 = 0;
        loop {
            match self.try_to_connect().await {
                Ok(account) => return account,
                Err(reason) => {
                    let pause = Duration::from_secs(1 << attempt.min(4)).min(MAX_PAUSE);
                    attempt += 1;
                    warn!(tenant = %self.name, %reason, ?pause, "cannot connect the tenant; retrying");
                    self.first_attempt.cancel();
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn try_to_connect(&self) -> Result<ServedAccount, String> {
        let joining = Bus::join_existing_cluster(&self.connection, "millrace-gateway", CONNECT_TIME);
        let bus = joining.await.map_err(|fault| fault.to_string())?;
        ServedAccount::start(Some(self.name.clone()), bus, self.settings.account.clone(), &self.stop)
    }
}
