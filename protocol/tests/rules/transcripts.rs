//! Runs told as text, `tests/transcripts/*.txt`: what is given, what happens, and what the rules then decide. The
//! words of the language are in `tests/transcripts/README.md`; each `then` line is written by the program.

use std::fmt::Write;
use std::time::Duration;

use jiff::SignedDuration;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, Cluster, Consult, Control, Edit, Event, Fact, Finished, Mode, OnFailedDependency, Patch, Plan,
    Refusal, Review, ReviewCheck, Scope, Submission, TaskSpec, WhenSpent, Work, apply_decision, due,
};
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, Usage};
use millrace_protocol::{wire, work};
use serde_json::json;

use crate::scene::Scene;
use crate::{cast, golden, oracle, show};

#[test]
fn every_transcript_goes_as_it_is_told() {
    let mut names: Vec<_> = std::fs::read_dir(golden::path("transcripts"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    assert!(names.len() >= 20, "the transcripts are not where they should be: {names:?}");
    for name in names {
        let path = format!("transcripts/{name}");
        let told = std::fs::read_to_string(golden::path(&path)).unwrap();
        golden::compare(&path, &play(&name, &told));
    }
}

/// Carries a transcript out and writes it anew.
fn play(name: &str, told: &str) -> String {
    let mut stage = Stage::default();
    let mut text = String::new();
    for (number, line) in (1..).zip(told.lines()) {
        if line.starts_with("then ") {
            continue;
        }
        writeln!(text, "{line}").unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = match words.as_slice() {
            [] | ["#", ..] => continue,
            ["given", given @ ..] => stage.given(given),
            ["when", when @ ..] => stage.when(when, line).map(|()| stage.tell(&mut text)),
            [_, ..] => None,
        };
        done.unwrap_or_else(|| panic!("{name}:{number}: {line:?} is no line of a transcript"));
    }
    stage.check_log();
    text
}

struct Stage {
    scene: Scene,
    submission: Submission,
    /// The fact before, for what is told again.
    last: Option<Fact>,
    /// How many commands users have given.
    commands: u32,
    heard: Vec<Result<Vec<Event>, Refusal>>,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            scene: Scene::new(),
            submission: cast::submission(Vec::new()),
            last: None,
            commands: 0,
            heard: Vec::new(),
        }
    }
}

