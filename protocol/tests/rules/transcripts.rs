//! Runs told as text, `tests/transcripts/*.txt`: what is given, what happens, and what the rules then decide. The
//! words of the language are in `tests/transcripts/README.md`; each `then` line is written by the program.

use std::collections::BTreeSet;
use std::fmt::Write;

use jiff::SignedDuration;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Control, Event, Fact, Finished, Mode, OnFailedDependency, Plan, Refusal, Review, Scope, Submission,
    TaskSpec, Work, apply_decision, due,
};
use millrace_protocol::result::{ErrorKind, Proposal, TaskError, Usage};
use millrace_protocol::{wire, work};

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
    heard: Vec<Result<Vec<Event>, Refusal>>,
}

impl Default for Stage {
    fn default() -> Self {
        Self { scene: Scene::new(), submission: cast::submission(Vec::new()), last: None, heard: Vec::new() }
    }
}

impl Stage {
    fn given(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["task", rest @ ..] => self.submission.tasks.push(task(rest)?),
            ["fail_fast"] => self.submission.fail_fast = true,
            ["no", "plan"] => self.submission.mode = Mode::Llm,
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
            ["the", "registry", "knows", names @ ..] => {
                let known = names.iter().map(|name| cast::capability(name.trim_end_matches(','))).collect();
                return self.registry(&known);
            }
            ["the", "user", "cancels", "the", "run", ..] => {
                Fact::Control(Control::CancelRun { reason: text.into() })
            }
            ["the", "user", "cancels", task, ..] => {
                Fact::Control(Control::CancelTask { task: TaskId::new(task).ok()?, reason: text.into() })
            }
            [who, "claims", "planning", rest @ ..] => {
                let (turn, attempt) = self.planning(rest)?;
                Fact::Claimed(Work::Planning { turn, attempt }, cast::worker(who))
            }
            [_, "proposes", rest @ ..] => {
                let (turn, attempt) = self.planning(rest)?;
                let proposal = Proposal { reasoning: "so it goes".into(), tasks: tasks(text)? };
                Fact::Planned { turn, attempt, outcome: Ok((proposal, Usage::default())) }
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
        Some(match does {
            "claims" => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker(who)),
            "finishes" => ended(Ok(cast::finished(9))),
            "empties" => ended(Ok(Finished { is_empty: true, ..cast::finished(9) })),
            "errs-on" => ended(Err(cast::error(ErrorKind::Tool, text))),
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

    fn registry(&mut self, known: &BTreeSet<millrace_protocol::ids::Capability>) -> Option<()> {
        self.heard.push(self.scene.capabilities(known));
        Some(())
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

/// Tasks between semicolons, as a proposal has them.
fn tasks(text: &str) -> Option<Vec<TaskSpec>> {
    let texts = text.split(';').filter(|text| !text.trim().is_empty());
    texts.map(|text| task(&text.split_whitespace().collect::<Vec<_>>())).collect()
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
                spec.review = Review::Critic { criteria: Vec::new() };
                rest
            }
            ["final", rest @ ..] => {
                spec.is_final = true;
                rest
            }
            ["or", "skip", rest @ ..] => {
                spec.on_failed_dependency = OnFailedDependency::Skip;
                rest
            }
            ["or", "block", rest @ ..] => {
                spec.on_failed_dependency = OnFailedDependency::Block;
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
            usage: Usage::default(),
            result: wire::Blob::Inline(serde_bytes::ByteBuf::from(wire::body(&"result"))),
        },
    };
    let read: work::Entry =
        wire::open(&wire::seal::<work::Entry>(&wire::body(&entry)), wire::Encoding::MessagePack).unwrap();
    assert_eq!(read, entry);
}
