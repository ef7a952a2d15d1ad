//! The cluster of a benchmark: real processes, in a folder that is removed afterwards.
//!
//! With three copies of each stream there are other servers, which share the machine, so that the copies cost what they cost there
//! and protect from nothing.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use futures::FutureExt;
use millrace_local_cluster::nats_server::{SearchEnvironment, find_or_fetch_server};
use millrace_local_cluster::{
    ApiAddress, ChildRole, ClusterInfo, Launcher, LocalCluster, LocalOptions, ProcessEvent, ServerConfig,
    ServerRoutes,
};
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, clock};

use crate::process::{self, CpuSeconds};

/// Timeout for the registration of all processes.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval; rarely enough not to affect the measurement.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The options of a benchmark's cluster.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The parent folder of its data folder.
    pub folder: PathBuf,
    /// Number of workers.
    pub workers: u32,
    /// Number of concurrent tasks of each worker.
    pub slots: u32,
    /// `true` to sync each write to disk before it is acknowledged.
    pub sync_always: bool,
    /// `true` for three servers and three copies of each stream.
    pub is_replicated: bool,
    /// Time that a run stays in its lane after its end.
    pub linger: Duration,
    /// Lease of a supervisor on its lane; `None` for the default.
    pub lane_lease: Option<Duration>,
    /// `true` if a gateway serves the HTTP API.
    pub serves_api: bool,
}

/// A running cluster. Dropping it kills its processes and removes its folder.
pub struct BenchCluster {
    cluster: LocalCluster,
    bus: Bus,
    pids: BTreeMap<String, u32>,
    /// The file with the URL of the HTTP API, if it is served.
    api_url_file: Option<PathBuf>,
    _peers: Option<PeerServers>,
    // Dropped last, when the processes that write into it have ended.
    _folder: TempFolder,
}

impl BenchCluster {
    /// Starts a cluster and waits until all of its processes have registered.
    pub async fn start(options: &BenchOptions) -> anyhow::Result<Self> {
        let (mut local, folder) = local_options(options)?;
        let mut children = local.child_specs(Launcher::from_current_exe()?.executable());
        for child in &mut children {
            child.environment.insert("MILLRACE_LINGER".into(), clock::format_duration(options.linger));
        }
        let mut peers = None;
        if options.is_replicated {
            let (others, first) = PeerServers::start(&folder.0, options.sync_always)?;
            (peers, local.routes) = (Some(others), Some(first));
            let supervisors = children.iter_mut().filter(|child| child.role == ChildRole::Supervisor);
            supervisors.for_each(|supervisor| supervisor.arguments.push("--replicas=3".into()));
        }
        let pids = peers.iter().flat_map(PeerServers::pids).collect();
        let api_url_file = options.serves_api.then(|| local.api_url_path());
        let cluster = LocalCluster::start_with_children(local, children).await?;
        let bus = cluster.info().connect().await?;
        let mut this = Self { cluster, bus, pids, api_url_file, _peers: peers, _folder: folder };
        this.await_processes(options).await?;
        Ok(this)
    }

