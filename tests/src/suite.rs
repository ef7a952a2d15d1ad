//! Tests that share one cluster. Each case is a test of its own, so that `cargo test NAME` selects it. The first of
//! them opens the cluster and starts all cases that this process selected, side by side; each test then waits for the
//! result of its case. The cluster is stopped before the last result is reported, so that no process outlives the
//! tests.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tokio::runtime;

use crate::machine::share_machine;
use crate::testbed::TestBed;

/// How many cases run at once. They wait most of the time, for timeouts and slow models, so that two cores are enough.
const CONCURRENCY: usize = 16;

/// A case: its test, and what it does on the shared cluster.
pub struct SuiteCase {
    /// The path of the test: the crate and the name that `--list` prints.
    pub name: &'static str,
    /// Runs the case; it fails by a panic.
    pub run: for<'a> fn(&'a TestBed) -> LocalBoxFuture<'a, ()>,
}

/// Cases that share one cluster.
pub struct SharedClusterSuite {
    cases: &'static [SuiteCase],
    open: fn() -> LocalBoxFuture<'static, TestBed>,
    /// Results that no test has fetched yet, by case.
    results: Mutex<HashMap<&'static str, Receiver<CaseResult>>>,
}

/// `Ok`, or the message of the panic.
type CaseResult = Result<(), String>;

/// Makes each listed function a test and collects them in a [`SharedClusterSuite`] named `SUITE`. A function takes a `&TestBed`; the
/// test of `module: [name]` is `cases::module::name`.
#[macro_export]
macro_rules! shared_cluster_tests {
    ($open:expr; $($module:ident: [$($case:ident),+ $(,)?]),+ $(,)?) => {
        static SUITE: std::sync::LazyLock<$crate::suite::SharedClusterSuite> =
            std::sync::LazyLock::new(|| $crate::suite::SharedClusterSuite::new(CASES, || Box::pin($open)));

        static CASES: &[$crate::suite::SuiteCase] = &[$($($crate::suite::SuiteCase {
            name: concat!(module_path!(), "::cases::", stringify!($module), "::", stringify!($case)),
            run: |testbed| Box::pin($module::$case(testbed)),
        }),+),+];

        mod cases {
            $(mod $module {
                $(#[test]
                fn $case() {
                    super::super::SUITE.wait_for_case(concat!(module_path!(), "::", stringify!($case)));
                })+
            })+
        }
    };
}

impl SharedClusterSuite {
    /// A suite whose cluster is opened by `open` when the first case is needed.
    #[must_use]
    pub fn new(cases: &'static [SuiteCase], open: fn() -> LocalBoxFuture<'static, TestBed>) -> Self {
        Self { cases, open, results: Mutex::default() }
    }

    /// Waits for the result of a case, and starts it if it is not running yet, with all others that were selected.
    ///
    /// # Panics
    /// The case failed, with the message of its panic; or its cluster did not start or stop in order.
    pub fn wait_for_case(&'static self, name: &str) {
        let result = self.start_selected_cases(name).recv();
        if let Err(message) = result.expect("each case sends a result") {
            panic!("{message}");
        }
    }

    fn start_selected_cases(&'static self, name: &str) -> Receiver<CaseResult> {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = results.remove(name) {
            return result;
        }
        let selected = list_selected_tests();
        let is_listed =
            |case: &SuiteCase| case.name.split_once("::").is_some_and(|(_, test)| selected.contains(test));
        let is_selected = |case: &&SuiteCase| case.name == name || is_listed(case);
        let mut batch = Vec::new();
        for case in self.cases.iter().filter(is_selected) {
            let (sender, receiver) = channel();
            results.insert(case.name, receiver);
            batch.push((case, sender));
        }
        capture_panic_messages();
        let open = self.open;
        thread::spawn(move || run_cases(open, batch));
        results.remove(name).expect("a test's case is in the suite")
    }
}

/// The tests that this process runs, by the filters on its command line: what `--list` prints. Empty if it can't be
/// listed; then each case opens a cluster of its own.
fn list_selected_tests() -> BTreeSet<String> {
    let Ok(program) = std::env::current_exe() else { return BTreeSet::new() };
    let mut list = Command::new(program);
    list.args(std::env::args_os().skip(1)).arg("--list").stdin(Stdio::null()).stderr(Stdio::null());
    let output = list.output().map(|output| output.stdout).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Opens the cluster, runs the cases on it, reports each result as it comes, and stops the cluster.
fn run_cases(
    open: fn() -> LocalBoxFuture<'static, TestBed>,
    batch: Vec<(&'static SuiteCase, Sender<CaseResult>)>,
) {
    CAPTURES_PANICS.set(true);
    let _shared = share_machine();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime for the cases").block_on(async {
        let testbed = match catch_panic(open()).await {
            Ok(testbed) => testbed,
            Err(message) => {
                for (_, sender) in &batch {
                    drop(sender.send(Err(format!("the shared cluster did not start: {message}"))));
                }
                return;
            }
        };
        let mut unreported = batch.len();
        let mut last = None;
        let mut has_failed = false;
        let mut running = stream::iter(batch)
            .map(|(case, sender)| catch_panic((case.run)(&testbed)).map(move |result| (sender, result)))
            .buffer_unordered(CONCURRENCY);
        while let Some((sender, result)) = running.next().await {
            has_failed |= result.is_err();
            unreported -= 1;
            if unreported == 0 {
                last = Some((sender, result));
            } else {
                drop(sender.send(result));
            }
        }
        drop(running);
        let closed = catch_panic(async {
            if has_failed {
                testbed.kill_and_save_logs();
            } else {
                testbed.stop_and_check();
            }
        });
        let closed = closed.await.map_err(|message| format!("the shared cluster did not stop: {message}"));
        if let Some((sender, result)) = last {
            drop(sender.send(result.and(closed)));
        }
    });
}

thread_local! {
    /// `true` on threads that run cases.
    static CAPTURES_PANICS: Cell<bool> = const { Cell::new(false) };
    /// The message and place of this thread's last panic.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the panic messages of threads that run cases, for the tests that wait for them. Without it they would appear
/// in the output of whichever test came first.
fn capture_panic_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if CAPTURES_PANICS.get() {
                LAST_PANIC.set(Some(panic.to_string()));
            } else {
                default(panic);
            }
        }));
    });
}

/// Runs a future to its end or its panic, of which it returns the message.
async fn catch_panic<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let message = |_: Box<dyn Any + Send>| LAST_PANIC.take().unwrap_or_else(|| "it panicked".into());
    AssertUnwindSafe(future).catch_unwind().await.map_err(message)
}
