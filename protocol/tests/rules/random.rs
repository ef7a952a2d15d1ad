//! What is drawn from a seed: runs that are handed in, facts likely and wild, planners' turns good and bad, commands of
//! users, and clusters that change.

use std::time::Duration;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Amounts, Budget, Cluster, Command, Consult, Control, Dimension, Edit, Fact, Finished, Limits, Mode,
    OnFailedDependency, Patch, Plan, Planned, Review, ReviewCheck, Submission, TaskSpec, WhenSpent, Work,
};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, ModelUsage, Proposal, TaskError, Usage, Verdict,
};
use serde_json::json;

use crate::cast;

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

    fn number(&mut self, bound: usize) -> u32 {
        u32::try_from(self.below(bound)).unwrap()
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn maybe<T>(&mut self, percent: usize, what: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(percent).then(|| what(self))
    }

    pub fn pick<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = from.into_iter().collect();
        if all.is_empty() { None } else { Some(all[self.below(all.len())].clone()) }
    }
}

pub const CAPABILITIES: [&str; 3] = ["echo", "search", "producer"];

/// What the cluster can do: which capabilities are known, and whether `search` takes no parameters but a `q`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    pub known: [bool; 3],
    pub is_strict: bool,
}

impl Offers {
    /// Everything, and any parameters.
    pub const ALL: Self = Self { known: [true; 3], is_strict: false };

    pub fn cluster(self) -> Cluster {
        let known = CAPABILITIES.iter().zip(self.known).filter(|(_, is_known)| *is_known);
        let offered: Vec<_> = known
            .map(|(name, _)| CapabilityDescription {
                parameters: (self.is_strict && *name == "search")
                    .then(|| json!({ "type": "object", "required": ["q"], "properties": { "q": { "type": "string" } } })),
                ..CapabilityDescription::new(cast::capability(name), "it does what it can")
            })
            .collect();
        Cluster::of(&offered)
    }

    pub fn change(&mut self, draws: &mut Draws) {
        match draws.below(4) {
            3 => self.is_strict = !self.is_strict,
            at => self.known[at] = !self.known[at],
        }
    }
}

/// A run in any mode, with or without a plan, a planner and a budget.
pub fn submission(draws: &mut Draws) -> Submission {
    let mode = [Mode::Fixed, Mode::Fixed, Mode::Hybrid, Mode::Llm][draws.below(4)];
    let tasks = if mode == Mode::Llm && draws.chance(80) { Vec::new() } else { plan(draws) };
    let consults = [Consult::Never, Consult::Judgement, Consult::EveryResult];
    Submission {
        mode,
        tasks,
        fail_fast: draws.chance(10),
        budget: budget(draws),
        consult: draws.maybe(40, |draws| consults[draws.below(3)]),
        ..cast::submission(Vec::new())
    }
}

/// A plan without circles, in a random order, with every policy, review and limit.
pub fn plan(draws: &mut Draws) -> Vec<TaskSpec> {
    let count = 1 + draws.below(8);
    let mut tasks: Vec<TaskSpec> = (0..count)
        .map(|at| {
            let depends_on = (0..at).filter(|_| draws.chance(35)).map(|at| cast::task_id(&format!("t{at}")));
            let depends_on = depends_on.collect();
            TaskSpec { depends_on, ..task(draws, &format!("t{at}")) }
        })
        .collect();
    for at in (1..count).rev() {
        tasks.swap(at, draws.below(at + 1));
    }
    if draws.chance(60) {
        let at = draws.below(count);
        tasks[at].is_final = true;
    }
    tasks
}

fn task(draws: &mut Draws, id: &str) -> TaskSpec {
    TaskSpec {
        capability: cast::capability(CAPABILITIES[draws.below(3)]),
        review: review(draws),
        limits: Limits {
            max_attempts: 1 + draws.number(3),
            backoff: Duration::from_millis(draws.below(5000) as u64),
            ..Limits::default()
        },
        on_failed_dependency: policy(draws),
        budget: draws.maybe(15, amounts).unwrap_or_default(),
        parameters: draws.maybe(30, |_| ("q".to_owned(), json!("what"))).into_iter().collect(),
        ..cast::task(id, &[])
    }
}

