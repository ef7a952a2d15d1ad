//! A run's messages in the log, and a checker of the log's invariants: one chain of decisions, every fact answered
//! once, one writer to a journal at a time, no recorded step done again. It only reads.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    AnswerCause, Attempt, AttemptEnd, AttemptEvent, Decision, Event, GraphEvent, JournalKey, Plan, Refusal,
    ReviewEvent, ReviewPolicy, RunCommand, Submission, TaskEvent, TaskState, apply_decision,
};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::{Bus, Fault};

/// A run as recorded in the log.
pub struct History {
    run: RunId,
    records: Vec<StreamRecord>,
    decisions: Vec<RecordedDecision>,
    journals: BTreeMap<String, AttemptJournal>,
    /// Sequence numbers of the messages that clients wrote.
    from_clients: BTreeSet<u64>,
    /// Sequence numbers of the messages that can't be decoded.
    garbage: BTreeSet<u64>,
    plan: Plan,
}

struct RecordedDecision {
    sequence: u64,
    /// The sequence number of the previous message on the same subject; 0 if there is none.
    previous: u64,
    decision: Decision,
}

struct AttemptJournal {
    topic: Topic,
    entries: Vec<(u64, JournalEntry)>,
}

/// The end of a task, as far as crashes must not change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOutcome {
    /// The task's state.
    pub state: TaskState,
    /// Each attempt: its number, its end, and whether a critic accepted it.
    pub attempts: Vec<(u32, String, Option<bool>)>,
}

