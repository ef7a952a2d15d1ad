//! One run in memory, as the owner of its lane sees it: the folded plan, the facts that no decision has answered yet,
//! and the clocks. No I/O: the lane owner passes in the messages that it reads and carries out the effects.
//!
//! # Invariants
//!
//! - I64: An outcome that is in a journal before its work is dispatched (lost messages, or a forger) is refused, and the work
//!   gets an attempt with another journal, so that the run continues.
//!   (`tests/tests/queues.rs::outcome_from_before_its_dispatch_does_not_stop_the_run`,
//!   `supervisor/src/live/tests.rs::outcome_from_before_its_dispatch_gives_the_task_another_attempt`)

mod holds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

pub use holds::LiveHolds;
use holds::PlaceInLog;
use jiff::Timestamp;
use millrace_protocol::admission::WaitingSince;
use millrace_protocol::ids::{Lane, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AnswerCause, Attendance, CapabilityRegistry, Decision, DecisionInput, DispatchedOrder, Effect,
    EffectScope, Event, Fact, HoldChange, InputAnswer, OverdueInput, Plan, RunEvent, TaskState,
    UnknownCapabilityStatus, Work, apply_decision, apply_events, decide, dispatched_orders, next_backoff_end,
    overdue_inputs, pending_effects,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::work::DecisionId;

/// The maximum number of facts that one decision answers: enough to make appends cheap, few enough that a decision fits into a
/// message.
const MAX_FACTS: usize = 800;

/// The largest capacity of the queue of facts that is kept while it is empty.
const MAX_IDLE_INBOX: usize = 4 * MAX_FACTS;

/// The maximum number of refused outcomes of one run that are remembered. Late outcomes and lost messages cause a
/// few, forged messages more.
const MAX_REFUSED_OUTCOMES: usize = 10_000;

/// The maximum number of times that the rules are applied to their own result within one decision; far more than they
/// ever need.
const MAX_SETTLING: usize = 100_000;

/// The time after its start in which a run waits for a capability to be registered before it counts as missing: workers
/// that start together with the run need a moment.
const CAPABILITY_GRACE: Duration = Duration::from_secs(3);

/// The operation that is in progress for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    /// Its owner checks whether the run is in the archive: it may have been submitted again after its end.
    CheckingArchive,
    /// Nothing is in progress.
    Idle,
    /// A decision is being appended.
    Appending,
    /// Another supervisor has decided on this run: it is being read and folded again.
    Refolding,
    /// It has ended and is being archived.
    Closing,
    /// One of its decisions is unreadable, so its state is unknown and no decision can be made.
    Parked,
}

/// The pending input of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingInput {
    /// Nothing, or the run is not idle.
    Nothing,
    /// Claims alone. They have no effects, so they can wait briefly and share an append with the next fact.
    ClaimsOnly,
    /// A fact or a clock that something waits for.
    Urgent,
}

/// A run in the memory of its lane's owner.
#[derive(Debug, PartialEq)]
pub struct LiveRun {
    /// The folded plan.
    pub plan: Plan,
    /// Its holds, and when it was submitted.
    pub holds: LiveHolds,
    /// The sequence of its last decision, or of a forged message after it; 0 before the first. The next append expects
    /// this sequence.
    pub last_sequence: u64,
    /// The sequences of the messages that the archive holds, if the run was reopened: the log continues in the lane.
    pub archived_span: Option<(u64, u64)>,
    /// The sequence that the next append expects, where that is not the last decision: the lane of a reopened run does not hold the
    /// decisions of the archive.
    pub lane_end: Option<u64>,
    /// Its last decision in the log, which orders name.
    last_decision: Option<DecisionId>,
    /// The time of the decision that is being appended.
    appending_at: Timestamp,
    /// The operation in progress.
    pub phase: RunPhase,
    /// The damage of the log, for which the run cannot continue.
    pub log_damage: Option<String>,
    /// `true` if the published summary is older than the plan.
    pub is_summary_stale: bool,
    /// The highest sequence of a decision that was read during an append: ours, if the append ends with that sequence.
    unexplained_sequence: u64,
    inbox: VecDeque<QueuedFact>,
    overdue: Vec<OverdueInput>,
    /// The work with outcomes that were refused. If it is dispatched later, its journal is stale: every worker finds the
    /// outcome and does nothing.
    refused_outcomes: HashSet<Work>,
    /// Dispatched work with a stale journal. No order is published for it.
    blocked: Vec<Work>,
    /// `true` if the capability registry, or this run's needs, have changed since the last check.
    is_cluster_check_due: bool,
    /// `true` if the last check found a capability unknown while it could still be registered.
    is_capability_awaited: bool,
    /// The time of the last journal entry of each running attempt.
    last_activity: HashMap<TaskId, Timestamp>,
    /// The tasks that events have changed since the effects were last taken.
    touched: BTreeSet<TaskId>,
    /// `true` if an event has changed the effects of all tasks since they were last taken.
    is_all_touched: bool,
    /// The events of the last decision that began, reopened or ended the run.
    milestones: Vec<RunMilestone>,
}

