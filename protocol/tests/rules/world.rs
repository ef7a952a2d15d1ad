//! A small world around one run: queues with one order a subject, journals, planners, workers and critics that die, come
//! back late, err, repeat themselves and miss what they are told; users who steer; a cluster that changes. What happens
//! is drawn from a seed, so that the same seed gives the same run.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    Clock, Command, Control, Effect, Event, Fact, Overdue, Plan, Scope, TaskState, Work, due, next_retry,
};
use millrace_protocol::result::{TaskError, Usage};
use millrace_protocol::subject;

use crate::oracle::Overshoot;
use crate::random::{self, Draws, Offers};
use crate::scene::{Scene, is_unchanged};
use crate::{cast, oracle};

/// Somebody at work: with what, who, at which claim of it, and for a planner the plan that it was asked about.
struct Held {
    work: Work,
    who: String,
    claim: u32,
    seen: Plan,
}

/// The world around a run.
pub struct World {
    pub scene: Scene,
    pub draws: Draws,
    /// Orders that wait, by their subjects: one a subject, a second is refused.
    queue: BTreeMap<String, Work>,
    held: Vec<Held>,
    claims: BTreeMap<Work, u32>,
    /// Work whose journal has its end.
    done: BTreeSet<Work>,
    offers: Offers,
    /// Every fact so far, for those that come twice.
    told: Vec<Fact>,
    /// What is owed for each task, kept up by asking about the touched ones only.
    owed: BTreeMap<TaskId, Vec<Effect>>,
    decisions: usize,
    overshoot: Overshoot,
    commands: usize,
}

impl World {
    pub fn of(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let submission = random::submission(&mut draws);
        let mut world = Self {
            scene: Scene::new(),
            draws,
            queue: BTreeMap::new(),
            held: Vec::new(),
            claims: BTreeMap::new(),
            done: BTreeSet::new(),
            offers: Offers::ALL,
            told: Vec::new(),
            owed: BTreeMap::new(),
            decisions: 0,
            overshoot: Overshoot::default(),
            commands: 0,
        };
        world.tell(Fact::Submitted(Box::new(submission)));
        world
    }

    /// Lets chaos reign for `steps`, and then fairness until the run ends; says how many steps that took.
    pub fn run(&mut self, steps: usize) -> usize {
        for step in 0.. {
            let is_fair = step >= steps;
            let is_over = !self.scene.plan.is_live();
            if is_over && (is_fair || !self.scene.plan.is_resumable()) {
                return step;
            }
            assert!(step < 8_000, "the run does not end: {:#?}", self.scene.plan);
            if is_fair {
                self.make_fair();
            }
            self.step(is_fair);
        }
        unreachable!("the steps are counted without end")
    }

    /// Whatever is known is there, and nobody holds the run up. Planners stay as they are.
    fn make_fair(&mut self) {
        if self.offers != Offers::ALL {
            self.offers = Offers::ALL;
            self.registry();
        }
        if self.scene.plan.paused.is_some() {
            self.command(Control::Resume { budget: None });
        }
    }

    fn step(&mut self, is_fair: bool) {
        match self.draws.below(100) {
            0..40 => self.claim(),
            40..75 => self.end_work(),
            75..82 => self.pass_time(is_fair),
            82..86 if !is_fair => self.tell_again(),
            86..90 if !is_fair => self.lose_worker(),
            90..93 if !is_fair => self.change_registry(),
            93..98 if !is_fair => self.steer(),
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
        self.held.push(Held { work: work.clone(), who: who.clone(), claim, seen: self.scene.plan.clone() });
        self.tell(Fact::Claimed(work, cast::worker(&who)));
    }

    fn end_work(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.below(self.held.len());
        let Held { work, who, claim, seen } = self.held.swap_remove(at);
        self.done.insert(work.clone());
        let draws = &mut self.draws;
        let usage = random::usage(draws, self.scene.plan.reserved.of(&work));
        let abandoned = || TaskError {
            usage,
            ..cast::error(millrace_protocol::result::ErrorKind::Abandoned, "claimed too often")
        };
        let is_abandoned = claim > 5;
        let fact = match &work {
            Work::Task { task, attempt } => {
                let outcome = if is_abandoned { Err(abandoned()) } else { random::outcome(draws, usage) };
                cast::ended(task, *attempt, &who, outcome)
            }
            Work::Review { task, attempt, review } => {
                let outcome = if is_abandoned { Err(abandoned()) } else { random::verdict(draws, usage) };
                cast::judged(task, *attempt, *review, &who, outcome)
            }
            Work::Planning { turn, attempt } => {
                let outcome =
                    if is_abandoned { Err(abandoned()) } else { random::proposal(draws, &seen, usage) };
                Fact::Planned { turn: *turn, attempt: *attempt, outcome }
            }
        };
        self.end(&work, usage, fact);
    }

    /// Tells of an end, and books what it used beyond its reservation where it is accepted.
    fn end(&mut self, work: &Work, usage: Usage, fact: Fact) {
        let before = self.scene.plan.clone();
        self.tell(fact);
        let after = &self.scene.plan;
        if after.spend.total != before.spend.total {
            self.overshoot.add(&before, work, &usage);
        }
        self.overshoot.check(after);
    }

    fn tell_again(&mut self) {
        let Some(fact) = self.draws.pick(self.told.clone()) else { return };
        let before = self.scene.plan.clone();
        let is_claim = matches!(fact, Fact::Claimed(..));
        let was_refused = self.is_new_command(&fact);
        self.tell(fact.clone());
        // A claim told again after a takeover names the worker before: the log has no claim twice, and a supervisor
        // passes over what it has answered. A command that was refused is new. All else must be known as old by the
        // rules alone.
        assert!(
            is_claim || was_refused || is_unchanged(&before, &self.scene.plan),
            "told again, this changed the plan: {fact:?}"
        );
    }

    fn is_new_command(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Control(command) => !self.scene.plan.commands.contains(&command.id),
            Fact::Submitted(_)
            | Fact::Claimed(..)
            | Fact::Planned { .. }
            | Fact::Ended { .. }
            | Fact::Reviewed { .. } => false,
        }
    }