    async fn await_processes(&mut self, options: &BenchOptions) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            self.fail_if_process_ended()?;
            let heartbeats = registry::read_heartbeats(&self.bus).await?;
            let count = |role| heartbeats.iter().filter(|beat| beat.role == role).count();
            if count(ProcessRole::Supervisor) >= 1
                && count(ProcessRole::Critic) >= 1
                && count(ProcessRole::Worker) >= options.workers as usize
                && (!options.serves_api || self.api_address().is_ok())
            {
                return Ok(());
            }
            if started.elapsed() > READY_TIMEOUT {
                let roles: Vec<ProcessRole> = heartbeats.iter().map(|beat| beat.role).collect();
                let seconds = READY_TIMEOUT.as_secs();
                bail!("not all processes of the cluster have registered within {seconds} s, only {roles:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The address of the HTTP API.
    pub fn api_address(&self) -> anyhow::Result<SocketAddr> {
        let file = self.api_url_file.as_ref().ok_or_else(|| anyhow!("the cluster has no gateway"))?;
        let url = fs::read_to_string(file).context("reading the URL of the HTTP API")?;
        let address = url.trim().strip_prefix("http://").unwrap_or_default();
        address.parse().with_context(|| format!("the URL of the HTTP API is {url:?}"))
    }

    /// The connection to the cluster.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Address and credentials of the cluster.
    pub fn cluster_info(&self) -> &ClusterInfo {
        self.cluster.info()
    }

    /// Opens another connection to the server, with the same options as the cluster's processes use.
    pub async fn connect_client(&self) -> anyhow::Result<async_nats::Client> {
        connect_to_server(self.cluster.info()).await
    }

    /// Processes the events of the cluster.
    pub fn fail_if_process_ended(&mut self) -> anyhow::Result<()> {
        while let Some(Some(event)) = self.cluster.next_event().now_or_never() {
            self.record_process_event(event)?;
        }
        Ok(())
    }

    fn record_process_event(&mut self, event: ProcessEvent) -> anyhow::Result<()> {
        match event {
            ProcessEvent::Started { name, pid, .. } => {
                self.pids.insert(name, pid);
                Ok(())
            }
            ProcessEvent::Died { name, status, last_words, .. } => {
                Err(anyhow!("{name} ended during the benchmark ({status}); last log line: {last_words}"))
            }
            ProcessEvent::Refused { name, last_words, .. } => {
                Err(anyhow!("{name} refused to start; last log line: {last_words}"))
            }
            ProcessEvent::NotStarted { name, error, .. } => Err(anyhow!("{name} can't be started: {error}")),
        }
    }

    /// Waits until a killed process has been restarted.
    pub async fn await_restart(&mut self, name: &str) -> anyhow::Result<()> {
        loop {
            let event = tokio::time::timeout(READY_TIMEOUT, self.cluster.next_event())
                .await
                .with_context(|| format!("waiting for {name} to be restarted"))?;
            match event.ok_or_else(|| anyhow!("the cluster ended before {name} was restarted"))? {
                ProcessEvent::Died { name: other, .. } if other == name => {}
                ProcessEvent::Started { name: other, pid, .. } if other == name => {
                    self.pids.insert(other, pid);
                    return Ok(());
                }
                event @ (ProcessEvent::Died { .. }
                | ProcessEvent::Started { .. }
                | ProcessEvent::Refused { .. }
                | ProcessEvent::NotStarted { .. }) => {
                    self.record_process_event(event)?;
                }
            }
        }
    }

    /// Returns the process id of a process, such as `supervisor-1`.
    pub fn pid(&self, name: &str) -> anyhow::Result<u32> {
        self.pids.get(name).copied().ok_or_else(|| anyhow!("{name} has not been started"))
    }

    /// Returns the CPU seconds that each process of the cluster and this one (`client`) have used so far.
    pub fn cpu_seconds(&self) -> CpuSeconds {
        let children = self.pids.iter().map(|(name, pid)| (name.as_str(), *pid));
        process::read_cpu_seconds(children.chain([("client", std::process::id())]))
    }

    /// Stops the cluster in order.
    pub async fn stop_cluster(self) {
        self.cluster.stop().await;
    }
}

/// A NATS server as clusters have it, without any other process. Dropping it kills the server and removes its folder.
pub struct BareServer {
    cluster: LocalCluster,
    _folder: TempFolder,
}

impl BareServer {
    /// Starts the server.
    pub async fn start(options: &BenchOptions) -> anyhow::Result<Self> {
        let (local, folder) = local_options(options)?;
        Ok(Self { cluster: LocalCluster::start_with_children(local, Vec::new()).await?, _folder: folder })
    }

    /// Opens a connection to it.
    pub async fn connect_client(&self) -> anyhow::Result<async_nats::Client> {
        connect_to_server(self.cluster.info()).await
    }

    /// Stops it in order.
    pub async fn stop(self) {
        self.cluster.stop().await;
    }
}

/// Returns the options of a local cluster, and its folder.
fn local_options(options: &BenchOptions) -> anyhow::Result<(LocalOptions, TempFolder)> {
    let folder = TempFolder::create(&options.folder)?;
    let local = LocalOptions {
        data: folder.0.clone(),
        workers: options.workers,
        slots: options.slots,
        supervisors: 1,
        critics: 1,
        capability: Vec::new(),
        web: false,
        model: Vec::new(),
        record: None,
        call_timeout: None,
        lanes: Some(1),
        lane_lease: options.lane_lease,
        work_lease: None,
        api: options.serves_api.then(|| ApiAddress::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))),
        sync_always: options.sync_always,
        routes: None,
        log: "info".into(),
    };
    Ok((local, folder))
}