/// A fact to decide on.
#[derive(Debug, PartialEq)]
pub struct QueuedFact {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// The time at which the server stored it.
    pub at: Timestamp,
    /// The fact.
    pub fact: Box<Fact>,
}

/// An event that the log of the process tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMilestone {
    /// The run started.
    Started,
    /// The run continues after its end.
    Reopened,
    /// The run ended.
    Ended,
}

impl RunMilestone {
    fn from_event(event: &Event) -> Option<Self> {
        if matches!(event, Event::Run(RunEvent::Started { .. })) {
            Some(Self::Started)
        } else if matches!(event, Event::Run(RunEvent::Reopened)) {
            Some(Self::Reopened)
        } else {
            matches!(event, Event::Run(RunEvent::Ended { .. })).then_some(Self::Ended)
        }
    }
}

impl Default for LiveRun {
    fn default() -> Self {
        Self {
            plan: Plan::default(),
            holds: LiveHolds::default(),
            last_sequence: 0,
            archived_span: None,
            lane_end: None,
            last_decision: None,
            appending_at: Timestamp::UNIX_EPOCH,
            phase: RunPhase::Idle,
            log_damage: None,
            is_summary_stale: true,
            unexplained_sequence: 0,
            inbox: VecDeque::new(),
            overdue: Vec::new(),
            refused_outcomes: HashSet::new(),
            blocked: Vec::new(),
            is_cluster_check_due: true,
            is_capability_awaited: false,
            last_activity: HashMap::new(),
            touched: BTreeSet::new(),
            is_all_touched: false,
            milestones: Vec::new(),
        }
    }
}

impl LiveRun {
    // ---- input from the log

    /// Folds a decision that was read from the log.
    pub fn fold_decision(&mut self, sequence: u64, decision: &Decision) {
        let (previous, last) = (decision.previous, self.last_sequence);
        if previous != last && self.log_damage.is_none() {
            self.log_damage = Some(match last {
                0 => format!("decision {sequence} follows {previous}, which is missing"),
                _ => format!(
                    "decision {sequence} follows {previous}, which is missing; the last one before is {last}"
                ),
            });
        }
        let is_first = self.plan.run.start.is_none();
        apply_decision(&mut self.plan, decision);
        if is_first {
            self.holds.record_first_decision(decision, &self.plan);
        }
        self.holds.record_place(&self.plan);
        self.last_sequence = sequence;
        self.last_decision = Some(DecisionId::new(sequence, decision.at));
    }

    /// Returns the last decision in the log; `None` before the first.
    pub fn last_decision(&self) -> Option<DecisionId> {
        self.last_decision
    }

    /// Notes the sequence of a forged message among the decisions: the next append must expect it.
    pub fn record_forged_sequence(&mut self, sequence: u64) {
        self.last_sequence = self.last_sequence.max(sequence);
        self.lane_end = None;
    }

    /// Notes that a decision refused the outcome of this work.
    pub fn record_refused_outcome(&mut self, work: Work) {
        if self.refused_outcomes.len() < MAX_REFUSED_OUTCOMES {
            self.refused_outcomes.insert(work);
        }
    }

    /// Queues a fact. A fact that is already answered or queued is ignored.
    pub fn queue_fact(&mut self, queued: QueuedFact) {
        self.holds.record_fact(queued.sequence, &queued.fact);
        let is_new = self.inbox.back().is_none_or(|last| last.sequence < queued.sequence);
        if queued.sequence > self.plan.run.through && is_new {
            self.inbox.push_back(queued);
        }
    }

