//! Where a benchmark takes place: a local cluster of its own, of real processes, in a folder that is removed
//! afterwards. It knows nothing of what is measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use futures::FutureExt;
use millrace_protocol::registry::Role;
use millrace_runtime::{Bus, duration, registry};

use super::process::{self, Seconds};
use crate::client;
use crate::local::{Cluster, ClusterInfo, Event, Launcher, Options};

/// How long the processes may take to say that they are there.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// How often something is asked again while it is waited for: rarely enough to cost nothing.
pub const ASK_EVERY: Duration = Duration::from_millis(10);

/// What a cluster is to be like.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The folder in which its folder is made.
    pub folder: PathBuf,
    /// How many workers.
    pub workers: u32,
    /// How many tasks each does at once.
    pub slots: u32,
    /// Whether each write is on disk before it is acknowledged.
    pub sync_always: bool,
    /// How long a run stays in its lane after its end.
    pub linger: Duration,
    /// How long a silent supervisor keeps its lane; `None` leaves it at the default.
    pub lane_lease: Option<Duration>,
}

/// A cluster of its own. Dropping it kills its processes and removes its folder.
pub struct Ground {
    cluster: Cluster,
    bus: Bus,
    pids: BTreeMap<String, u32>,
    // Dropped last: the processes that write into it must be gone.
    _folder: Folder,
}

impl Ground {
    /// Starts a cluster, and waits until all of its processes have said that they are there.
    pub async fn start(wishes: &Wishes) -> anyhow::Result<Self> {
        let folder = Folder::create(&wishes.folder)?;
        let options = Options {
            data: folder.0.clone(),
            workers: wishes.workers,
            slots: wishes.slots,
            supervisors: 1,
            critics: 1,
            capability: Vec::new(),
            model: Vec::new(),
            record: None,
            lanes: Some(1),
            lane_lease: wishes.lane_lease,
            work_lease: None,
            sync_always: wishes.sync_always,
            log: "info".into(),
        };
        let mut children = options.children(Launcher::of_this_process()?.executable());
        for child in &mut children {
            child.environment.insert("MILLRACE_LINGER".into(), duration::format(wishes.linger));
        }
        let cluster = Cluster::start_with(options, children).await?;
        let bus = client::join(cluster.info()).await?;
        let mut ground = Self { cluster, bus, pids: BTreeMap::new(), _folder: folder };
        ground.await_everybody(wishes).await?;
        Ok(ground)
    }

    async fn await_everybody(&mut self, wishes: &Wishes) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            self.check()?;
            let beats = registry::beats(&self.bus).await?;
            let count = |role| beats.iter().filter(|beat| beat.role == role).count();
            if count(Role::Supervisor) >= 1
                && count(Role::Critic) >= 1
                && count(Role::Worker) >= wishes.workers as usize
            {
                return Ok(());
            }
            if started.elapsed() > READY_PATIENCE {
                let roles: Vec<Role> = beats.iter().map(|beat| beat.role).collect();
                let seconds = READY_PATIENCE.as_secs();
                bail!(
                    "after {seconds} s the cluster's processes have not all said that they are there, but {roles:?}"
                );
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// The cluster.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Where the cluster is.
    pub fn info(&self) -> &ClusterInfo {
        self.cluster.info()
    }

    /// A connection of its own to the cluster's server, made as the cluster's processes make theirs.
    pub async fn dial(&self) -> anyhow::Result<async_nats::Client> {
        let info = self.cluster.info();
        let options =
            async_nats::ConnectOptions::with_user_and_password(info.user.clone(), info.password.clone());
        let options = options.client_capacity(16_384).subscription_capacity(65_536);
        options.connect(info.url.as_str()).await.context("connecting to the cluster's server")
    }

    /// Takes note of what happened to the processes.
    ///
    /// # Errors
    /// One of them ended: what was measured is worth nothing.
    pub fn check(&mut self) -> anyhow::Result<()> {
        while let Some(Some(event)) = self.cluster.event().now_or_never() {
            self.note(event)?;
        }
        Ok(())
    }

    fn note(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Started { name, pid, .. } => {
                self.pids.insert(name, pid);
                Ok(())
            }
            Event::Died { name, status, last_words, .. } => Err(anyhow!(
                "{name} ended in the middle of the benchmark ({status}); its last words: {last_words}"
            )),
            Event::NotStarted { name, error, .. } => Err(anyhow!("{name} can't be started: {error}")),
        }
    }

    /// Waits until a process that was killed runs again.
    pub async fn await_restart(&mut self, name: &str) -> anyhow::Result<()> {
        loop {
            let event = tokio::time::timeout(READY_PATIENCE, self.cluster.event())
                .await
                .with_context(|| format!("waiting for {name} to be started again"))?;
            match event.ok_or_else(|| anyhow!("the cluster ended while {name} was to be started again"))? {
                Event::Died { name: died, .. } if died == name => {}
                Event::Started { name: started, pid, .. } if started == name => {
                    self.pids.insert(started, pid);
                    return Ok(());
                }
                event @ (Event::Died { .. } | Event::Started { .. } | Event::NotStarted { .. }) => {
                    self.note(event)?;
                }
            }
        }
    }

    /// The id of a process, such as `supervisor-1`.
    pub fn pid(&self, name: &str) -> anyhow::Result<u32> {
        self.pids.get(name).copied().ok_or_else(|| anyhow!("{name} has not been started"))
    }

    /// The processor seconds that each process of the cluster and this one (`client`) have used so far.
    pub fn seconds(&self) -> Seconds {
        let children = self.pids.iter().map(|(name, pid)| (name.as_str(), *pid));
        process::seconds(children.chain([("client", std::process::id())]))
    }

    /// Stops the cluster in order.
    pub async fn stop(self) {
        self.cluster.stop().await;
    }
}

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn create(within: &Path) -> anyhow::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = within.join(format!("millrace-bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("the folder {} can't be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            crate::view::say(&format!("millrace: {} could not be removed: {error}", self.0.display()));
        }
    }
}
