//! The reviewer of `echo`'s results: passes what is not empty and not marked to be rejected. It decides by the result
//! alone, in no time.

use millrace_protocol::result::{CriterionOutcome, TaskResult, Verdict};
use serde_json::Value;

/// Judges a result of `echo`. The plan's criteria share the fate of the mark.
pub(crate) fn judge(criteria: &[String], result: &TaskResult) -> Verdict {
    let is_marked =
        result.data.as_ref().and_then(|data| data.get("reject")).and_then(Value::as_bool) == Some(true);
    let outcome = |criterion: &str, met: bool, gap: &str| CriterionOutcome {
        criterion: criterion.to_owned(),
        met,
        gap: (!met).then(|| gap.to_owned()),
    };
    let own = [
        outcome("the result is not empty", !result.is_empty(), "there is nothing in it"),
        outcome("the result is not marked to be rejected", !is_marked, MARKED),
    ];
    let asked = criteria.iter().map(|criterion| outcome(criterion, !is_marked, MARKED));
    let criteria: Vec<CriterionOutcome> = own.into_iter().chain(asked).collect();
    let passed = criteria.iter().all(|criterion| criterion.met);
    Verdict {
        passed,
        reasoning: if passed { "it is what echo makes" } else { "it was made to be rejected" }.into(),
        feedback: (!passed).then(|| "try again".into()),
        criteria,
        ..Verdict::default()
    }
}

const MARKED: &str = "its data says so";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn verdicts_follow_the_mark_and_never_contradict_themselves() {
        let result = |output: &str, data| TaskResult { output: output.into(), data, ..TaskResult::default() };
        for (result, passed) in [
            (result("text", None), true),
            (result("text", Some(json!({"reject": false}))), true),
            (result("text", Some(json!({"reject": true}))), false),
            (result("text", Some(json!("reject"))), true),
            (result("", None), false),
        ] {
            let verdict = judge(&["it is short".to_owned()], &result);
            assert_eq!((verdict.passed, verdict.inconsistency()), (passed, None), "{result:?}");
            assert_eq!((verdict.criteria.len(), verdict.feedback.is_some()), (3, !passed));
        }
    }
}
