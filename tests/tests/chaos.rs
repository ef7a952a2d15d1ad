//! Whatever dies in the middle of a run, the run ends as it would have ended: supervisors, workers, critics and the
//! server are killed at seeded random moments, one by one and several at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::wire::Blob;
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Setup, alone};
use millrace_tests::history::{Fate, History};
use millrace_tests::plans::{finished, layered, run, submit};
use millrace_tests::strikes::strike;

const LAYERS: u64 = 10;
const WIDTH: u64 = 20;
/// How long an undisturbed run may take, and then a disturbed one.
const UNDISTURBED: Duration = Duration::from_secs(60);
const DISTURBED: Duration = Duration::from_secs(90);

/// How a run ended: how its tasks fared and what they brought, and the reason with the deliverable's task.
type Ending = (BTreeMap<TaskId, (Fate, Option<Blob>)>, String);

fn seeds() -> u64 {
    std::env::var("MILLRACE_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20)
}

fn first_seed() -> u64 {
    std::env::var("MILLRACE_CHAOS_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

fn ending(history: &History) -> Ending {
    let end = history.plan().end.as_ref().expect("the run is over");
    let mut results = history.results();
    let tasks = history.fates().into_iter();
    let tasks = tasks.map(|(task, fate)| {
        let result = results.remove(&task);
        (task, (fate, result))
    });
    (tasks.collect(), format!("{} {:?}", end.reason, end.deliverable))
}

fn name(seed: u64) -> RunId {
    run(&format!("chaos-{seed}"))
}

/// The runs of all seeds, left alone, side by side.
async fn undisturbed(seeds: &[u64]) -> BTreeMap<u64, Ending> {
    let cluster = Cluster::start(Setup { slots: 64, ..Setup::default() }, 2);
    let bus = cluster.bus().await;
    for &seed in seeds {
        submit(&bus, &name(seed), &layered(seed, LAYERS, WIDTH)).await;
    }
    let mut endings = BTreeMap::new();
    for &seed in seeds {
        let history =
            finished(&bus, &name(seed), UNDISTURBED + Duration::from_secs(seeds.len() as u64)).await;
        history.assert_holds();
        assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new());
        endings.insert(seed, ending(&history));
    }
    cluster.end();
    endings
}

/// What happened in a disturbed run.
struct Disturbed {
    ending: Ending,
    strikes: usize,
    takeovers: usize,
    continued: usize,
    took: Duration,
}

async fn disturbed(seed: u64) -> Disturbed {
    let mut cluster = Cluster::start(Setup::default(), 2);
    let bus = cluster.bus().await;
    let started = Instant::now();
    submit(&bus, &name(seed), &layered(seed, LAYERS, WIDTH)).await;
    let strikes = strike(&mut cluster, seed, &async || is_over(&bus, &name(seed)).await).await;
    // A process that was started while the server was away ends at once, with a word on that.
    while !is_over(&bus, &name(seed)).await && started.elapsed() < DISTURBED {
        cluster.keep();
        pass(50).await;
    }
    let took = started.elapsed();
    let history = finished(&bus, &name(seed), Duration::from_secs(1)).await;
    history.assert_holds();
    assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new(), "seed {seed}");
    cluster.end();
    let (takeovers, continued) = (history.takeovers(), history.continued());
    Disturbed { ending: ending(&history), strikes, takeovers, continued, took }
}

/// Whether a run is over, as far as can be told: the server may be away.
async fn is_over(bus: &Bus, run: &RunId) -> bool {
    registry::summary(bus, run).await.ok().flatten().is_some_and(|summary| summary.end.is_some())
}

async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_in_mid_run_the_run_ends_as_if_nothing_had_happened() {
    let _alone = alone();
    let seeds: Vec<u64> = (first_seed()..first_seed() + seeds()).collect();
    let expected = undisturbed(&seeds).await;
    let (mut strikes, mut continued) = (0, 0);
    for &seed in &seeds {
        let found = disturbed(seed).await;
        println!(
            "seed {seed}: {} strikes, {} takeovers of work, {} continued behind a step, {:.1} s",
            found.strikes,
            found.takeovers,
            found.continued,
            found.took.as_secs_f64()
        );
        compare(seed, &expected[&seed], &found.ending);
        strikes += found.strikes;
        continued += found.continued;
    }
    assert!(strikes >= seeds.len(), "{strikes} strikes in {} runs are no chaos", seeds.len());
    assert!(seeds.len() < 10 || continued > 0, "no attempt was ever continued behind a step");
}

fn compare(seed: u64, expected: &Ending, found: &Ending) {
    let differs = |task: &&TaskId| expected.0.get(*task) != found.0.get(*task);
    let different: Vec<_> = expected.0.keys().filter(differs).collect();
    let shown: Vec<String> = different
        .iter()
        .take(5)
        .map(|&task| format!("{task}: {:?}, undisturbed {:?}", found.0.get(task), expected.0.get(task)))
        .collect();
    assert!(different.is_empty(), "seed {seed}: {} tasks differ:\n{}", different.len(), shown.join("\n"));
    assert_eq!(found.1, expected.1, "seed {seed}");
}
