//! Random data from a seed: submissions, likely and unlikely facts, good and bad planning turns, commands of users, and
//! clusters that change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::child::{Delegation, child_id};
use millrace_protocol::ids::TaskId;
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::plan::{
    AttemptResult, Budget, BudgetExhaustionPolicy, CapabilityRegistry, CommandAction, Edit, Fact, JournalKey,
    OnFailedDependency, Plan, PlanTime, PlannerConsultMode, PlanningMode, PlanningResult, ResourceAmounts,
    ResourceKind, ReviewCheck, ReviewPolicy, RunCommand, StartEvent, StartEventExpiry, StartExpiryAction,
    Submission, TaskLimits, TaskPatch, TaskSpec, Work,
};
use millrace_protocol::question::{Answer, AnswerScope, ExpiryAction, RunAnswer};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, ModelUsage, PlanProposal, TaskError, Usage, Verdict,
};
use millrace_protocol::wait::{ProviderStatus, Wait};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde_json::json;

use crate::cast;

/// Random numbers from a seed (SplitMix64).
pub struct RandomDraws(pub u64);

impl RandomDraws {
    fn next_random_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn draw_below(&mut self, bound: usize) -> usize {
        (self.next_random_number() % bound.max(1) as u64) as usize
    }

    fn draw_u32_below(&mut self, bound: usize) -> u32 {
        u32::try_from(self.draw_below(bound)).unwrap()
    }

    pub fn draw_chance(&mut self, percent: usize) -> bool {
        self.draw_below(100) < percent
    }

    pub fn draw_optional<T>(&mut self, percent: usize, what: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.draw_chance(percent).then(|| what(self))
    }

    pub fn pick_random<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = from.into_iter().collect();
        if all.is_empty() { None } else { Some(all[self.draw_below(all.len())].clone()) }
    }
}

pub const CAPABILITIES: [&str; 3] = ["echo", "search", "producer"];

/// The registered capabilities, and whether `search` requires a parameter `q`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RegisteredTestCapabilities {
    pub known: [bool; 3],
    pub is_strict: bool,
}

impl RegisteredTestCapabilities {
    /// All capabilities, with any parameters.
    pub const ALL: Self = Self { known: [true; 3], is_strict: false };

    pub fn to_registry(self) -> CapabilityRegistry {
        let capabilities = CAPABILITIES.iter().zip(self.known).filter(|(_, is_known)| *is_known);
        let offered: Vec<_> = capabilities
            .map(|(name, _)| CapabilityDescription {
                parameters: (self.is_strict && *name == "search")
                    .then(|| json!({ "type": "object", "required": ["q"], "properties": { "q": { "type": "string" } } })),
                ..CapabilityDescription::new(cast::capability_name(name), "it does what it can")
            })
            .collect();
        CapabilityRegistry::from_descriptions(&offered)
    }

    pub fn change_randomly(&mut self, draws: &mut RandomDraws) {
        match draws.draw_below(4) {
            3 => self.is_strict = !self.is_strict,
            at => self.known[at] = !self.known[at],
        }
    }
}

/// A run in any mode, with or without a plan, a planner and a budget.
pub fn random_submission(draws: &mut RandomDraws) -> Submission {
    let mode = [PlanningMode::Fixed, PlanningMode::Fixed, PlanningMode::Hybrid, PlanningMode::Llm]
        [draws.draw_below(4)];
    let tasks =
        if mode == PlanningMode::Llm && draws.draw_chance(80) { Vec::new() } else { random_plan(draws) };
    let consults =
        [PlannerConsultMode::Never, PlannerConsultMode::Judgement, PlannerConsultMode::EveryResult];
    Submission {
        mode,
        tasks: tasks.into_iter().map(Arc::new).collect(),
        fail_fast: draws.draw_chance(10),
        budget: random_budget(draws),
        consult: draws.draw_optional(40, |draws| consults[draws.draw_below(3)]),
        approve_plan: draws.draw_chance(10),
        session: draws.draw_chance(10).then(cast::session),
        ..cast::fixed_plan_submission(Vec::new())
    }
}