fn policy(draws: &mut Draws) -> OnFailedDependency {
    [OnFailedDependency::Cancel, OnFailedDependency::Skip, OnFailedDependency::Ask][draws.below(3)]
}

fn review(draws: &mut Draws) -> Review {
    let checks = vec![ReviewCheck::Matches("a".into())];
    match draws.below(10) {
        0..5 => Review::None,
        5 => Review::Checks { checks },
        6 => Review::Critic {
            criteria: vec!["it is short".into()],
            checks: if draws.chance(50) { checks } else { Vec::new() },
            models: vec!["a".into(), "b".into()],
            quorum: Some(1),
            sample_percent: Some(50),
        },
        _ => Review::critic(Vec::new()),
    }
}

fn amounts(draws: &mut Draws) -> Amounts {
    let mut amounts = Amounts::default();
    for dimension in Dimension::ALL {
        let most = if dimension == Dimension::ModelCalls { 30 } else { 6_000 };
        let amount = draws.maybe(25, |draws| 1 + draws.below(most) as u64);
        amounts.set(dimension, amount);
    }
    amounts
}

/// Whatever a run may use; half of them anything. What planners may do is bounded, since nothing else ends them.
fn budget(draws: &mut Draws) -> Budget {
    let bounds = Budget {
        steps: Some(1 + draws.number(6)),
        tasks: Some(2 + draws.number(14)),
        depth: Some(1 + draws.number(6)),
        ..Budget::default()
    };
    if draws.chance(50) {
        return bounds;
    }
    let names = ["echo", "search", "producer", "planner", "critic"];
    let capabilities = names.iter().filter(|_| draws.chance(15)).collect::<Vec<_>>();
    Budget {
        amounts: draws.maybe(70, amounts).unwrap_or_default(),
        attempt: draws.maybe(30, amounts).unwrap_or_default(),
        capabilities: capabilities.into_iter().map(|name| (cast::capability(name), amounts(draws))).collect(),
        wall_time: draws.maybe(30, |draws| Duration::from_secs(1 + draws.below(20_000) as u64)),
        soft_percent: 1 + draws.below(100) as u8,
        final_percent: draws.below(91) as u8,
        when_spent: if draws.chance(50) { WhenSpent::Finish } else { WhenSpent::Cancel },
        ..bounds
    }
}

/// More of whatever a run may use, and no less of anything.
pub fn more(draws: &mut Draws, plan: &Plan) -> Budget {
    let old = plan.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let raise = |amounts: Amounts, draws: &mut Draws| {
        let mut raised = Amounts::default();
        for (dimension, amount) in amounts.iter() {
            raised.set(dimension, draws.maybe(70, |draws| amount + draws.below(4_000) as u64));
        }
        raised
    };
    Budget {
        amounts: raise(old.amounts, draws),
        capabilities: old.capabilities.iter().map(|(name, amounts)| (name.clone(), *amounts)).collect(),
        wall_time: old.wall_time.map(|time| time + Duration::from_secs(draws.below(10_000) as u64)),
        steps: old.steps.map(|steps| steps + draws.number(3)),
        ..Budget::default()
    }
}

/// A usage, most often within what was set aside; else beyond it by as much again at the most.
pub fn usage(draws: &mut Draws, reserved: Option<Amounts>) -> Usage {
    let mut share = |of: Dimension, otherwise: usize| {
        let most = match reserved.and_then(|amounts| amounts.get(of)) {
            Some(amount) => usize::try_from(amount).unwrap_or(otherwise),
            None => otherwise,
        };
        let all = draws.below(most + 1);
        (if draws.chance(10) { most + all } else { all }) as u64
    };
    let (input_tokens, output_tokens) =
        (share(Dimension::InputTokens, 300), share(Dimension::OutputTokens, 100));
    let tokens = share(Dimension::Tokens, 400);
    Usage {
        model_calls: share(Dimension::ModelCalls, 3),
        input_tokens: input_tokens.min(tokens),
        output_tokens: output_tokens.min(tokens.saturating_sub(input_tokens)),
        cached_tokens: share(Dimension::CachedTokens, 50),
        cost_micros: share(Dimension::Cost, 100),
        ..Usage::default()
    }
}

