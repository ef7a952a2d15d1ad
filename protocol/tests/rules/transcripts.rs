//! Transcripts of runs, `tests/transcripts/*.txt`: given, when, then. `tests/transcripts/README.md` describes the language;
//! the program writes the `then` lines.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    AttemptResult, Budget, BudgetExhaustionPolicy, CapabilityRegistry, CommandAction, Edit, EffectScope,
    Event, Fact, JournalKey, OnFailedDependency, Plan, PlannerConsultMode, PlanningMode, Refusal,
    ResourceAmounts, ReviewCheck, ReviewPolicy, Submission, TaskPatch, TaskSpec, TaskState, Work,
    apply_decision, pending_effects,
};
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, Usage};
use millrace_protocol::wait::ProviderStatus;
use millrace_protocol::{wire, work};
use serde_json::json;

use crate::scene::RunScene;
use crate::{cast, golden, oracle, show};

#[test]
fn every_transcript_is_unchanged() {
    let mut names: Vec<_> = std::fs::read_dir(golden::golden_file_path("transcripts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    assert!(names.len() >= 20, "too few transcripts found: {names:?}");
    for name in names {
        let path = format!("transcripts/{name}");
        let text = std::fs::read_to_string(golden::golden_file_path(&path)).unwrap();
        golden::compare_with_golden_file(&path, &play_transcript(&name, &text));
    }
}

/// Executes a transcript and returns it with new `then` lines.
fn play_transcript(name: &str, transcript: &str) -> String {
    let mut stage = TranscriptPlayer::default();
    let mut text = String::new();
    for (number, line) in (1..).zip(transcript.lines()) {
        if line.starts_with("then ") {
            continue;
        }
        writeln!(text, "{line}").unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = match words.as_slice() {
            [] | ["#", ..] => continue,
            ["given", given @ ..] => stage.apply_given_line(given),
            ["when", when @ ..] => {
                stage.apply_when_line(when, line).map(|()| stage.write_outcomes(&mut text))
            }
            [_, ..] => None,
        };
        done.unwrap_or_else(|| panic!("{name}:{number}: {line:?} is not a valid line of a transcript"));
    }
    stage.check_log_folds_to_plan();
    text
}

struct TranscriptPlayer {
    scene: RunScene,
    submission: Submission,
    /// The last fact, for redelivery.
    last: Option<Fact>,
    /// The number of commands so far.
    commands: u32,
    outcomes: Vec<Result<Vec<Event>, Refusal>>,
}

impl Default for TranscriptPlayer {
    fn default() -> Self {
        Self {
            scene: RunScene::new(),
            submission: cast::fixed_plan_submission(Vec::new()),
            last: None,
            commands: 0,
            outcomes: Vec::new(),
        }
    }
}

impl TranscriptPlayer {
    fn apply_given_line(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["task", rest @ ..] => self.submission.tasks.push(Arc::new(parse_task_spec(rest)?)),
            ["fail_fast"] => self.submission.fail_fast = true,
            ["no", "plan"] => self.submission.mode = PlanningMode::Llm,
            ["a", "plan", "that", "may", "grow"] => self.submission.mode = PlanningMode::Hybrid,
            ["a", "planner"] => self.submission.consult = Some(PlannerConsultMode::Judgement),
            ["a", "planner", "that", "hears", "everything"] => {
                self.submission.consult = Some(PlannerConsultMode::EveryResult);
            }
            ["budget", rest @ ..] => self.submission.budget = parse_budget(rest)?,
            ["no", "objective"] => self.submission.objective.clear(),
            _ => return None,
        }
        Some(())
    }

    fn apply_when_line(&mut self, words: &[&str], line: &str) -> Option<()> {
        let text = line.split_once(": ").map_or("", |(_, text)| text);
        let words: Vec<&str> = words.iter().map(|word| word.trim_end_matches(':')).collect();
        let fact = match words.as_slice() {
            ["submitted"] => Fact::Submitted(Box::new(self.submission.clone())),
            ["the", "same", "again"] => self.last.clone()?,
            [time, "passes"] => return self.pass_time(time),
            ["the", "registry", "knows", names @ ..] => {
                return self.set_registered_capabilities(&parse_capabilities(names));
            }
            ["the", "user", "pauses"] => self.next_command_fact(CommandAction::Pause),
            ["the", "user", "interrupts"] => self.next_command_fact(CommandAction::Interrupt),
            ["the", "user", "resumes"] => self.next_command_fact(CommandAction::Resume { budget: None }),
            ["the", "user", "resumes", "with", rest @ ..] => {
                self.next_command_fact(CommandAction::Resume { budget: Some(parse_budget(rest)?) })
            }
            ["the", "user", "says", ..] => {
                self.next_command_fact(CommandAction::Message { text: text.into() })
            }
            ["the", "user", "wants", ..] => {
                self.next_command_fact(CommandAction::Edit(parse_edits(text)?.into_iter().next()?))
            }
            ["the", "user", "cancels", "the", "run", ..] => {
                self.next_command_fact(CommandAction::CancelRun { reason: text.into() })
            }
            ["the", "user", "cancels", task, ..] => self.next_command_fact(CommandAction::CancelTask {
                task: TaskId::new(task).ok()?,
                reason: text.into(),
            }),
            [who, "claims", "planning", rest @ ..] => {
                let (turn, attempt) = self.parse_planning_turn(rest)?;
                Fact::Claimed(Work::Planning { turn, attempt }, cast::worker_id(who), None)
            }
            [_, "proposes", rest @ ..] => {
                let (turn, attempt) = self.parse_planning_turn(rest)?;
                cast::planned_fact(turn, attempt, parse_edits(text)?)
            }
            [_, "fails", "to", "plan", rest @ ..] => {
                let (turn, attempt) = self.parse_planning_turn(rest)?;
                Fact::Planned { turn, attempt, outcome: Err(cast::task_error(ErrorKind::Model, text)) }
            }
            [_, "awaits-the-provider-of", "planning", ..] => {
                self.provider_of_planning(ProviderStatus::Waiting(cast::provider_wait(text)))?
            }
            [_, "hears-from-the-provider-of", "planning", ..] => {
                self.provider_of_planning(ProviderStatus::Recovered)?
            }
            [_, "gives-up-the-provider-of", "planning", ..] => {
                self.provider_of_planning(ProviderStatus::GivenUp(cast::provider_wait(text)))?
            }
            [who, "writes", "to", task] => {
                let _ = who;
                self.scene.last_entries.insert(TaskId::new(task).ok()?, self.scene.now);
                return Some(());
            }
            [who, does, named, rest @ ..] => self.parse_task_fact(who, does, named, rest, text)?,
            _ => return None,
        };
        self.outcomes.push(self.scene.decide_fact(&fact));
        self.last = Some(fact);
        Some(())
    }

    /// A change in the wait of the planner's turn for its provider.
    fn provider_of_planning(&self, status: ProviderStatus) -> Option<Fact> {
        let turn = self.scene.plan.planning.turn.as_ref()?;
        Some(Fact::Provider(turn.work().journal_key(), status))
    }

    /// A fact of a worker or critic about a task: `a`, or `a#2` for an attempt that is not the current one.
    fn parse_task_fact(&self, who: &str, does: &str, named: &str, rest: &[&str], text: &str) -> Option<Fact> {
        let (id, number) = named.split_once('#').unwrap_or((named, ""));
        let id = TaskId::new(id).ok()?;
        let attempt = match number {
            "" => self.scene.plan.task(&id)?.attempt,
            number => number.parse().ok()?,
        };
        let review = match rest {
            ["at", "try", number, ..] => number.parse().ok()?,
            _ => self.scene.plan.task(&id).map_or(0, |task| task.review_number()),
        };
        let ended =
            |outcome: Result<AttemptResult, TaskError>| cast::attempt_ended_fact(&id, attempt, who, outcome);
        let judged = |outcome| cast::reviewed_fact(&id, attempt, review, who, outcome);
        let provider = |status| {
            let journal = match self.scene.plan.task(&id).map(|task| task.state()) {
                Some(TaskState::NeedsReview) => JournalKey::Review(id.clone(), attempt),
                _ => JournalKey::Task(id.clone(), attempt),
            };
            Fact::Provider(journal, status)
        };
        let feedback = Some(text).filter(|text| !text.is_empty());
        let usage = match rest {
            [.., "using", tokens] => {
                Usage { input_tokens: tokens.parse().ok()?, model_calls: 1, ..Usage::default() }
            }
            _ => cast::finished_result(9).usage,
        };
        let review = match rest {
            ["wanting", "a", "critic", ..] => ReviewPolicy::critic(Vec::new()),
            _ => ReviewPolicy::None,
        };
        Some(match does {
            "awaits-the-provider-of" => provider(ProviderStatus::Waiting(cast::provider_wait(text))),
            "hears-from-the-provider-of" => provider(ProviderStatus::Recovered),
            "gives-up-the-provider-of" => provider(ProviderStatus::GivenUp(cast::provider_wait(text))),
            "needs-for" => {
                let tokens = Some(text.parse().ok()?);
                Fact::ReservationTooSmall(
                    JournalKey::Task(id, attempt),
                    ResourceAmounts { tokens, ..ResourceAmounts::default() },
                )
            }
            "claims" => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker_id(who), None),
            "finishes" => ended(Ok(AttemptResult {
                usage,
                review,
                is_detailed: rest != ["briefly"],
                is_answered: true,
                ..cast::finished_result(9)
            })),
            "empties" => ended(Ok(AttemptResult { is_empty: true, ..cast::finished_result(9) })),
            "errs-on" => {
                let used = if rest.contains(&"using") { usage } else { Usage::default() };
                let text = text.split(" using ").next().unwrap_or_default();
                ended(Err(TaskError { usage: used, ..cast::task_error(ErrorKind::Tool, text) }))
            }
            "can't-do" => ended(Err(cast::task_error(ErrorKind::InvalidTask, text))),
            "passes" => judged(Ok(cast::review_verdict(true, None))),
            "rejects" => judged(Ok(cast::review_verdict(false, feedback))),
            "contradicts-itself-on" => judged(Ok(cast::contradictory_verdict())),
            "can't-judge" => judged(Err(cast::task_error(ErrorKind::Model, text))),
            _ => return None,
        })
    }

    /// The planner's current turn and attempt, or the given one: `#2`.
    fn parse_planning_turn(&self, rest: &[&str]) -> Option<(u32, u32)> {
        if let Some(number) = rest.first().and_then(|word| word.strip_prefix('#')) {
            return Some((1, number.parse().ok()?));
        }
        Some(
            self.scene
                .plan
                .planning
                .turn
                .as_ref()
                .map_or((1, 1), |planning| (planning.turn, planning.attempt)),
        )
    }

    fn set_registered_capabilities(&mut self, known: &CapabilityRegistry) -> Option<()> {
        self.outcomes.push(self.scene.decide_registry_change(known));
        Some(())
    }

    /// A command with an id of its own.
    fn next_command_fact(&mut self, control: CommandAction) -> Fact {
        self.commands += 1;
        cast::command_fact(&format!("c{}", self.commands), control)
    }

    fn pass_time(&mut self, time: &str) -> Option<()> {
        let (number, unit) = time.split_at(time.find(char::is_alphabetic)?);
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        } * number.parse::<f64>().ok()?;
        self.scene.now += SignedDuration::try_from_secs_f64(seconds).ok()?;
        for overdue in self.scene.overdue_inputs_now() {
            self.outcomes.push(self.scene.decide_overdue_input(&overdue));
        }
        Some(())
    }

    /// Writes the result of a step.
    fn write_outcomes(&mut self, text: &mut String) {
        for decided in std::mem::take(&mut self.outcomes) {
            match decided {
                Err(refusal) => writeln!(text, "then refused: {refusal}").unwrap(),
                Ok(events) if events.is_empty() => writeln!(text, "then nothing is decided").unwrap(),
                Ok(events) => {
                    for event in &events {
                        writeln!(text, "then {}", show::format_event(event)).unwrap();
                    }
                }
            }
        }
        oracle::check_invariants_after_decision(&self.scene.plan);
        if !self.scene.plan.tasks().is_empty() {
            writeln!(text, "then the plan: {}", show::format_plan(&self.scene.plan)).unwrap();
        }
        let owed: Vec<_> =
            pending_effects(&self.scene.plan, EffectScope::All).iter().map(show::format_effect).collect();
        if !owed.is_empty() {
            writeln!(text, "then owed: {}", owed.join(", ")).unwrap();
        }
    }

    /// Checks that the log, encoded and decoded, folds to the same plan.
    fn check_log_folds_to_plan(&self) {
        let mut plan = Plan::default();
        for decision in &self.scene.log {
            let sealed = wire::encode_with_inline_body::<millrace_protocol::plan::Decision>(
                &wire::encode_body(decision),
            );
            apply_decision(&mut plan, &wire::decode_message(&sealed, wire::Encoding::MessagePack).unwrap());
        }
        assert_eq!(plan, self.scene.plan);
    }
}

