//! A simulated world around one run: queues with one order per subject, journals, planners, workers and critics that crash,
//! return late, fail, repeat themselves and miss messages; users who steer; a cluster that changes. A seed determines
//! everything that happens.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    AttemptClock, Attendance, CommandAction, Effect, EffectScope, Event, Fact, OverdueInput, Plan,
    PlanningEvent, RunCommand, TaskState, Work, next_backoff_end, pending_effects,
};
use millrace_protocol::result::{TaskError, Usage};
use millrace_protocol::subject;
use millrace_protocol::wait::ProviderStatus;

use crate::oracle::ReservationOvershoot;
use crate::random::{self, RandomDraws, RegisteredTestCapabilities};
use crate::scene::{RunScene, is_plan_unchanged};
use crate::{cast, oracle};

/// Work in progress: its claimant, the number of the claim, and for a planner the plan that it was shown.
struct WorkInProgress {
    work: Work,
    who: String,
    claim: u32,
    seen: Plan,
}

/// The world around a run.
pub struct SimulatedWorld {
    pub scene: RunScene,
    pub draws: RandomDraws,
    /// Waiting orders by subject; a second order with the same subject is rejected.
    queue: BTreeMap<String, Work>,
    held: Vec<WorkInProgress>,
    claims: BTreeMap<Work, u32>,
    /// Work whose journal has its outcome.
    done: BTreeSet<Work>,
    offers: RegisteredTestCapabilities,
    /// All facts so far, for redelivery.
    delivered: Vec<Fact>,
    /// Pending effects by task, updated for touched tasks only.
    owed: BTreeMap<TaskId, Vec<Effect>>,
    decisions: usize,
    overshoot: ReservationOvershoot,
    commands: usize,
}

impl SimulatedWorld {
    pub fn from_seed(seed: u64) -> Self {
        let mut draws = RandomDraws(seed);
        let submission = random::random_submission(&mut draws);
        let mut world = Self {
            scene: RunScene::new(),
            draws,
            queue: BTreeMap::new(),
            held: Vec::new(),
            claims: BTreeMap::new(),
            done: BTreeSet::new(),
            offers: RegisteredTestCapabilities::ALL,
            delivered: Vec::new(),
            owed: BTreeMap::new(),
            decisions: 0,
            overshoot: ReservationOvershoot::default(),
            commands: 0,
        };
        world.deliver_fact(Fact::Submitted(Box::new(submission)));
        world
    }

    /// Runs `steps` chaotic steps, then fair ones until the run ends; returns the number of steps.
    pub fn run_until_end(&mut self, steps: usize) -> usize {
        for step in 0.. {
            let is_fair = step >= steps;
            let is_over = !self.scene.plan.is_live();
            if is_over && (is_fair || !self.scene.plan.is_resumable()) {
                return step;
            }
            assert!(step < 8_000, "the run does not end: {:#?}", self.scene.plan);
            if is_fair {
                self.restore_fair_conditions();
            }
            self.run_random_step(is_fair);
        }
        unreachable!("the loop has no end of its own")
    }

    /// Registers all capabilities and resumes a paused run. Planners stay as they are.
    fn restore_fair_conditions(&mut self) {
        if self.offers != RegisteredTestCapabilities::ALL {
            self.offers = RegisteredTestCapabilities::ALL;
            self.check_registry_change();
        }
        if self.scene.plan.run.paused.is_some() {
            self.deliver_command(CommandAction::Resume { budget: None });
        }
        self.end_hold();
        let open = self.scene.plan.parked_attempts().flat_map(|(_, attempt)| attempt.open_waits());
        let event = open.filter_map(|wait| wait.condition.event()).next().map(str::to_owned);
        if let Some(name) = event {
            self.deliver_command(CommandAction::Signal { name, data: String::new() });
        }
        self.answer_random_question();
    }

    /// The turn of a run that waits for its session comes.
    fn end_hold(&mut self) {
        if self.scene.plan.is_held() {
            self.scene.change_hold(&cast::first_turn()).unwrap();
            self.carry_out_effects_and_check();
            self.check_registry_after_edits();
        }
    }