impl History {
    /// Reads a run from its lane or the archive.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn read_from_log(bus: &Bus, run: &RunId) -> Result<Self, Fault> {
        let records = archive::read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
        Self::from_records(bus, run, records).await
    }

    /// Builds the history from messages.
    ///
    /// # Errors
    /// A body in the blob store can't be read.
    pub async fn from_records(bus: &Bus, run: &RunId, records: Vec<StreamRecord>) -> Result<Self, Fault> {
        let mut history = Self {
            run: run.clone(),
            records: Vec::new(),
            decisions: Vec::new(),
            journals: BTreeMap::new(),
            from_clients: BTreeSet::new(),
            garbage: BTreeSet::new(),
            plan: Plan::default(),
        };
        let mut previous = 0;
        for record in &records {
            match history.add_record(bus, record, &mut previous).await {
                Err(fault) if fault.is_transient() => return Err(fault),
                Err(_) => drop(history.garbage.insert(record.sequence)),
                Ok(()) => {}
            }
        }
        history.records = records;
        Ok(history)
    }

    async fn add_record(
        &mut self,
        bus: &Bus,
        record: &StreamRecord,
        previous: &mut u64,
    ) -> Result<(), Fault> {
        let sequence = record.sequence;
        let Some((_, _, topic)) = subject::parse_lane_subject(&record.subject) else {
            self.garbage.insert(sequence);
            return Ok(());
        };
        match topic {
            Topic::Plan => {
                let previous = std::mem::replace(previous, sequence);
                let decision = bus.decode_record::<Decision>(record).await?;
                apply_decision(&mut self.plan, &decision);
                self.decisions.push(RecordedDecision { sequence, previous, decision });
            }
            Topic::Submitted => {
                bus.decode_record::<Submission>(record).await?;
                self.from_clients.insert(sequence);
            }
            Topic::Control => {
                bus.decode_record::<RunCommand>(record).await?;
                self.from_clients.insert(sequence);
            }
            Topic::Answer => {
                bus.decode_record::<RunAnswer>(record).await?;
                self.from_clients.insert(sequence);
            }
            Topic::Journal(_) => {
                let entry = bus.decode_record::<JournalEntry>(record).await?;
                let journal = self.journals.entry(record.subject.to_string());
                let journal = journal.or_insert_with(|| AttemptJournal { topic, entries: Vec::new() });
                journal.entries.push((sequence, entry));
            }
        }
        Ok(())
    }

    /// The messages, oldest first.
    #[must_use]
    pub fn records(&self) -> &[StreamRecord] {
        &self.records
    }

    /// The plan that results from the decisions.
    #[must_use]
    pub fn folded_plan(&self) -> &Plan {
        &self.plan
    }

    /// The events, oldest first, each with its time.
    pub fn timed_events(&self) -> impl Iterator<Item = (Timestamp, &Event)> {
        let decisions = self.decisions.iter().map(|decided| &decided.decision);
        decisions.flat_map(|decision| decision.events.iter().map(|event| (decision.at, event)))
    }

    /// The decision on a fact, which is named by its sequence number: accepted, or the reason of the refusal; `None`
    /// before it is decided.
    #[must_use]
    pub fn decision_on_fact(&self, fact: u64) -> Option<Result<(), Refusal>> {
        let answers = self.decisions.iter().flat_map(|decided| &decided.decision.answers);
        let answer = answers.into_iter().find(|answer| answer.cause == AnswerCause::Fact(fact))?;
        Some(answer.refusal.clone().map_or(Ok(()), Err))
    }

    /// The supervisors that decided, in the order of the decisions.
    #[must_use]
    pub fn deciding_supervisors(&self) -> Vec<String> {
        self.decisions.iter().map(|decided| decided.decision.by.to_string()).collect()
    }

    /// The number of messages that can't be decoded.
    #[must_use]
    pub fn unreadable_message_count(&self) -> usize {
        self.garbage.len()
    }

    /// The number of claims of work that another worker had claimed before.
    #[must_use]
    pub fn takeover_count(&self) -> usize {
        self.journals.values().map(|journal| journal.claim_count().saturating_sub(1)).sum()
    }

    /// The number of attempts that a worker continued after steps that an earlier worker had recorded.
    #[must_use]
    pub fn continued_attempt_count(&self) -> usize {
        self.journals.values().filter(|journal| journal.is_continued_after_takeover()).count()
    }

    /// The end of each task.
    #[must_use]
    pub fn task_outcomes(&self) -> BTreeMap<TaskId, TaskOutcome> {
        let tasks = self.plan.tasks().iter();
        tasks
            .map(|task| {
                let attempts = task.attempts.iter().map(attempt_outcome).collect();
                (task.spec.id.clone(), TaskOutcome { state: task.state(), attempts })
            })
            .collect()
    }

    /// The accepted results, as their workers wrote them.
    #[must_use]
    pub fn accepted_results(&self) -> BTreeMap<TaskId, InlineOrStoredBytes> {
        let entries: HashMap<u64, &JournalEntry> = self
            .journals
            .values()
            .flat_map(|journal| &journal.entries)
            .map(|(at, entry)| (*at, entry))
            .collect();
        let result = |at| match entries.get(&at)? {
            JournalEntry::Outcome { outcome: WorkOutcome::Finished { result, .. }, .. } => {
                Some(result.clone())
            }
            JournalEntry::Outcome { .. }
            | JournalEntry::Claimed { .. }
            | JournalEntry::Step { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. } => None,
        };
        let tasks = self.plan.tasks().iter();
        tasks.filter_map(|task| Some((task.spec.id.clone(), result(task.accepted_result()?.1)?))).collect()
    }

    /// The recorded steps, by their numbers: `run task attempt number`, each with its sequence number.
    #[must_use]
    pub fn recorded_steps(&self) -> Vec<(String, u64)> {
        self.steps_named_by(|number, _| Some(number.to_string()))
    }

    /// The recorded steps that `echo` has done, as its ledger names them, each with its sequence number. The ends of waits are steps too,
    /// and not in the ledger.
    #[must_use]
    pub fn recorded_echo_steps(&self) -> Vec<(String, u64)> {
        self.steps_named_by(|_, name| match name.strip_prefix("echo.")? {
            "action" => Some("action proposed".to_owned()),
            number => number.parse::<u32>().ok().map(|number| number.to_string()),
        })
    }

    fn steps_named_by(&self, name_of: impl Fn(u32, &str) -> Option<String>) -> Vec<(String, u64)> {
        let mut steps = Vec::new();
        for AttemptJournal { topic, entries } in self.journals.values() {
            let Topic::Journal(JournalKey::Task(task, attempt)) = topic else { continue };
            for (sequence, entry) in entries {
                if let JournalEntry::Step { number, name, .. } = entry
                    && let Some(step) = name_of(*number, name)
                {
                    steps.push((format!("{} {task} {attempt} {step}", self.run), *sequence));
                }
            }
        }
        steps
    }

    /// Checks all invariants of the log for this run.
    ///
    /// # Panics
    /// Some are violated; the text lists all of them.
    pub fn assert_consistent(&self) {
        let violations = self.find_violations();
        assert!(
            violations.is_empty(),
            "run {} violates the log's invariants:\n{}",
            self.run,
            violations.join("\n")
        );
    }

    /// The invariants that the run violates, one line each.
    #[must_use]
    pub fn find_violations(&self) -> Vec<String> {
        let mut violations = Violations::default();
        self.check_decision_chain(&mut violations);
        self.check_fact_answers(&mut violations);
        self.check_task_events(&mut violations);
        self.journals.iter().for_each(|(subject, journal)| journal.check_numbering(subject, &mut violations));
        self.check_folding_in_parts(&mut violations);
        violations.0
    }

    /// Each decision follows the previous one: no run is extended twice from one point.
    fn check_decision_chain(&self, violations: &mut Violations) {
        for RecordedDecision { sequence, previous, decision } in &self.decisions {
            if decision.previous != *previous {
                violations.add_violation(format!(
                    "decision {sequence} by {} follows {}, but {previous} is before it",
                    decision.by, decision.previous
                ));
            }
            let answered: u32 = decision.answers.iter().map(|answer| answer.events).sum();
            if answered as usize != decision.events.len() {
                violations.add_violation(format!("decision {sequence} has events that answer nothing"));
            }
        }
    }

    /// Every fact is answered at most once and in order, and every outcome before the end is answered.
    fn check_fact_answers(&self, violations: &mut Violations) {
        let entries = self.journals.values().flat_map(|journal| &journal.entries);
        let facts: HashMap<u64, bool> = entries
            .map(|(sequence, entry)| (*sequence, matches!(entry, JournalEntry::Outcome { .. })))
            .chain(self.from_clients.iter().map(|&sequence| (sequence, true)))
            .collect();
        let mut answered = HashSet::new();
        let mut last = 0;
        for RecordedDecision { sequence, decision, .. } in &self.decisions {
            for answer in &decision.answers {
                let AnswerCause::Fact(fact) = answer.cause else { continue };
                if !answered.insert(fact) {
                    violations.add_violation(format!("decision {sequence} answers fact {fact} again"));
                }
                if fact <= last || fact >= *sequence {
                    violations.add_violation(format!("decision {sequence} answers fact {fact} out of order"));
                }
                if !facts.contains_key(&fact) {
                    violations.add_violation(format!(
                        "decision {sequence} answers {fact}, which is no fact of this run"
                    ));
                }
                last = last.max(fact);
            }
        }
        let must = facts.iter().filter(|&(&fact, &must)| must && fact <= self.plan.run.through);
        for (fact, _) in must.filter(|(fact, _)| !answered.contains(fact)) {
            violations.add_violation(format!("fact {fact} was never answered"));
        }
    }

    /// The decisions on tasks are consistent: results are accepted once, have outcomes, and have a verdict where a
    /// review is required.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other events have no invariants")]
    fn check_task_events(&self, violations: &mut Violations) {
        let mut finished = HashSet::new();
        let mut passed = HashSet::new();
        let mut over = HashSet::new();
        // The review mode of each task, as of the current event.
        let mut reviews: HashMap<&TaskId, &ReviewPolicy> = HashMap::new();
        let events = self.decisions.iter().flat_map(|decided| &decided.decision.events);
        for event in events {
            if let Event::Task(TaskEvent::Reopened { task, .. } | TaskEvent::Invalidated { task, .. }) = event
            {
                over.remove(task);
                continue;
            }
            let is_over = |task: &&TaskId| {
                over.contains(*task) && !matches!(event, Event::Graph(GraphEvent::FinalMarked { .. }))
            };
            if let Some(task) = event.task().filter(is_over) {
                violations.add_violation(format!("something was decided on {task} after its end: {event:?}"));
            }
            match event {
                Event::Graph(GraphEvent::TaskAdded { spec, .. }) => {
                    reviews.insert(&spec.id, &spec.review);
                }
                Event::Graph(GraphEvent::TaskPatched { spec, .. }) => {
                    reviews.insert(&spec.id, &spec.review);
                }
                Event::Attempt(AttemptEvent::Finished {
                    task, attempt, worker, at_sequence, review, ..
                }) => {
                    let declared = review.as_deref().or_else(|| Some(&self.plan.task(task)?.spec.review));
                    reviews.extend(declared.map(|declared| (task, declared)));
                    if !finished.insert((task, attempt)) {
                        violations.add_violation(format!("two outcomes of {task} #{attempt} were accepted"));
                    }
                    let topic = Topic::Journal(JournalKey::Task(task.clone(), *attempt));
                    let outcome = self.journals.values().find(|journal| journal.topic == topic);
                    if !outcome
                        .is_some_and(|journal| journal.has_finished_outcome(*at_sequence, worker.as_str()))
                    {
                        violations.add_violation(format!(
                            "{task} #{attempt} has no outcome of {worker} at {at_sequence}"
                        ));
                    }
                }
                Event::Review(ReviewEvent::VerdictGiven { task, attempt, verdict, .. }) => {
                    passed.extend(verdict.passed.then_some((task, attempt)));
                }
                Event::Task(TaskEvent::Accepted { task, attempt }) => {
                    over.insert(task);
                    if !finished.contains(&(task, attempt)) {
                        violations
                            .add_violation(format!("{task} #{attempt} was accepted without an outcome"));
                    }
                    let is_reviewed = reviews.get(task).is_some_and(|review| !review.is_none());
                    if is_reviewed && !passed.contains(&(task, attempt)) {
                        violations.add_violation(format!("{task} #{attempt} was accepted without a verdict"));
                    }
                }
                Event::Task(TaskEvent::Failed { task, .. } | TaskEvent::Cancelled { task, .. }) => {
                    over.insert(task);
                }
                _ => {}
            }
        }
    }

    /// Folding the whole log equals folding it in two parts.
    fn check_folding_in_parts(&self, violations: &mut Violations) {
        let fold = |plan: &mut Plan, decided: &[RecordedDecision]| {
            decided.iter().for_each(|decided| apply_decision(plan, &decided.decision));
        };
        for part in 1..4 {
            let (first, second) = self.decisions.split_at(self.decisions.len() * part / 4);
            let mut half = Plan::default();
            fold(&mut half, first);
            let mut whole = half.clone();
            fold(&mut whole, second);
            if whole != self.plan {
                violations.add_violation(format!("the fold in two parts at {part}/4 differs from the whole"));
            }
        }
    }

    /// The violations that `echo`'s ledger shows. It has a line `run task attempt step` for each time that a step was
    /// really done. If a worker dies after doing a step and before recording it, the next worker does it again; once it
    /// is recorded, no later claim may.
    #[must_use]
    pub fn find_ledger_violations(&self, ledger: &str) -> Vec<String> {
        let mut done: HashMap<(TaskId, u32, u32), usize> = HashMap::new();
        for line in ledger.lines().filter_map(|line| line.strip_prefix(&format!("{} ", self.run))) {
            let mut words = line.split(' ');
            let task = words.next().and_then(|word| TaskId::new(word).ok());
            let mut number = || words.next().and_then(|word| word.parse().ok());
            if let (Some(task), Some(attempt), Some(step)) = (task, number(), number()) {
                *done.entry((task, attempt, step)).or_default() += 1;
            }
        }
        let mut violations = Violations::default();
        for journal in self.journals.values() {
            let Topic::Journal(JournalKey::Task(task, attempt)) = &journal.topic else { continue };
            for (step, claim) in journal.steps_with_claim_numbers() {
                let times = done.remove(&(task.clone(), *attempt, step)).unwrap_or(0);
                if times == 0 || times > claim {
                    violations.add_violation(format!(
                        "step {step} of {task} #{attempt} was recorded in claim {claim} and done {times} times"
                    ));
                }
            }
            // Done and not recorded: at most once for each claim.
            let claims = journal.claim_count();
            let undone = done
                .iter()
                .filter(|((of, number, _), times)| of == task && number == attempt && **times > claims);
            undone.for_each(|((_, _, step), times)| {
                violations.add_violation(format!(
                    "step {step} of {task} #{attempt} was done {times} times in {claims} claims"
                ));
            });
        }
        violations.0
    }
}

