//! Liveness and readiness of a process, the two probes of a scheduler. [`serve`] serves them over HTTP. The checks
//! belong to the modules that add them.
//!
//! - *Live*: the main loop has completed an iteration within the last 30 s, by a monotonic clock. An unreachable NATS
//!   server does not matter here: a restart of the process would not help.
//! - *Ready*: every check passes. The first check is that the process is not stopping.
//!
//! # Invariants
//!
//! - I51: A process is ready only when it can work, unready as soon as it is stopping, and live while the server is away.
//!   (`tests/tests/health.rs::every_role_serves_its_pages_and_becomes_ready`,
//!   `tests/tests/health.rs::server_outage_makes_processes_unready_but_not_dead`,
//!   `tests/tests/health.rs::stopping_process_is_unready_at_once_and_keeps_its_grace`,
//!   `tests/tests/health.rs::supervisor_can_be_stopped_before_it_reads_the_registry`,
//!   `crates/runtime/src/ops/runtime.rs::blocked_thread_does_not_delay_the_exit`)

pub mod serve;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::ops::metrics::Gauge;
use crate::ops::metrics::names::READY;

pub use serve::{HttpServer, ListenError, ServerPoller};

/// The maximum duration of one iteration of the main loop.
pub const LOOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A check; it returns the missing condition if it fails.
type HealthCheckFn = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The health of a process. Cheap to clone.
#[derive(Clone)]
pub struct Health(Arc<HealthInner>);

struct HealthInner {
    stopping: CancellationToken,
    last_iteration: LastEventTime,
    checks: Mutex<Vec<NamedHealthCheck>>,
}

struct NamedHealthCheck {
    name: &'static str,
    check: HealthCheckFn,
    gauge: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckResult {
    /// The name of the check.
    pub name: &'static str,
    /// `Ok`, or the missing condition if the check failed.
    pub outcome: Result<(), String>,
}

impl Health {
    /// Creates the health of a process, which is stopping once `stopping` is cancelled.
    #[must_use]
    pub fn new(stopping: CancellationToken) -> Self {
        let health = Self(Arc::new(HealthInner {
            stopping: stopping.clone(),
            last_iteration: LastEventTime::default(),
            checks: Mutex::new(Vec::new()),
        }));
        health.add_readiness_check("running", move || {
            if stopping.is_cancelled() { Err("stopping".into()) } else { Ok(()) }
        });
        health
    }

    /// Records an iteration of the main loop.
    pub fn record_loop_iteration(&self) {
        self.0.last_iteration.set_now();
    }

    /// Adds a check, or replaces the one of the same name. `Err` says what is missing. The check runs on each request
    /// and must not block.
    pub fn add_readiness_check(
        &self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        let named = NamedHealthCheck { name, check: Box::new(check), gauge: READY.with_labels(&[name]) };
        let mut checks = self.0.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|other| other.name != name);
        checks.push(named);
    }

    /// Checks liveness. Before the first iteration of its main loop a process is starting, and counts as live however
    /// long it waits for the server.
    pub fn check_liveness(&self) -> HealthCheckResult {
        let outcome = match self.0.last_iteration.age() {
            Some(age) if age > LOOP_TIMEOUT => Err(format!("no iteration for {} s", age.as_secs())),
            Some(_) | None => Ok(()),
        };
        HealthCheckResult { name: "loop", outcome }
    }

    /// Runs all checks.
    pub fn check_readiness(&self) -> Vec<HealthCheckResult> {
        let checks = self.0.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let run = |one: &NamedHealthCheck| {
            let outcome = (one.check)();
            one.gauge.set(if outcome.is_ok() { 1.0 } else { 0.0 });
            HealthCheckResult { name: one.name, outcome }
        };
        checks.iter().map(run).collect()
    }

    /// Runs `work` until the process is stopping; `None` if it was stopped before `work` completed.
    pub async fn run_until_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.stopping.run_until_cancelled(work).await
    }

    /// `true` if the process is stopping.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }
}

/// The time at which something last happened.
#[derive(Debug)]
pub struct LastEventTime {
    /// When this value was created.
    created: Instant,
    /// Milliseconds from `created` to the last event, plus one; 0 if there was no event.
    at: AtomicU64,
}

impl Default for LastEventTime {
    fn default() -> Self {
        Self { created: Instant::now(), at: AtomicU64::new(0) }
    }
}

impl LastEventTime {
    /// Records that it happens now.
    pub fn set_now(&self) {
        self.at.store(self.elapsed_millis() + 1, Ordering::Relaxed);
    }

    /// Returns how long ago it happened; `None` if it never did.
    pub fn age(&self) -> Option<Duration> {
        let at = self.at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.elapsed_millis().saturating_sub(at)))
    }

    fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// The address of the health and metrics server.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct HttpArgs {
    /// Address of the HTTP server for /livez, /readyz and /metrics, such as 0.0.0.0:8080; no server by default
    #[arg(long = "http", env = "MILLRACE_HTTP", value_name = "ADDR")]
    pub address: Option<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_ready_while_every_check_passes_and_it_is_not_stopping() {
        let (stopping, health) = {
            let stopping = CancellationToken::new();
            (stopping.clone(), Health::new(stopping))
        };
        let names = |health: &Health| {
            health.check_readiness().into_iter().map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&health), ["running"]);
        health.add_readiness_check("lanes", || Err("folding lane 3".into()));
        assert_eq!(health.check_readiness()[1].outcome, Err("folding lane 3".to_owned()));
        health.add_readiness_check("lanes", || Ok(()));
        assert_eq!(names(&health), ["running", "lanes"]);
        assert!(health.check_readiness().iter().all(|check| check.outcome.is_ok()));
        stopping.cancel();
        assert!(health.check_readiness()[0].outcome.is_err());
        assert!(health.check_liveness().outcome.is_ok(), "a stopping process is live");
    }

    #[test]
    fn stuck_loop_is_not_live_and_starting_process_is() {
        let health = Health::new(CancellationToken::new());
        assert!(health.check_liveness().outcome.is_ok(), "it is starting");
        health.record_loop_iteration();
        assert!(health.check_liveness().outcome.is_ok());
        let long_ago = Instant::now().checked_sub(LOOP_TIMEOUT * 2).unwrap();
        let stuck = LastEventTime { created: long_ago, at: AtomicU64::new(1) };
        assert!(stuck.age().unwrap() > LOOP_TIMEOUT);
    }
}