    /// Queues the facts that an earlier copy of this run had received while this one was being folded.
    pub fn queue_facts(&mut self, inbox: VecDeque<QueuedFact>) {
        inbox.into_iter().for_each(|queued| self.queue_fact(queued));
    }

    /// Returns the sequences of the queued facts.
    pub fn queued_sequences(&self) -> Vec<u64> {
        self.inbox.iter().map(|queued| queued.sequence).collect()
    }

    /// `true` if a command after this sequence waits for a decision that may reopen the run.
    pub fn has_reopening_command(&self, after: u64) -> bool {
        self.inbox.iter().any(|queued| queued.sequence > after && may_reopen_run(&queued.fact))
    }

    /// Returns the sequence that the last message among the decisions in the lane must have when the next one is appended.
    pub fn expected_sequence(&self) -> u64 {
        self.lane_end.unwrap_or(self.last_sequence)
    }

    /// Returns the summary of the run; `None` before its first decision.
    pub fn summary(&self, run: &RunId, lane: Lane, now: Timestamp) -> Option<RunSummary> {
        let summary = RunSummary::from_plan(run, lane, &self.plan, now)?;
        Some(RunSummary { archived_span: self.archived_span, ..summary })
    }

    /// Removes and returns the queued facts.
    pub fn take_inbox(&mut self) -> VecDeque<QueuedFact> {
        std::mem::take(&mut self.inbox)
    }

    /// Notes that a running attempt has written to its journal.
    pub fn record_activity(&mut self, task: &TaskId, at: Timestamp) {
        match self.last_activity.get_mut(task) {
            Some(last) => *last = at,
            None => {
                self.last_activity.insert(task.clone(), at);
            }
        }
    }

    /// Forgets the journal entries of attempts that are not running, after folding.
    pub fn forget_activity_of_ended_attempts(&mut self) {
        let plan = &self.plan;
        self.last_activity
            .retain(|task, _| plan.task(task).is_some_and(|task| task.state() == TaskState::Running));
    }

    /// Handles the news that a decision was read from the log. Returns `true` if another supervisor wrote it, so that
    /// this run must be folded again. During an append it may be our own; [`Self::finish_append`] finds out.
    #[must_use]
    pub fn is_overtaken_by_decision(&mut self, sequence: u64) -> bool {
        match self.phase {
            RunPhase::Appending => {
                self.unexplained_sequence = self.unexplained_sequence.max(sequence);
                false
            }
            RunPhase::CheckingArchive | RunPhase::Idle | RunPhase::Closing => sequence > self.last_sequence,
            RunPhase::Refolding | RunPhase::Parked => false,
        }
    }

    /// Ends an append whose decision got this sequence. Returns `false` if another supervisor has decided after it, so
    /// that this run must be folded again.
    #[must_use]
    pub fn finish_append(&mut self, sequence: u64) -> bool {
        if self.unexplained_sequence > sequence {
            return false;
        }
        self.last_sequence = self.last_sequence.max(sequence);
        self.lane_end = None;
        self.last_decision = Some(DecisionId::new(sequence, self.appending_at));
        self.holds.record_place(&self.plan);
        self.phase = RunPhase::Idle;
        true
    }

    // ---- its place among the running runs

    /// `true` if the run is live and waits for nothing, as the log says.
    pub fn is_running_in_log(&self) -> bool {
        self.holds.place() == PlaceInLog::Running
    }

    /// Returns since when the run waits for a place, as the log says; `None` if it does not. A run that is paused or has ended waits no
    /// more; but while a decision is in progress, it may be resumed and get the place that it was given.
    pub fn waits_for_place_since(&self) -> Option<WaitingSince> {
        let is_deciding =
            self.holds.has_changes() || matches!(self.phase, RunPhase::Appending | RunPhase::Refolding);
        match self.holds.place() {
            PlaceInLog::Waiting(since) => Some(since),
            PlaceInLog::Suspended(since) => Some(since).filter(|_| is_deciding),
            PlaceInLog::None | PlaceInLog::Running => None,
        }
    }

    // ---- the cluster and the clocks

