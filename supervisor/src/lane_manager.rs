//! The lane manager: acquires and releases the lanes of this process. It announces this supervisor, reads which others are
//! members, acquires its share of the lanes and releases the lanes of others; it starts and stops the lane owners and the
//! renewals of their leases. It also sends heartbeats, and refreshes the capability snapshot and the
//! attendance.
//!
//! It may wait for the server: leases are renewed by tasks of their own, and lane owners check the age of their leases
//! themselves.
//!
//! Renews the lease of one lane, in a task of its own: neither the folding of a lane nor another lane's lease, nor
//! anything else that the lane manager waits for, delays it.
//!
//! # Invariants
//!
//! - I15: A lane is taken over within 10 s of a kill and within 1 s of an orderly stop.
//!   (`tests/tests/fencing.rs::lane_is_taken_over_in_10_s_after_a_kill_1_s_after_a_stop`)

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, WorkerId};
use millrace_protocol::plan::{Attendance, WorkerSign};
use millrace_protocol::registry::{Heartbeat, ProcessRole};
use millrace_runtime::ops::health::Health;
use millrace_runtime::store::admission;
use millrace_runtime::work::lane_lease::{LaneLease, LaneLeaseManager};
use millrace_runtime::work::queue::QueueSnapshot;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, clock};
use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::closing::LiveRunIndex;
use crate::lane::{LaneMessage, LaneOwner, LaneOwnerArgs};
use crate::queues::{self, CapabilitySnapshot};
use crate::status::{LaneStatus, SupervisorStatus};

/// The time that a lane owner may take to finish its appends when it is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that the release of all lanes may take at shutdown: it must not wait for a server that is down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);
/// The interval at which the capability snapshot is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The time that the read of a bucket may take: no lane is acquired or released meanwhile.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum time between two checks that the buckets exist after faults.
const BUCKET_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which the buckets are checked without a fault: a supervisor reads neither summaries nor rate limits, and
/// clients and workers can't create buckets.
const BUCKET_AUDIT_INTERVAL: Duration = Duration::from_secs(10);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// The time that a lane waits for a new owner after its owner crashed, so that an unreadable lane does not spin.
const CRASH_BACKOFF: Duration = Duration::from_millis(500);

/// The state of the manager's loop.
pub struct LaneManager {
    bus: Bus,
    me: WorkerId,
    share: LaneLeaseManager,
    root: ActorCell,
    linger: Duration,
    owned: HashMap<Lane, OwnedLane>,
    /// Receives the lanes whose leases other supervisors have.
    lost_leases: mpsc::UnboundedSender<Lane>,
    lease_losses: mpsc::UnboundedReceiver<Lane>,
    cluster: watch::Sender<Arc<CapabilitySnapshot>>,
    attendance: watch::Sender<Arc<Attendance>>,
    queues: watch::Sender<Arc<QueueSnapshot>>,
    live_runs: Arc<LiveRunIndex>,
    /// Lanes whose owner crashed, and when they may be acquired again.
    backoff: HashMap<Lane, tokio::time::Instant>,
    started: jiff::Timestamp,
    /// When the buckets were last checked.
    buckets_checked: Option<tokio::time::Instant>,
    health: Health,
    status: Arc<SupervisorStatus>,
}

/// A lane that this process owns.
struct OwnedLane {
    renewal: LeaseRenewal,
    owner: ActorRef<LaneMessage>,
    status: Arc<LaneStatus>,
}

impl LaneManager {
    /// Opens the buckets and reads the first capability snapshot.
    pub async fn open(
        bus: &Bus,
        me: WorkerId,
        root: ActorCell,
        linger: Duration,
        health: Health,
        status: Arc<SupervisorStatus>,
    ) -> Result<Self, Fault> {
        let share = LaneLeaseManager::open(bus, me.clone()).await?;
        let now = clock::now();
        let stored = admission::read_attendance(bus).await?;
        let mut attendance =
            stored.map_or_else(|| Attendance::begin(now), |stored| Attendance::restore(stored, now));
        let (cluster, signs) = CapabilitySnapshot::read(bus).await?;
        attendance.update(now, signs);
        let (cluster, _) = watch::channel(Arc::new(cluster));
        let (attendance, _) = watch::channel(Arc::new(attendance));
        let (lost_leases, lease_losses) = mpsc::unbounded_channel();
        Ok(Self {
            bus: bus.clone(),
            me,
            share,
            root,
            linger,
            owned: HashMap::new(),
            lost_leases,
            lease_losses,
            cluster,
            attendance,
            queues: watch::Sender::default(),
            live_runs: Arc::default(),
            backoff: HashMap::new(),
            started: now,
            buckets_checked: None,
            health,
            status,
        })
    }

