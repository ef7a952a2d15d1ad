//! How large the messages of a run were, so that the bare cycle can send messages of the same sizes.

use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{Submission, TaskSpec, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{Entry, Input, Order};

use super::bare::Leg;
use super::run::Measured;

/// The mean sizes of a run's messages, for each way of a task through queue and journal. Decisions are counted by the
/// task: where one answers many facts, each task has its share of it.
pub fn legs(measured: &Measured, submission: &Submission) -> Vec<Leg> {
    let is_reviewed = submission.tasks.first().is_some_and(|task| !task.review.is_none());
    let (mut works, mut reviews) = (Journals::default(), Journals::default());
    let mut decisions = Mean::default();
    for record in &measured.records {
        let size = record.payload.len();
        match subject::parse(&record.subject) {
            Some((_, _, Topic::Plan)) => decisions.add(size),
            Some((_, _, Topic::Task(..))) => works.add(record),
            Some((_, _, Topic::Review(..))) => reviews.add(record),
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Planning(..))) | None => {}
        }
    }
    let kinds = if is_reviewed { vec![works, reviews] } else { vec![works] };
    let decision = decisions.sum / measured.tasks.max(1) as usize / kinds.len();
    let order = |at: usize| submission.tasks.last().map_or(0, |task| order_size(task, submission, at == 1));
    let leg = |(at, journals): (usize, Journals)| Leg {
        decision,
        order: order(at),
        claim: journals.claims.mean(),
        outcome: journals.outcomes.mean(),
    };
    kinds.into_iter().enumerate().map(leg).collect()
}

#[derive(Default)]
struct Mean {
    sum: usize,
    count: usize,
}

impl Mean {
    fn add(&mut self, size: usize) {
        self.sum += size;
        self.count += 1;
    }

    fn mean(&self) -> usize {
        self.sum / self.count.max(1)
    }
}

#[derive(Default)]
struct Journals {
    claims: Mean,
    outcomes: Mean,
}

impl Journals {
    fn add(&mut self, record: &millrace_runtime::record::Record) {
        match wire::open::<Entry>(&record.payload, record.encoding) {
            Ok(Entry::Claimed { .. }) => self.claims.add(record.payload.len()),
            Ok(Entry::Outcome { .. }) => self.outcomes.add(record.payload.len()),
            Ok(Entry::Step { .. } | Entry::Note { .. } | Entry::Released { .. }) | Err(_) => {}
        }
    }
}

/// The size of the order for a task, or for the review of its result, as a supervisor writes it.
fn order_size(task: &TaskSpec, submission: &Submission, is_review: bool) -> usize {
    let name = "20260101-000000-000000";
    let id = task.id.clone();
    let input = |task: millrace_protocol::ids::TaskId| Input {
        task,
        objective: task_objective(submission),
        capability: Capability::new("echo").expect("letters make a name"),
        worker: WorkerId::new("worker-0123456789ab").expect("letters and digits make a name"),
        summary: "echo".into(),
        at_sequence: 100_000,
    };
    let (work, inputs) = if is_review {
        (Work::Review { task: id.clone(), attempt: 1, review: 1 }, vec![input(id)])
    } else {
        (Work::Task { task: id, attempt: 1 }, task.depends_on.iter().cloned().map(input).collect())
    };
    let run = RunId::new(name).expect("digits and hyphens make a name");
    let order = Order {
        mission: submission.objective.clone(),
        parameters: task.parameters.clone(),
        inputs,
        is_final: task.is_final,
        limits: task.limits.clone(),
        ..Order::new(run, Lane(0), work, &task.objective, task.capability.clone())
    };
    wire::seal::<Order>(&wire::body(&order)).len()
}

fn task_objective(submission: &Submission) -> String {
    submission.tasks.last().map(|task| task.objective.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::plans;
    use super::*;

    #[test]
    fn an_order_that_builds_on_results_is_larger_than_one_that_does_not() {
        let size = |submission: &Submission, is_review| {
            order_size(submission.tasks.last().unwrap(), submission, is_review)
        };
        let (alone, chained) = (plans::fan_out(9, true), plans::chain(9));
        assert!(size(&alone, false) < size(&chained, false));
        assert!(size(&alone, false) < size(&alone, true));
    }
}
