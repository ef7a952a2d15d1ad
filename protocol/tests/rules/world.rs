//! A small world around one run: queues with one order a subject, journals, workers and critics that die, come back
//! late, err, repeat themselves and miss what they are told. What happens is drawn from a seed, so that the same seed
//! gives the same run.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{
    Clock, Control, Effect, Event, Fact, Finished, Limits, OnFailedDependency, Overdue, Review, Scope,
    Submission, TaskSpec, TaskState, Work, due, next_retry,
};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject;

use crate::scene::{Scene, is_unchanged, task_of, touched};
use crate::{cast, oracle};

/// Draws that follow from a seed (SplitMix64).
pub struct Draws(pub u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = from.into_iter().collect();
        if all.is_empty() { None } else { Some(all[self.below(all.len())].clone()) }
    }
}

const CAPABILITIES: [&str; 3] = ["echo", "search", "producer"];

/// A random plan without circles, in a random order, with every policy, review and limit.
pub fn random_plan(draws: &mut Draws) -> Submission {
    let count = 1 + draws.below(10);
    let mut tasks: Vec<TaskSpec> = (0..count)
        .map(|at| {
            let depends_on = (0..at).filter(|_| draws.chance(35)).map(|at| cast::task_id(&format!("t{at}")));
            TaskSpec {
                depends_on: depends_on.collect(),
                capability: cast::capability(CAPABILITIES[draws.below(3)]),
                review: if draws.chance(50) { Review::Critic { criteria: Vec::new() } } else { Review::None },
                limits: Limits {
                    max_attempts: 1 + draws.below(3) as u32,
                    backoff: std::time::Duration::from_millis(draws.below(5000) as u64),
                    ..Limits::default()
                },
                on_failed_dependency: match draws.below(3) {
                    0 => OnFailedDependency::Cancel,
                    1 => OnFailedDependency::Skip,
                    _ => OnFailedDependency::Block,
                },
                ..cast::task(&format!("t{at}"), &[])
            }
        })
        .collect();
    for at in (1..count).rev() {
        tasks.swap(at, draws.below(at + 1));
    }
    if draws.chance(50) {
        let at = draws.below(count);
        tasks[at].is_final = true;
    }
    Submission { fail_fast: draws.chance(10), ..cast::submission(tasks) }
}

/// A fact about any task, attempt and try at all, likely or not.
pub fn random_fact(draws: &mut Draws, scene: &Scene) -> Fact {
    let Some(task) = draws.pick(scene.plan.tasks().iter().cloned()) else {
        return Fact::Control(Control::CancelTask { task: cast::task_id("nobody"), reason: "r".into() });
    };
    let id = if draws.chance(3) { cast::task_id("nobody") } else { task.spec.id.clone() };
    let attempt = if draws.chance(85) { task.attempt } else { draws.below(5) as u32 };
    let review = if draws.chance(85) { task.review } else { draws.below(5) as u32 };
    let who = format!("w{}", draws.below(3));
    match draws.below(12) {
        0..4 => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker(&who)),
        4..7 => cast::ended(&id, attempt, &who, random_outcome(draws)),
        7..10 => cast::judged(&id, attempt, review, &who, random_verdict(draws)),
        10 => Fact::Claimed(Work::Review { task: id, attempt, review }, cast::worker(&who)),
        _ if draws.chance(30) => Fact::Control(Control::CancelTask { task: id, reason: "enough".into() }),
        _ => Fact::Claimed(Work::Planning { turn: 1, attempt }, cast::worker(&who)),
    }
}

fn random_outcome(draws: &mut Draws) -> Result<Finished, TaskError> {
    match draws.below(10) {
        0 => Err(cast::error(ErrorKind::InvalidTask, "can't be done")),
        1 | 2 => Err(cast::error(ErrorKind::Tool, "broken")),
        3 => Ok(Finished { is_empty: true, ..cast::finished(1) }),
        at => Ok(cast::finished(at as u64)),
    }
}

fn random_verdict(draws: &mut Draws) -> Result<millrace_protocol::result::Verdict, TaskError> {
    match draws.below(10) {
        0 => Err(cast::error(ErrorKind::Model, "no answer")),
        1 => Ok(cast::contradiction()),
        2..5 => Ok(cast::verdict(false, Some("more"))),
        _ => Ok(cast::verdict(true, None)),
    }
}

/// The world around a run.
pub struct World {
    pub scene: Scene,
    pub draws: Draws,
    /// Orders that wait, by their subjects: one a subject, a second is refused.
    queue: BTreeMap<String, Work>,
    /// Who holds what, and how often it was claimed.
    held: Vec<(Work, String, u32)>,
    claims: BTreeMap<Work, u32>,
    /// Work whose journal has its end.
    done: BTreeSet<Work>,
    known: BTreeSet<Capability>,
    /// Every fact so far, for those that come twice.
    told: Vec<Fact>,
    /// What is owed for each task, kept up by asking about the touched ones only.
    owed: BTreeMap<TaskId, Vec<Effect>>,
    decisions: usize,
}

