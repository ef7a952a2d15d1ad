//! One run as its owner holds it: the folded plan, what has arrived and is not decided, and what was asked of the
//! world. No I/O: the lane's actor passes in what it reads and carries out what comes out.

use std::collections::{BTreeSet, HashMap, VecDeque};

use jiff::Timestamp;
use millrace_protocol::ids::{TaskId, WorkerId};
use millrace_protocol::plan::{
    Answer, Cause, Cluster, Decision, Effect, Event, Fact, Input, MayBeMissing, Overdue, Plan, Scope, apply,
    apply_decision, decide, due, next_retry, overdue,
};

/// How many facts one decision answers at the most: enough to make appends cheap, few enough that a decision fits
/// into a message.
const MAX_FACTS: usize = 800;

/// How often the rules are asked what follows from one decision; far more than they ever have to say.
const MAX_SETTLING: usize = 100_000;

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It was handed in, and is looked up in the archive, lest it was done before.
    Looking,
    /// Nothing is under way.
    Idle,
    /// A decision is being appended.
    Appending,
    /// Another owner was there: the run is being read anew.
    Refolding,
    /// It is over and being archived.
    Closing,
    /// One of its decisions can't be read: whoever does not know what was decided can't go on with it.
    Parked,
}

/// A run as its owner holds it.
#[derive(Debug)]
pub struct LiveRun {
    /// Its state.
    pub plan: Plan,
    /// The sequence of its last decision, or of a stray behind it; 0 before the first. The next decision follows it.
    pub last: u64,
    /// What it is doing.
    pub phase: Phase,
    /// The highest sequence of a decision that was read and is not known to be ours.
    pub unexplained: u64,
    /// Whether its summary is older than its state.
    pub is_unreported: bool,
    inbox: VecDeque<(u64, Fact)>,
    overdue: Vec<Overdue>,
    /// Whether what the cluster can do, or what this run needs of it, has changed since that was decided on.
    cluster_is_news: bool,
    /// Whether something was not known that might still have come.
    waits_for_cluster: bool,
    heard: HashMap<TaskId, Timestamp>,
    touched: BTreeSet<TaskId>,
    /// Whether something was decided that concerns every task.
    concerns_all: bool,
}

impl Default for LiveRun {
    fn default() -> Self {
        Self {
            plan: Plan::default(),
            last: 0,
            phase: Phase::Idle,
            unexplained: 0,
            is_unreported: true,
            inbox: VecDeque::new(),
            overdue: Vec::new(),
            cluster_is_news: true,
            waits_for_cluster: false,
            heard: HashMap::new(),
            touched: BTreeSet::new(),
            concerns_all: false,
        }
    }
}

impl LiveRun {
    /// Folds a decision that was read from the log.
    pub fn fold(&mut self, sequence: u64, decision: &Decision) {
        apply_decision(&mut self.plan, decision);
        self.last = sequence;
    }

    /// Knows of a stray where its decisions stand.
    pub fn pass_over(&mut self, sequence: u64) {
        self.last = self.last.max(sequence);
    }

    /// Takes in a fact; one that was answered before, or has been taken in, changes nothing.
    pub fn receive(&mut self, sequence: u64, fact: Fact) {
        let is_new = self.inbox.back().is_none_or(|(last, _)| *last < sequence);
        if sequence > self.plan.through && is_new {
            self.inbox.push_back((sequence, fact));
        }
    }

    /// Takes over what another copy of this run had received, where this one was read anew meanwhile.
    pub fn receive_all(&mut self, inbox: VecDeque<(u64, Fact)>) {
        for (sequence, fact) in inbox {
            self.receive(sequence, fact);
        }
    }

    /// Gives up what has been received.
    pub fn take_inbox(&mut self) -> VecDeque<(u64, Fact)> {
        std::mem::take(&mut self.inbox)
    }

    /// A running attempt has written to its journal.
    pub fn hear(&mut self, task: &TaskId, at: Timestamp) {
        match self.heard.get_mut(task) {
            Some(last) => *last = at,
            None => {
                self.heard.insert(task.clone(), at);
            }
        }
    }

    /// What the cluster can do has changed.
    pub fn ask_cluster(&mut self) {
        self.cluster_is_news = true;
    }

    /// Whether it is to be decided on what the cluster can do.
    #[must_use]
    pub fn asks_cluster(&self, may_be_missing: MayBeMissing) -> bool {
        let is_over = self.waits_for_cluster && may_be_missing == MayBeMissing::Yes;
        (self.cluster_is_news || is_over) && self.plan.is_live()
    }

    /// Whether it was handed in, as far as is known here.
    #[must_use]
    pub fn is_submitted(&self) -> bool {
        self.plan.start.is_some() || self.inbox.iter().any(|(_, fact)| matches!(fact, Fact::Submitted(_)))
    }

