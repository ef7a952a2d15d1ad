//! How a process is: whether its main loop turns, and whether it can do its part. It owns the two questions that a
//! scheduler asks of a process, and [`serve`] answers them over HTTP; what a check looks at belongs to whoever adds it.
//!
//! - *Live*: the main loop has turned within half a minute, by a clock that nobody sets. A server that is away changes
//!   nothing here: a process that is started again for that would be no better off.
//! - *Ready*: every check holds. The first is that the process is not about to stop.

mod args;
pub mod serve;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

pub use args::HttpArgs;
pub use serve::{Page, ServeError};

use crate::metrics::Level;
use crate::metrics::names::READY;

/// How long a main loop may take to turn once.
pub const BEAT_AGE: Duration = Duration::from_secs(30);

/// Whether something holds, and if not, what is missing.
type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The health of a process. Cheap to clone.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    stopping: CancellationToken,
    beat: Moment,
    checks: Mutex<Vec<Named>>,
}

struct Named {
    name: &'static str,
    check: Check,
    level: Level,
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The check.
    pub name: &'static str,
    /// Whether it holds, and if not, what is missing.
    pub holds: Result<(), String>,
}

impl Health {
    /// The health of a process that is about to stop once `stopping` is cancelled.
    #[must_use]
    pub fn new(stopping: CancellationToken) -> Self {
        let health = Self(Arc::new(Inner {
            stopping: stopping.clone(),
            beat: Moment::default(),
            checks: Mutex::new(Vec::new()),
        }));
        health.add(
            "running",
            move || {
                if stopping.is_cancelled() { Err("about to stop".into()) } else { Ok(()) }
            },
        );
        health
    }

    /// The main loop turns.
    pub fn beat(&self) {
        self.0.beat.now();
    }

    /// Adds a check: `Err` says what is missing. It is made whenever somebody asks, and must not wait for anything. One
    /// of the same name is replaced.
    pub fn add(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let named = Named { name, check: Box::new(check), level: READY.level(&[name]) };
        let mut checks = self.0.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|other| other.name != name);
        checks.push(named);
    }

    /// Whether the main loop turns. Before its first turn a process is starting, and may wait for the world as long as
    /// it has to.
    #[must_use]
    pub fn live(&self) -> Found {
        let holds = match self.0.beat.age() {
            Some(age) if age > BEAT_AGE => Err(format!("has not turned for {} s", age.as_secs())),
            Some(_) | None => Ok(()),
        };
        Found { name: "loop", holds }
    }

    /// What each check finds.
    #[must_use]
    pub fn ready(&self) -> Vec<Found> {
        let checks = self.0.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |one: &Named| {
            let holds = (one.check)();
            one.level.set(if holds.is_ok() { 1.0 } else { 0.0 });
            Found { name: one.name, holds }
        };
        checks.iter().map(find).collect()
    }

    /// Does something for as long as the process is not told to stop; `None` if it was, before that was done.
    pub async fn until_told_to_stop<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.stopping.run_until_cancelled(work).await
    }

    /// Whether the process was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }
}

/// When something was last so.
#[derive(Debug)]
pub struct Moment {
    epoch: Instant,
    /// Milliseconds since the epoch, and one; 0 is never.
    at: AtomicU64,
}

impl Default for Moment {
    fn default() -> Self {
        Self { epoch: Instant::now(), at: AtomicU64::new(0) }
    }
}

impl Moment {
    /// It is so now.
    pub fn now(&self) {
        self.at.store(self.elapsed() + 1, Ordering::Relaxed);
    }

    /// How long ago it was so; `None` if it never was.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let at = self.at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.elapsed().saturating_sub(at)))
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_check_holds_and_until_it_is_told_to_stop() {
        let (stopping, health) = {
            let stopping = CancellationToken::new();
            (stopping.clone(), Health::new(stopping))
        };
        let names = |health: &Health| health.ready().into_iter().map(|found| found.name).collect::<Vec<_>>();
        assert_eq!(names(&health), ["running"]);
        health.add("lanes", || Err("folding lane 3".into()));
        assert_eq!(health.ready()[1].holds, Err("folding lane 3".to_owned()));
        health.add("lanes", || Ok(()));
        assert_eq!(names(&health), ["running", "lanes"]);
        assert!(health.ready().iter().all(|found| found.holds.is_ok()));
        stopping.cancel();
        assert!(health.ready()[0].holds.is_err());
        assert!(health.live().holds.is_ok(), "a process that ends is alive until it has");
    }

    #[test]
    fn a_loop_that_does_not_turn_any_more_is_told_from_one_that_has_not_begun() {
        let health = Health::new(CancellationToken::new());
        assert!(health.live().holds.is_ok(), "it waits for the world");
        health.beat();
        assert!(health.live().holds.is_ok());
        let long_ago = Instant::now().checked_sub(BEAT_AGE * 2).unwrap();
        let stuck = Moment { epoch: long_ago, at: AtomicU64::new(1) };
        assert!(stuck.age().unwrap() > BEAT_AGE);
    }
}