/// A plan without cycles, in random order, with every policy, review and limit.
pub fn random_plan(draws: &mut RandomDraws) -> Vec<TaskSpec> {
    let count = 1 + draws.draw_below(8);
    let mut tasks: Vec<TaskSpec> = (0..count)
        .map(|at| {
            let depends_on =
                (0..at).filter(|_| draws.draw_chance(35)).map(|at| cast::task_id(&format!("t{at}")));
            let depends_on = depends_on.collect();
            TaskSpec { depends_on, ..random_task(draws, &format!("t{at}")) }
        })
        .collect();
    for at in (1..count).rev() {
        tasks.swap(at, draws.draw_below(at + 1));
    }
    if draws.draw_chance(60) {
        let at = draws.draw_below(count);
        tasks[at].is_final = true;
    }
    tasks
}

fn random_task(draws: &mut RandomDraws, id: &str) -> TaskSpec {
    TaskSpec {
        capability: cast::capability_name(CAPABILITIES[draws.draw_below(3)]),
        review: random_review_policy(draws),
        limits: TaskLimits {
            max_attempts: 1 + draws.draw_u32_below(3),
            backoff: Duration::from_millis(draws.draw_below(5000) as u64),
            ..TaskLimits::default()
        },
        on_failed_dependency: random_dependency_policy(draws),
        budget: draws.draw_optional(15, random_amounts).unwrap_or_default(),
        parameters: draws.draw_optional(30, |_| ("q".to_owned(), json!("what"))).into_iter().collect(),
        not_before: draws.draw_optional(8, random_plan_time),
        wait_for_event: draws.draw_optional(8, random_start_event),
        ..cast::echo_task(id, &[])
    }
}

/// A time before, at or after the start of the run.
fn random_plan_time(draws: &mut RandomDraws) -> PlanTime {
    let seconds = draws.draw_below(20_000) as u64;
    match draws.draw_below(3) {
        0 => PlanTime::At(cast::time_after(cast::test_start_time(), seconds)),
        1 => PlanTime::AfterStart(Duration::from_secs(seconds)),
        _ => PlanTime::AfterStart(Duration::ZERO),
    }
}

fn random_start_event(draws: &mut RandomDraws) -> Box<StartEvent> {
    let actions = [StartExpiryAction::Start, StartExpiryAction::FailTask];
    let expiry = draws.draw_optional(50, |draws| StartEventExpiry {
        until: random_plan_time(draws),
        action: actions[draws.draw_below(2)],
    });
    Box::new(StartEvent { name: random_event_name(draws), expiry })
}

fn random_dependency_policy(draws: &mut RandomDraws) -> OnFailedDependency {
    [OnFailedDependency::Cancel, OnFailedDependency::Skip, OnFailedDependency::Ask][draws.draw_below(3)]
}

fn random_review_policy(draws: &mut RandomDraws) -> ReviewPolicy {
    let checks = vec![ReviewCheck::Matches("a".into())];
    match draws.draw_below(10) {
        0..5 => ReviewPolicy::None,
        5 => ReviewPolicy::Checks { checks },
        6 => ReviewPolicy::Critic {
            criteria: vec!["it is short".into()],
            checks: if draws.draw_chance(50) { checks } else { Vec::new() },
            models: vec!["a".into(), "b".into()],
            quorum: Some(1),
            sample_percent: Some(50),
        },
        7 => {
            let first =
                [ReviewPolicy::None, ReviewPolicy::Checks { checks }, ReviewPolicy::critic(Vec::new())]
                    [draws.draw_below(3)]
                .clone();
            let quorum = draws.draw_optional(50, |_| 1);
            cast::review_by_persons(&["ann", ""][..1 + draws.draw_below(2)], quorum, first)
        }
        _ => ReviewPolicy::critic(Vec::new()),
    }
}

