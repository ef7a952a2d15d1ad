//! Builds the order for a piece of work from the plan. No I/O.

use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::{Attempt, AttemptEnd, Plan, ReviewPolicy, Task, Work};
use millrace_protocol::subject::{CRITIC, PLANNER};
use millrace_protocol::wait::WaitEnd;
use millrace_protocol::work::{
    Assignment, DecisionId, InputResult, JudgePanel, Order, Rejection, ReviewBrief, SharedConversation,
};

/// The capability of one of the cluster's own names.
pub(crate) fn builtin_capability(capability: &str) -> Capability {
    Capability::new(capability).expect("names of built-in capabilities are valid")
}

/// Builds the order for a piece of work; `None` if the plan does not know the work. `last` is the run's last decision.
#[must_use]
pub fn build_order(run: &RunId, lane: Lane, plan: &Plan, last: DecisionId, work: &Work) -> Option<Order> {
    let start = plan.run.start.as_ref()?;
    let common = Order {
        allowance: plan.budget.reserved.amounts_of_work(work),
        provider_timeout: start.budget.provider_timeout,
        documents: start.documents.clone(),
        model: start.model.clone(),
        own_model: start.models.get(PLANNER).cloned(),
        models: start.models.clone(),
        verification: start.verification,
        decided: Some(last),
        ..Order::new(run.clone(), lane, work.clone(), &start.objective, builtin_capability(PLANNER))
    };
    match work {
        Work::Planning { turn, attempt } => {
            let feedback = plan.planning.turn.as_ref()?.feedback.iter().cloned().collect();
            let assignment = Assignment::Planning { turn: *turn, attempt: *attempt, plan_at: last.sequence };
            Some(Order { feedback, assignment, ..common })
        }
        Work::Task { task, attempt } => Some(order_of_task(common, plan, plan.task(task)?, *attempt)),
        Work::Review { task, attempt, review } => {
            order_of_review(common, plan, plan.task(task)?, (*attempt, *review))
        }
    }
}

fn order_of_task(common: Order, plan: &Plan, task: &Task, attempt: u32) -> Order {
    let inputs = inputs_of_task(plan, task);
    let own_model = common.models.get(&task.spec.capability).cloned();
    let last = task.last_rejected_result();
    let rejected =
        last.and_then(|(attempt, at, summary)| InputResult::of_attempt(task, attempt, at, summary));
    let rejection = last.and_then(|(attempt, ..)| rejection_of_attempt(attempt));
    let feedback = task.collect_feedback();
    let assignment = Assignment::Task {
        task: task.spec.id.clone(),
        attempt,
        rejected,
        rejection,
        criteria: plan.criteria_of_task(task).to_vec(),
    };
    let ended_waits = task.current_attempt().map(Attempt::ended_waits).unwrap_or_default();
    let depth = task.spec.parent.as_ref().map_or(0, |parent| parent.depth);
    let common = Order {
        assignment,
        inputs,
        feedback,
        own_model,
        ended_waits,
        depth,
        overrides: task.spec.overrides.clone(),
        fork: task.spec.fork.clone(),
        shared: task.spec.is_shared.then(|| shared_conversation(plan, task)),
        ..common
    };
    add_task_fields(common, task)
}

fn order_of_review(common: Order, plan: &Plan, task: &Task, (attempt, review): (u32, u32)) -> Option<Order> {
    let (criteria, checks, panel) = match task.review_policy().by_critic() {
        ReviewPolicy::None | ReviewPolicy::Persons(_) => {
            (Vec::new(), Vec::new(), Some(JudgePanel { quorum: 1, ..JudgePanel::default() }))
        }
        ReviewPolicy::Checks { checks } => (Vec::new(), checks.clone(), None),
        ReviewPolicy::Critic { criteria, checks, models, quorum, sample_percent: _ } => {
            let majority = u32::try_from(models.len().max(1) / 2 + 1).unwrap_or(u32::MAX);
            let panel = JudgePanel { models: models.clone(), quorum: quorum.unwrap_or(majority) };
            (criteria.clone(), checks.clone(), Some(panel))
        }
    };
    let evidence = inputs_of_task(plan, task);
    let own_model = common.models.get(CRITIC).cloned();
    let inputs = vec![current_result_as_input(task)?];
    let brief = ReviewBrief { criteria, checks, panel, evidence };
    let assignment = Assignment::Review { task: task.spec.id.clone(), attempt, review, brief };
    Some(Order { assignment, inputs, own_model, ..add_task_fields(common, task) })
}

/// The rejection of an attempt's result.
fn rejection_of_attempt(attempt: &Attempt) -> Option<Rejection> {
    let (_, verdict) = attempt.verdict()?;
    Some(Rejection { attempt: attempt.number, criteria: verdict.criteria.clone() })
}

/// Fills in what the orders for a task and for its review share.
fn add_task_fields(common: Order, task: &Task) -> Order {
    Order {
        objective: task.spec.objective.clone(),
        capability: task.spec.capability.clone(),
        parameters: task.spec.parameters.clone(),
        is_final: task.spec.is_final,
        limits: task.spec.limits.clone(),
        ..common
    }
}

/// The results that a task builds on: those of its parent if it is a fork, those of its dependencies, and then those of its children that its current attempt has
/// waited for, in the order of the waits. So the earlier ones keep their places when the attempt is dispatched again.
fn inputs_of_task(plan: &Plan, task: &Task) -> Vec<InputResult> {
    let waits = task.current_attempt().into_iter().flat_map(|attempt| &attempt.waits);
    let ended = waits.filter_map(|wait| match &wait.end {
        Some(WaitEnd::TasksEnded(ended)) => Some(ended),
        Some(
            WaitEnd::TimeReached
            | WaitEnd::Signalled { .. }
            | WaitEnd::Answered { .. }
            | WaitEnd::Expired
            | WaitEnd::Withdrawn,
        )
        | None => None,
    });
    let children = ended.flatten().map(|ended| &ended.task);
    // A fork knows them from its conversation.
    let forked = plan.parent(task).filter(|_| task.spec.fork.is_some());
    let mut inputs = forked.map(|parent| inputs_of_task(plan, parent)).unwrap_or_default();
    // A call of a shared conversation only runs after those before it.
    let depends_on = task.spec.depends_on.iter().filter(|_| !task.spec.is_shared);
    for id in depends_on.chain(children) {
        let is_new = inputs.iter().all(|input| input.task != *id);
        inputs.extend(plan.task(id).filter(|_| is_new).and_then(accepted_result_as_input));
    }
    inputs
}

/// The conversation that a call continues: that of the last call before it that was completed.
fn shared_conversation(plan: &Plan, call: &Task) -> SharedConversation {
    let before = plan.tasks().iter().take_while(|task| task.spec.id != call.spec.id);
    let calls = before.filter(|task| task.spec.shares_conversation_with(&call.spec));
    let last = calls.filter(|task| task.accepted_result().is_some()).last();
    SharedConversation { last_call: last.map(|task| (task.spec.id.clone(), task.attempt)) }
}

/// The accepted result of a task, as input for its dependents.
fn accepted_result_as_input(task: &Task) -> Option<InputResult> {
    task.accepted_result()?;
    current_result_as_input(task)
}

/// The result of a task's current attempt.
fn current_result_as_input(task: &Task) -> Option<InputResult> {
    let attempt = task.current_attempt()?;
    match attempt.end.as_ref()? {
        AttemptEnd::Finished { at_sequence, summary, .. } => {
            InputResult::of_attempt(task, attempt, *at_sequence, summary)
        }
        AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
    }
}