/// Connects to a server with the same options as the cluster's processes use.
async fn connect_to_server(info: &ClusterInfo) -> anyhow::Result<async_nats::Client> {
    let options =
        async_nats::ConnectOptions::with_user_and_password(info.user.clone(), info.password.clone());
    let options = options.client_capacity(16_384).subscription_capacity(65_536);
    options.connect(info.url.as_str()).await.context("connecting to the cluster's server")
}

/// A folder that is removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn create(within: &Path) -> anyhow::Result<Self> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = within.join(format!("millrace-bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("can't create the folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("millrace: can't remove {}: {error}", self.0.display());
        }
    }
}

/// Number of servers of a cluster with copies.
const SERVERS: usize = 3;
/// Maximum size of a peer's store in bytes; a benchmark needs less.
const MAX_STORE: u64 = 64 << 30;

/// The other servers. Dropping this kills them.
pub struct PeerServers(Vec<Child>);

impl PeerServers {
    /// Starts the peers in subfolders of `folder`, and returns the place of the first server among them.
    pub fn start(folder: &Path, sync_always: bool) -> anyhow::Result<(Self, ServerRoutes)> {
        let mut places = plan_routes()?.into_iter();
        let first = places.next().context("a cluster has a first server")?;
        let launcher = Launcher::from_current_exe()?;
        let server = find_or_fetch_server(&SearchEnvironment::from_process(), &launcher, &mut |line| {
            eprintln!("{line}")
        })?;
        let mut peers = Self(Vec::new());
        for routes in places {
            let folder = folder.join(&routes.name);
            fs::create_dir_all(folder.join("run"))?;
            let config = ServerConfig {
                port: None,
                user: "millrace".into(),
                password: "only-on-loopback".into(),
                max_file_store: MAX_STORE,
                sync_always,
                routes: Some(routes),
            };
            let (file, log) = (folder.join("nats.conf"), fs::File::create(folder.join("nats-server.log"))?);
            fs::write(&file, config.to_nats_conf())?;
            let mut command = launcher.build_attached_command(&server.program);
            command.arg("-c").arg(&file).current_dir(&folder).stdout(log.try_clone()?).stderr(log);
            peers.0.push(command.spawn().context("starting a NATS server")?);
        }
        Ok((peers, first))
    }

    /// The process ids, each with a name.
    pub fn pids(&self) -> impl Iterator<Item = (String, u32)> {
        (2..).zip(&self.0).map(|(number, peer)| (format!("nats-server-{number}"), peer.id()))
    }
}

impl Drop for PeerServers {
    fn drop(&mut self) {
        for peer in &mut self.0 {
            let _ = peer.kill();
            let _ = peer.wait();
        }
    }
}

/// Returns names and free ports for the servers.
fn plan_routes() -> anyhow::Result<Vec<ServerRoutes>> {
    // All are bound at once, so that they differ.
    let listeners: Vec<TcpListener> =
        (0..SERVERS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let ports: Vec<u16> =
        listeners.iter().map(|one| Ok(one.local_addr()?.port())).collect::<std::io::Result<_>>()?;
    let others = |own: u16| ports.iter().copied().filter(|port| *port != own).collect();
    let place = |(number, port): (usize, &u16)| ServerRoutes {
        name: format!("server-{number}"),
        port: *port,
        peers: others(*port),
    };
    Ok((1..).zip(&ports).map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_knows_the_two_others() {
        let places = plan_routes().unwrap();
        assert_eq!(places.len(), SERVERS);
        for place in &places {
            let others = places.iter().filter(|other| other.name != place.name).map(|other| other.port);
            assert_eq!(place.peers, others.collect::<Vec<_>>());
        }
    }
}