fn random_amounts(draws: &mut RandomDraws) -> ResourceAmounts {
    let mut amounts = ResourceAmounts::default();
    for dimension in ResourceKind::ALL {
        let most = if dimension == ResourceKind::ModelCalls { 30 } else { 6_000 };
        let amount = draws.draw_optional(25, |draws| 1 + draws.draw_below(most) as u64);
        amounts.set(dimension, amount);
    }
    amounts
}

/// Any budget; half of them unlimited. The planner's limits are always set, because nothing else ends its turns.
fn random_budget(draws: &mut RandomDraws) -> Budget {
    let bounds = Budget {
        steps: Some(1 + draws.draw_u32_below(6)),
        tasks: Some(2 + draws.draw_u32_below(14)),
        depth: Some(1 + draws.draw_u32_below(6)),
        ..Budget::default()
    };
    if draws.draw_chance(50) {
        return bounds;
    }
    let names = ["echo", "search", "producer", "planner", "critic"];
    let capabilities = names.iter().filter(|_| draws.draw_chance(15)).collect::<Vec<_>>();
    Budget {
        amounts: draws.draw_optional(70, random_amounts).unwrap_or_default(),
        attempt: draws.draw_optional(30, random_amounts).unwrap_or_default(),
        capabilities: capabilities
            .into_iter()
            .map(|name| (cast::capability_name(name), random_amounts(draws)))
            .collect(),
        wall_time: draws.draw_optional(30, |draws| Duration::from_secs(1 + draws.draw_below(20_000) as u64)),
        soft_percent: 1 + draws.draw_below(100) as u8,
        final_percent: draws.draw_below(91) as u8,
        when_spent: if draws.draw_chance(50) {
            BudgetExhaustionPolicy::Finish
        } else {
            BudgetExhaustionPolicy::Cancel
        },
        ..bounds
    }
}

/// A larger budget: more of some resources, and no less of any.
pub fn random_larger_budget(draws: &mut RandomDraws, plan: &Plan) -> Budget {
    let old = plan.run.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let raise = |amounts: ResourceAmounts, draws: &mut RandomDraws| {
        let mut raised = ResourceAmounts::default();
        for (dimension, amount) in amounts.iter() {
            raised.set(dimension, draws.draw_optional(70, |draws| amount + draws.draw_below(4_000) as u64));
        }
        raised
    };
    Budget {
        amounts: raise(old.amounts, draws),
        capabilities: old.capabilities.iter().map(|(name, amounts)| (name.clone(), *amounts)).collect(),
        wall_time: old.wall_time.map(|time| time + Duration::from_secs(draws.draw_below(10_000) as u64)),
        steps: old.steps.map(|steps| steps + draws.draw_u32_below(3)),
        ..Budget::default()
    }
}

/// A usage, usually within the reservation; otherwise at most twice as much.
pub fn random_usage(draws: &mut RandomDraws, reserved: Option<ResourceAmounts>) -> Usage {
    let mut share = |of: ResourceKind, otherwise: usize| {
        let most = match reserved.and_then(|amounts| amounts.get(of)) {
            Some(amount) => usize::try_from(amount).unwrap_or(otherwise),
            None => otherwise,
        };
        let all = draws.draw_below(most + 1);
        (if draws.draw_chance(10) { most + all } else { all }) as u64
    };
    let (input_tokens, output_tokens) =
        (share(ResourceKind::InputTokens, 300), share(ResourceKind::OutputTokens, 100));
    let tokens = share(ResourceKind::Tokens, 400);
    Usage {
        model_calls: share(ResourceKind::ModelCalls, 3),
        input_tokens: input_tokens.min(tokens),
        output_tokens: output_tokens.min(tokens.saturating_sub(input_tokens)),
        cached_tokens: share(ResourceKind::CachedTokens, 50),
        cost_micros: share(ResourceKind::Cost, 100),
        ..Usage::default()
    }
}

