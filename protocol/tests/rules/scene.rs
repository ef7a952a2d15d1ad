//! A live run: a plan, the time, and the log of its decisions. It uses the rules as a supervisor does: decide, apply,
//! settle, and append the decision.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    AnswerCause, Attendance, CapabilityRegistry, Decision, DecisionInput, Event, Fact, HoldChange,
    InputAnswer, OverdueInput, Plan, Refusal, Submission, UnknownCapabilityStatus, apply, apply_decision,
    decide, overdue_inputs,
};

use crate::{cast, oracle, show};

/// `TRACE=1` prints the decisions; use it with `SEED=n`, which runs a single seed.
static IS_TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TRACE").is_some());

/// More rounds of settling than any decision needs.
const MAX_SETTLING: usize = 60;

pub struct RunScene {
    pub plan: Plan,
    pub now: Timestamp,
    pub log: Vec<Decision>,
    /// The time of the last journal entry of each task.
    pub last_entries: BTreeMap<TaskId, Timestamp>,
    /// The presence of supervisors and workers.
    pub attendance: Attendance,
    /// `true` to check every reservation when it is made.
    pub is_checked: bool,
    sequence: u64,
}

impl RunScene {
    pub fn new() -> Self {
        Self {
            plan: Plan::default(),
            now: cast::test_start_time(),
            log: Vec::new(),
            last_entries: BTreeMap::new(),
            attendance: Attendance::begin(cast::test_start_time()),
            is_checked: true,
            sequence: 0,
        }
    }

    pub fn from_submission(submission: Submission) -> Self {
        let mut scene = Self::new();
        scene.decide_fact(&Fact::Submitted(Box::new(submission))).unwrap();
        scene
    }

    /// Decides on a fact, as the next message of the lane.
    pub fn decide_fact(&mut self, fact: &Fact) -> Result<Vec<Event>, Refusal> {
        self.sequence += 1;
        self.decide_and_apply(AnswerCause::Fact(self.sequence), &DecisionInput::Fact(fact))
    }

    pub fn decide_registry_change(&mut self, cluster: &CapabilityRegistry) -> Result<Vec<Event>, Refusal> {
        self.decide_and_apply(
            AnswerCause::Registry,
            &DecisionInput::Cluster(cluster, UnknownCapabilityStatus::Missing),
        )
    }

    pub fn change_hold(&mut self, change: &HoldChange) -> Result<Vec<Event>, Refusal> {
        self.decide_and_apply(AnswerCause::Rules, &DecisionInput::Hold(change))
    }

    pub fn decide_overdue_input(&mut self, overdue: &OverdueInput) -> Result<Vec<Event>, Refusal> {
        self.decide_and_apply(AnswerCause::Clock, &overdue.input())
    }

    /// Returns the events of the last decision.
    pub fn last_events(&self) -> Vec<Event> {
        self.log.last().map(|decision| decision.events.clone()).unwrap_or_default()
    }

    /// Returns everything that is overdue by now.
    pub fn overdue_inputs_now(&self) -> Vec<OverdueInput> {
        overdue_inputs(&self.plan, self.now, &self.attendance, |task| self.last_entries.get(task).copied())
    }

    fn decide_and_apply(
        &mut self,
        cause: AnswerCause,
        input: &DecisionInput<'_>,
    ) -> Result<Vec<Event>, Refusal> {
        let decided = decide(&self.plan, input, self.now);
        self.sequence += 1;
        let mut decision = Decision {
            by: cast::worker_id("s1"),
            previous: self.log.len() as u64,
            at: self.now,
            answers: vec![build_answer(cause, &decided)],
            events: decided.clone().unwrap_or_default(),
        };
        apply_decision(&mut self.plan, &decision);
        while !decision.events.is_empty()
            && let Ok(settled) = decide(&self.plan, &DecisionInput::Settle, self.now)
            && !settled.is_empty()
        {
            assert!(decision.answers.len() < MAX_SETTLING, "settling does not end: {settled:?}");
            if self.is_checked {
                oracle::check_new_reservations(&self.plan, &settled);
            }
            settled.iter().for_each(|event| apply(&mut self.plan, event, self.now));
            decision.answers.push(build_answer(AnswerCause::Rules, &Ok(settled.clone())));
            decision.events.extend(settled);
        }
        if *IS_TRACED {
            let events: Vec<_> = decision.events.iter().map(show::format_event).collect();
            eprintln!("{:?}\n  {}", decision.answers, events.join("\n  "));
        }
        let events = decision.events.clone();
        self.log.push(decision);
        decided.map(|_| events)
    }

    /// A worker claims the current attempt.
    pub fn claim_task(&mut self, task: &TaskId, by: &str) {
        let work = cast::attempt_work(task, self.plan.task(task).unwrap().attempt);
        self.decide_fact(&Fact::Claimed(work, cast::worker_id(by), None)).unwrap();
    }

    /// The same, and the worker finishes it.
    pub fn claim_and_finish_task(&mut self, task: &TaskId, by: &str) {
        self.claim_task(task, by);
        let attempt = self.plan.task(task).unwrap().attempt;
        self.decide_fact(&cast::attempt_ended_fact(
            task,
            attempt,
            by,
            Ok(cast::finished_result(self.sequence)),
        ))
        .unwrap();
    }

    /// A critic finishes the review of the current attempt.
    pub fn finish_review(&mut self, task: &TaskId, passed: bool) {
        let (attempt, review) =
            self.plan.task(task).map(|task| (task.attempt, task.review_number())).unwrap();
        self.decide_fact(&cast::reviewed_fact(
            task,
            attempt,
            review,
            "c1",
            Ok(cast::review_verdict(passed, Some("more"))),
        ))
        .unwrap();
    }
}

fn build_answer(cause: AnswerCause, decided: &Result<Vec<Event>, Refusal>) -> InputAnswer {
    match decided {
        Ok(events) => InputAnswer { cause, events: u32::try_from(events.len()).unwrap(), refusal: None },
        Err(refusal) => InputAnswer { cause, events: 0, refusal: Some(refusal.clone()) },
    }
}

/// `true` if the plan is unchanged, except for the sequence of the last answered fact.
pub fn is_plan_unchanged(before: &Plan, now: &Plan) -> bool {
    let mut now = now.clone();
    now.run.through = before.run.through;
    now == *before
}
