//! Rounds of runs, each followed by the baseline with the same messages, so that both run under the same conditions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::plan::Submission;

use super::baseline::mean_pass_sizes;
use crate::baseline::{self, BaselineTimes, PassSizes};
use crate::cluster::{BenchCluster, BenchOptions};
use crate::plans;
use crate::process::CpuSeconds;
use crate::report::{BaselineComparison, median, quantile, rate_per_second};
use crate::run::{RunMeasurement, measure_run, stage_times};

/// Number of independent tasks that the baseline has in flight.
const IN_FLIGHT: u32 = 1_024;
/// Maximum number of tasks per warm-up run: connections, caches and the supervisor's view of its workers must be in a
/// steady state before measuring.
const WARM_UP: u32 = 2_000;
/// Minimum duration of the warm-up: a supervisor refreshes the number of slots once per second.
const WARM_UP_TIME: Duration = Duration::from_millis(2_500);

/// The figure by which runs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonFigure {
    /// Tasks per second, from submission to end.
    Rate,
    /// Time between the ends of successive tasks.
    Hop,
}

/// Starts a cluster and warms it up for plans of `tasks` tasks.
pub async fn start_warm_cluster(
    options: &BenchOptions,
    tasks: u32,
    reviewed: bool,
) -> anyhow::Result<BenchCluster> {
    let mut cluster = BenchCluster::start(options).await?;
    warm_up_cluster(&mut cluster, tasks, reviewed).await?;
    Ok(cluster)
}

pub async fn warm_up_cluster(cluster: &mut BenchCluster, tasks: u32, reviewed: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < WARM_UP_TIME {
        measure_run(cluster, &plans::fan_out_submission(tasks.min(WARM_UP), reviewed)).await?;
    }
    Ok(())
}

/// Compares runs of a plan with the baseline.
pub async fn compare_with_baseline(
    options: &BenchOptions,
    what: String,
    by: ComparisonFigure,
    submission: &Submission,
    rounds: u32,
) -> anyhow::Result<BaselineComparison> {
    let reviewed = submission.tasks.iter().any(|task| !task.review.is_none());
    let mut cluster = start_warm_cluster(options, u32::try_from(submission.tasks.len())?, reviewed).await?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        let measured = measure_run(&mut cluster, submission).await?;
        let passes = mean_pass_sizes(&measured, submission);
        let in_flight = match by {
            ComparisonFigure::Rate => IN_FLIGHT,
            ComparisonFigure::Hop => 1,
        };
        let baseline = baseline::run_baseline(&mut cluster, measured.tasks, in_flight, &passes).await?;
        all.push(ComparisonRound { measured, passes, baseline });
    }
    cluster.stop_cluster().await;
    Ok(summarize_rounds(what, by, &all))
}

struct ComparisonRound {
    measured: RunMeasurement,
    passes: Vec<PassSizes>,
    baseline: BaselineTimes,
}

impl ComparisonRound {
    fn measured_and_baseline_figures(&self, by: ComparisonFigure) -> (f64, f64) {
        let tasks = self.measured.tasks as usize;
        match by {
            ComparisonFigure::Rate => {
                (rate_per_second(tasks, self.measured.took), rate_per_second(tasks, self.baseline.took))
            }
            ComparisonFigure::Hop => {
                (hop_quantile_ms(&self.measured.hops, 0.5), hop_quantile_ms(&self.baseline.hops, 0.5))
            }
        }
    }
}

fn hop_quantile_ms(hops: &[Duration], share: f64) -> f64 {
    quantile(hops.iter().map(|hop| hop.as_secs_f64() * 1e3), share)
}

fn summarize_rounds(what: String, by: ComparisonFigure, all: &[ComparisonRound]) -> BaselineComparison {
    let rounds: Vec<(f64, f64)> = all.iter().map(|round| round.measured_and_baseline_figures(by)).collect();
    let figure = median(rounds.iter().map(|(figure, _)| *figure));
    let baseline = median(rounds.iter().map(|(_, baseline)| *baseline));
    let (unit, ratio) = match by {
        ComparisonFigure::Rate => ("tasks/s", figure / baseline),
        ComparisonFigure::Hop => ("ms/task", baseline / figure),
    };
    BaselineComparison {
        what,
        unit,
        figure,
        bare: baseline,
        ratio,
        rounds,
        details: comparison_details(by, all),
        processor_seconds: per_ten_thousand(all, |round| &round.measured.seconds),
        bare_processor_seconds: per_ten_thousand(all, |round| &round.baseline.seconds),
    }
}

fn comparison_details(by: ComparisonFigure, all: &[ComparisonRound]) -> BTreeMap<&'static str, f64> {
    let of = |value: &dyn Fn(&ComparisonRound) -> f64| median(all.iter().map(value));
    let tasks = |round: &ComparisonRound| round.measured.tasks as usize;
    let mut details = BTreeMap::from([
        ("tasks", of(&|round| tasks(round) as f64)),
        ("messages", of(&|round| round.measured.records.len() as f64)),
        ("decisions", of(&|round| round.measured.decisions as f64)),
        ("bytes_of_decision_a_task", of(&|round| round.passes.iter().map(|pass| pass.decision as f64).sum())),
        ("bytes_of_order", of(&|round| round.passes[0].order as f64)),
        ("bytes_of_claim", of(&|round| round.passes[0].claim as f64)),
        ("bytes_of_outcome", of(&|round| round.passes[0].outcome as f64)),
    ]);
    match by {
        ComparisonFigure::Rate => {
            details.insert(
                "tasks_per_s_from_first_to_last_decision",
                of(&|round| rate_per_second(tasks(round), round.measured.deciding)),
            );
        }
        ComparisonFigure::Hop => {
            let mean = |took: Duration, round: &ComparisonRound| {
                took.as_secs_f64() * 1e3 / f64::from(round.measured.tasks)
            };
            details.extend([
                ("p90_ms", of(&|round| hop_quantile_ms(&round.measured.hops, 0.9))),
                ("p99_ms", of(&|round| hop_quantile_ms(&round.measured.hops, 0.99))),
                ("mean_ms", of(&|round| mean(round.measured.took, round))),
                ("bare_p90_ms", of(&|round| hop_quantile_ms(&round.baseline.hops, 0.9))),
                ("bare_p99_ms", of(&|round| hop_quantile_ms(&round.baseline.hops, 0.99))),
                ("bare_mean_ms", of(&|round| mean(round.baseline.took, round))),
            ]);
            let names = [
                ("ms_from_decision_to_claim", "bare_ms_from_decision_to_claim"),
                ("ms_from_claim_to_outcome", "bare_ms_from_claim_to_outcome"),
                ("ms_from_outcome_to_decision", "bare_ms_from_outcome_to_decision"),
            ];
            for (at, (name, bare_name)) in names.into_iter().enumerate() {
                details.insert(
                    name,
                    of(&|round| stage_times(&round.measured.records).median_milliseconds()[at]),
                );
                details.insert(bare_name, of(&|round| round.baseline.stages.median_milliseconds()[at]));
            }
        }
    }
    details
}

/// CPU seconds for 10,000 tasks, over all rounds.
fn per_ten_thousand(all: &[ComparisonRound], of: impl Fn(&ComparisonRound) -> &CpuSeconds) -> CpuSeconds {
    let tasks: f64 = all.iter().map(|round| f64::from(round.measured.tasks)).sum();
    let mut sum = CpuSeconds::new();
    for (name, seconds) in all.iter().flat_map(of) {
        *sum.entry(name.clone()).or_default() += seconds * 1e4 / tasks;
    }
    sum
}