    /// Requests a check of the plan against the capability registry at the next decision.
    pub fn request_cluster_check(&mut self) {
        self.is_cluster_check_due = true;
    }

    /// Returns `Yes` if an unknown capability counts as missing by now.
    pub fn unknown_capability_status(&self, now: Timestamp) -> UnknownCapabilityStatus {
        let has_waited = |at: Timestamp| now.duration_since(at).unsigned_abs() >= CAPABILITY_GRACE;
        match &self.plan.run.start {
            Some(start) if has_waited(start.at) => UnknownCapabilityStatus::Missing,
            Some(_) | None => UnknownCapabilityStatus::MayRegisterSoon,
        }
    }

    /// `true` if the plan must be checked against the capability registry.
    pub fn needs_cluster_check(&self, unknown_status: UnknownCapabilityStatus) -> bool {
        let is_grace_over = self.is_capability_awaited && unknown_status == UnknownCapabilityStatus::Missing;
        (self.is_cluster_check_due || is_grace_over) && self.plan.is_live()
    }

    /// Finds the backoffs that have ended and, if `all`, every other clock that has run out.
    pub fn update_overdue_inputs(&mut self, now: Timestamp, attendance: &Attendance, all: bool) {
        let is_open = matches!(self.phase, RunPhase::Idle | RunPhase::Appending);
        if !is_open || !(all || next_backoff_end(&self.plan).is_some_and(|at| at <= now)) {
            return;
        }
        self.overdue =
            overdue_inputs(&self.plan, now, attendance, |task| self.last_activity.get(task).copied());
    }

    /// Returns the orders that queues may hold, as far as the log says so: an order is not required yet if a decision
    /// that is being appended has changed its task.
    pub fn dispatched_orders(&self, scope: EffectScope<'_>) -> Vec<DispatchedOrder> {
        let mut orders = dispatched_orders(&self.plan, scope);
        if self.phase == RunPhase::Appending {
            for order in &mut orders {
                let is_touched = order.work.task().is_none_or(|task| self.touched.contains(task));
                order.is_required &= !(is_touched || self.is_all_touched);
            }
        }
        orders
    }

    // ---- decisions

    /// `true` if the run was submitted, as far as this copy has read.
    pub fn is_submitted(&self) -> bool {
        self.plan.run.start.is_some() || self.inbox.iter().any(|it| matches!(*it.fact, Fact::Submitted(_)))
    }

    /// The number of its tasks, and of those that its submission brings.
    pub fn task_count(&self) -> usize {
        let submitted = if let Some(Fact::Submitted(submission)) = self.inbox.front().map(|it| &*it.fact) {
            submission.tasks.len()
        } else {
            0
        };
        self.plan.tasks().len() + submitted
    }

    /// Returns the kind of input that can be decided on now.
    pub fn pending_input(&self) -> PendingInput {
        let is_claim = |it: &QueuedFact| matches!(*it.fact, Fact::Claimed(..));
        let has_urgent = !self.overdue.is_empty() || !self.blocked.is_empty() || self.holds.has_changes();
        let has_input = has_urgent || !self.inbox.is_empty();
        match self.phase {
            RunPhase::Idle if !has_input => PendingInput::Nothing,
            RunPhase::Idle if !has_urgent && self.inbox.iter().all(is_claim) => PendingInput::ClaimsOnly,
            RunPhase::Idle => PendingInput::Urgent,
            RunPhase::CheckingArchive
            | RunPhase::Appending
            | RunPhase::Refolding
            | RunPhase::Closing
            | RunPhase::Parked => PendingInput::Nothing,
        }
    }