/// Parses edits, separated by semicolons. Text that starts with no other edit is a task; all tasks are added together,
/// first.
fn parse_edits(text: &str) -> Option<Vec<Edit>> {
    let (mut tasks, mut others) = (Vec::new(), Vec::new());
    for part in text.split(';').filter(|text| !text.trim().is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        match words.as_slice() {
            ["cancel", id] => {
                others.push(Edit::Cancel { task: cast::task_id(id), reason: "not needed".into() })
            }
            ["retry", id] => {
                others.push(Edit::Retry { task: cast::task_id(id), feedback: None, changes: None })
            }
            ["retry", id, "saying", ..] => {
                let feedback = part.split_once("saying ").map(|(_, feedback)| feedback.trim().to_owned());
                others.push(Edit::Retry { task: cast::task_id(id), feedback, changes: None });
            }
            ["patch", id, rest @ ..] => others.push(Edit::Patch(parse_patch(id, rest)?)),
            ["final", id] => others.push(Edit::MarkFinal { task: cast::task_id(id) }),
            ["finish"] => others.push(Edit::Finish { reason: "it is all there".into() }),
            ["give", "up"] => others.push(Edit::GiveUp { reason: "there is no way on".into() }),
            words => tasks.push(parse_task_spec(words)?),
        }
    }
    let added = (!tasks.is_empty()).then_some(Edit::Add(tasks));
    Some(added.into_iter().chain(others).collect())
}