impl Stage {
    fn given(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["task", rest @ ..] => self.submission.tasks.push(task(rest)?),
            ["fail_fast"] => self.submission.fail_fast = true,
            ["no", "plan"] => self.submission.mode = Mode::Llm,
            ["a", "plan", "that", "may", "grow"] => self.submission.mode = Mode::Hybrid,
            ["a", "planner"] => self.submission.consult = Some(Consult::Judgement),
            ["a", "planner", "that", "hears", "everything"] => {
                self.submission.consult = Some(Consult::EveryResult);
            }
            ["budget", rest @ ..] => self.submission.budget = budget(rest)?,
            ["no", "objective"] => self.submission.objective.clear(),
            _ => return None,
        }
        Some(())
    }

    fn when(&mut self, words: &[&str], line: &str) -> Option<()> {
        let text = line.split_once(": ").map_or("", |(_, text)| text);
        let words: Vec<&str> = words.iter().map(|word| word.trim_end_matches(':')).collect();
        let fact = match words.as_slice() {
            ["submitted"] => Fact::Submitted(Box::new(self.submission.clone())),
            ["the", "same", "again"] => self.last.clone()?,
            [time, "passes"] => return self.pass(time),
            ["the", "registry", "knows", names @ ..] => return self.registry(&cluster(names)),
            ["the", "user", "pauses"] => self.command(Control::Pause),
            ["the", "user", "resumes"] => self.command(Control::Resume { budget: None }),
            ["the", "user", "resumes", "with", rest @ ..] => {
                self.command(Control::Resume { budget: Some(budget(rest)?) })
            }
            ["the", "user", "says", ..] => self.command(Control::Message { text: text.into() }),
            ["the", "user", "wants", ..] => self.command(Control::Edit(edits(text)?.into_iter().next()?)),
            ["the", "user", "cancels", "the", "run", ..] => {
                self.command(Control::CancelRun { reason: text.into() })
            }
            ["the", "user", "cancels", task, ..] => {
                self.command(Control::CancelTask { task: TaskId::new(task).ok()?, reason: text.into() })
            }
            [who, "claims", "planning", rest @ ..] => {
                let (turn, attempt) = self.planning(rest)?;
                Fact::Claimed(Work::Planning { turn, attempt }, cast::worker(who))
            }
            [_, "proposes", rest @ ..] => {
                let (turn, attempt) = self.planning(rest)?;
                cast::planned(turn, attempt, edits(text)?)
            }
            [_, "fails", "to", "plan", rest @ ..] => {
                let (turn, attempt) = self.planning(rest)?;
                Fact::Planned { turn, attempt, outcome: Err(cast::error(ErrorKind::Model, text)) }
            }
            [who, "writes", "to", task] => {
                let _ = who;
                self.scene.heard.insert(TaskId::new(task).ok()?, self.scene.now);
                return Some(());
            }
            [who, does, named, rest @ ..] => self.of_task(who, does, named, rest, text)?,
            _ => return None,
        };
        self.heard.push(self.scene.fact(&fact));
        self.last = Some(fact);
        Some(())
    }

    /// What workers and critics do to a task, named `a`, or `a#2` where it is not at its current attempt.
    fn of_task(&self, who: &str, does: &str, named: &str, rest: &[&str], text: &str) -> Option<Fact> {
        let (id, number) = named.split_once('#').unwrap_or((named, ""));
        let id = TaskId::new(id).ok()?;
        let attempt = match number {
            "" => self.scene.plan.task(&id)?.attempt,
            number => number.parse().ok()?,
        };
        let review = match rest {
            ["at", "try", number, ..] => number.parse().ok()?,
            _ => self.scene.plan.task(&id).map_or(0, |task| task.review),
        };
        let ended = |outcome: Result<Finished, TaskError>| cast::ended(&id, attempt, who, outcome);
        let judged = |outcome| cast::judged(&id, attempt, review, who, outcome);
        let feedback = Some(text).filter(|text| !text.is_empty());
        let usage = match rest {
            [.., "using", tokens] => {
                Usage { input_tokens: tokens.parse().ok()?, model_calls: 1, ..Usage::default() }
            }
            _ => cast::finished(9).usage,
        };
        let review = match rest {
            ["wanting", "a", "critic", ..] => Review::critic(Vec::new()),
            _ => Review::None,
        };
        Some(match does {
            "claims" => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker(who)),
            "finishes" => {
                ended(Ok(Finished { usage, review, is_detailed: rest != ["briefly"], ..cast::finished(9) }))
            }
            "empties" => ended(Ok(Finished { is_empty: true, ..cast::finished(9) })),
            "errs-on" => {
                let used = if rest.contains(&"using") { usage } else { Usage::default() };
                let text = text.split(" using ").next().unwrap_or_default();
                ended(Err(TaskError { usage: used, ..cast::error(ErrorKind::Tool, text) }))
            }
            "can't-do" => ended(Err(cast::error(ErrorKind::InvalidTask, text))),
            "passes" => judged(Ok(cast::verdict(true, None))),
            "rejects" => judged(Ok(cast::verdict(false, feedback))),
            "contradicts-itself-on" => judged(Ok(cast::contradiction())),
            "can't-judge" => judged(Err(cast::error(ErrorKind::Model, text))),
            _ => return None,
        })
    }

    /// The planner's current turn and attempt, or those that are named: `#2`.
    fn planning(&self, rest: &[&str]) -> Option<(u32, u32)> {
        if let Some(number) = rest.first().and_then(|word| word.strip_prefix('#')) {
            return Some((1, number.parse().ok()?));
        }
        Some(self.scene.plan.planning.as_ref().map_or((1, 1), |planning| (planning.turn, planning.attempt)))
    }

    fn registry(&mut self, known: &Cluster) -> Option<()> {
        self.heard.push(self.scene.cluster(known));
        Some(())
    }

    /// A command, under a name of its own.
    fn command(&mut self, control: Control) -> Fact {
        self.commands += 1;
        cast::command(&format!("c{}", self.commands), control)
    }

    fn pass(&mut self, time: &str) -> Option<()> {
        let (number, unit) = time.split_at(time.find(char::is_alphabetic)?);
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        } * number.parse::<f64>().ok()?;
        self.scene.now += SignedDuration::try_from_secs_f64(seconds).ok()?;
        for overdue in self.scene.overdue() {
            self.heard.push(self.scene.clock(&overdue));
        }
        Some(())
    }

    /// Writes what came of a step.
    fn tell(&mut self, text: &mut String) {
        for decided in std::mem::take(&mut self.heard) {
            match decided {
                Err(refusal) => writeln!(text, "then refused: {refusal}").unwrap(),
                Ok(events) if events.is_empty() => writeln!(text, "then nothing is decided").unwrap(),
                Ok(events) => {
                    for event in &events {
                        writeln!(text, "then {}", show::event(event)).unwrap();
                    }
                }
            }
        }
        oracle::check_decided(&self.scene.plan);
        if !self.scene.plan.tasks().is_empty() {
            writeln!(text, "then the plan: {}", show::plan(&self.scene.plan)).unwrap();
        }
        let owed: Vec<_> = due(&self.scene.plan, Scope::All).iter().map(show::effect).collect();
        if !owed.is_empty() {
            writeln!(text, "then owed: {}", owed.join(", ")).unwrap();
        }
    }

    /// The log, written to the wire and read back, folds to the very plan.
    fn check_log(&self) {
        let mut plan = Plan::default();
        for decision in &self.scene.log {
            let sealed = wire::seal::<millrace_protocol::plan::Decision>(&wire::body(decision));
            apply_decision(&mut plan, &wire::open(&sealed, wire::Encoding::MessagePack).unwrap());
        }
        assert_eq!(plan, self.scene.plan);
    }
}

