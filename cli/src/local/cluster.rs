//! A local cluster: a nats-server with a store of its own, and the processes that share it.
//!
//! Everything is done by one thread, the keeper, which lives exactly as long as the cluster: processes are bound to the
//! thread that starts them. [`Cluster`] is the handle on it. Whatever happens to this process, nothing outlives it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{self, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::bound::Launcher;
use super::data::{self, Claim, ClusterInfo, Layout};
use super::fleet::{self, Event, Fleet, Message};
use super::options::{Child, Options, Role};
use super::server::{self, Configuration};
use crate::nats_server::{self, Surroundings};

/// The server listens once it has read its store, which takes seconds per gigabyte.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// How often a server that is starting is looked at; it takes about 10 ms with an empty store.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The name of the only user.
const USER: &str = "millrace";
/// The lines of a log that are shown when a server dies.
const TAIL_LINES: usize = 8;

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder can't be used.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// There is no usable nats-server.
    #[error(transparent)]
    NatsServer(#[from] nats_server::Error),
    /// A process can't be started.
    #[error(transparent)]
    Process(#[from] fleet::Error),
    /// This executable, a thread or randomness is not to be had.
    #[error("the operating system refused what a cluster needs: {0}")]
    System(#[from] io::Error),
    /// The server ended while it was starting.
    #[error("nats-server ended at its start ({status}); its log, {}, ends with:\n{tail}", .log.display())]
    ServerDied {
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The server did not become ready in time.
    #[error("nats-server is not ready after {} s; its log, {}, ends with:\n{tail}", READY_LIMIT.as_secs(), .log.display())]
    ServerNotReady {
        /// Its log.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// The server runs without JetStream.
    #[error("nats-server runs without JetStream; its log, {}, ends with:\n{tail}", .log.display())]
    NoJetStream {
        /// Its log.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
}

/// A running cluster. Dropping it kills all of its processes; nothing that was logged is lost by that.
#[derive(Debug)]
pub struct Cluster {
    info: ClusterInfo,
    events: UnboundedReceiver<Event>,
    mailbox: Sender<Message>,
    keeper: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts a cluster: returns when its server is ready and its other processes are started, which may then take a
    /// moment to connect. A nats-server is fetched if there is none, which takes longer, and said on standard error.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let children = options.children(Launcher::of_this_process()?.executable());
        Self::start_with(options, children).await
    }

    /// As [`Self::start`], with these processes beside the server instead of the usual ones.
    pub async fn start_with(options: Options, children: Vec<Child>) -> Result<Self, StartError> {
        let (event_sender, events) = unbounded_channel();
        let (ready, when_ready) = oneshot::channel();
        let keeper = thread::Builder::new()
            .name("cluster-keeper".to_owned())
            .spawn(move || keep(&options, children, event_sender, ready))?;
        let (info, mailbox) =
            when_ready.await.map_err(|_| io::Error::other("the cluster's keeper panicked"))??;
        Ok(Self { info, events, mailbox, keeper: Some(keeper) })
    }

    /// How to reach it.
    pub fn info(&self) -> &ClusterInfo {
        &self.info
    }

    /// The next thing that happened to a process; the past ones are kept until asked for. `None` once it has stopped.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Stops all processes in order: workers and critics, supervisors, the server. Each gets its grace, 25 s at most in all, and
    /// is killed after that; a drop of the returned future kills at once.
    pub async fn stop(self) {
        let (asker, stopped) = oneshot::channel();
        if self.mailbox.send(Message::Stop(asker)).is_ok() {
            let _ = stopped.await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.mailbox.send(Message::Kill);
        if let Some(keeper) = self.keeper.take() {
            // The keeper's panic has been printed by its thread, and has killed its processes.
            let _ = keeper.join();
        }
    }
}

type Ready = oneshot::Sender<Result<(ClusterInfo, Sender<Message>), StartError>>;

/// The keeper's whole life.
fn keep(options: &Options, children: Vec<Child>, events: UnboundedSender<Event>, ready: Ready) {
    let (claim, mut fleet, info, mailbox) = match bring_up(options, children, events, &ready) {
        Ok(started) => started,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // A start that nobody waits for any more is not kept.
    let asker = match ready.send(Ok((info, mailbox))) {
        Ok(()) => fleet.keep(),
        Err(_) => None,
    };
    drop(fleet);
    // A file that can't be removed is seen through, like that of a killed cluster.
    let _ = claim.withdraw();
    drop(claim);
    if let Some(asker) = asker {
        let _ = asker.send(());
    }
}

fn bring_up(
    options: &Options,
    children: Vec<Child>,
    events: UnboundedSender<Event>,
    ready: &Ready,
) -> Result<(Claim, Fleet, ClusterInfo, Sender<Message>), StartError> {
    let layout = Layout::of(&options.data)?;
    layout.create()?;
    let claim = Claim::take(layout.clone())?;
    let launcher = Launcher::of_this_process()?;
    let surroundings = Surroundings::of_this_process();
    let server = nats_server::find_or_fetch(&surroundings, &launcher, &mut |line| eprintln!("{line}"))?;
    let (mut fleet, mailbox) = Fleet::new(layout.clone(), launcher, events);
    let info = start_server(&mut fleet, &layout, server.program, options.sync_always, ready)?;
    for child in children {
        fleet.add(with_credentials(child, &info))?;
    }
    claim.announce(&info)?;
    Ok((claim, fleet, info, mailbox))
}

fn start_server(
    fleet: &mut Fleet,
    layout: &Layout,
    program: PathBuf,
    sync_always: bool,
    ready: &Ready,
) -> Result<ClusterInfo, StartError> {
    server::forget_ports(&layout.ports())?;
    let free = data::free_space(layout.root())?;
    let max_file_store = server::store_limit(data::size_of_tree(&layout.nats_store()), free);
    let password = server::random_password()?;
    let configuration =
        Configuration { port: None, user: USER.to_owned(), password, max_file_store, sync_always };
    layout.write_private(&layout.nats_conf(), &configuration.text())?;
    let arguments = vec!["-c".to_owned(), server::CONFIGURATION.to_owned()];
    fleet.add(Child {
        role: Role::NatsServer,
        number: 1,
        program,
        arguments,
        environment: Default::default(),
    })?;
    let address = await_server(fleet, layout, ready)?;
    // A server that is started again must be found where its clients know it.
    let again = Configuration { port: Some(address.port()), ..configuration };
    layout.write_private(&layout.nats_conf(), &again.text())?;
    let (user, password) = (again.user, again.password);
    let url = format!("nats://{address}");
    Ok(ClusterInfo { url, user, password, pid: process::id(), started: jiff::Timestamp::now() })
}

fn await_server(fleet: &mut Fleet, layout: &Layout, ready: &Ready) -> Result<SocketAddr, StartError> {
    let log = layout.log(&Role::NatsServer.to_string());
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let greeting = server::told_address(&layout.ports()).map(|address| (address, server::greet(address)));
        let tail = || fleet.last_words(Role::NatsServer, TAIL_LINES);
        match greeting {
            Some((address, Ok(greeting))) if greeting.jetstream => return Ok(address),
            Some((_, Ok(_))) => return Err(StartError::NoJetStream { tail: tail(), log }),
            Some((_, Err(_))) | None if Instant::now() >= deadline || ready.is_closed() => {
                return Err(StartError::ServerNotReady { tail: tail(), log });
            }
            Some((_, Err(_))) | None => {}
        }
        if let Some(status) = fleet.wait_for_end(Role::NatsServer, LOOK_EVERY) {
            return Err(StartError::ServerDied {
                status,
                tail: fleet.last_words(Role::NatsServer, TAIL_LINES),
                log,
            });
        }
    }
}

/// Credentials go by environment, which other users can't read; arguments they can.
fn with_credentials(mut child: Child, info: &ClusterInfo) -> Child {
    let credentials = [
        ("MILLRACE_NATS_URL", &info.url),
        ("MILLRACE_NATS_USER", &info.user),
        ("MILLRACE_NATS_PASSWORD", &info.password),
    ];
    child.environment.extend(credentials.map(|(name, value)| (name.to_owned(), value.clone())));
    child
}