/// Parses a patch, in the language of tasks: the given parts change.
fn parse_patch(id: &str, words: &[&str]) -> Option<TaskPatch> {
    let spec = parse_task_spec(&[&[id], words].concat())?;
    let has = |word: &str| words.contains(&word);
    Some(TaskPatch {
        capability: has("by").then_some(spec.capability),
        depends_on: has("after").then_some(spec.depends_on),
        parameters: spec.parameters,
        limits: has("attempts").then_some(spec.limits),
        on_failed_dependency: has("or").then_some(spec.on_failed_dependency),
        objective: has("otherwise").then(|| "do it in another way".to_owned()),
        ..TaskPatch::without_changes(spec.id)
    })
}

/// Parses the registered capabilities; `search(q)` requires a parameter `q`.
fn parse_capabilities(names: &[&str]) -> CapabilityRegistry {
    let described: Vec<_> = names
        .iter()
        .map(|name| name.trim_end_matches(','))
        .map(|name| {
            let (name, parameter) = name.trim_end_matches(')').split_once('(').unwrap_or((name, ""));
            let schema = json!({ "type": "object", "required": [parameter] });
            CapabilityDescription {
                parameters: (!parameter.is_empty()).then_some(schema),
                ..CapabilityDescription::new(cast::capability_name(name), "it does what it can")
            }
        })
        .collect();
    CapabilityRegistry::from_descriptions(&described)
}