impl World {
    pub fn of(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let submission = random_plan(&mut draws);
        let mut world = Self {
            scene: Scene::new(),
            draws,
            queue: BTreeMap::new(),
            held: Vec::new(),
            claims: BTreeMap::new(),
            done: BTreeSet::new(),
            known: CAPABILITIES.iter().map(|name| cast::capability(name)).collect(),
            told: Vec::new(),
            owed: BTreeMap::new(),
            decisions: 0,
        };
        world.tell(Fact::Submitted(Box::new(submission)));
        world
    }

    /// Lets chaos reign for `steps`, and then fairness until the run ends; says how many steps that took.
    pub fn run(&mut self, steps: usize) -> usize {
        for step in 0.. {
            if !self.scene.plan.is_live() {
                return step;
            }
            assert!(step < 5_000, "the run does not end: {:#?}", self.scene.plan);
            let is_fair = step >= steps;
            if is_fair && self.known.len() < CAPABILITIES.len() {
                self.known = CAPABILITIES.iter().map(|name| cast::capability(name)).collect();
                self.registry();
            }
            self.step(is_fair);
        }
        unreachable!("the steps are counted without end")
    }

    fn step(&mut self, is_fair: bool) {
        match self.draws.below(100) {
            0..40 => self.claim(),
            40..75 => self.end_work(),
            75..85 => self.pass_time(is_fair),
            85..90 if !is_fair => self.tell_again(),
            90..93 if !is_fair => self.lose_worker(),
            93..97 if !is_fair => self.change_registry(),
            97 if !is_fair && self.draws.chance(30) => self.cancel(),
            _ => self.pass_time(is_fair),
        }
    }

    fn claim(&mut self) {
        let Some((subject, work)) = self.draws.pick(self.queue.clone()) else { return };
        self.queue.remove(&subject);
        if self.done.contains(&work) {
            return;
        }
        let claim = self.claims.entry(work.clone()).or_default();
        *claim += 1;
        let (claim, who) = (*claim, format!("w{}", self.draws.below(4)));
        self.held.push((work.clone(), who.clone(), claim));
        self.tell(Fact::Claimed(work, cast::worker(&who)));
    }

    fn end_work(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.below(self.held.len());
        let (work, who, claim) = self.held.swap_remove(at);
        self.done.insert(work.clone());
        let abandoned = || cast::error(ErrorKind::Abandoned, "claimed too often");
        let fact = match &work {
            Work::Task { task, attempt } => {
                let outcome = if claim > 5 { Err(abandoned()) } else { random_outcome(&mut self.draws) };
                cast::ended(task, *attempt, &who, outcome)
            }
            Work::Review { task, attempt, review } => {
                let outcome = if claim > 5 { Err(abandoned()) } else { random_verdict(&mut self.draws) };
                cast::judged(task, *attempt, *review, &who, outcome)
            }
            Work::Planning { .. } => unreachable!("these runs have their plan"),
        };
        self.tell(fact);
    }

    fn tell_again(&mut self) {
        let Some(fact) = self.draws.pick(self.told.clone()) else { return };
        let before = self.scene.plan.clone();
        let is_claim = matches!(fact, Fact::Claimed(..));
        self.tell(fact.clone());
        // A claim told again after a takeover names the worker before: the log has no claim twice, and a supervisor
        // passes over what it has answered. All else must be known as old by the rules alone.
        assert!(
            is_claim || is_unchanged(&before, &self.scene.plan),
            "told again, this changed the plan: {fact:?}"
        );
    }

    /// A worker is lost: what it held goes back to the queue.
    fn lose_worker(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.below(self.held.len());
        let (work, _, _) = self.held.swap_remove(at);
        self.queue.entry(self.subject(&work)).or_insert(work);
    }

    fn change_registry(&mut self) {
        let name = cast::capability(CAPABILITIES[self.draws.below(3)]);
        if !self.known.remove(&name) {
            self.known.insert(name);
        }
        self.registry();
    }

    fn registry(&mut self) {
        let known = self.known.clone();
        let expected = registry_by_hand(&self.scene, &known);
        let decided = self.scene.capabilities(&known);
        let about: Vec<_> = decided.iter().flatten().filter_map(touched).cloned().collect();
        assert_eq!(about, expected, "the registry's change is about other tasks");
        self.after_decision();
    }

    fn cancel(&mut self) {
        let task = self.draws.pick(self.scene.plan.tasks().iter().map(|task| task.spec.id.clone()));
        let control = match task {
            Some(task) if self.draws.chance(80) => Control::CancelTask { task, reason: "enough".into() },
            Some(_) | None => Control::CancelRun { reason: "enough".into() },
        };
        self.tell(Fact::Control(control));
    }