impl AttemptJournal {
    fn claim_count(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| matches!(entry, JournalEntry::Claimed { .. })).count()
    }

    fn is_continued_after_takeover(&self) -> bool {
        let last = self.entries.iter().rposition(|(_, entry)| matches!(entry, JournalEntry::Claimed { .. }));
        let before = &self.entries[..last.unwrap_or(0)];
        before.iter().any(|(_, entry)| matches!(entry, JournalEntry::Step { .. }))
    }

    fn has_finished_outcome(&self, at: u64, by: &str) -> bool {
        self.entries.iter().any(|(sequence, entry)| match entry {
            JournalEntry::Outcome { worker, outcome: WorkOutcome::Finished { .. }, .. } => {
                *sequence == at && worker.as_str() == by
            }
            JournalEntry::Outcome { .. }
            | JournalEntry::Claimed { .. }
            | JournalEntry::Step { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. } => false,
        })
    }

    /// Each step's number, with the number of the claim in which it was recorded.
    fn steps_with_claim_numbers(&self) -> Vec<(u32, usize)> {
        let mut claim = 0;
        let mut steps = Vec::new();
        for (_, entry) in &self.entries {
            match entry {
                JournalEntry::Claimed { .. } => claim += 1,
                JournalEntry::Step { number, .. } => steps.push((*number, claim)),
                JournalEntry::Note { .. }
                | JournalEntry::Parked { .. }
                | JournalEntry::Delegated { .. }
                | JournalEntry::Released { .. }
                | JournalEntry::Outcome { .. } => {}
            }
        }
        steps
    }

    /// Claims and steps are numbered without gaps, step names are unique, and only the next review may follow the end.
    fn check_numbering(&self, subject: &str, violations: &mut Violations) {
        let mut state = JournalCheck::default();
        for (sequence, entry) in &self.entries {
            if let Err(why) = state.check_entry(entry) {
                violations.add_violation(format!("{subject}, entry {sequence}: {why}"));
            }
        }
    }
}