pub fn outcome(draws: &mut Draws, usage: Usage) -> Result<Finished, TaskError> {
    let errored = |kind| Err(TaskError { usage, ..cast::error(kind, "broken") });
    match draws.below(10) {
        0 => errored(ErrorKind::InvalidTask),
        1 | 2 => errored(ErrorKind::Tool),
        3 => Ok(Finished { is_empty: true, usage, ..cast::finished(1) }),
        at => Ok(Finished {
            usage,
            is_detailed: draws.chance(50),
            review: draws.maybe(20, review).unwrap_or_default(),
            ..cast::finished(at as u64)
        }),
    }
}

pub fn verdict(draws: &mut Draws, usage: Usage) -> Result<Verdict, TaskError> {
    match draws.below(10) {
        0 => Err(TaskError { usage, ..cast::error(ErrorKind::Model, "no answer") }),
        1 => Ok(Verdict { usage, ..cast::contradiction() }),
        2..5 => Ok(Verdict { usage, ..cast::verdict(false, Some("more")) }),
        _ => Ok(Verdict { usage, ..cast::verdict(true, None) }),
    }
}

/// What a planner's turn comes to; `seen` is the plan that it was asked about, which may be another by now.
pub fn proposal(draws: &mut Draws, seen: &Plan, usage: Usage) -> Result<Planned, TaskError> {
    if draws.chance(15) {
        let kind = if draws.chance(10) { ErrorKind::InvalidTask } else { ErrorKind::Model };
        return Err(TaskError { usage, ..cast::error(kind, "that is no answer") });
    }
    let count = draws.below(4);
    let mut edits: Vec<Edit> = (0..count).map(|_| edit(draws, seen)).collect();
    if draws.chance(15) {
        edits.push(Edit::Finish { reason: "it is all there".into() });
    }
    let tasks = if draws.chance(40) { tasks(draws, seen) } else { Vec::new() };
    let proposal = Proposal { reasoning: "so it goes".into(), tasks, edits };
    Ok(Planned { proposal, usage, models: ModelUsage::from([("some:model".to_owned(), usage)]) })
}

/// Some change of a plan, most often one that could be meant.
pub fn edit(draws: &mut Draws, seen: &Plan) -> Edit {
    let id = id(draws, seen);
    match draws.below(12) {
        0..3 => Edit::Add(tasks(draws, seen)),
        3..5 => Edit::Patch(patch(draws, seen, id)),
        5..7 => Edit::Cancel { task: id, reason: "not needed".into() },
        7..10 => Edit::Retry { task: id, feedback: draws.maybe(50, |_| "try harder".into()) },
        10 if draws.chance(20) => Edit::GiveUp { reason: "there is no way on".into() },
        _ => Edit::MarkFinal { task: id },
    }
}

/// A task of the plan, or one that is not there.
fn id(draws: &mut Draws, seen: &Plan) -> TaskId {
    let known = draws.pick(seen.tasks().iter().map(|task| task.spec.id.clone()));
    known.filter(|_| draws.chance(95)).unwrap_or_else(|| cast::task_id("nobody"))
}