pub fn random_attempt_outcome(draws: &mut RandomDraws, usage: Usage) -> Result<AttemptResult, TaskError> {
    let errored = |kind| Err(TaskError { usage, ..cast::task_error(kind, "broken") });
    match draws.draw_below(10) {
        0 => errored(ErrorKind::InvalidTask),
        1 | 2 => errored(ErrorKind::Tool),
        3 => Ok(AttemptResult { is_empty: true, usage, ..cast::finished_result(1) }),
        at => Ok(AttemptResult {
            usage,
            is_detailed: draws.draw_chance(50),
            is_answered: true,
            review: draws.draw_optional(20, random_review_policy).unwrap_or_default(),
            ..cast::finished_result(at as u64)
        }),
    }
}

pub fn random_verdict_outcome(draws: &mut RandomDraws, usage: Usage) -> Result<Verdict, TaskError> {
    match draws.draw_below(10) {
        0 => Err(TaskError { usage, ..cast::task_error(ErrorKind::Model, "no answer") }),
        1 => Ok(Verdict { usage, ..cast::contradictory_verdict() }),
        2..5 => Ok(Verdict { usage, ..cast::review_verdict(false, Some("more")) }),
        _ => Ok(Verdict { usage, ..cast::review_verdict(true, None) }),
    }
}

/// The outcome of a planning turn; `seen` is the plan that the planner was shown, which may have changed since.
pub fn random_planning_outcome(
    draws: &mut RandomDraws,
    seen: &Plan,
    usage: Usage,
) -> Result<PlanningResult, TaskError> {
    if draws.draw_chance(15) {
        let kind = if draws.draw_chance(10) { ErrorKind::InvalidTask } else { ErrorKind::Model };
        return Err(TaskError { usage, ..cast::task_error(kind, "that is no answer") });
    }
    let count = draws.draw_below(4);
    let mut edits: Vec<Edit> = (0..count).map(|_| random_edit(draws, seen)).collect();
    if draws.draw_chance(15) {
        edits.push(Edit::Finish { reason: "it is all there".into() });
    }
    let tasks = if draws.draw_chance(40) { random_new_tasks(draws, seen) } else { Vec::new() };
    let proposal = PlanProposal { reasoning: "so it goes".into(), tasks, edits, fallback: None };
    Ok(PlanningResult { proposal, usage, models: ModelUsage::from([("some:model".to_owned(), usage)]) })
}

/// An edit of a plan, usually a plausible one.
pub fn random_edit(draws: &mut RandomDraws, seen: &Plan) -> Edit {
    let id = random_task_id(draws, seen);
    match draws.draw_below(12) {
        0..3 => Edit::Add(random_new_tasks(draws, seen)),
        3..5 => Edit::Patch(random_patch(draws, seen, id)),
        5..7 => Edit::Cancel { task: id, reason: "not needed".into() },
        7..10 => Edit::Retry {
            task: id,
            feedback: draws.draw_optional(50, |_| "try harder".into()),
            changes: None,
        },
        10 if draws.draw_chance(20) => Edit::GiveUp { reason: "there is no way on".into() },
        _ => Edit::MarkFinal { task: id },
    }
}

/// A task of the plan, or an unknown one.
fn random_task_id(draws: &mut RandomDraws, seen: &Plan) -> TaskId {
    let existing = draws.pick_random(seen.tasks().iter().map(|task| task.spec.id.clone()));
    existing.filter(|_| draws.draw_chance(95)).unwrap_or_else(|| cast::task_id("nobody"))
}