    /// Runs until `stop`, then releases all lanes. `owner_stops` receives the ids of lane owners that have stopped.
    pub async fn run_until_shutdown(
        mut self,
        stop: CancellationToken,
        mut owner_stops: mpsc::UnboundedReceiver<ractor::ActorId>,
    ) {
        let mut rounds = tokio::time::interval(self.round_interval());
        let mut refreshes = tokio::time::interval(REFRESH_INTERVAL);
        let mut heartbeats = tokio::time::interval(HEARTBEAT_INTERVAL);
        for interval in [&mut rounds, &mut refreshes, &mut heartbeats] {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        let queues = tokio::spawn(queues::maintain_queues(self.bus.clone(), self.cluster.subscribe()));
        let audit = tokio::spawn(queues::read_queue_states(self.bus.clone(), self.queues.clone()));
        loop {
            self.health.record_loop_iteration();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(lane) = self.lease_losses.recv() => run_unless_stopped(&stop, self.on_lease_lost(lane)).await,
                Some(id) = owner_stops.recv() => run_unless_stopped(&stop, self.on_owner_stopped(id)).await,
                _ = rounds.tick() => run_unless_stopped(&stop, self.adjust_lanes()).await,
                _ = refreshes.tick() => run_unless_stopped(&stop, self.refresh_capabilities()).await,
                _ = heartbeats.tick() => run_unless_stopped(&stop, self.send_heartbeat()).await,
            }
        }
        queues.abort();
        audit.abort();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, Box::pin(self.release_all_lanes())).await.is_err() {
            warn!("failed to release all lanes in time; their leases will expire");
        }
    }

    /// The interval at which leases are renewed and lanes are acquired or released.
    fn round_interval(&self) -> Duration {
        let lease = Duration::from_millis(self.bus.settings().lane_lease_ms);
        (lease / 8).clamp(Duration::from_millis(50), Duration::from_millis(250))
    }

    /// Adjusts which lanes this process owns.
    async fn adjust_lanes(&mut self) {
        if let Err(fault) = self.try_adjust_lanes().await {
            debug!(%fault, "failed to update the lanes; retrying");
            self.recreate_buckets().await;
        }
    }

    /// Creates buckets that were deleted, since without them no lane has an owner. Called after a fault, which usually has
    /// another cause; then nothing changes.
    async fn recreate_buckets(&mut self) {
        self.recreate_buckets_unless_checked_within(BUCKET_CHECK_INTERVAL).await;
    }

    async fn recreate_buckets_unless_checked_within(&mut self, interval: Duration) {
        if self.buckets_checked.is_some_and(|at| at.elapsed() < interval) {
            return;
        }
        self.buckets_checked = Some(tokio::time::Instant::now());
        if let Err(fault) = read_with_timeout("the buckets", self.bus.ensure_buckets()).await {
            debug!(%fault, "failed to check the buckets; retrying");
        }
    }

    async fn try_adjust_lanes(&mut self) -> Result<(), Fault> {
        let members = read_with_timeout("the supervisors", self.share.join_members()).await?;
        let share = self.share.assigned_lanes(&members);
        let unwanted: Vec<Lane> = self.owned.keys().filter(|lane| !share.contains(lane)).copied().collect();
        for lane in unwanted {
            info!(%lane, "releasing the lane; it belongs to another supervisor's share");
            self.release_lane(lane, true).await;
        }
        self.backoff.retain(|_, until| *until > tokio::time::Instant::now());
        let missing: BTreeSet<Lane> = share
            .iter()
            .filter(|lane| !self.owned.contains_key(lane) && !self.backoff.contains_key(lane))
            .copied()
            .collect();
        for lane in missing {
            if let Some(lease) = self.share.acquire_lease(lane).await? {
                self.start_owner(lane, lease).await;
            }
        }
        self.status.record_assignment(&share);
        Ok(())
    }

    /// Stops the owner of a lane whose lease another supervisor has.
    async fn on_lease_lost(&mut self, lane: Lane) {
        if let Some(owned) = self.owned.get(&lane) {
            warn!(%lane, "lease lost to another supervisor; stepping down");
            owned.status.record_lease_loss();
            self.release_lane(lane, false).await;
        }
    }

    async fn start_owner(&mut self, lane: Lane, lease: LaneLease) {
        let (leases, interval) = (self.share.clone(), self.round_interval());
        let renewal = LeaseRenewal::start(leases, lease, interval, self.lost_leases.clone());
        let status = self.status.add_lane(lane);
        let args = LaneOwnerArgs {
            bus: self.bus.clone(),
            lane,
            me: self.me.clone(),
            lease: renewal.lease(),
            cluster: self.cluster.subscribe(),
            attendance: self.attendance.subscribe(),
            queues: self.queues.subscribe(),
            live_runs: Arc::clone(&self.live_runs),
            linger: self.linger,
            status: status.clone(),
        };
        match Actor::spawn_linked(None, LaneOwner, args, self.root.clone()).await {
            Ok((owner, _)) => {
                self.owned.insert(lane, OwnedLane { renewal, owner, status });
            }
            Err(error) => {
                self.status.remove_lane(lane);
                warn!(%lane, %error, "failed to start a lane owner");
            }
        }
    }

    /// Stops a lane's owner and, if `is_lease_held`, releases the lease.
    async fn release_lane(&mut self, lane: Lane, is_lease_held: bool) {
        self.health.record_loop_iteration();
        let Some(owned) = self.owned.remove(&lane) else { return };
        self.status.remove_lane(lane);
        if owned.owner.stop_and_wait(None, Some(STOP_TIMEOUT)).await.is_err() {
            owned.owner.kill();
        }
        let lease = owned.renewal.stop(STOP_TIMEOUT).await;
        if is_lease_held && let Err(fault) = self.share.release_lease(&lease).await {
            debug!(%lane, %fault, "failed to release a lease; it will expire");
        }
    }

    /// Releases the lane of an owner that has stopped by itself; it is acquired again after a backoff, if it is still
    /// part of our share. Owners that this manager has stopped are no longer in `owned`.
    async fn on_owner_stopped(&mut self, id: ractor::ActorId) {
        let crashed = self.owned.iter().find(|(_, owned)| owned.owner.get_id() == id);
        if let Some(lane) = crashed.map(|(lane, _)| *lane) {
            self.backoff.insert(lane, tokio::time::Instant::now() + CRASH_BACKOFF);
            self.status.record_owner_crash(lane);
            self.release_lane(lane, true).await;
        }
    }

    /// Reads the registered capabilities, the number of live slots of each and the attendance. If they have changed, passes them to
    /// this process's lane owners.
    async fn refresh_capabilities(&mut self) {
        match read_with_timeout("the capability registry", CapabilitySnapshot::read(&self.bus)).await {
            Ok((snapshot, signs)) => {
                self.update_attendance(signs).await;
                self.cluster.send_if_modified(|old| {
                    let is_new = **old != snapshot;
                    if is_new {
                        *old = Arc::new(snapshot);
                    }
                    is_new
                });
            }
            Err(fault) => {
                debug!(%fault, "failed to refresh the capability registry");
                self.recreate_buckets().await;
            }
        }
    }

    /// Records that this supervisor is present, and the heartbeats of workers. During an interruption, others may have been present.
    async fn update_attendance(&self, signs: Vec<WorkerSign>) {
        let now = clock::now();
        let mut attendance = Attendance::clone(&self.attendance.borrow());
        if attendance.is_interrupted(now) {
            match read_with_timeout("the attendance", admission::read_attendance(&self.bus)).await {
                Ok(stored) => stored.into_iter().for_each(|stored| attendance.resume(stored)),
                Err(fault) => return debug!(%fault, "failed to read the attendance; retrying"),
            }
        }
        attendance.update(now, signs);
        self.attendance.send_replace(Arc::new(attendance));
    }

    async fn store_attendance(&self) {
        let attendance = Arc::clone(&self.attendance.borrow());
        let storing = admission::write_attendance(&self.bus, &attendance);
        if let Err(fault) = read_with_timeout("the attendance", storing).await {
            debug!(%fault, "failed to store the attendance; retrying");
        }
    }

    fn build_heartbeat(&self) -> Heartbeat {
        Heartbeat {
            id: self.me.clone(),
            role: ProcessRole::Supervisor,
            host: millrace_runtime::work::registry::host_name(),
            pid: std::process::id(),
            started: self.started,
            slots: Vec::new(),
            busy: u32::try_from(self.owned.len()).unwrap_or(u32::MAX),
            busy_with: Vec::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            lanes: self.status.lane_reports(),
            suspended: None,
            last_problem: millrace_runtime::ops::telemetry::last_problem(),
        }
    }

    async fn send_heartbeat(&mut self) {
        if let Err(fault) = registry::send_heartbeat(&self.bus, &self.build_heartbeat()).await {
            debug!(%fault, "heartbeat failed");
            self.recreate_buckets().await;
        }
        self.store_attendance().await;
        self.recreate_buckets_unless_checked_within(BUCKET_AUDIT_INTERVAL).await;
    }

    /// Releases all lanes and removes this supervisor from the members.
    async fn release_all_lanes(mut self) {
        let lanes: Vec<Lane> = self.owned.keys().copied().collect();
        for lane in lanes {
            self.release_lane(lane, true).await;
        }
        for result in [
            self.share.leave_members().await,
            registry::remove_heartbeat(&self.bus, &self.build_heartbeat()).await,
        ] {
            if let Err(fault) = result {
                debug!(%fault, "failed to leave the cluster; our entries will expire");
            }
        }
        self.bus.flush_client().await;
    }
}

