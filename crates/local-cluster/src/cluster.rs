//! A local cluster: a nats-server with a store of its own, and the processes that share it.
//!
//! One thread, the manager, does everything. It lives exactly as long as the cluster, because processes are attached to
//! the thread that starts them. [`LocalCluster`] is the handle. If this process dies, all processes of the cluster die.
//!
//! A hidden command runs a cluster of arbitrary programs and prints its events as JSON lines:
//! `millrace __cluster --data DIR --children '[{"role": "worker", "number": 1, "program": "sleep", "arguments": ["9"]}]'`.
//! It tests the management of processes with arbitrary programs.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::data::{self, ClusterInfo, ClusterLifetime, DataLayout, FolderLock};
use crate::detached::{start_detached_as, stop_cluster};
use crate::launcher::Launcher;
use crate::nats_server::{self, SearchEnvironment};
use crate::options::{ChildRole, ChildSpec, LocalOptions};
use crate::processes::{self, ClusterProcesses, ManagerMessage, ProcessEvent};
use crate::server::{self, ServerConfig};
use crate::users;

/// The server accepts connections once it has read its store, which takes seconds per gigabyte.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// How often a starting server is polled; a start takes about 10 ms with an empty store.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The name of the only user.
const USER: &str = "millrace";
/// Number of log lines that are shown when a server dies.
const TAIL_LINES: usize = 8;

