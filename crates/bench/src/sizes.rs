//! Message sizes of a run, so that the baseline can send messages of the same sizes.

use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{JournalKey, Submission, TaskSpec, Work};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{InputResult, JournalEntry, Order};

use crate::baseline::PassSizes;
use crate::run::RunMeasurement;

/// Returns the mean message sizes of a run for each pass of a task. The size of a decision is divided among the tasks whose
/// facts it answers.
pub fn mean_pass_sizes(measured: &RunMeasurement, submission: &Submission) -> Vec<PassSizes> {
    let is_reviewed = submission.tasks.first().is_some_and(|task| !task.review.is_none());
    let (mut works, mut reviews) = (JournalSizes::default(), JournalSizes::default());
    let mut decisions = MeanSize::default();
    for record in &measured.records {
        let size = record.payload.len();
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => decisions.add_size(size),
            Some((_, _, Topic::Journal(JournalKey::Task(..)))) => works.add_record(record),
            Some((_, _, Topic::Journal(JournalKey::Review(..)))) => reviews.add_record(record),
            Some((
                _,
                _,
                Topic::Submitted | Topic::Control | Topic::Answer | Topic::Journal(JournalKey::Planning(..)),
            ))
            | None => {}
        }
    }
    let kinds = if is_reviewed { vec![works, reviews] } else { vec![works] };
    let decision = decisions.sum / measured.tasks.max(1) as usize / kinds.len();
    let order = |at: usize| submission.tasks.last().map_or(0, |task| order_size(task, submission, at == 1));
    let pass = |(at, journals): (usize, JournalSizes)| PassSizes {
        decision,
        order: order(at),
        claim: journals.claims.mean_size(),
        outcome: journals.outcomes.mean_size(),
    };
    kinds.into_iter().enumerate().map(pass).collect()
}

#[derive(Default)]
struct MeanSize {
    sum: usize,
    count: usize,
}

impl MeanSize {
    fn add_size(&mut self, size: usize) {
        self.sum += size;
        self.count += 1;
    }

    fn mean_size(&self) -> usize {
        self.sum / self.count.max(1)
    }
}

#[derive(Default)]
struct JournalSizes {
    claims: MeanSize,
    outcomes: MeanSize,
}

impl JournalSizes {
    fn add_record(&mut self, record: &millrace_runtime::nats::record::StreamRecord) {
        match wire::decode_message::<JournalEntry>(&record.payload, record.encoding) {
            Ok(JournalEntry::Claimed { .. }) => self.claims.add_size(record.payload.len()),
            Ok(JournalEntry::Outcome { .. }) => self.outcomes.add_size(record.payload.len()),
            Ok(
                JournalEntry::Step { .. }
                | JournalEntry::Note { .. }
                | JournalEntry::Parked { .. }
                | JournalEntry::Delegated { .. }
                | JournalEntry::Released { .. },
            )
            | Err(_) => {}
        }
    }
}

/// Returns the size of the order for a task or its review, as a supervisor publishes it.
fn order_size(task: &TaskSpec, submission: &Submission, is_review: bool) -> usize {
    let name = "20260101-000000-000000";
    let id = task.id.clone();
    let input = |task: millrace_protocol::ids::TaskId| InputResult {
        task,
        objective: task_objective(submission),
        capability: Capability::new("echo").expect("the constant is a valid name"),
        worker: WorkerId::new("worker-0123456789ab").expect("the constant is a valid name"),
        summary: "echo".into(),
        at_sequence: 100_000,
    };
    let (work, inputs) = if is_review {
        (Work::Review { task: id.clone(), attempt: 1, review: 1 }, vec![input(id)])
    } else {
        (Work::Task { task: id, attempt: 1 }, task.depends_on.iter().cloned().map(input).collect())
    };
    let run = RunId::new(name).expect("the constant is a valid id");
    let order = Order {
        mission: submission.objective.clone(),
        parameters: task.parameters.clone(),
        inputs,
        is_final: task.is_final,
        limits: task.limits.clone(),
        ..Order::new(run, Lane(0), work, &task.objective, task.capability.clone())
    };
    wire::encode_with_inline_body::<Order>(&wire::encode_body(&order)).len()
}

fn task_objective(submission: &Submission) -> String {
    submission.tasks.last().map(|task| task.objective.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans;

    #[test]
    fn orders_with_dependencies_are_larger() {
        let size = |submission: &Submission, is_review| {
            order_size(submission.tasks.last().unwrap(), submission, is_review)
        };
        let (alone, chained) = (plans::fan_out_submission(9, true), plans::chain_submission(9));
        assert!(size(&alone, false) < size(&chained, false));
        assert!(size(&alone, false) < size(&alone, true));
    }
}