    /// Decides on all pending input and applies the decision; returns `None` if it changes nothing. The caller appends
    /// the decision after [`Self::last_sequence`] before it carries out any effect. `cluster` is the capability
    /// registry; `unknown_status` says whether a capability that is not in it counts as missing by now.
    pub fn decide_pending_input(
        &mut self,
        me: &WorkerId,
        (cluster, unknown_status): (&CapabilityRegistry, UnknownCapabilityStatus),
        attendance: &Attendance,
        now: Timestamp,
    ) -> Option<Decision> {
        let fact_count = self.inbox.len().min(MAX_FACTS);
        let mut decision = Decision {
            by: me.clone(),
            previous: self.last_sequence,
            at: now,
            answers: Vec::with_capacity(fact_count),
            events: Vec::with_capacity(2 * fact_count),
        };
        for _ in 0..fact_count {
            let Some(QueuedFact { sequence, at, fact }) = self.inbox.pop_front() else { break };
            // An outcome that is earlier in the log may have completed the run.
            if fact.is_run_cancellation() && !decision.events.is_empty() {
                self.append_follow_up_events(&mut decision);
            }
            let stopped = if let Fact::Claimed(work, by, _) = &*fact {
                let last_entry = work.task().and_then(|task| self.last_activity.get(task)).copied();
                self.plan.absence_before_claim(work, by, attendance, last_entry, now)
            } else {
                fact.reported_attempt()
                    .and_then(|attempt| self.plan.absence_before_report(attempt, at, attendance, now))
            };
            if let Some(stopped) = stopped {
                let input = DecisionInput::Absence(&stopped);
                self.decide_and_append_answer(&mut decision, AnswerCause::Clock, &input);
            }
            self.decide_and_append_answer(
                &mut decision,
                AnswerCause::Fact(sequence),
                &DecisionInput::Fact(&fact),
            );
            let is_refused = decision.answers.last().is_some_and(|answer| {
                answer.cause == AnswerCause::Fact(sequence) && answer.refusal.is_some()
            });
            if let Some(work) = fact.ended_work().filter(|_| is_refused) {
                self.record_refused_outcome(work);
            }
            if matches!(*fact, Fact::Submitted(_)) && !is_refused && self.holds.is_place_needed {
                let change = HoldChange::WaitForPlace(self.holds.submitted_at(now));
                self.decide_hold_change(&mut decision, &change);
            }
        }
        for change in self.holds.take_changes() {
            self.decide_hold_change(&mut decision, &change);
        }
        if self.inbox.is_empty() && self.inbox.capacity() > MAX_IDLE_INBOX {
            // Thousands of facts may have arrived at once, and none may follow for weeks.
            self.inbox.shrink_to(MAX_FACTS);
        }
        for work in std::mem::take(&mut self.blocked) {
            let input = DecisionInput::StaleJournal(&work);
            self.decide_and_append_answer(&mut decision, AnswerCause::Rules, &input);
        }
        // An answer that is among the facts left came before the expiry of its question.
        let has_facts_left = !self.inbox.is_empty();
        let is_later =
            |overdue: &OverdueInput| has_facts_left && matches!(overdue, OverdueInput::WaitTime(_));
        let (later, now) = std::mem::take(&mut self.overdue).into_iter().partition::<Vec<_>, _>(is_later);
        self.overdue = later;
        for overdue in now {
            self.decide_and_append_answer(&mut decision, AnswerCause::Clock, &overdue.input());
        }
        self.append_registry_check(&mut decision, cluster, unknown_status);
        let checked = decision.events.len();
        if !decision.events.is_empty() {
            self.append_follow_up_events(&mut decision);
        }
        // A task whose start has been waited for is checked when the wait has ended.
        self.is_cluster_check_due |= decision.events[checked..].iter().any(Event::needs_capability_check);
        self.is_all_touched |= decision.events.iter().any(Event::affects_all_tasks);
        self.milestones.extend(decision.events.iter().filter_map(RunMilestone::from_event));
        self.plan.run.through = self.plan.run.through.max(decision.answered_through().unwrap_or(0));
        self.touched.extend(decision.events.iter().filter_map(|event| event.task()).cloned());
        self.appending_at = decision.at;
        (!decision.answers.is_empty()).then_some(decision)
    }

    /// Decides on a change of the holds. One that was decided before changes nothing.
    fn decide_hold_change(&mut self, decision: &mut Decision, change: &HoldChange) {
        let input = DecisionInput::Hold(change);
        if decide(&self.plan, &input, decision.at).is_ok() {
            self.decide_and_append_answer(decision, AnswerCause::Rules, &input);
        }
    }

