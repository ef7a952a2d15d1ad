//! Rounds of runs, each with the bare cycle of the same messages right behind it, so that both have the same machine
//! in the same mood.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::plan::Submission;

use super::bare::{self, Leg, Took};
use super::ground::{Ground, Wishes};
use super::plans;
use super::process::Seconds;
use super::report::{Comparison, median, quantile, rate};
use super::run::{Measured, measure, stages};
use super::sizes::legs;

/// How many tasks the bare cycle has in flight where they do not depend on each other.
const IN_FLIGHT: u32 = 1_024;
/// How many tasks at the most are put through, again and again, before anything is measured, so that connections,
/// caches and what the supervisor knows of its workers are as they stay.
const WARM_UP: u32 = 2_000;
/// For how long at least: a supervisor learns once a second how many slots there are.
const WARM_UP_TIME: Duration = Duration::from_millis(2_500);

/// What runs are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Tasks by the second, from the submission to the end.
    Rate,
    /// The time from one task's end to the next one's.
    Hop,
}

/// A cluster that has been used for a while, for plans of `tasks` tasks.
pub async fn warm_ground(wishes: &Wishes, tasks: u32, reviewed: bool) -> anyhow::Result<Ground> {
    let mut ground = Ground::start(wishes).await?;
    warm(&mut ground, tasks, reviewed).await?;
    Ok(ground)
}

/// Uses a cluster for a while.
pub async fn warm(ground: &mut Ground, tasks: u32, reviewed: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < WARM_UP_TIME {
        measure(ground, &plans::fan_out(tasks.min(WARM_UP), reviewed)).await?;
    }
    Ok(())
}

/// Compares runs of a plan with the bare cycle.
pub async fn compare(
    wishes: &Wishes,
    what: String,
    by: By,
    submission: &Submission,
    rounds: u32,
) -> anyhow::Result<Comparison> {
    let reviewed = submission.tasks.iter().any(|task| !task.review.is_none());
    let mut ground = warm_ground(wishes, u32::try_from(submission.tasks.len())?, reviewed).await?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        let measured = measure(&mut ground, submission).await?;
        let legs = legs(&measured, submission);
        let in_flight = match by {
            By::Rate => IN_FLIGHT,
            By::Hop => 1,
        };
        let bare = bare::cycle(&mut ground, measured.tasks, in_flight, &legs).await?;
        all.push(Round { measured, legs, bare });
    }
    ground.stop().await;
    Ok(comparison(what, by, &all))
}

struct Round {
    measured: Measured,
    legs: Vec<Leg>,
    bare: Took,
}

impl Round {
    fn figures(&self, by: By) -> (f64, f64) {
        let tasks = self.measured.tasks as usize;
        match by {
            By::Rate => (rate(tasks, self.measured.took), rate(tasks, self.bare.took)),
            By::Hop => (hop(&self.measured.hops, 0.5), hop(&self.bare.hops, 0.5)),
        }
    }
}

fn hop(hops: &[Duration], share: f64) -> f64 {
    quantile(hops.iter().map(|hop| hop.as_secs_f64() * 1e3), share)
}

fn comparison(what: String, by: By, all: &[Round]) -> Comparison {
    let rounds: Vec<(f64, f64)> = all.iter().map(|round| round.figures(by)).collect();
    let figure = median(rounds.iter().map(|(figure, _)| *figure));
    let bare = median(rounds.iter().map(|(_, bare)| *bare));
    let (unit, ratio) = match by {
        By::Rate => ("tasks/s", figure / bare),
        By::Hop => ("ms a hop", bare / figure),
    };
    Comparison {
        what,
        unit,
        figure,
        bare,
        ratio,
        rounds,
        details: details(by, all),
        processor_seconds: per_ten_thousand(all, |round| &round.measured.seconds),
        bare_processor_seconds: per_ten_thousand(all, |round| &round.bare.seconds),
    }
}

fn details(by: By, all: &[Round]) -> BTreeMap<&'static str, f64> {
    let of = |value: &dyn Fn(&Round) -> f64| median(all.iter().map(value));
    let tasks = |round: &Round| round.measured.tasks as usize;
    let mut details = BTreeMap::from([
        ("tasks", of(&|round| tasks(round) as f64)),
        ("messages", of(&|round| round.measured.records.len() as f64)),
        ("decisions", of(&|round| round.measured.decisions as f64)),
        ("bytes_of_decision_a_task", of(&|round| round.legs.iter().map(|leg| leg.decision as f64).sum())),
        ("bytes_of_order", of(&|round| round.legs[0].order as f64)),
        ("bytes_of_claim", of(&|round| round.legs[0].claim as f64)),
        ("bytes_of_outcome", of(&|round| round.legs[0].outcome as f64)),
    ]);
    match by {
        By::Rate => {
            details.insert(
                "tasks_per_s_from_first_to_last_decision",
                of(&|round| rate(tasks(round), round.measured.deciding)),
            );
        }
        By::Hop => {
            let mean =
                |took: Duration, round: &Round| took.as_secs_f64() * 1e3 / f64::from(round.measured.tasks);
            details.extend([
                ("p90_ms", of(&|round| hop(&round.measured.hops, 0.9))),
                ("p99_ms", of(&|round| hop(&round.measured.hops, 0.99))),
                ("mean_ms", of(&|round| mean(round.measured.took, round))),
                ("bare_p90_ms", of(&|round| hop(&round.bare.hops, 0.9))),
                ("bare_p99_ms", of(&|round| hop(&round.bare.hops, 0.99))),
                ("bare_mean_ms", of(&|round| mean(round.bare.took, round))),
            ]);
            let names = [
                ("ms_from_decision_to_claim", "bare_ms_from_decision_to_claim"),
                ("ms_from_claim_to_outcome", "bare_ms_from_claim_to_outcome"),
                ("ms_from_outcome_to_decision", "bare_ms_from_outcome_to_decision"),
            ];
            for (at, (name, bare_name)) in names.into_iter().enumerate() {
                details.insert(name, of(&|round| stages(&round.measured.records).medians()[at]));
                details.insert(bare_name, of(&|round| round.bare.stages.medians()[at]));
            }
        }
    }
    details
}

/// Processor seconds for 10,000 tasks, over all rounds.
fn per_ten_thousand(all: &[Round], of: impl Fn(&Round) -> &Seconds) -> Seconds {
    let tasks: f64 = all.iter().map(|round| f64::from(round.measured.tasks)).sum();
    let mut sum = Seconds::new();
    for (name, seconds) in all.iter().flat_map(of) {
        *sum.entry(name.clone()).or_default() += seconds * 1e4 / tasks;
    }
    sum
}
