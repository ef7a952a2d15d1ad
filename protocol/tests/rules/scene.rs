//! A run under way: a plan, the time, and the log of its decisions. It does what a supervisor does with the rules and
//! nothing else: decide, apply, settle, and note the decision.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Answer, Cause, Cluster, Decision, Event, Fact, Input, MayBeMissing, Overdue, Plan, Refusal, Submission,
    apply, apply_decision, decide, overdue,
};

use crate::{cast, oracle, show};

/// `TRACE=1` shows what is decided, beside `SEED=n` which tries one seed alone.
static IS_TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TRACE").is_some());

/// More rounds of settling than a supervisor makes.
const MAX_SETTLING: usize = 60;

pub struct Scene {
    pub plan: Plan,
    pub now: Timestamp,
    pub log: Vec<Decision>,
    /// When the journal of a task was last written to.
    pub heard: BTreeMap<TaskId, Timestamp>,
    /// Whether every reservation is looked at as it is made.
    pub is_checked: bool,
    sequence: u64,
}

impl Scene {
    pub fn new() -> Self {
        Self {
            plan: Plan::default(),
            now: cast::start(),
            log: Vec::new(),
            heard: BTreeMap::new(),
            is_checked: true,
            sequence: 0,
        }
    }

    pub fn submitted(submission: Submission) -> Self {
        let mut scene = Self::new();
        scene.fact(&Fact::Submitted(Box::new(submission))).unwrap();
        scene
    }

    /// Decides on a fact, as the next message of the lane.
    pub fn fact(&mut self, fact: &Fact) -> Result<Vec<Event>, Refusal> {
        self.sequence += 1;
        self.answer(Cause::Fact(self.sequence), &Input::Fact(fact))
    }

    pub fn cluster(&mut self, cluster: &Cluster) -> Result<Vec<Event>, Refusal> {
        self.answer(Cause::Registry, &Input::Cluster(cluster, MayBeMissing::Yes))
    }

    pub fn clock(&mut self, overdue: &Overdue) -> Result<Vec<Event>, Refusal> {
        self.answer(Cause::Clock, &overdue.input())
    }

    /// What the last decision made.
    pub fn last_events(&self) -> Vec<Event> {
        self.log.last().map(|decision| decision.events.clone()).unwrap_or_default()
    }

    /// Everything that time alone has brought about by now.
    pub fn overdue(&self) -> Vec<Overdue> {
        overdue(&self.plan, self.now, |task| self.heard.get(task).copied())
    }

    fn answer(&mut self, cause: Cause, input: &Input<'_>) -> Result<Vec<Event>, Refusal> {
        let decided = decide(&self.plan, input, self.now);
        self.sequence += 1;
        let mut decision = Decision {
            by: cast::worker("s1"),
            previous: self.log.len() as u64,
            at: self.now,
            answers: vec![answered(cause, &decided)],
            events: decided.clone().unwrap_or_default(),
        };
        apply_decision(&mut self.plan, &decision);
        while !decision.events.is_empty()
            && let Ok(settled) = decide(&self.plan, &Input::Settle, self.now)
            && !settled.is_empty()
        {
            assert!(decision.answers.len() < MAX_SETTLING, "it is never settled: {settled:?}");
            if self.is_checked {
                oracle::check_reserved(&self.plan, &settled);
            }
            settled.iter().for_each(|event| apply(&mut self.plan, event, self.now));
            decision.answers.push(answered(Cause::Rules, &Ok(settled.clone())));
            decision.events.extend(settled);
        }
        if *IS_TRACED {
            let events: Vec<_> = decision.events.iter().map(show::event).collect();
            eprintln!("{:?}\n  {}", decision.answers, events.join("\n  "));
        }
        let events = decision.events.clone();
        self.log.push(decision);
        decided.map(|_| events)
    }

    /// The shortest way to a state: a worker claims the current attempt.
    pub fn claim(&mut self, task: &TaskId, by: &str) {
        let work = cast::attempt(task, self.plan.task(task).unwrap().attempt);
        self.fact(&Fact::Claimed(work, cast::worker(by))).unwrap();
    }

    /// The same, and brings a result.
    pub fn finish(&mut self, task: &TaskId, by: &str) {
        self.claim(task, by);
        let attempt = self.plan.task(task).unwrap().attempt;
        self.fact(&cast::ended(task, attempt, by, Ok(cast::finished(self.sequence)))).unwrap();
    }

    /// A critic brings a verdict on the current attempt.
    pub fn judge(&mut self, task: &TaskId, passed: bool) {
        let (attempt, review) = self.plan.task(task).map(|task| (task.attempt, task.review)).unwrap();
        self.fact(&cast::judged(task, attempt, review, "c1", Ok(cast::verdict(passed, Some("more")))))
            .unwrap();
    }
}

fn answered(cause: Cause, decided: &Result<Vec<Event>, Refusal>) -> Answer {
    match decided {
        Ok(events) => Answer { cause, events: u32::try_from(events.len()).unwrap(), refusal: None },
        Err(refusal) => Answer { cause, events: 0, refusal: Some(refusal.clone()) },
    }
}

/// Whether nothing has come of what was answered in between.
pub fn is_unchanged(before: &Plan, now: &Plan) -> bool {
    let mut now = now.clone();
    now.through = before.through;
    now == *before
}