    /// Checks the plan against the capability registry if either has changed. A capability that was unknown but could
    /// still be registered is checked again after the grace period.
    fn append_registry_check(
        &mut self,
        decision: &mut Decision,
        cluster: &CapabilityRegistry,
        unknown_status: UnknownCapabilityStatus,
    ) {
        self.is_cluster_check_due |= decision.events.iter().any(Event::needs_capability_check);
        if self.needs_cluster_check(unknown_status) {
            self.is_cluster_check_due = false;
            self.is_capability_awaited = unknown_status == UnknownCapabilityStatus::MayRegisterSoon;
            self.decide_and_append_answer(
                decision,
                AnswerCause::Registry,
                &DecisionInput::Cluster(cluster, unknown_status),
            );
        }
    }

    /// Applies the rules to their own result until they produce no more events.
    fn append_follow_up_events(&mut self, decision: &mut Decision) {
        for _ in 0..MAX_SETTLING {
            let before = decision.events.len();
            if !self.plan.is_live() {
                return;
            }
            self.decide_and_append_answer(decision, AnswerCause::Rules, &DecisionInput::Settle);
            if decision.events.len() == before {
                return;
            }
        }
    }

    fn decide_and_append_answer(
        &mut self,
        decision: &mut Decision,
        cause: AnswerCause,
        input: &DecisionInput<'_>,
    ) {
        let at = decision.at;
        match decide(&self.plan, input, at) {
            Ok(events) if events.is_empty() => {}
            Ok(events) => {
                apply_events(&mut self.plan, &events, at);
                let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
                decision.answers.push(InputAnswer { cause, events: count, refusal: None });
                if decision.events.is_empty() && events.len() > decision.events.capacity() {
                    // The start of a large run adds all of its tasks.
                    decision.events = events;
                } else {
                    decision.events.extend(events);
                }
            }
            // A fact of the same decision may have overtaken the clock; no caller waits for an answer to a clock.
            Err(_) if cause == AnswerCause::Clock => {}
            Err(refusal) => decision.answers.push(InputAnswer { cause, events: 0, refusal: Some(refusal) }),
        }
    }

    // ---- effects

    /// Removes and returns the milestones of the last decision. Call it when that decision is in the log.
    pub fn take_milestones(&mut self) -> Vec<RunMilestone> {
        std::mem::take(&mut self.milestones)
    }

    /// Removes and returns the effects that became pending with the last decision, and the tasks that it changed. Call
    /// it when that decision is in the log.
    pub fn take_effects_of_last_decision(&mut self) -> (Vec<Effect>, BTreeSet<TaskId>) {
        let touched = std::mem::take(&mut self.touched);
        // An event may concern a running attempt without beginning it anew: instructions from its parent.
        let is_running =
            |task: &TaskId| self.plan.task(task).is_some_and(|task| task.state() == TaskState::Running);
        for task in touched.iter().filter(|task| !is_running(task)) {
            self.last_activity.remove(task);
        }
        let effects = match (self.plan.run.start.is_none(), std::mem::take(&mut self.is_all_touched)) {
            (true, _) => Vec::new(),
            (false, true) => pending_effects(&self.plan, EffectScope::All),
            (false, false) => pending_effects(&self.plan, EffectScope::Tasks(&touched)),
        };
        (self.block_stale_offers(effects), touched)
    }

    /// Returns all pending effects: after a start, a takeover or a fold.
    #[must_use]
    pub fn pending_effects_of_all_tasks(&mut self) -> Vec<Effect> {
        if self.plan.run.start.is_none() {
            return Vec::new();
        }
        self.block_stale_offers(pending_effects(&self.plan, EffectScope::All))
    }

    /// Removes the offers of work with a stale journal; the next decision replaces them.
    fn block_stale_offers(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        if self.refused_outcomes.is_empty() {
            return effects;
        }
        let is_stale = |effect: &mut Effect| matches!(effect, Effect::Offer(work) if self.refused_outcomes.contains(work));
        let blocked = effects.extract_if(.., is_stale).filter_map(|effect| match effect {
            Effect::Offer(work) => Some(work),
            Effect::Withdraw(..) | Effect::Close => None,
        });
        self.blocked.extend(blocked);
        effects
    }
}

/// `true` if a fact is a command that may reopen a run.
#[must_use]
pub fn may_reopen_run(fact: &Fact) -> bool {
    matches!(fact, Fact::Control(command) if command.control.can_reopen_run())
}