    /// A worker is lost: what it held goes back to the queue.
    fn lose_worker(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.below(self.held.len());
        let Held { work, .. } = self.held.swap_remove(at);
        self.queue.entry(self.subject(&work)).or_insert(work);
    }

    fn change_registry(&mut self) {
        self.offers.change(&mut self.draws);
        self.registry();
    }

    fn registry(&mut self) {
        if !self.scene.plan.is_live() {
            return;
        }
        let cluster = self.offers.cluster();
        let expected = registry_by_hand(&self.scene.plan, self.offers);
        let decided = self.scene.cluster(&cluster).unwrap();
        let about = |event: &Event| {
            let is_told_of = !matches!(event, Event::OccasionRaised { .. });
            event.task().filter(|_| is_told_of).cloned()
        };
        // What was settled behind it is another matter.
        let own = self.scene.log.last().unwrap().answers[0].events as usize;
        let about: Vec<_> = decided[..own].iter().filter_map(about).collect();
        assert_eq!(about, expected, "the registry's change is about other tasks");
        self.after_decision();
    }

    fn steer(&mut self) {
        let mut fact = random::command(&mut self.draws, &self.scene.plan);
        if let Fact::Control(command) = &mut fact {
            self.commands += 1;
            command.id = format!("{}-{}", command.id, self.commands);
        }
        self.tell(fact);
    }

