//! What a run has left in the log, and whether it keeps the promises of the log: one chain of decisions, every fact
//! answered once, one writer to a journal at a time, no step done again that was written down. It reads; it writes
//! nothing and repairs nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    Attempt, AttemptEnd, Cause, Command, Control, Decision, Event, Plan, Refusal, Review, Submission,
    TaskState, apply_decision,
};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::Blob;
use millrace_protocol::work::{Entry, Outcome};
use millrace_runtime::record::Record;
use millrace_runtime::{Bus, Fault, archive};

/// A run as the log tells it.
pub struct History {
    run: RunId,
    records: Vec<Record>,
    decisions: Vec<Decided>,
    journals: BTreeMap<String, Journal>,
    /// Sequences of what clients wrote.
    asked: BTreeSet<u64>,
    /// Sequences of what nobody can read.
    garbage: BTreeSet<u64>,
    plan: Plan,
}

struct Decided {
    sequence: u64,
    /// The sequence of the message before it on the same subject; 0 if there is none.
    behind: u64,
    decision: Decision,
}

struct Journal {
    topic: Topic,
    entries: Vec<(u64, Entry)>,
}

/// How a task ended, as far as it must be the same whatever dies on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// Its state.
    pub state: TaskState,
    /// Each attempt: how it ended, and whether a critic passed it.
    pub attempts: Vec<(u32, String, Option<bool>)>,
}