fn tasks(draws: &mut Draws, seen: &Plan) -> Vec<TaskSpec> {
    let first = seen.tasks().len();
    let count = if draws.chance(1) { 1_200 } else { draws.below(4) };
    let name = |at: usize| format!("t{at}");
    (first..first + count)
        .map(|at| {
            let mut spec = task(draws, &name(at));
            // On those before, on itself, on one behind it, on one that is not there.
            let reach = if draws.chance(5) { at + 2 } else { at };
            let depends_on: std::collections::BTreeSet<_> =
                (0..draws.below(3)).map(|_| cast::task_id(&name(draws.below(reach.max(1))))).collect();
            spec.depends_on = if reach == 0 { Vec::new() } else { depends_on.into_iter().collect() };
            spec.is_final = draws.chance(20);
            match draws.below(40) {
                0 => spec.id = id(draws, seen),
                1 => spec.capability = cast::capability("planner"),
                2 => spec.capability = cast::capability("nobody"),
                3 => spec.objective.clear(),
                4 => spec.limits.max_attempts = 0,
                _ => {}
            }
            spec
        })
        .collect()
}

fn patch(draws: &mut Draws, seen: &Plan, task: TaskId) -> Patch {
    let others: Vec<TaskId> = (0..draws.below(3)).map(|_| id(draws, seen)).collect();
    Patch {
        objective: draws.maybe(40, |draws| format!("do it in way {}", draws.below(9))),
        capability: draws.maybe(30, |draws| cast::capability(CAPABILITIES[draws.below(3)])),
        depends_on: draws.maybe(30, |_| others),
        parameters: draws.maybe(30, |_| ("q".to_owned(), json!("else"))).into_iter().collect(),
        review: draws.maybe(20, review),
        limits: draws.maybe(20, |draws| Limits { max_attempts: 1 + draws.number(4), ..Limits::default() }),
        on_failed_dependency: draws.maybe(20, policy),
        ..Patch::of(task)
    }
}

/// What a user wants. Names of commands are few, so that some come twice.
pub fn command(draws: &mut Draws, plan: &Plan) -> Fact {
    let reason = || "enough".to_owned();
    let control = match draws.below(20) {
        0..3 => Control::CancelTask { task: id(draws, plan), reason: reason() },
        3..5 => Control::Pause,
        5..8 => Control::Resume { budget: None },
        8..11 => Control::Resume { budget: Some(more(draws, plan)) },
        11..13 => Control::Message { text: "look again".into() },
        13 if draws.chance(30) => Control::CancelRun { reason: reason() },
        _ => Control::Edit(edit(draws, plan)),
    };
    let id = format!("c{}", draws.below(60));
    Fact::Control(Command { id, by: "ann".into(), control })
}

/// A fact about any task, attempt and try at all, likely or not.
pub fn fact(draws: &mut Draws, plan: &Plan) -> Fact {
    if draws.chance(15) {
        return command(draws, plan);
    }
    let who = format!("w{}", draws.below(3));
    if draws.chance(20) || plan.tasks().is_empty() {
        return of_planner(draws, plan, &who);
    }
    let id = id(draws, plan);
    let (attempt, review) = plan.task(&id).map_or((0, 0), |task| (task.attempt, task.review));
    let attempt = if draws.chance(85) { attempt } else { draws.number(5) };
    let review = if draws.chance(85) { review } else { draws.number(5) };
    let usage = usage(draws, None);
    match draws.below(11) {
        0..4 => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker(&who)),
        4..7 => cast::ended(&id, attempt, &who, outcome(draws, usage)),
        7..10 => cast::judged(&id, attempt, review, &who, verdict(draws, usage)),
        _ => Fact::Claimed(Work::Review { task: id, attempt, review }, cast::worker(&who)),
    }
}

fn of_planner(draws: &mut Draws, plan: &Plan, who: &str) -> Fact {
    let current = plan.planning.as_ref().map_or((1, 1), |planning| (planning.turn, planning.attempt));
    let (turn, attempt) = if draws.chance(90) { current } else { (draws.number(4), draws.number(4)) };
    if draws.chance(40) {
        return Fact::Claimed(Work::Planning { turn, attempt }, cast::worker(who));
    }
    let usage = usage(draws, None);
    Fact::Planned { turn, attempt, outcome: proposal(draws, plan, usage) }
}