/// Parses a budget: pairs of a word and a number.
fn parse_budget(words: &[&str]) -> Option<Budget> {
    let mut budget = Budget { final_percent: 0, ..Budget::default() };
    for pair in words.chunks(2) {
        let [word, number] = pair else { return None };
        match *word {
            "tokens" => budget.amounts.tokens = Some(number.parse().ok()?),
            "calls" => budget.amounts.model_calls = Some(number.parse().ok()?),
            "attempt" => budget.attempt.tokens = Some(number.parse().ok()?),
            "soft" => budget.soft_percent = number.parse().ok()?,
            "held-back" => budget.final_percent = number.parse().ok()?,
            "steps" => budget.steps = Some(number.parse().ok()?),
            "seconds" => budget.wall_time = Some(Duration::from_secs(number.parse().ok()?)),
            "then" if *number == "cancel" => budget.when_spent = BudgetExhaustionPolicy::Cancel,
            name => {
                let own = budget.capabilities.entry(cast::capability_name(name)).or_default();
                own.tokens = Some(number.parse().ok()?);
            }
        }
    }
    Some(budget)
}

fn parse_task_spec(words: &[&str]) -> Option<TaskSpec> {
    let (id, mut rest) = words.split_first()?;
    let mut spec = cast::echo_task(id, &[]);
    loop {
        rest = match rest {
            [] => return Some(spec),
            ["after", names, rest @ ..] => {
                spec.depends_on = names.split(',').map(cast::task_id).collect();
                rest
            }
            ["by", capability, rest @ ..] => {
                spec.capability = cast::capability_name(capability);
                rest
            }
            ["attempts", number, rest @ ..] => {
                spec.limits.max_attempts = number.parse().ok()?;
                rest
            }
            ["backoff", seconds, rest @ ..] => {
                spec.limits.backoff = std::time::Duration::from_secs(seconds.parse().ok()?);
                rest
            }
            ["reviewed", rest @ ..] => {
                spec.review = ReviewPolicy::critic(Vec::new());
                rest
            }
            ["checked", rest @ ..] => {
                spec.review = ReviewPolicy::Checks { checks: vec![ReviewCheck::Citations] };
                rest
            }
            ["sampled", percent, rest @ ..] => {
                spec.review = ReviewPolicy::Critic {
                    criteria: Vec::new(),
                    checks: Vec::new(),
                    models: Vec::new(),
                    quorum: None,
                    sample_percent: Some(percent.parse().ok()?),
                };
                rest
            }
            ["budget", tokens, rest @ ..] => {
                spec.budget.tokens = Some(tokens.parse().ok()?);
                rest
            }
            ["with", parameter, rest @ ..] => {
                let (name, value) = parameter.split_once('=')?;
                spec.parameters.insert(name.into(), json!(value));
                rest
            }
            ["otherwise", rest @ ..] => rest,
            ["final", rest @ ..] => {
                spec.is_final = true;
                rest
            }
            ["or", "skip", rest @ ..] => {
                spec.on_failed_dependency = OnFailedDependency::Skip;
                rest
            }
            ["or", "ask", rest @ ..] => {
                spec.on_failed_dependency = OnFailedDependency::Ask;
                rest
            }
            _ => return None,
        }
    }
}

/// Facts are read from journal entries: the two must not diverge.
#[test]
fn journal_outcome_has_every_field_of_a_fact() {
    let entry = work::JournalEntry::Outcome {
        worker: cast::worker_id("w1"),
        review: 0,
        outcome: work::WorkOutcome::Finished {
            summary: "found".into(),
            is_empty: false,
            is_detailed: true,
            is_answered: true,
            review: ReviewPolicy::None,
            usage: Usage::default(),
            models: Default::default(),
            result: wire::InlineOrStoredBytes::Inline(serde_bytes::ByteBuf::from(wire::encode_body(
                &"result",
            ))),
        },
    };
    let read: work::JournalEntry = wire::decode_message(
        &wire::encode_with_inline_body::<work::JournalEntry>(&wire::encode_body(&entry)),
        wire::Encoding::MessagePack,
    )
    .unwrap();
    assert_eq!(read, entry);
}