    fn command(&mut self, control: Control) {
        self.commands += 1;
        let id = format!("fair-{}", self.commands);
        self.tell(Fact::Control(Command { id, by: "bob".into(), control }));
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
            let before = self.scene.plan.clone();
            let decided = self.scene.clock(&overdue);
            assert!(decided.is_ok() || self.is_moved(&overdue), "{overdue:?}: {decided:?}");
            oracle::check_ended_stays(&before, &self.scene.plan, &self.scene.last_events());
            self.after_decision();
        }
    }

    /// Whether what was overdue is no more so since a decision on something else that was.
    fn is_moved(&self, overdue: &Overdue) -> bool {
        if !self.scene.plan.is_live() {
            return true;
        }
        let state = |task: &TaskId| self.scene.plan.task(task).unwrap().state;
        match overdue {
            Overdue::Retry(task) => state(task) != TaskState::Errored,
            Overdue::RetryReview(task) => state(task) != TaskState::NeedsReview,
            Overdue::RetryPlanning => self.scene.plan.planning.is_none(),
            Overdue::WallTime => self.scene.plan.winding_down.is_some() || self.scene.plan.budget_is_low,
            Overdue::Retire => false,
            Overdue::Clock(Work::Planning { .. }, _) => self.scene.plan.planning.is_none(),
            Overdue::Clock(work, Clock::QueueWait | Clock::RunTime | Clock::Silence) => {
                self.scene.plan.task(work.task().unwrap()).unwrap().given_out().as_ref() != Some(work)
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
        oracle::check_ended_stays(&before, &self.scene.plan, &self.scene.last_events());
        self.after_decision();
        self.learn_of_tasks();
    }

    /// What the cluster can do is asked again when the tasks are others.
    fn learn_of_tasks(&mut self) {
        let is_news = |event: &Event| {
            matches!(
                event,
                Event::TaskAdded { .. }
                    | Event::TaskPatched { .. }
                    | Event::TaskReopened { .. }
                    | Event::TaskInvalidated { .. }
            )
        };
        if self.scene.last_events().iter().any(is_news) {
            self.registry();
        }
    }

    /// Does what the last decision asks of the world, and looks whether all is in order.
    fn after_decision(&mut self) {
        let plan = &self.scene.plan;
        oracle::check_decided(plan);
        for decision in &self.scene.log[self.decisions..] {
            let mut ids: BTreeSet<TaskId> = decision.events.iter().filter_map(Event::task).cloned().collect();
            if decision.events.iter().any(Event::concerns_all) {
                ids.extend(plan.tasks().iter().map(|task| task.spec.id.clone()));
            }
            for id in &ids {
                let one = BTreeSet::from([id.clone()]);
                self.owed.insert(id.clone(), of_tasks(due(plan, Scope::Tasks(&one))));
            }
        }
        self.decisions = self.scene.log.len();
        if plan.is_live() {
            let kept: BTreeSet<String> = self.owed.values().flatten().map(crate::show::effect).collect();
            let asked: BTreeSet<String> =
                of_tasks(due(plan, Scope::All)).iter().map(crate::show::effect).collect();
            assert_eq!(kept, asked, "what is owed for a task changed, and no event names it");
        }
        self.check_hands();
        for effect in due(&self.scene.plan, Scope::All) {
            self.perform(effect);
        }
    }

    /// Whoever has work in hand that the plan knows of has a reservation for it.
    fn check_hands(&self) {
        let plan = &self.scene.plan;
        for work in millrace_protocol::plan::in_hand(plan) {
            assert!(oracle::is_covered(plan, &work), "{work:?} is in hand without its reservation");
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Offer(work) => {
                let is_held = self.held.iter().any(|held| held.work == work);
                if !is_held {
                    self.queue.entry(self.subject(&work)).or_insert(work);
                }
            }
            Effect::Withdraw(work, capability) => {
                self.queue.remove(&subject::order(&RunId::new("r").unwrap(), &capability, &work));
                // Some do not hear of it, and go on.
                if self.draws.chance(50) {
                    self.held.retain(|held| held.work != work);
                }
            }
            Effect::Close => self.queue.clear(),
        }
    }

    fn subject(&self, work: &Work) -> String {
        subject::order(&RunId::new("r").unwrap(), &oracle::capability(&self.scene.plan, work), work)
    }

    /// Orders that wait although nobody wants them any more, with the queue of a capability that they are in.
    pub fn left_in_queues(&self) -> Vec<&Work> {
        let plan = &self.scene.plan;
        let is_wanted = |work: &Work| match work {
            Work::Planning { .. } => plan.planning.as_ref().is_some_and(|planning| planning.work() == *work),
            Work::Task { task, .. } => plan.task(task).unwrap().given_out().as_ref() == Some(work),
            // A verdict counts from an earlier try too.
            Work::Review { .. } => true,
        };
        self.queue.values().filter(|work| !is_wanted(work)).collect()
    }
}

fn of_tasks(effects: Vec<Effect>) -> Vec<Effect> {
    let is_of_task = |effect: &Effect| match effect {
        Effect::Offer(work) | Effect::Withdraw(work, _) => work.task().is_some(),
        Effect::Close => false,
    };
    effects.into_iter().filter(is_of_task).collect()
}

/// The tasks that a change of the registry is about, worked out without the counts that the plan keeps for it.
fn registry_by_hand(plan: &Plan, offers: Offers) -> Vec<TaskId> {
    use millrace_protocol::plan::ErroredFor;
    let cluster = offers.cluster();
    let tasks = plan.tasks().iter().filter(|task| {
        let is_known = cluster.get(&task.spec.capability).is_some();
        let is_wrong = offers.is_strict
            && task.spec.capability.as_str() == "search"
            && !task.spec.parameters.contains_key("q");
        match (task.state, task.errored) {
            (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => !is_known || is_wrong,
            (TaskState::Errored, Some(ErroredFor::Capability)) => is_known,
            (TaskState::Errored, Some(ErroredFor::Parameters)) => is_known && !is_wrong,
            (TaskState::Errored, Some(ErroredFor::Retry(_)) | None)
            | (
                TaskState::Running
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Cancelled,
                _,
            ) => false,
        }
    });
    tasks.map(|task| task.spec.id.clone()).collect()
}

/// All events of a log.
pub fn events(scene: &Scene) -> impl Iterator<Item = &Event> {
    scene.log.iter().flat_map(|decision| &decision.events)
}