/// Waits for an operation, but not for long after `stop`: the server may be down.
async fn run_unless_stopped(stop: &CancellationToken, work: impl Future<Output = ()>) {
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        () = work => {}
        () = stopped => debug!("shutting down; abandoning an operation"),
    }
}

/// Waits for the read of a bucket, as long as leases can wait to be renewed.
async fn read_with_timeout<T>(
    what: &str,
    reading: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let late = |_| Err(Fault::unavailable(what, "no answer in time"));
    tokio::time::timeout(READ_TIMEOUT, reading).await.unwrap_or_else(late)
}

/// The renewal of one lease. It ends when it is stopped or dropped, or when the lease is lost.
pub(crate) struct LeaseRenewal {
    lease: watch::Receiver<LaneLease>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl LeaseRenewal {
    /// Starts to renew a lease at an interval. `lost_leases` receives its lane if another supervisor has the lease.
    pub fn start(
        leases: LaneLeaseManager,
        lease: LaneLease,
        interval: Duration,
        lost_leases: mpsc::UnboundedSender<Lane>,
    ) -> Self {
        let (updates, current) = watch::channel(lease);
        let stop = CancellationToken::new();
        let renewing = renew_until_stopped(leases, updates, interval, stop.clone(), lost_leases);
        Self { lease: current, stop, task: tokio::spawn(renewing) }
    }

    /// Returns the lease, whose receivers see each renewal.
    pub fn lease(&self) -> watch::Receiver<LaneLease> {
        self.lease.clone()
    }

    /// Ends the renewal and returns the lease as it was renewed last. Waits for a renewal in flight, up to `timeout`.
    pub async fn stop(mut self, timeout: Duration) -> LaneLease {
        self.stop.cancel();
        if tokio::time::timeout(timeout, &mut self.task).await.is_err() {
            debug!("a renewal did not end in time; its lease will expire");
        }
        self.lease.borrow().clone()
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew_until_stopped(
    leases: LaneLeaseManager,
    updates: watch::Sender<LaneLease>,
    interval: Duration,
    stop: CancellationToken,
    lost_leases: mpsc::UnboundedSender<Lane>,
) {
    let mut rounds = tokio::time::interval(interval);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let mut lease = updates.borrow().clone();
        match leases.renew_lease(&mut lease).await {
            Ok(true) => drop(updates.send_replace(lease)),
            Ok(false) => {
                // Only during shutdown does the manager end first.
                let _ = lost_leases.send(lease.lane);
                return;
            }
            Err(fault) => debug!(lane = %lease.lane, %fault, "failed to renew a lease; retrying"),
        }
    }
}
