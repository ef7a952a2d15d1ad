//! The handler of the critics' queue: reads the result under review, runs its checks, and asks the judges if all checks
//! pass.
//!
//! The reviewer of results of `echo`: accepts results that are not empty and not marked for rejection. It asks no model.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::critic::CRITIC_DESCRIPTION;
use millrace_agent::critic::checks::{
    build_verdict, check_name, has_nothing_to_check, verdict_without_criteria,
};
use millrace_agent::session::AgentHost;
use millrace_agent::turn::Host as _;
use millrace_host::{AttemptContext, OrderHandler};
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::result::{
    CapabilityDescription, CriterionOutcome, ErrorKind, TaskError, TaskResult, Verdict,
};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::{Assignment, Order, ReviewBrief, WorkOutcome};
use serde_json::Value;

use crate::checks::{self, CheckProgramRunner};

/// The step that records the capability's criteria.
const CRITERIA: &str = "criteria";
/// The capability whose results are reviewed without a model.
const ECHO: &str = "echo";

pub(crate) struct Critic {
    agents: Arc<AgentHost>,
    programs: CheckProgramRunner,
}

impl Critic {
    pub fn new(agents: Arc<AgentHost>, programs: CheckProgramRunner) -> Self {
        Self { agents, programs }
    }

    async fn review_attempt(&self, attempt: &mut AttemptContext) -> Result<Verdict, TaskError> {
        let order = attempt.order().clone();
        let (Assignment::Review { brief, .. }, Some(input)) = (&order.assignment, order.inputs.first())
        else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "the order is not a review of a result"));
        };
        let read = attempt.cluster_reader().read_result(input).await;
        let result = read.map_err(|fault| attempt.end_with_fault(fault))?;
        if result.is_empty() {
            return Ok(verdict_without_criteria());
        }
        let mut outcomes = checks::run_checks(&self.agents, &self.programs, attempt, &order, &result).await?;
        let has_failed_check = outcomes.iter().any(|outcome| !outcome.met);
        // Orders of older supervisors have no panel; then checks alone decide, if there are any.
        if has_failed_check || (brief.panel.is_none() && !outcomes.is_empty()) {
            let vacuous = brief.checks.iter().filter(|check| has_nothing_to_check(check, &result));
            return Ok(build_verdict(outcomes, &vacuous.map(check_name).collect::<Vec<_>>()));
        }
        let judged = self.judge_with_checks_and_models(attempt, &order, brief, &result).await?;
        outcomes.extend(judged.criteria);
        Ok(Verdict { criteria: outcomes, ..judged })
    }

    async fn judge_with_checks_and_models(
        &self,
        attempt: &mut AttemptContext,
        order: &Order,
        brief: &ReviewBrief,
        result: &TaskResult,
    ) -> Result<Verdict, TaskError> {
        if order.capability.as_str() == ECHO {
            return Ok(judge_by_reject_mark(&brief.criteria, result));
        }
        let criteria = read_or_record_criteria(attempt, order).await?;
        let judged = self.agents.run_review(order, &criteria, attempt.agent_environment()).await;
        judged.map_err(|error| attempt.end_with_session_error(error))
    }
}

impl OrderHandler for Critic {
    fn describe_capability(&self) -> CapabilityDescription {
        CapabilityDescription::new(Capability::new(CRITIC).expect("a valid name"), CRITIC_DESCRIPTION)
    }

    /// A worker that produced a result does not review it.
    fn accepts_order(&self, order: &Order, me: &WorkerId) -> bool {
        order.inputs.iter().all(|input| input.worker != *me)
    }

    fn run_attempt<'a>(
        &'a self,
        attempt: &'a mut AttemptContext,
    ) -> BoxFuture<'a, Result<WorkOutcome, TaskError>> {
        self.review_attempt(attempt).map(|judged| judged.map(WorkOutcome::Judged)).boxed()
    }
}

/// Returns the criteria of the capability that produced the result. They are recorded as a step, so that a critic that
/// resumes the review uses the same ones.
async fn read_or_record_criteria(
    attempt: &mut AttemptContext,
    order: &Order,
) -> Result<Vec<String>, TaskError> {
    if let Some(value) = attempt.next_recorded_value(CRITERIA).await? {
        return serde_json::from_value(value)
            .map_err(|mistake| TaskError::new(ErrorKind::Panic, format!("{CRITERIA}: {mistake}")));
    }
    let capabilities =
        attempt.cluster_reader().read_capabilities().await.map_err(|fault| attempt.end_with_fault(fault))?;
    let own = capabilities.into_iter().find(|capability| capability.name == order.capability);
    let criteria = own.map(|capability| capability.criteria).unwrap_or_default();
    attempt.record(CRITERIA, &criteria.iter().map(String::as_str).collect()).await?;
    Ok(criteria)
}

/// Reviews a result of `echo`. The plan's criteria are met unless the result is marked for rejection.
pub(crate) fn judge_by_reject_mark(criteria: &[String], result: &TaskResult) -> Verdict {
    let is_marked =
        result.data.as_ref().and_then(|data| data.get("reject")).and_then(Value::as_bool) == Some(true);
    let outcome = |criterion: &str, met: bool, gap: &str| CriterionOutcome {
        criterion: criterion.to_owned(),
        met,
        gap: (!met).then(|| gap.to_owned()),
    };
    let own = [
        outcome("the result is not empty", !result.is_empty(), "it is empty"),
        outcome("the result is not marked for rejection", !is_marked, MARKED),
    ];
    let of_plan = criteria.iter().map(|criterion| outcome(criterion, !is_marked, MARKED));
    let criteria: Vec<CriterionOutcome> = own.into_iter().chain(of_plan).collect();
    let passed = criteria.iter().all(|criterion| criterion.met);
    Verdict {
        passed,
        reasoning: if passed { "a valid result of echo" } else { "marked for rejection" }.into(),
        feedback: (!passed).then(|| "try again".into()),
        criteria,
        ..Verdict::default()
    }
}

const MARKED: &str = "its data has `reject: true`";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn verdicts_follow_the_mark_and_are_consistent() {
        let result = |output: &str, data| TaskResult { output: output.into(), data, ..TaskResult::default() };
        for (result, passed) in [
            (result("text", None), true),
            (result("text", Some(json!({"reject": false}))), true),
            (result("text", Some(json!({"reject": true}))), false),
            (result("text", Some(json!("reject"))), true),
            (result("", None), false),
        ] {
            let verdict = judge_by_reject_mark(&["it is short".to_owned()], &result);
            assert_eq!((verdict.passed, verdict.find_inconsistency()), (passed, None), "{result:?}");
            assert_eq!((verdict.criteria.len(), verdict.feedback.is_some()), (3, !passed));
        }
    }
}
