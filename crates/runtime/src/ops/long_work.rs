//! Work that keeps a thread busy for long: decoding, folding and deciding on very large plans.
//!
//! # Invariants
//!
//! - I264: An owner keeps its lease while it folds and decides on a very large plan: the other tasks of the process continue
//!   meanwhile. (`tests/tests/supervision.rs::owner_keeps_its_lease_while_it_decides_on_a_very_large_plan`,
//!   `crates/runtime/src/ops/long_work.rs::other_tasks_go_on_during_long_work`)

use tokio::runtime::{Handle, RuntimeFlavor};

/// The number of tasks of a plan from which on a pass over it is long work.
pub const LONG_PLAN: usize = 50_000;
/// The number of bytes of a message from which on its decoding is long work.
pub const LONG_MESSAGE: usize = 4_000_000;

/// Runs work on this thread. If it `is_long`, the runtime moves the other tasks of the thread to another thread first. It would not
/// do so otherwise for the task that was woken last, which may be the connection to the server or the renewal of a lease.
pub fn run_possibly_long<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    // A runtime with a single thread, as in tests, has no other thread.
    let has_threads =
        || Handle::try_current().is_ok_and(|current| current.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && has_threads() { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A task that was woken just before the work runs during the work, on a runtime with one thread.
    #[test]
    fn other_tasks_go_on_during_long_work() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let is_run_meanwhile = runtime.block_on(async {
            let working = tokio::spawn(async {
                let (done, is_done) = mpsc::channel();
                tokio::spawn(async move { done.send(()) });
                run_possibly_long(true, || is_done.recv_timeout(Duration::from_secs(30)).is_ok())
            });
            working.await.unwrap()
        });
        assert!(is_run_meanwhile);
    }

    #[tokio::test]
    async fn runtime_with_one_thread_does_the_work_itself() {
        assert_eq!(run_possibly_long(true, || 1), 1);
        assert_eq!(std::thread::spawn(|| run_possibly_long(true, || 2)).join().unwrap(), 2);
    }
}
