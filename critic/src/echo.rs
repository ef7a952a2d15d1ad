//! The reviewer of results of `echo`: accepts results that are not empty and not marked for rejection. It asks no model.

use millrace_protocol::result::{CriterionOutcome, TaskResult, Verdict};
use serde_json::Value;

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