fn random_new_tasks(draws: &mut RandomDraws, seen: &Plan) -> Vec<TaskSpec> {
    let first = seen.tasks().len();
    let count = if draws.draw_chance(1) { 1_200 } else { draws.draw_below(4) };
    let name = |at: usize| format!("t{at}");
    (first..first + count)
        .map(|at| {
            let mut spec = random_task(draws, &name(at));
            // On earlier tasks, on itself, on a later one, on an unknown one.
            let reach = if draws.draw_chance(5) { at + 2 } else { at };
            let depends_on: std::collections::BTreeSet<_> = (0..draws.draw_below(3))
                .map(|_| cast::task_id(&name(draws.draw_below(reach.max(1)))))
                .collect();
            spec.depends_on = if reach == 0 { Vec::new() } else { depends_on.into_iter().collect() };
            spec.is_final = draws.draw_chance(20);
            match draws.draw_below(40) {
                0 => spec.id = random_task_id(draws, seen),
                1 => spec.capability = cast::capability_name("planner"),
                2 => spec.capability = cast::capability_name("nobody"),
                3 => spec.objective.clear(),
                4 => spec.limits.max_attempts = 0,
                _ => {}
            }
            spec
        })
        .collect()
}

fn random_patch(draws: &mut RandomDraws, seen: &Plan, task: TaskId) -> TaskPatch {
    let others: Vec<TaskId> = (0..draws.draw_below(3)).map(|_| random_task_id(draws, seen)).collect();
    TaskPatch {
        objective: draws.draw_optional(40, |draws| format!("do it in way {}", draws.draw_below(9))),
        capability: draws.draw_optional(30, |draws| cast::capability_name(CAPABILITIES[draws.draw_below(3)])),
        depends_on: draws.draw_optional(30, |_| others),
        parameters: draws.draw_optional(30, |_| ("q".to_owned(), json!("else"))).into_iter().collect(),
        review: draws.draw_optional(20, random_review_policy),
        limits: draws.draw_optional(20, |draws| TaskLimits {
            max_attempts: 1 + draws.draw_u32_below(4),
            ..TaskLimits::default()
        }),
        on_failed_dependency: draws.draw_optional(20, random_dependency_policy),
        not_before: draws.draw_optional(10, random_plan_time),
        wait_for_event: draws.draw_optional(10, |draws| match draws.draw_chance(50) {
            true => random_start_event(draws),
            false => Box::new(StartEvent { name: String::new(), expiry: None }),
        }),
        ..TaskPatch::without_changes(task)
    }
}

/// A command of a user. Few ids are used, so that some repeat.
pub fn random_command_fact(draws: &mut RandomDraws, plan: &Plan) -> Fact {
    let reason = || "enough".to_owned();
    let control = match draws.draw_below(20) {
        0..3 => CommandAction::CancelTask { task: random_task_id(draws, plan), reason: reason() },
        3 => CommandAction::Pause,
        4 => CommandAction::Interrupt,
        5..8 => CommandAction::Resume { budget: None },
        8..11 => CommandAction::Resume { budget: Some(random_larger_budget(draws, plan)) },
        11..13 => CommandAction::Message { text: "look again".into() },
        14..16 => CommandAction::Signal { name: random_event_name(draws), data: "1".into() },
        13 if draws.draw_chance(30) => CommandAction::CancelRun { reason: reason() },
        _ => CommandAction::Edit(random_edit(draws, plan)),
    };
    let id = format!("c{}", draws.draw_below(60));
    Fact::Control(RunCommand { id, by: "ann".into(), control })
}

fn random_event_name(draws: &mut RandomDraws) -> String {
    if draws.draw_chance(70) { "go".into() } else { "halt".into() }
}

/// Waits with keys that no other claim of the attempt uses; rarely none, or two with the same key.
pub fn random_waits(draws: &mut RandomDraws, claim: u32) -> Vec<Wait> {
    let count = if draws.draw_chance(95) { 1 + draws.draw_below(3) } else { 0 };
    let mut waits = Vec::new();
    for number in 0..count {
        let number = if draws.draw_chance(95) { number } else { 0 };
        let key = format!("{claim}.{number}");
        let limit = draws.draw_chance(50).then(|| u64::from(draws.draw_u32_below(50_000)));
        let expiry = limit.map(|limit| (limit + 1, random_expiry_action(draws)));
        let group = draws.draw_chance(40).then(|| "g".to_owned());
        let wait = match draws.draw_below(4) {
            0 => cast::time_wait(&key, limit.unwrap_or(1)),
            1 => cast::event_wait(&key, &random_event_name(draws), limit),
            2 => cast::approval_wait(&key, expiry),
            _ => cast::input_wait(&key, expiry),
        };
        waits.push(Wait { group, ..wait });
    }
    waits
}

