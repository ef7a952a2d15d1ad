//! Lines about work that takes long, for output that is not a terminal: one for each piece of work every 30 s, so that a log
//! shows that a slow model is still at work. Pure: the caller passes the time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::plan::{Plan, TaskState, Work};
use millrace_protocol::safe_text::single_line;

use super::LiveModelOutput;
use super::style::separate_thousands;

/// The interval between two lines about the same work.
const INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// The times of the last lines, by work.
#[derive(Debug, Default)]
pub struct Heartbeat {
    last: BTreeMap<String, Timestamp>,
}

struct WorkInProgress {
    work: Work,
    name: String,
    is_review: bool,
    since: Timestamp,
}

impl Heartbeat {
    pub fn due_lines(&mut self, plan: &Plan, live: &LiveModelOutput, now: Timestamp) -> Vec<String> {
        let current = list_work_in_progress(plan);
        let mut last = BTreeMap::new();
        let mut lines = Vec::new();
        for one in &current {
            let key = format!("{:?}", one.work);
            let before = self.last.get(&key).copied().unwrap_or(one.since);
            let is_due = now.duration_since(before) >= INTERVAL;
            if is_due {
                lines.push(describe_work(one, live, now));
            }
            last.insert(key, if is_due { now } else { before });
        }
        // Work that has ended is forgotten.
        self.last = last;
        lines
    }
}

fn list_work_in_progress(plan: &Plan) -> Vec<WorkInProgress> {
    if !plan.is_live() {
        return Vec::new();
    }
    let mut all = Vec::new();
    if let Some(turn) =
        plan.planning.turn.as_ref().filter(|turn| turn.worker.is_some() && turn.retry_at.is_none())
    {
        let work = Work::Planning { turn: turn.turn, attempt: turn.attempt };
        all.push(WorkInProgress { work, name: "planner".into(), is_review: false, since: turn.since });
    }
    for task in plan.tasks() {
        let (id, attempt) = (task.spec.id.clone(), task.attempt);
        let Some(current) = task.current_attempt() else { continue };
        let found = match task.state() {
            TaskState::Running => {
                current.claimed_at.map(|since| (Work::Task { task: id, attempt }, false, since))
            }
            TaskState::NeedsReview => {
                let review = task.review_number();
                current.ended_at.map(|since| (Work::Review { task: id, attempt, review }, true, since))
            }
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => None,
        };
        if let Some((work, is_review, since)) = found {
            all.push(WorkInProgress { work, name: single_line(task.spec.id.as_str()), is_review, since });
        }
    }
    all
}

fn describe_work(one: &WorkInProgress, live: &LiveModelOutput, now: Timestamp) -> String {
    let name = &one.name;
    let seconds = |since: Timestamp| now.duration_since(since).as_secs().max(0);
    let prefix = if one.is_review { format!("{name} is being judged") } else { name.clone() };
    match live.last_request_of_work(&one.work) {
        None if one.is_review => format!("{prefix}, {} s", seconds(one.since)),
        None => format!("{prefix}: in progress, {} s", seconds(one.since)),
        Some(request) => match request.first_token_at {
            None => format!(
                "{prefix}: waiting for the first token, {} s, {} tokens sent",
                seconds(request.sent_at),
                group_thousands(request.tokens)
            ),
            Some(first) => format!(
                "{prefix}: the model is writing, {} s; the first token came after {} s",
                seconds(first),
                first.duration_since(request.sent_at).as_secs()
            ),
        },
    }
}

/// Formats a number with separated thousands, from 1,000 on.
fn group_thousands(number: u64) -> String {
    if (1_000..10_000).contains(&number) {
        return format!("{},{:03}", number / 1_000, number % 1_000);
    }
    separate_thousands(&number.to_string())
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::TaskId;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn describe(work: Work, is_review: bool, live: &LiveModelOutput, now: i64) -> String {
        let name = if is_review { "a" } else { "planner" }.to_owned();
        describe_work(&WorkInProgress { work, name, is_review, since: at(0) }, live, at(now))
    }

    #[test]
    fn a_line_tells_what_the_model_does() {
        let work = Work::Planning { turn: 1, attempt: 1 };
        let mut live = LiveModelOutput::default();
        assert_eq!(describe(work.clone(), false, &live, 31), "planner: in progress, 31 s");
        let subject = "live.r.planning.1.1";
        assert_eq!(millrace_protocol::subject::Topic::journal_of_work(&work).to_string(), subject[7..]);
        let send = br#"{"text":"","calls":[],"anew":false,"sent_tokens":2625}"#;
        live.add_message(subject, send, at(2));
        assert_eq!(
            describe(work.clone(), false, &live, 62),
            "planner: waiting for the first token, 60 s, 2,625 tokens sent"
        );
        live.add_message(subject, br#"{"text":"","calls":[],"anew":false,"writing":true}"#, at(70));
        assert_eq!(
            describe(work.clone(), false, &live, 100),
            "planner: the model is writing, 30 s; the first token came after 68 s"
        );
        live.add_message(subject, send, at(110));
        assert!(describe(work, false, &live, 120).contains("waiting for the first token, 10 s"));
        let review = Work::Review { task: TaskId::new("a").unwrap(), attempt: 1, review: 1 };
        assert_eq!(describe(review, true, &live, 45), "a is being judged, 45 s");
    }
}