/// Changes between semicolons; whatever begins with no word for another change is a task, and all tasks are added
/// together, first.
fn edits(text: &str) -> Option<Vec<Edit>> {
    let (mut tasks, mut others) = (Vec::new(), Vec::new());
    for part in text.split(';').filter(|text| !text.trim().is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        match words.as_slice() {
            ["cancel", id] => {
                others.push(Edit::Cancel { task: cast::task_id(id), reason: "not needed".into() })
            }
            ["retry", id] => others.push(Edit::Retry { task: cast::task_id(id), feedback: None }),
            ["retry", id, "saying", ..] => {
                let said = part.split_once("saying ").map(|(_, said)| said.trim().to_owned());
                others.push(Edit::Retry { task: cast::task_id(id), feedback: said });
            }
            ["patch", id, rest @ ..] => others.push(Edit::Patch(patch(id, rest)?)),
            ["final", id] => others.push(Edit::MarkFinal { task: cast::task_id(id) }),
            ["finish"] => others.push(Edit::Finish { reason: "it is all there".into() }),
            ["give", "up"] => others.push(Edit::GiveUp { reason: "there is no way on".into() }),
            words => tasks.push(task(words)?),
        }
    }
    let added = (!tasks.is_empty()).then_some(Edit::Add(tasks));
    Some(added.into_iter().chain(others).collect())
}

/// A patch in the words of a task: what is said there is what changes.
fn patch(id: &str, words: &[&str]) -> Option<Patch> {
    let said = task(&[&[id], words].concat())?;
    let is_said = |word: &str| words.contains(&word);
    Some(Patch {
        capability: is_said("by").then_some(said.capability),
        depends_on: is_said("after").then_some(said.depends_on),
        parameters: said.parameters,
        limits: is_said("attempts").then_some(said.limits),
        on_failed_dependency: is_said("or").then_some(said.on_failed_dependency),
        objective: is_said("otherwise").then(|| "do it in another way".to_owned()),
        ..Patch::of(said.id)
    })
}

/// What is known; `search(q)` takes no parameters but a `q`.
fn cluster(names: &[&str]) -> Cluster {
    let described: Vec<_> = names
        .iter()
        .map(|name| name.trim_end_matches(','))
        .map(|name| {
            let (name, parameter) = name.trim_end_matches(')').split_once('(').unwrap_or((name, ""));
            let schema = json!({ "type": "object", "required": [parameter] });
            CapabilityDescription {
                parameters: (!parameter.is_empty()).then_some(schema),
                ..CapabilityDescription::new(cast::capability(name), "it does what it can")
            }
        })
        .collect();
    Cluster::of(&described)
}

/// A budget, a word and a number each.
fn budget(words: &[&str]) -> Option<Budget> {
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
            "then" if *number == "cancel" => budget.when_spent = WhenSpent::Cancel,
            name => {
                let own = budget.capabilities.entry(cast::capability(name)).or_default();
                own.tokens = Some(number.parse().ok()?);
            }
        }
    }
    Some(budget)
}

fn task(words: &[&str]) -> Option<TaskSpec> {
    let (id, mut rest) = words.split_first()?;
    let mut spec = cast::task(id, &[]);
    loop {
        rest = match rest {
            [] => return Some(spec),
            ["after", names, rest @ ..] => {
                spec.depends_on = names.split(',').map(cast::task_id).collect();
                rest
            }
            ["by", capability, rest @ ..] => {
                spec.capability = cast::capability(capability);
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
                spec.review = Review::critic(Vec::new());
                rest
            }
            ["checked", rest @ ..] => {
                spec.review = Review::Checks { checks: vec![ReviewCheck::Citations] };
                rest
            }
            ["sampled", percent, rest @ ..] => {
                spec.review = Review::Critic {
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

/// The journal entry of a worker is what its fact was read from: the two must not drift apart.
#[test]
fn an_outcome_of_a_journal_says_all_that_a_fact_needs() {
    let entry = work::Entry::Outcome {
        worker: cast::worker("w1"),
        review: 0,
        outcome: work::Outcome::Finished {
            summary: "found".into(),
            is_empty: false,
            is_detailed: true,
            review: Review::None,
            usage: Usage::default(),
            models: Default::default(),
            result: wire::Blob::Inline(serde_bytes::ByteBuf::from(wire::body(&"result"))),
        },
    };
    let read: work::Entry =
        wire::open(&wire::seal::<work::Entry>(&wire::body(&entry)), wire::Encoding::MessagePack).unwrap();
    assert_eq!(read, entry);
}