/// The state of a check through a journal.
#[derive(Default)]
struct JournalCheck {
    claims: u32,
    holder: Option<String>,
    steps: u32,
    names: HashSet<String>,
    /// The review number of the last outcome, if there was one.
    ended: Option<u32>,
}

impl JournalCheck {
    fn check_entry(&mut self, entry: &JournalEntry) -> Result<(), String> {
        if self.claims == 0 && !matches!(entry, JournalEntry::Claimed { .. }) {
            return Err("it is before the first claim".into());
        }
        match entry {
            JournalEntry::Claimed { worker, claim, .. } => {
                // A failed review is requested again, and its claims are numbered from 1 again.
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
            JournalEntry::Step { number, name, .. } => {
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
            JournalEntry::Note { .. } | JournalEntry::Delegated { .. } => Ok(()),
            JournalEntry::Parked { worker, waits, children: _ } => {
                if self.holder.as_deref() == Some(worker.as_str()) && !waits.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{worker} parks what it does not hold, or for nothing"))
                }
            }
            JournalEntry::Released { worker, .. } if self.holder.as_deref() == Some(worker.as_str()) => {
                Ok(())
            }
            JournalEntry::Released { worker, .. } => {
                Err(format!("{worker} gives back what it does not hold"))
            }
            JournalEntry::Outcome { worker, review, .. } => {
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

fn attempt_outcome(attempt: &Attempt) -> (u32, String, Option<bool>) {
    let end = match &attempt.end {
        None => "open".into(),
        Some(AttemptEnd::Finished { summary, .. }) => format!("finished: {summary}"),
        Some(AttemptEnd::Errored(error)) => format!("errored: {error}"),
        Some(AttemptEnd::TimedOut(clock)) => format!("timed out: {clock}"),
    };
    (attempt.number, end, attempt.verdict().map(|(_, verdict)| verdict.passed))
}

/// Violations, one text each.
#[derive(Default)]
struct Violations(Vec<String>);

impl Violations {
    fn add_violation(&mut self, text: String) {
        self.0.push(text);
    }
}