    fn run_random_step(&mut self, is_fair: bool) {
        if self.scene.plan.is_held() && self.draws.draw_chance(10) {
            self.end_hold();
        }
        match self.draws.draw_below(100) {
            0..40 => self.claim_random_order(),
            40..75 => self.end_random_work(),
            75..82 => self.pass_time(is_fair),
            82..86 if !is_fair => self.redeliver_random_fact(),
            86..88 if !is_fair => self.lose_random_worker(),
            88..90 if !is_fair => self.park_random_attempt(),
            90..92 if !is_fair => self.change_registry(),
            92..94 if !is_fair => self.lose_provider(),
            94..96 if !is_fair => self.answer_random_question(),
            96..98 if !is_fair => self.deliver_random_command(),
            _ => self.pass_time(is_fair),
        }
    }

    fn claim_random_order(&mut self) {
        let Some((subject, work)) = self.draws.pick_random(self.queue.clone()) else { return };
        self.queue.remove(&subject);
        if self.done.contains(&work) {
            return;
        }
        let claim = self.claims.entry(work.clone()).or_default();
        *claim += 1;
        let (claim, who) = (*claim, format!("w{}", self.draws.draw_below(4)));
        self.held.push(WorkInProgress {
            work: work.clone(),
            who: who.clone(),
            claim,
            seen: self.scene.plan.clone(),
        });
        self.deliver_fact(Fact::Claimed(work, cast::worker_id(&who), None));
    }

    fn end_random_work(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.draw_below(self.held.len());
        let WorkInProgress { work, who, claim, seen } = self.held.swap_remove(at);
        self.done.insert(work.clone());
        let draws = &mut self.draws;
        let usage = random::random_usage(draws, oracle::left_of_reservation(&self.scene.plan, &work));
        let abandoned = || TaskError {
            usage,
            ..cast::task_error(millrace_protocol::result::ErrorKind::Abandoned, "claimed too often")
        };
        let is_abandoned = claim > 5;
        let fact = match &work {
            Work::Task { task, attempt } => {
                let outcome = if is_abandoned {
                    Err(abandoned())
                } else {
                    random::random_attempt_outcome(draws, usage)
                };
                cast::attempt_ended_fact(task, *attempt, &who, outcome)
            }
            Work::Review { task, attempt, review } => {
                let outcome = if is_abandoned {
                    Err(abandoned())
                } else {
                    random::random_verdict_outcome(draws, usage)
                };
                cast::reviewed_fact(task, *attempt, *review, &who, outcome)
            }
            Work::Planning { turn, attempt } => {
                let outcome = if is_abandoned {
                    Err(abandoned())
                } else {
                    random::random_planning_outcome(draws, &seen, usage)
                };
                Fact::Planned { turn: *turn, attempt: *attempt, outcome }
            }
        };
        self.deliver_work_end(&work, usage, fact);
    }

    /// Delivers the end of work, and adds what it used beyond its reservation if it is accepted.
    fn deliver_work_end(&mut self, work: &Work, usage: Usage, fact: Fact) {
        let before = self.scene.plan.clone();
        self.deliver_fact(fact);
        let after = &self.scene.plan;
        if after.budget.spend.total != before.budget.spend.total {
            self.overshoot.add_used_beyond_reservation(&before, work, &usage);
        }
        self.overshoot.check_run_limits(after);
    }

    fn redeliver_random_fact(&mut self) {
        let Some(fact) = self.draws.pick_random(self.delivered.clone()) else { return };
        let before = self.scene.plan.clone();
        let is_claim = matches!(fact, Fact::Claimed(..) | Fact::Provider(..) | Fact::ReservationTooSmall(..));
        let was_refused = self.is_unapplied_command(&fact);
        self.deliver_fact(fact.clone());
        // A claim that is repeated after another one names the earlier worker: the log never has a claim twice, and a
        // supervisor ignores answered facts. A command that was refused may be repeated. The rules must recognise
        // all other duplicates themselves.
        assert!(
            is_claim || was_refused || is_plan_unchanged(&before, &self.scene.plan),
            "redelivered, this changed the plan: {fact:?}"
        );
    }