impl History {
    /// Reads a run from its lane or the archive.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn read(bus: &Bus, run: &RunId) -> Result<Self, Fault> {
        let records = archive::find_run(bus, bus.lane(run), run).await?;
        Self::of(bus, run, records).await
    }

    /// The history that these messages tell.
    ///
    /// # Errors
    /// A body is in the blob store and can't be had.
    pub async fn of(bus: &Bus, run: &RunId, records: Vec<Record>) -> Result<Self, Fault> {
        let mut history = Self {
            run: run.clone(),
            records: Vec::new(),
            decisions: Vec::new(),
            journals: BTreeMap::new(),
            asked: BTreeSet::new(),
            garbage: BTreeSet::new(),
            plan: Plan::default(),
        };
        let mut behind = 0;
        for record in &records {
            match history.take(bus, record, &mut behind).await {
                Err(fault) if fault.is_transient() => return Err(fault),
                Err(_) => drop(history.garbage.insert(record.sequence)),
                Ok(()) => {}
            }
        }
        history.records = records;
        Ok(history)
    }

    async fn take(&mut self, bus: &Bus, record: &Record, behind: &mut u64) -> Result<(), Fault> {
        let sequence = record.sequence;
        let Some((_, _, topic)) = subject::parse(&record.subject) else {
            self.garbage.insert(sequence);
            return Ok(());
        };
        match topic {
            Topic::Plan => {
                let behind = std::mem::replace(behind, sequence);
                let decision = bus.open::<Decision>(record).await?;
                apply_decision(&mut self.plan, &decision);
                self.decisions.push(Decided { sequence, behind, decision });
            }
            Topic::Submitted => {
                bus.open::<Submission>(record).await?;
                self.asked.insert(sequence);
            }
            Topic::Control => {
                // A wish of a program of before there were commands is one too.
                match bus.open::<Command>(record).await {
                    Err(fault) if !fault.is_transient() => bus.open::<Control>(record).await.map(drop)?,
                    command => drop(command?),
                }
                self.asked.insert(sequence);
            }
            Topic::Task(..) | Topic::Review(..) | Topic::Planning(..) => {
                let entry = bus.open::<Entry>(record).await?;
                let journal = self.journals.entry(record.subject.to_string());
                let journal = journal.or_insert_with(|| Journal { topic, entries: Vec::new() });
                journal.entries.push((sequence, entry));
            }
        }
        Ok(())
    }

    /// The messages, oldest first.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The state that the decisions make.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was decided, oldest first, each with its time.
    pub fn events(&self) -> impl Iterator<Item = (Timestamp, &Event)> {
        let decisions = self.decisions.iter().map(|decided| &decided.decision);
        decisions.flat_map(|decision| decision.events.iter().map(|event| (decision.at, event)))
    }

    /// What was decided on a fact, by its sequence: that it holds, or why it does not; `None` before it was decided.
    #[must_use]
    pub fn answer_to(&self, fact: u64) -> Option<Result<(), Refusal>> {
        let answers = self.decisions.iter().flat_map(|decided| &decided.decision.answers);
        let answer = answers.into_iter().find(|answer| answer.cause == Cause::Fact(fact))?;
        Some(answer.refusal.clone().map_or(Ok(()), Err))
    }

    /// Who decided, in the order of the decisions.
    #[must_use]
    pub fn deciders(&self) -> Vec<String> {
        self.decisions.iter().map(|decided| decided.decision.by.to_string()).collect()
    }

    /// How many messages nobody can read.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        self.garbage.len()
    }

    /// How often work was claimed that somebody else had claimed before.
    #[must_use]
    pub fn takeovers(&self) -> usize {
        self.journals.values().map(|journal| journal.claims().saturating_sub(1)).sum()
    }

    /// How many attempts were continued behind steps that an earlier worker had written down.
    #[must_use]
    pub fn continued(&self) -> usize {
        self.journals.values().filter(|journal| journal.is_continued()).count()
    }

    /// How each task ended.
    #[must_use]
    pub fn fates(&self) -> BTreeMap<TaskId, Fate> {
        let tasks = self.plan.tasks().iter();
        tasks
            .map(|task| {
                let attempts = task.attempts.iter().map(fate_of).collect();
                (task.spec.id.clone(), Fate { state: task.state, attempts })
            })
            .collect()
    }

    /// The results that were accepted, as their workers wrote them.
    #[must_use]
    pub fn results(&self) -> BTreeMap<TaskId, Blob> {
        let entries: HashMap<u64, &Entry> = self
            .journals
            .values()
            .flat_map(|journal| &journal.entries)
            .map(|(at, entry)| (*at, entry))
            .collect();
        let result = |at| match entries.get(&at)? {
            Entry::Outcome { outcome: Outcome::Finished { result, .. }, .. } => Some(result.clone()),
            Entry::Outcome { .. }
            | Entry::Claimed { .. }
            | Entry::Step { .. }
            | Entry::Note { .. }
            | Entry::Released { .. } => None,
        };
        let tasks = self.plan.tasks().iter();
        tasks.filter_map(|task| Some((task.spec.id.clone(), result(task.accepted()?.1)?))).collect()
    }

    /// The steps that were written down, as `echo` names them in its ledger, each with its sequence.
    #[must_use]
    pub fn steps(&self) -> Vec<(String, u64)> {
        let mut steps = Vec::new();
        for Journal { topic, entries } in self.journals.values() {
            let Topic::Task(task, attempt) = topic else { continue };
            for (sequence, entry) in entries {
                if let Entry::Step { number, .. } = entry {
                    steps.push((format!("{} {task} {attempt} {number}", self.run), *sequence));
                }
            }
        }
        steps
    }

    /// Shows that the run keeps every promise of the log.
    ///
    /// # Panics
    /// It breaks some; the text names all of them.
    pub fn assert_holds(&self) {
        let broken = self.broken();
        assert!(broken.is_empty(), "run {} breaks the log's promises:\n{}", self.run, broken.join("\n"));
    }

    /// The promises of the log that the run breaks, a line each.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Broken::default();
        self.check_chain(&mut broken);
        self.check_answers(&mut broken);
        self.check_events(&mut broken);
        self.journals.iter().for_each(|(subject, journal)| journal.check(subject, &mut broken));
        self.check_folds(&mut broken);
        broken.0
    }

    /// Each decision follows the one before it: no run is extended twice from one point.
    fn check_chain(&self, broken: &mut Broken) {
        for Decided { sequence, behind, decision } in &self.decisions {
            if decision.previous != *behind {
                broken.say(format!(
                    "decision {sequence} by {} follows {}, but {behind} is before it",
                    decision.by, decision.previous
                ));
            }
            let answered: u32 = decision.answers.iter().map(|answer| answer.events).sum();
            if answered as usize != decision.events.len() {
                broken.say(format!("decision {sequence} has events that answer nothing"));
            }
        }
    }

    /// Every fact is answered at most once and in order, and every outcome before the end is answered.
    fn check_answers(&self, broken: &mut Broken) {
        let entries = self.journals.values().flat_map(|journal| &journal.entries);
        let facts: HashMap<u64, bool> = entries
            .map(|(sequence, entry)| (*sequence, matches!(entry, Entry::Outcome { .. })))
            .chain(self.asked.iter().map(|&sequence| (sequence, true)))
            .collect();
        let mut answered = HashSet::new();
        let mut last = 0;
        for Decided { sequence, decision, .. } in &self.decisions {
            for answer in &decision.answers {
                let Cause::Fact(fact) = answer.cause else { continue };
                if !answered.insert(fact) {
                    broken.say(format!("decision {sequence} answers fact {fact} again"));
                }
                if fact <= last || fact >= *sequence {
                    broken.say(format!("decision {sequence} answers fact {fact} out of order"));
                }
                if !facts.contains_key(&fact) {
                    broken.say(format!("decision {sequence} answers {fact}, which is no fact of this run"));
                }
                last = last.max(fact);
            }
        }
        let must = facts.iter().filter(|&(&fact, &must)| must && fact <= self.plan.through);
        for (fact, _) in must.filter(|(fact, _)| !answered.contains(fact)) {
            broken.say(format!("fact {fact} was passed over"));
        }
    }

    /// What was decided on tasks makes sense: results are accepted once, have their outcomes, and were passed where a
    /// review was asked for.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other events promise nothing")]
    fn check_events(&self, broken: &mut Broken) {
        let mut finished = HashSet::new();
        let mut passed = HashSet::new();
        let mut over = HashSet::new();
        // How each task's result is judged, as far as was said by then.
        let mut reviews: HashMap<&TaskId, &Review> = HashMap::new();
        let events = self.decisions.iter().flat_map(|decided| &decided.decision.events);
        for event in events {
            if let Event::TaskReopened { task, .. } | Event::TaskInvalidated { task, .. } = event {
                over.remove(task);
                continue;
            }
            let is_over =
                |task: &&TaskId| over.contains(*task) && !matches!(event, Event::FinalMarked { .. });
            if let Some(task) = event.task().filter(is_over) {
                broken.say(format!("something was decided on {task} after its end: {event:?}"));
            }
            match event {
                Event::TaskAdded { spec, .. } => drop(reviews.insert(&spec.id, &spec.review)),
                Event::TaskPatched { spec, .. } => drop(reviews.insert(&spec.id, &spec.review)),
                Event::AttemptFinished { task, attempt, worker, at_sequence, review, .. } => {
                    let asked = review.as_ref().or_else(|| Some(&self.plan.task(task)?.spec.review));
                    reviews.extend(asked.map(|asked| (task, asked)));
                    if !finished.insert((task, attempt)) {
                        broken.say(format!("two outcomes of {task} #{attempt} were accepted"));
                    }
                    let topic = Topic::Task(task.clone(), *attempt);
                    let outcome = self.journals.values().find(|journal| journal.topic == topic);
                    if !outcome.is_some_and(|journal| journal.has_result(*at_sequence, worker.as_str())) {
                        broken.say(format!("{task} #{attempt} has no outcome of {worker} at {at_sequence}"));
                    }
                }
                Event::VerdictGiven { task, attempt, verdict, .. } => {
                    passed.extend(verdict.passed.then_some((task, attempt)));
                }
                Event::TaskAccepted { task, attempt } => {
                    over.insert(task);
                    if !finished.contains(&(task, attempt)) {
                        broken.say(format!("{task} #{attempt} was accepted without an outcome"));
                    }
                    let is_reviewed = reviews.get(task).is_some_and(|review| !review.is_none());
                    if is_reviewed && !passed.contains(&(task, attempt)) {
                        broken.say(format!("{task} #{attempt} was accepted without a verdict"));
                    }
                }
                Event::TaskFailed { task, .. } | Event::TaskCancelled { task, .. } => drop(over.insert(task)),
                _ => {}
            }
        }
    }

    /// The fold of the whole is the fold of its halves.
    fn check_folds(&self, broken: &mut Broken) {
        let fold = |plan: &mut Plan, decided: &[Decided]| {
            decided.iter().for_each(|decided| apply_decision(plan, &decided.decision));
        };
        for part in 1..4 {
            let (first, second) = self.decisions.split_at(self.decisions.len() * part / 4);
            let mut half = Plan::default();
            fold(&mut half, first);
            let mut whole = half.clone();
            fold(&mut whole, second);
            if whole != self.plan {
                broken.say(format!("the fold in two parts at {part}/4 differs from the whole"));
            }
        }
    }

    /// The promises that `echo`'s ledger shows to be broken: a line `run task attempt step` for each time that a step
    /// was really done. A worker that dies between doing a step and writing it down makes the next one do it again;
    /// once it is written down, no later claim may.
    #[must_use]
    pub fn broken_by_ledger(&self, ledger: &str) -> Vec<String> {
        let mut done: HashMap<(TaskId, u32, u32), usize> = HashMap::new();
        for line in ledger.lines().filter_map(|line| line.strip_prefix(&format!("{} ", self.run))) {
            let mut words = line.split(' ');
            let task = words.next().and_then(|word| TaskId::new(word).ok());
            let mut number = || words.next().and_then(|word| word.parse().ok());
            if let (Some(task), Some(attempt), Some(step)) = (task, number(), number()) {
                *done.entry((task, attempt, step)).or_default() += 1;
            }
        }
        let mut broken = Broken::default();
        for journal in self.journals.values() {
            let Topic::Task(task, attempt) = &journal.topic else { continue };
            for (step, claim) in journal.steps() {
                let times = done.remove(&(task.clone(), *attempt, step)).unwrap_or(0);
                if times == 0 || times > claim {
                    broken.say(format!(
                        "step {step} of {task} #{attempt} was written down in claim {claim} and done {times} times"
                    ));
                }
            }
            // Done, and not written down: once for each claim at the most.
            let claims = journal.claims();
            let undone = done
                .iter()
                .filter(|((of, number, _), times)| of == task && number == attempt && **times > claims);
            undone.for_each(|((_, _, step), times)| {
                broken.say(format!(
                    "step {step} of {task} #{attempt} was done {times} times in {claims} claims"
                ));
            });
        }
        broken.0
    }
}