fn random_expiry_action(draws: &mut RandomDraws) -> ExpiryAction {
    match draws.draw_below(4) {
        0 => ExpiryAction::Reject,
        1 => ExpiryAction::FailTask,
        2 => ExpiryAction::AskAgain,
        _ => ExpiryAction::Escalate,
    }
}

/// An answer to an open question if there is one, often one that does not fit it.
pub fn random_answer_fact(draws: &mut RandomDraws, plan: &Plan) -> Option<Fact> {
    let open: Vec<_> = plan.open_questions().map(|it| (it.id, it.question.clone())).collect();
    let (mut question, about) = draws.pick_random(open)?;
    if draws.draw_chance(10) {
        question.number = 1 + draws.draw_u32_below(4);
    }
    let fits = |answer: &Answer| about.decisions.contains(&answer.kind());
    let mut answers = cast::answers_of_all_kinds();
    if draws.draw_chance(70) {
        answers.retain(fits);
    }
    let answer = draws.pick_random(answers)?;
    let scope =
        if draws.draw_chance(70) { AnswerScope::Once } else { draws.pick_random(AnswerScope::ALL)? };
    let id = format!("a{}", draws.draw_below(60));
    let by = ["ann", "bob"][draws.draw_below(2)].to_owned();
    Some(Fact::Answered(RunAnswer { id, by, question, digest: about.digest, answer, scope }))
}

/// A worker delegates tasks, and perhaps waits for them: new ones, the same again, and bad ones.
pub fn random_delegation(
    draws: &mut RandomDraws,
    plan: &Plan,
    (task, attempt): (&TaskId, u32),
    who: &str,
    claim: u32,
) -> Fact {
    let count = if draws.draw_chance(3) { 40 } else { draws.draw_below(4) };
    let mut children: Vec<TaskSpec> = (0..count)
        .map(|at| {
            let id = child_id(task, attempt, &format!("{}-{at}", draws.draw_below(3)));
            let mut spec = TaskSpec {
                on_failed_dependency: OnFailedDependency::default(),
                ..random_task(draws, id.as_str())
            };
            match draws.draw_below(40) {
                0 => spec.id = random_task_id(draws, plan),
                1 => spec.capability = cast::capability_name("critic"),
                2 => spec.is_final = true,
                3 => spec.depends_on = vec![task.clone()],
                4 => spec.objective.clear(),
                5 => spec.fork = Some(Box::new(InlineOrStoredBytes::Inline(b"{}".to_vec().into()))),
                6..12 => spec.is_shared = true,
                12..15 => {
                    let overrides =
                        AgentOverrides { tools: Some(BTreeSet::new()), ..AgentOverrides::default() };
                    (spec.is_shared, spec.overrides) = (true, Some(Box::new(overrides)));
                }
                _ => {}
            }
            spec
        })
        .collect();
    let existing = plan.tasks().iter().filter(|other| {
        other.spec.parent.as_ref().is_some_and(|own| own.task == *task && own.attempt == attempt)
    });
    let existing: Vec<TaskId> = existing.map(|child| child.spec.id.clone()).collect();
    let worker = cast::worker_id(who);
    if draws.draw_chance(40) {
        let change = |draws: &mut RandomDraws, percent| {
            let mut picked: Vec<(TaskId, String)> = Vec::new();
            for id in existing.iter().filter(|_| draws.draw_chance(percent)) {
                picked.push((id.clone(), "so it is".into()));
            }
            picked
        };
        let mut cancels = change(draws, 20);
        // A worker may name a child twice.
        cancels.extend(change(draws, 5));
        let delegation = Delegation { children, cancels, messages: Vec::new() };
        return Fact::Delegated { task: task.clone(), attempt, worker, delegation };
    }
    let mut ids: Vec<TaskId> = children.iter().map(|child| child.id.clone()).collect();
    ids.extend(existing.into_iter().filter(|_| draws.draw_chance(50)));
    if draws.draw_chance(5) {
        ids.push(cast::task_id("nobody"));
    }
    ids.dedup();
    let ids: Vec<&str> = ids.iter().map(TaskId::as_str).collect();
    let limit = draws.draw_optional(20, |draws| draws.draw_below(50_000) as u64);
    let mut waits = vec![cast::tasks_wait(&format!("{claim}.tasks"), &ids, draws.draw_chance(30), limit)];
    if draws.draw_chance(20) {
        waits.extend(random_waits(draws, claim));
    }
    children.truncate(if draws.draw_chance(5) { 0 } else { children.len() });
    Fact::Parked { task: task.clone(), attempt, worker, waits, children }
}