    fn is_unapplied_command(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Control(command) => !self.scene.plan.run.commands.contains(&command.id),
            Fact::Answered(answer) => !self.scene.plan.run.commands.contains(&answer.id),
            Fact::Submitted(_)
            | Fact::Claimed(..)
            | Fact::Planned { .. }
            | Fact::Ended { .. }
            | Fact::Reviewed { .. }
            | Fact::Parked { .. }
            | Fact::Delegated { .. }
            | Fact::Provider(..)
            | Fact::ReservationTooSmall(..) => false,
        }
    }

    /// A worker is lost: its order goes back to the queue.
    fn lose_random_worker(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.draw_below(self.held.len());
        let WorkInProgress { work, .. } = self.held.swap_remove(at);
        self.queue.entry(self.order_subject_of(&work)).or_insert(work);
    }

    /// A worker parks its attempt, for times and events.
    fn park_random_attempt(&mut self) {
        let parkable = |held: &WorkInProgress| matches!(held.work, Work::Task { .. });
        let Some(at) = self.held.iter().position(parkable) else { return };
        let WorkInProgress { work, who, claim, .. } = self.held.swap_remove(at);
        let Work::Task { task, attempt } = &work else { return };
        if self.draws.draw_chance(50) {
            let fact =
                random::random_delegation(&mut self.draws, &self.scene.plan, (task, *attempt), &who, claim);
            let goes_on = matches!(fact, Fact::Delegated { .. });
            self.deliver_fact(fact);
            if goes_on {
                let seen = self.scene.plan.clone();
                self.held.push(WorkInProgress { work, who, claim, seen });
            }
            return;
        }
        let waits = random::random_waits(&mut self.draws, claim);
        self.deliver_fact(cast::parked_fact(task, *attempt, &who, waits));
    }

    /// A person answers an open question, often in a way that does not fit it.
    fn answer_random_question(&mut self) {
        if let Some(answer) = random::random_answer_fact(&mut self.draws, &self.scene.plan) {
            self.deliver_fact(answer);
        }
    }

    /// The provider of some work is away, back, or given up.
    fn lose_provider(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.draw_below(self.held.len());
        let status = random::provider_status(&mut self.draws);
        let journal = self.held[at].work.journal_key();
        if matches!(status, ProviderStatus::GivenUp(_)) {
            self.held.swap_remove(at);
        }
        self.deliver_fact(Fact::Provider(journal, status));
    }

    fn change_registry(&mut self) {
        self.offers.change_randomly(&mut self.draws);
        self.check_registry_change();
    }

    fn check_registry_change(&mut self) {
        if !self.scene.plan.is_live() {
            return;
        }
        let cluster = self.offers.to_registry();
        let expected = tasks_affected_by_registry(&self.scene.plan, self.offers);
        let decided = self.scene.decide_registry_change(&cluster).unwrap();
        let about = |event: &Event| {
            let is_told_of = !matches!(event, Event::Planning(PlanningEvent::TriggerRaised { .. }));
            event.task().filter(|_| is_told_of).cloned()
        };
        // Settling may add further events.
        let own = self.scene.log.last().unwrap().answers[0].events as usize;
        let about: Vec<_> = decided[..own].iter().filter_map(about).collect();
        assert_eq!(about, expected, "the change of the registry affects other tasks");
        self.carry_out_effects_and_check();
    }

    fn deliver_random_command(&mut self) {
        let mut fact = random::random_command_fact(&mut self.draws, &self.scene.plan);
        if let Fact::Control(command) = &mut fact {
            self.commands += 1;
            command.id = format!("{}-{}", command.id, self.commands);
        }
        self.deliver_fact(fact);
    }

    fn deliver_command(&mut self, control: CommandAction) {
        self.commands += 1;
        let id = format!("fair-{}", self.commands);
        self.deliver_fact(Fact::Control(RunCommand { id, by: "bob".into(), control }));
    }

    /// Advances the time: to the next retry, or far enough for a clock if the world is idle.
    fn pass_time(&mut self, is_fair: bool) {
        let stands_still = self.queue.is_empty() && self.held.is_empty();
        let next = next_backoff_end(&self.scene.plan).filter(|_| self.draws.draw_chance(70));
        let seconds = match (stands_still, is_fair) {
            (true, _) => 3600,
            (false, true) => 1,
            (false, false) => [1, 60, 700, 4000][self.draws.draw_below(4)],
        };
        let has_supervisor = is_fair || self.draws.draw_chance(80);
        self.scene.attendance.update(self.scene.now, Vec::new());
        self.scene.now =
            next.unwrap_or_else(|| cast::time_after(self.scene.now, seconds)).max(self.scene.now);
        if has_supervisor {
            self.scene.attendance = Attendance::begin(self.scene.now);
        }
        self.scene.attendance.update(self.scene.now, Vec::new());
        for overdue in self.scene.overdue_inputs_now() {
            let before = self.scene.plan.clone();
            let decided = self.scene.decide_overdue_input(&overdue);
            assert!(decided.is_ok() || self.is_overtaken(&overdue), "{overdue:?}: {decided:?}");
            oracle::check_ended_tasks_stay_ended(&before, &self.scene.plan, &self.scene.last_events());
            self.carry_out_effects_and_check();
        }
    }

    /// `true` if another decision has overtaken what was overdue.
    fn is_overtaken(&self, overdue: &OverdueInput) -> bool {
        if !self.scene.plan.is_live() {
            return true;
        }
        let state = |task: &TaskId| self.scene.plan.task(task).unwrap().state();
        match overdue {
            OverdueInput::Retry(task) => state(task) != TaskState::Errored,
            OverdueInput::WaitTime(task) => state(task) != TaskState::Waiting,
            OverdueInput::RetryReview(task) => state(task) != TaskState::NeedsReview,
            OverdueInput::RetryPlanning => self.scene.plan.planning.turn.is_none(),
            OverdueInput::WallTime => {
                self.scene.plan.run.winding_down.is_some() || self.scene.plan.budget.is_low
            }
            OverdueInput::Absence(_) | OverdueInput::Retire => false,
            OverdueInput::Clock(Work::Planning { .. }, _) => self.scene.plan.planning.turn.is_none(),
            OverdueInput::Clock(
                work,
                AttemptClock::QueueWait | AttemptClock::RunTime | AttemptClock::Silence,
            ) => self.scene.plan.task(work.task().unwrap()).unwrap().dispatched_work().as_ref() != Some(work),
        }
    }

    fn deliver_fact(&mut self, fact: Fact) {
        let before = self.scene.plan.clone();
        let decided = self.scene.decide_fact(&fact);
        self.delivered.push(fact);
        if decided.is_err() {
            assert!(is_plan_unchanged(&before, &self.scene.plan));
        }
        oracle::check_ended_tasks_stay_ended(&before, &self.scene.plan, &self.scene.last_events());
        self.carry_out_effects_and_check();
        self.check_registry_after_edits();
    }

    /// Checks the registry again after tasks have changed.
    fn check_registry_after_edits(&mut self) {
        if self.scene.last_events().iter().any(Event::needs_capability_check) {
            self.check_registry_change();
        }
    }

    /// Carries out the effects of the last decision, and checks the plan.
    fn carry_out_effects_and_check(&mut self) {
        let plan = &self.scene.plan;
        oracle::check_invariants_after_decision(plan);
        for decision in &self.scene.log[self.decisions..] {
            let mut ids: BTreeSet<TaskId> = decision.events.iter().filter_map(Event::task).cloned().collect();
            if decision.events.iter().any(Event::affects_all_tasks) {
                ids.extend(plan.tasks().iter().map(|task| task.spec.id.clone()));
            }
            for id in &ids {
                let one = BTreeSet::from([id.clone()]);
                self.owed.insert(
                    id.clone(),
                    effects_of_tasks_only(pending_effects(plan, EffectScope::Tasks(&one))),
                );
            }
        }
        self.decisions = self.scene.log.len();
        if plan.is_live() {
            let recorded: BTreeSet<String> =
                self.owed.values().flatten().map(crate::show::format_effect).collect();
            let due_now: BTreeSet<String> = effects_of_tasks_only(pending_effects(plan, EffectScope::All))
                .iter()
                .map(crate::show::format_effect)
                .collect();
            assert_eq!(recorded, due_now, "the effects of a task changed, and no event names the task");
        }
        self.check_work_in_flight_is_reserved();
        for effect in pending_effects(&self.scene.plan, EffectScope::All) {
            self.carry_out_effect(effect);
        }
    }

    /// Checks that all work in flight that the plan knows of has a reservation.
    fn check_work_in_flight_is_reserved(&self) {
        let plan = &self.scene.plan;
        for work in millrace_protocol::plan::work_in_flight(plan) {
            assert!(
                oracle::has_required_reservation(plan, &work),
                "{work:?} is in flight without its reservation"
            );
        }
    }

    fn carry_out_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Offer(work) => {
                oracle::check_start_conditions(&self.scene.plan, &work, self.scene.now);
                let is_held = self.held.iter().any(|held| held.work == work);
                if !is_held {
                    self.queue.entry(self.order_subject_of(&work)).or_insert(work);
                }
            }
            Effect::Withdraw(work, capability) => {
                self.queue.remove(&subject::order_subject(&RunId::new("r").unwrap(), &capability, &work));
                // Some workers miss the stop message and continue.
                if self.draws.draw_chance(50) {
                    self.held.retain(|held| held.work != work);
                }
            }
            Effect::Close => self.queue.clear(),
        }
    }

    fn order_subject_of(&self, work: &Work) -> String {
        subject::order_subject(
            &RunId::new("r").unwrap(),
            &oracle::charged_capability(&self.scene.plan, work),
            work,
        )
    }

    /// Returns orders that wait although the plan no longer needs them.
    pub fn unwanted_orders_in_queue(&self) -> Vec<&Work> {
        let plan = &self.scene.plan;
        let is_wanted = |work: &Work| match work {
            Work::Planning { .. } => {
                plan.planning.turn.as_ref().is_some_and(|planning| planning.work() == *work)
            }
            Work::Task { task, .. } => plan.task(task).unwrap().dispatched_work().as_ref() == Some(work),
            // The verdict of an earlier try counts too.
            Work::Review { .. } => true,
        };
        self.queue.values().filter(|work| !is_wanted(work)).collect()
    }
}