    /// Time goes by: to the next retry; in a world that stands still, by as much as a clock needs.
    fn pass_time(&mut self, is_fair: bool) {
        let stands_still = self.queue.is_empty() && self.held.is_empty();
        let next = next_retry(&self.scene.plan).filter(|_| self.draws.chance(70));
        let seconds = match (stands_still, is_fair) {
            (true, _) => 3600,
            (false, true) => 1,
            (false, false) => [1, 60, 700, 4000][self.draws.below(4)],
        };
        self.scene.now = next.unwrap_or_else(|| cast::after(self.scene.now, seconds)).max(self.scene.now);
        for overdue in self.scene.overdue() {
            let decided = self.scene.clock(&overdue);
            assert!(decided.is_ok() || self.is_moved(&overdue), "{overdue:?}: {decided:?}");
            self.after_decision();
        }
    }

    /// Whether what was overdue is no more so since a decision on something else that was.
    fn is_moved(&self, overdue: &Overdue) -> bool {
        if !self.scene.plan.is_live() {
            return true;
        }
        let is_terminal = |task: &TaskId| self.scene.plan.task(task).unwrap().state.is_terminal();
        match overdue {
            Overdue::Retry(task) => is_terminal(task),
            Overdue::RetryPlanning => false,
            Overdue::Clock(work, Clock::QueueWait | Clock::RunTime | Clock::Silence) => {
                task_of(work).is_some_and(is_terminal)
            }
        }
    }

    fn tell(&mut self, fact: Fact) {
        let before = self.scene.plan.clone();
        let decided = self.scene.fact(&fact);
        self.told.push(fact);
        if decided.is_err() {
            assert!(is_unchanged(&before, &self.scene.plan));
        }
        oracle::check_ended_stays(&before, &self.scene.plan);
        self.after_decision();
    }

    /// Does what the last decision asks of the world, and looks whether all is in order.
    fn after_decision(&mut self) {
        oracle::check_decided(&self.scene.plan);
        for decision in &self.scene.log[self.decisions..] {
            let ids: BTreeSet<TaskId> = decision.events.iter().filter_map(touched).cloned().collect();
            for id in &ids {
                let one = BTreeSet::from([id.clone()]);
                self.owed.insert(id.clone(), of_tasks(due(&self.scene.plan, Scope::Tasks(&one))));
            }
        }
        self.decisions = self.scene.log.len();
        if self.scene.plan.is_live() {
            let kept: BTreeSet<String> = self.owed.values().flatten().map(crate::show::effect).collect();
            let asked: BTreeSet<String> =
                of_tasks(due(&self.scene.plan, Scope::All)).iter().map(crate::show::effect).collect();
            assert_eq!(kept, asked, "what is owed for a task changed, and no event names it");
        }
        for effect in due(&self.scene.plan, Scope::All) {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Offer(work) => {
                let is_held = self.held.iter().any(|(held, _, _)| *held == work);
                if !is_held {
                    self.queue.entry(self.subject(&work)).or_insert(work);
                }
            }
            Effect::Withdraw(work) => {
                self.queue.remove(&self.subject(&work));
                // Some do not hear of it, and go on.
                if self.draws.chance(50) {
                    self.held.retain(|(held, _, _)| *held != work);
                }
            }
            Effect::Close => self.queue.clear(),
        }
    }

    fn subject(&self, work: &Work) -> String {
        let capability = task_of(work).and_then(|task| self.scene.plan.task(task)).unwrap();
        subject::order(&RunId::new("r").unwrap(), &capability.spec.capability, work)
    }
}

fn of_tasks(effects: Vec<Effect>) -> Vec<Effect> {
    effects.into_iter().filter(|effect| *effect != Effect::Close).collect()
}

/// The tasks that a change of the registry is about, worked out without the counts that the plan keeps for it.
fn registry_by_hand(scene: &Scene, known: &BTreeSet<Capability>) -> Vec<TaskId> {
    use millrace_protocol::plan::ErroredFor;
    let tasks = scene.plan.tasks().iter().filter(|task| match task.state {
        TaskState::Pending | TaskState::Ready | TaskState::Rerun => !known.contains(&task.spec.capability),
        TaskState::Errored => {
            known.contains(&task.spec.capability) && task.errored == Some(ErroredFor::Capability)
        }
        TaskState::Running
        | TaskState::NeedsReview
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Cancelled => false,
    });
    tasks.map(|task| task.spec.id.clone()).collect()
}

/// All events of a log.
pub fn events(scene: &Scene) -> impl Iterator<Item = &Event> {
    scene.log.iter().flat_map(|decision| &decision.events)
}