/// A change in the wait for a provider.
pub fn provider_status(draws: &mut RandomDraws) -> ProviderStatus {
    let wait = cast::provider_wait(if draws.draw_chance(50) { "overloaded" } else { "refused" });
    match draws.draw_below(4) {
        0..2 => ProviderStatus::Waiting(wait),
        2 => ProviderStatus::Recovered,
        _ => ProviderStatus::GivenUp(wait),
    }
}

/// A fact about any task, attempt and try, likely or not.
pub fn random_fact(draws: &mut RandomDraws, plan: &Plan) -> Fact {
    if draws.draw_chance(15) {
        return random_command_fact(draws, plan);
    }
    let who = format!("w{}", draws.draw_below(3));
    if draws.draw_chance(20) || plan.tasks().is_empty() {
        return random_planner_fact(draws, plan, &who);
    }
    let id = random_task_id(draws, plan);
    let (attempt, review) = plan.task(&id).map_or((0, 0), |task| (task.attempt, task.review_number()));
    let attempt = if draws.draw_chance(85) { attempt } else { draws.draw_u32_below(5) };
    let review = if draws.draw_chance(85) { review } else { draws.draw_u32_below(5) };
    let usage = random_usage(draws, None);
    match draws.draw_below(14) {
        13 if draws.draw_chance(50) => random_delegation(draws, plan, (&id, attempt), &who, attempt),
        13 => cast::parked_fact(&id, attempt, &who, random_waits(draws, attempt)),
        0..4 => Fact::Claimed(Work::Task { task: id, attempt }, cast::worker_id(&who), None),
        4..7 => cast::attempt_ended_fact(&id, attempt, &who, random_attempt_outcome(draws, usage)),
        7..10 => cast::reviewed_fact(&id, attempt, review, &who, random_verdict_outcome(draws, usage)),
        10 => Fact::Claimed(Work::Review { task: id, attempt, review }, cast::worker_id(&who), None),
        11 => Fact::Provider(JournalKey::Task(id, attempt), provider_status(draws)),
        _ => Fact::Provider(JournalKey::Review(id, attempt), provider_status(draws)),
    }
}

fn random_planner_fact(draws: &mut RandomDraws, plan: &Plan, who: &str) -> Fact {
    let current = plan.planning.turn.as_ref().map_or((1, 1), |planning| (planning.turn, planning.attempt));
    let (turn, attempt) =
        if draws.draw_chance(90) { current } else { (draws.draw_u32_below(4), draws.draw_u32_below(4)) };
    if draws.draw_chance(40) {
        return Fact::Claimed(Work::Planning { turn, attempt }, cast::worker_id(who), None);
    }
    if draws.draw_chance(10) {
        return Fact::Provider(JournalKey::Planning(turn, attempt), provider_status(draws));
    }
    let usage = random_usage(draws, None);
    Fact::Planned { turn, attempt, outcome: random_planning_outcome(draws, plan, usage) }
}