fn effects_of_tasks_only(effects: Vec<Effect>) -> Vec<Effect> {
    let is_of_task = |effect: &Effect| match effect {
        Effect::Offer(work) | Effect::Withdraw(work, _) => work.task().is_some(),
        Effect::Close => false,
    };
    effects.into_iter().filter(is_of_task).collect()
}

/// The tasks that a change of the registry affects, computed without the plan's counts.
fn tasks_affected_by_registry(plan: &Plan, offers: RegisteredTestCapabilities) -> Vec<TaskId> {
    use millrace_protocol::plan::ErroredTaskWait;
    let cluster = offers.to_registry();
    let tasks = plan.tasks().iter().filter(|task| {
        let is_known = cluster.find_capability(&task.spec.capability).is_some();
        let is_wrong = offers.is_strict
            && task.spec.capability.as_str() == "search"
            && !task.spec.parameters.contains_key("q");
        let attempt = task.attempts.last();
        let has_waited = attempt.is_some_and(|attempt| !attempt.waits.is_empty());
        let was_claimed = attempt.is_some_and(|attempt| attempt.claimed_at.is_some());
        let has_ended = attempt.is_some_and(|attempt| attempt.end.is_some());
        match (task.state(), task.errored_wait()) {
            // It is checked when it starts.
            (TaskState::Pending, _) if task.spec.has_start_conditions() => false,
            (TaskState::Ready | TaskState::Rerun, _)
                if task.spec.has_start_conditions() && !has_waited && !was_claimed =>
            {
                false
            }
            (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) if !is_known => true,
            // A parked attempt continues with the parameters that it has.
            (TaskState::Ready, _) if has_waited && was_claimed && !has_ended => false,
            (TaskState::Pending | TaskState::Ready | TaskState::Rerun, _) => is_wrong,
            (TaskState::Errored, Some(ErroredTaskWait::Capability { .. })) => is_known,
            (TaskState::Errored, Some(ErroredTaskWait::Parameters { .. })) => is_known && !is_wrong,
            (TaskState::Errored, Some(ErroredTaskWait::Retry(_)) | None)
            | (
                TaskState::Running
                | TaskState::Waiting
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

/// Returns all events of a log.
pub fn all_events_of_log(scene: &RunScene) -> impl Iterator<Item = &Event> {
    scene.log.iter().flat_map(|decision| &decision.events)
}