/// Errors of starting a cluster.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder can't be used.
    #[error(transparent)]
    Data(#[from] data::DataFolderError),
    /// There is no usable nats-server.
    #[error(transparent)]
    NatsServer(#[from] nats_server::FindServerError),
    /// A process can't be started.
    #[error(transparent)]
    Process(#[from] processes::StartProcessError),
    /// The path of this executable, a thread or random bytes are unavailable.
    #[error("operating system error while starting a cluster: {0}")]
    System(#[from] io::Error),
    /// The server ended while it was starting.
    #[error("nats-server ended while starting ({status}); its log, {}, ends with:\n{tail}", .log.display())]
    ServerDied {
        status: ExitStatus,
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The server did not become ready in time.
    #[error("nats-server is not ready after {} s; its log, {}, ends with:\n{tail}", READY_LIMIT.as_secs(), .log.display())]
    ServerNotReady {
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The server runs without JetStream.
    #[error("nats-server runs without JetStream; its log, {}, ends with:\n{tail}", .log.display())]
    NoJetStream {
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
}

/// A running cluster. Dropping it kills all processes; data that was written to the log survives.
#[derive(Debug)]
pub struct LocalCluster {
    layout: DataLayout,
    info: ClusterInfo,
    events: UnboundedReceiver<ProcessEvent>,
    mailbox: Sender<ManagerMessage>,
    manager: Option<JoinHandle<()>>,
}

impl LocalCluster {
    /// Starts a cluster. Returns when its server is ready and the other processes are started; these may take a moment to
    /// connect. If there is no nats-server, one is fetched first, with a message on standard error.
    pub async fn start(options: LocalOptions) -> Result<Self, StartError> {
        let children = options.child_specs(Launcher::from_current_exe()?.executable());
        Self::start_with_children(options, children).await
    }

    /// Like [`Self::start`], with the given processes instead of the usual ones.
    pub async fn start_with_children(
        options: LocalOptions,
        children: Vec<ChildSpec>,
    ) -> Result<Self, StartError> {
        let mut cluster = Self::start_unannounced(options, children, ClusterLifetime::UntilStopped).await?;
        cluster.announce(Vec::new()).await?;
        Ok(cluster)
    }

    /// Starts a cluster for one command: a server, and supervisors if it has to decide on something. No worker starts, so
    /// that no run makes progress.
    pub async fn start_for_one_command(data: &Path, has_supervisor: bool) -> Result<Self, StartError> {
        let options = LocalOptions::for_one_command(data, has_supervisor);
        let children = options.child_specs(Launcher::from_current_exe()?.executable());
        let mut cluster = Self::start_unannounced(options, children, ClusterLifetime::OneCommand).await?;
        cluster.announce(Vec::new()).await?;
        Ok(cluster)
    }

    /// Starts a server and these processes. Other commands do not find the cluster until [`Self::announce`].
    pub async fn start_unannounced(
        options: LocalOptions,
        children: Vec<ChildSpec>,
        lifetime: ClusterLifetime,
    ) -> Result<Self, StartError> {
        let layout = DataLayout::new(&options.data)?;
        let (event_sender, events) = unbounded_channel();
        let (ready, when_ready) = oneshot::channel();
        let manager = thread::Builder::new()
            .name("cluster-manager".to_owned())
            .spawn(move || run_manager_thread(&options, children, event_sender, ready))?;
        let (mut info, mailbox) = when_ready.await.map_err(|_| manager_ended())??;
        info.lifetime = lifetime;
        Ok(Self { layout, info, events, mailbox, manager: Some(manager) })
    }

    /// Starts more processes and lets other commands find the cluster.
    pub async fn announce(&mut self, children: Vec<ChildSpec>) -> Result<(), StartError> {
        let children = children.into_iter().map(|child| add_credentials(child, &self.info)).collect();
        let (done, started) = oneshot::channel();
        self.mailbox.send(ManagerMessage::Add(children, done)).map_err(|_| manager_ended())?;
        started.await.map_err(|_| manager_ended())??;
        Ok(self.layout.write_cluster_info(&self.info)?)
    }

    /// Stops workers and critics, so that nothing is in progress any more. Other commands no longer find the cluster.
    pub async fn stop_work(&mut self) {
        // If the file can't be removed, readers ignore it once the cluster has stopped.
        let _ = self.layout.remove_cluster_info();
        let (done, stopped) = oneshot::channel();
        let roles = vec![ChildRole::Worker, ChildRole::Critic];
        if self.mailbox.send(ManagerMessage::StopRoles(roles, done)).is_ok() {
            let _ = stopped.await;
        }
    }

    /// Restarts the server. Its limit of disk space is computed anew.
    pub fn restart_server(&self) -> Result<(), StartError> {
        server::update_store_limit(&self.layout)?;
        self.mailbox.send(ManagerMessage::RestartServer).map_err(|_| manager_ended())?;
        Ok(())
    }

    /// `true` if the store of the server is where it was.
    pub fn has_store(&self) -> bool {
        self.layout.nats_store_path().is_dir()
    }

    /// Rotates the logs that are too large.
    pub fn rotate_logs(&self) {
        self.layout.rotate_logs();
    }

    /// Stops a cluster for one command, once other readers that have joined it are done.
    pub async fn stop_after_readers(self) {
        let _no_users = users::wait_for_other_readers(&self.layout).await;
        self.stop().await;
    }

    /// Address and credentials of the cluster.
    pub fn info(&self) -> &ClusterInfo {
        &self.info
    }

    /// Sets the models that the cluster tells to those who join it.
    pub fn set_models(&mut self, models: Vec<String>) {
        self.info.models = models;
    }

    /// Waits for the next event of a process; events are buffered. `None` once the cluster has stopped.
    pub async fn next_event(&mut self) -> Option<ProcessEvent> {
        self.events.recv().await
    }

    /// Stops all processes in order: gateways, workers and critics, supervisors, the server. Each has a grace period, 30 s in total,
    /// and is killed after that. Dropping the returned future kills all at once.
    pub async fn stop(self) {
        let (done, stopped) = oneshot::channel();
        if self.mailbox.send(ManagerMessage::Stop(done)).is_ok() {
            let _ = stopped.await;
        }
    }
}

fn manager_ended() -> io::Error {
    io::Error::other("the cluster manager thread has ended")
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        let _ = self.mailbox.send(ManagerMessage::Kill);
        if let Some(manager) = self.manager.take() {
            // If the thread panicked, it has printed the panic and killed its processes.
            let _ = manager.join();
        }
    }
}

type ReadySender = oneshot::Sender<Result<(ClusterInfo, Sender<ManagerMessage>), StartError>>;

/// The main function of the manager thread.
fn run_manager_thread(
    options: &LocalOptions,
    children: Vec<ChildSpec>,
    events: UnboundedSender<ProcessEvent>,
    ready: ReadySender,
) {
    let (lock, mut processes, info, mailbox) = match start_processes(options, children, events, &ready) {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // If the caller no longer waits for the start, the cluster stops.
    let done = match ready.send(Ok((info, mailbox))) {
        Ok(()) => processes.supervise_until_stopped(),
        Err(_) => None,
    };
    drop(processes);
    // If the file can't be removed, readers ignore it, like that of a killed cluster.
    let _ = lock.remove_cluster_info();
    drop(lock);
    if let Some(done) = done {
        let _ = done.send(());
    }
}

fn start_processes(
    options: &LocalOptions,
    children: Vec<ChildSpec>,
    events: UnboundedSender<ProcessEvent>,
    ready: &ReadySender,
) -> Result<(FolderLock, ClusterProcesses, ClusterInfo, Sender<ManagerMessage>), StartError> {
    let layout = DataLayout::new(&options.data)?;
    layout.create_folders()?;
    let lock = FolderLock::acquire(layout.clone())?;
    let launcher = Launcher::from_current_exe()?;
    let environment = SearchEnvironment::from_process();
    let server = nats_server::find_or_fetch_server(&environment, &launcher, &mut |line| eprintln!("{line}"))?;
    let (mut processes, mailbox) = ClusterProcesses::new(layout.clone(), launcher, events);
    let info = start_nats_server(&mut processes, &layout, server.program, options, ready)?;
    for child in children {
        processes.start_and_add(add_credentials(child, &info))?;
    }
    Ok((lock, processes, info, mailbox))
}

fn start_nats_server(
    processes: &mut ClusterProcesses,
    layout: &DataLayout,
    program: PathBuf,
    options: &LocalOptions,
    ready: &ReadySender,
) -> Result<ClusterInfo, StartError> {
    server::remove_ports_files(&layout.ports_folder_path())?;
    let free = data::free_space(layout.root_path())?;
    let max_file_store = server::compute_store_limit(data::total_file_size(&layout.nats_store_path()), free);
    let password = server::random_password()?;
    let configuration = ServerConfig {
        port: None,
        user: USER.to_owned(),
        password,
        max_file_store,
        sync_always: options.sync_always,
        routes: options.routes.clone(),
    };
    layout.write_private_file(&layout.nats_conf_path(), &configuration.to_nats_conf())?;
    let arguments = vec!["-c".to_owned(), server::CONFIGURATION.to_owned()];
    processes.start_and_add(ChildSpec {
        role: ChildRole::NatsServer,
        number: 1,
        program,
        arguments,
        environment: Default::default(),
    })?;
    let address = await_nats_server(processes, layout, ready)?;
    // A restarted server must listen on the port that its clients know.
    let fixed_port = ServerConfig { port: Some(address.port()), ..configuration };
    layout.write_private_file(&layout.nats_conf_path(), &fixed_port.to_nats_conf())?;
    let (user, password) = (fixed_port.user, fixed_port.password);
    let url = format!("nats://{address}");
    Ok(ClusterInfo {
        url,
        user,
        password,
        pid: process::id(),
        started: jiff::Timestamp::now(),
        lifetime: ClusterLifetime::UntilStopped,
        models: options.model.clone(),
    })
}

fn await_nats_server(
    processes: &mut ClusterProcesses,
    layout: &DataLayout,
    ready: &ReadySender,
) -> Result<SocketAddr, StartError> {
    let log = layout.log_path(&ChildRole::NatsServer.to_string());
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let greeting = server::read_server_address(&layout.ports_folder_path())
            .map(|address| (address, server::read_greeting(address)));
        let tail = || processes.last_log_lines(ChildRole::NatsServer, TAIL_LINES);
        match greeting {
            Some((address, Ok(greeting))) if greeting.jetstream => return Ok(address),
            Some((_, Ok(_))) => return Err(StartError::NoJetStream { tail: tail(), log }),
            Some((_, Err(_))) | None if Instant::now() >= deadline || ready.is_closed() => {
                return Err(StartError::ServerNotReady { tail: tail(), log });
            }
            Some((_, Err(_))) | None => {}
        }
        if let Some(status) = processes.wait_for_end(ChildRole::NatsServer, POLL_INTERVAL) {
            return Err(StartError::ServerDied {
                status,
                tail: processes.last_log_lines(ChildRole::NatsServer, TAIL_LINES),
                log,
            });
        }
    }
}

/// Passes credentials in the environment: other users can read arguments, but not the environment.
fn add_credentials(mut child: ChildSpec, info: &ClusterInfo) -> ChildSpec {
    let credentials = [
        ("MILLRACE_NATS_URL", &info.url),
        ("MILLRACE_NATS_USER", &info.user),
        ("MILLRACE_NATS_PASSWORD", &info.password),
    ];
    child.environment.extend(credentials.map(|(name, value)| (name.to_owned(), value.clone())));
    child
}

/// The name of the command; `--detached` runs it again in the background.
pub const NAME: &str = "__cluster";
const ENVIRONMENT_UNUSABLE: u8 = 4;

#[derive(Parser)]
struct DebugCommandArguments {
    #[command(flatten)]
    options: LocalOptions,
    /// The processes, as a JSON array
    #[arg(long, value_parser = parse_child_specs, default_value = "[]")]
    children: ChildSpecs,
    /// Start the cluster in the background, print its address and exit
    #[arg(long)]
    detached: bool,
    /// Stop the cluster running on the data folder
    #[arg(long, conflicts_with = "detached")]
    stop: bool,
}

#[derive(Clone)]
struct ChildSpecs(Vec<ChildSpec>);

fn parse_child_specs(text: &str) -> Result<ChildSpecs, serde_json::Error> {
    serde_json::from_str(text).map(ChildSpecs)
}

/// Runs the command; the first argument is its name.
pub fn run_debug_command(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let foreground: Vec<OsString> =
        arguments.iter().filter(|argument| *argument != "--detached").cloned().collect();
    let arguments = DebugCommandArguments::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        match arguments {
            DebugCommandArguments { stop: true, options, .. } => stop_cluster_and_wait(&options).await,
            DebugCommandArguments { detached: true, options, .. } => {
                start_cluster_detached(&options, &foreground).await
            }
            DebugCommandArguments { options, children, .. } => run_until_stopped(options, children).await,
        }
    });
    Ok(outcome.map_or_else(
        |error| {
            eprintln!("millrace: {error}");
            ExitCode::from(ENVIRONMENT_UNUSABLE)
        },
        |()| ExitCode::SUCCESS,
    ))
}

async fn start_cluster_detached(options: &LocalOptions, foreground: &[OsString]) -> anyhow::Result<()> {
    let info = start_detached_as(&options.data, foreground).await?.info;
    println!("{}", json!({"event": "ready", "url": info.url, "pid": info.pid}));
    Ok(())
}

async fn stop_cluster_and_wait(options: &LocalOptions) -> anyhow::Result<()> {
    let was_running = stop_cluster(&options.data).await?;
    println!("{}", json!({"event": "stopped", "was_running": was_running}));
    Ok(())
}

async fn run_until_stopped(options: LocalOptions, ChildSpecs(children): ChildSpecs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut restart_server = signal(SignalKind::user_defined1())?;
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start_with_children(options, children) => cluster?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("{}", json!({"event": "ready", "url": cluster.info().url, "pid": cluster.info().pid}));
    loop {
        tokio::select! {
            Some(event) = cluster.next_event() => println!("{}", serde_json::to_string(&event)?),
            _ = restart_server.recv() => cluster.restart_server()?,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    tokio::select! {
        () = cluster.stop() => println!("{}", json!({"event": "stopped"})),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