    /// Whether anything waits that others wait for. A claim alone is no hurry: nothing is owed for it.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        !self.overdue.is_empty() || self.inbox.iter().any(|(_, fact)| !matches!(fact, Fact::Claimed(..)))
    }

    /// Whether anything waits at all.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty() || !self.overdue.is_empty()
    }

    /// Looks at the clocks, all of them or only at the backoffs.
    pub fn look_at_clocks(&mut self, now: Timestamp, all: bool) {
        let is_open = matches!(self.phase, Phase::Idle | Phase::Appending);
        if !is_open || !(all || next_retry(&self.plan).is_some_and(|at| at <= now)) {
            return;
        }
        self.overdue = overdue(&self.plan, now, |task| self.heard.get(task).copied());
    }

    /// Decides on what has arrived, and applies it; `None` if it changes nothing. The decision is to be appended
    /// behind [`Self::last`] before anything is done about it. `cluster` is what the cluster can do, and
    /// `may_be_missing` whether what it can't do by now is missing.
    pub fn decide(
        &mut self,
        me: &WorkerId,
        cluster: &Cluster,
        may_be_missing: MayBeMissing,
        now: Timestamp,
    ) -> Option<Decision> {
        let mut decision = Decision {
            by: me.clone(),
            previous: self.last,
            at: now,
            answers: Vec::new(),
            events: Vec::new(),
        };
        for _ in 0..self.inbox.len().min(MAX_FACTS) {
            let Some((sequence, fact)) = self.inbox.pop_front() else { break };
            self.answer(&mut decision, Cause::Fact(sequence), &Input::Fact(&fact));
        }
        for overdue in std::mem::take(&mut self.overdue) {
            self.answer(&mut decision, Cause::Clock, &overdue.input());
        }
        self.learn(&mut decision, cluster, may_be_missing);
        if !decision.events.is_empty() {
            self.settle(&mut decision);
        }
        self.concerns_all |= decision.events.iter().any(Event::concerns_all);
        self.plan.through = self.plan.through.max(decision.through().unwrap_or(0));
        self.touched.extend(decision.events.iter().filter_map(|event| event.task()).cloned());
        (!decision.answers.is_empty()).then_some(decision)
    }

    /// Decides on what the cluster can do, where that is news: it has changed, or the tasks have. What was not known and
    /// might still come is asked again when it may come no more.
    fn learn(&mut self, decision: &mut Decision, cluster: &Cluster, may_be_missing: MayBeMissing) {
        self.cluster_is_news |= decision.events.iter().any(Event::asks_the_cluster);
        if self.asks_cluster(may_be_missing) {
            self.cluster_is_news = false;
            self.waits_for_cluster = may_be_missing == MayBeMissing::NotYet;
            self.answer(decision, Cause::Registry, &Input::Cluster(cluster, may_be_missing));
        }
    }

    /// Lets the rules say what follows, until they have nothing more to say.
    fn settle(&mut self, decision: &mut Decision) {
        for _ in 0..MAX_SETTLING {
            let before = decision.events.len();
            if !self.plan.is_live() {
                return;
            }
            self.answer(decision, Cause::Rules, &Input::Settle);
            if decision.events.len() == before {
                return;
            }
        }
    }

    fn answer(&mut self, decision: &mut Decision, cause: Cause, input: &Input<'_>) {
        let at = decision.at;
        match decide(&self.plan, input, at) {
            Ok(events) if events.is_empty() => {}
            Ok(events) => {
                events.iter().for_each(|event| apply(&mut self.plan, event, at));
                let count = u32::try_from(events.len()).unwrap_or(u32::MAX);
                decision.answers.push(Answer { cause, events: count, refusal: None });
                decision.events.extend(events);
            }
            // What time has brought about may have been overtaken by a fact: that is no answer to anybody.
            Err(_) if cause == Cause::Clock => {}
            Err(refusal) => decision.answers.push(Answer { cause, events: 0, refusal: Some(refusal) }),
        }
    }

    /// What the world owes the run after its decision was logged, and the tasks that it was about.
    pub fn owed(&mut self) -> (Vec<Effect>, BTreeSet<TaskId>) {
        let touched = std::mem::take(&mut self.touched);
        for task in &touched {
            self.heard.remove(task);
        }
        let effects = match (self.plan.start.is_none(), std::mem::take(&mut self.concerns_all)) {
            (true, _) => Vec::new(),
            (false, true) => due(&self.plan, Scope::All),
            (false, false) => due(&self.plan, Scope::Tasks(&touched)),
        };
        (effects, touched)
    }

    /// All that the world owes the run, after a start or a takeover.
    #[must_use]
    pub fn owed_in_all(&self) -> Vec<Effect> {
        if self.plan.start.is_none() { Vec::new() } else { due(&self.plan, Scope::All) }
    }
}