impl Journal {
    fn claims(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Claimed { .. })).count()
    }

    fn is_continued(&self) -> bool {
        let last = self.entries.iter().rposition(|(_, entry)| matches!(entry, Entry::Claimed { .. }));
        let before = &self.entries[..last.unwrap_or(0)];
        before.iter().any(|(_, entry)| matches!(entry, Entry::Step { .. }))
    }

    fn has_result(&self, at: u64, by: &str) -> bool {
        self.entries.iter().any(|(sequence, entry)| match entry {
            Entry::Outcome { worker, outcome: Outcome::Finished { .. }, .. } => {
                *sequence == at && worker.as_str() == by
            }
            Entry::Outcome { .. }
            | Entry::Claimed { .. }
            | Entry::Step { .. }
            | Entry::Note { .. }
            | Entry::Released { .. } => false,
        })
    }

    /// Each step's number, with the number of the claim in which it was written down.
    fn steps(&self) -> Vec<(u32, usize)> {
        let mut claim = 0;
        let mut steps = Vec::new();
        for (_, entry) in &self.entries {
            match entry {
                Entry::Claimed { .. } => claim += 1,
                Entry::Step { number, .. } => steps.push((*number, claim)),
                Entry::Note { .. } | Entry::Released { .. } | Entry::Outcome { .. } => {}
            }
        }
        steps
    }

    /// Claims are numbered, steps are numbered and named once, and nothing comes behind the end but the next review.
    fn check(&self, subject: &str, broken: &mut Broken) {
        let mut state = Reading::default();
        for (sequence, entry) in &self.entries {
            if let Err(why) = state.read(entry) {
                broken.say(format!("{subject}, entry {sequence}: {why}"));
            }
        }
    }
}

/// A journal while it is read.
#[derive(Default)]
struct Reading {
    claims: u32,
    holder: Option<String>,
    steps: u32,
    names: HashSet<String>,
    /// The number of the last outcome's review, if there was an outcome.
    ended: Option<u32>,
}

impl Reading {
    fn read(&mut self, entry: &Entry) -> Result<(), String> {
        if self.claims == 0 && !matches!(entry, Entry::Claimed { .. }) {
            return Err("it is before the first claim".into());
        }
        match entry {
            Entry::Claimed { worker, claim } => {
                // A review that came to nothing is asked for again, and its claims begin anew.
                if self.ended.is_some() {
                    *self = Self { ended: self.ended, ..Self::default() };
                }
                self.claims += 1;
                self.holder = Some(worker.to_string());
                if *claim == self.claims {
                    Ok(())
                } else {
                    Err(format!("claim {claim} is the {}.", self.claims))
                }
            }
            Entry::Step { number, name, .. } => {
                self.steps += 1;
                if *number != self.steps {
                    return Err(format!("step {number} is the {}.", self.steps));
                }
                if self.names.insert(name.clone()) {
                    Ok(())
                } else {
                    Err(format!("step {name:?} is there twice"))
                }
            }
            Entry::Note { .. } => Ok(()),
            Entry::Released { worker, .. } if self.holder.as_deref() == Some(worker.as_str()) => Ok(()),
            Entry::Released { worker, .. } => Err(format!("{worker} gives back what it does not hold")),
            Entry::Outcome { worker, review, .. } => {
                if self.holder.as_deref() != Some(worker.as_str()) {
                    return Err(format!("the outcome is of {worker}, the work is of {:?}", self.holder));
                }
                if self.ended.is_some_and(|ended| ended >= *review) {
                    return Err("it is a second outcome".into());
                }
                self.ended = Some(*review);
                Ok(())
            }
        }
    }
}

fn fate_of(attempt: &Attempt) -> (u32, String, Option<bool>) {
    let end = match &attempt.end {
        None => "open".into(),
        Some(AttemptEnd::Finished { summary, .. }) => format!("finished: {summary}"),
        Some(AttemptEnd::Errored(error)) => format!("errored: {error}"),
        Some(AttemptEnd::TimedOut(clock)) => format!("timed out: {clock}"),
    };
    (attempt.number, end, attempt.verdict.as_ref().map(|(_, verdict)| verdict.passed))
}

/// Broken promises, as text.
#[derive(Default)]
struct Broken(Vec<String>);

impl Broken {
    fn say(&mut self, text: String) {
        self.0.push(text);
    }
}
