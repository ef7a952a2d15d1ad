//! The form of a critic's answer and its validation. It owns the corrections that a model gets; the rules decide what a
//! verdict means for the task.
//!
//! The form has a fixed key per criterion, `C1` to `Cn`. A result passes if all are met; that is computed and never asked.
//! Models that answer with a list of criteria instead are understood.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_protocol::foreign_json::plain_json_error;
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{CriterionOutcome, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::standing::ANSWERS;
use crate::citations::collapse_whitespace;
use crate::model::{AnswerSchema, ModelAbility};
use crate::tool::parse_lenient_json;
use crate::turn::Answer;

/// The most characters of a gap.
const MAX_GAP: u32 = 300;
/// The most characters of the reasoning, and of the feedback.
const MAX_REASONING: u32 = 800;
/// The gap of a criterion that a critic omitted twice.
const LEFT_OUT: &str = "The critic did not say whether it is met.";

/// A critic's answer. Reasons come before the conclusions that rest on them: models write in this order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The task whose result this judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Every criterion with its outcome.
    pub criteria: Vec<CriterionJudgement>,
    /// Why, in a few sentences.
    pub reasoning: String,
    /// If it does not pass: what the next attempt must do differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// true if the result is accepted: exactly if all criteria are met.
    pub passed: bool,
    /// Your confidence, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CriterionJudgement {
    /// Its number, such as C1; one without a number in your own words.
    pub criterion: String,
    /// What is missing, if it is not met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
    /// true if the result meets it.
    pub met: bool,
}

impl Answer for Judgement {
    fn is_other_form(value: &Value, _: &Value) -> bool {
        value.get("criteria").is_some_and(Value::is_array)
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        let value = parse_lenient_json(text)
            .map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
        let has_keys = value.as_object().is_some_and(|object| object.keys().any(|key| is_criterion_key(key)));
        let read = match has_keys {
            true => serde_json::from_value(value).map(KeyedJudgement::into_judgement),
            false => {
                let listed = serde_json::from_value::<ListedJudgement>(value);
                listed.map(ListedJudgement::into_judgement)
            }
        };
        read.map_err(|mistake| {
            format!("The answer does not fit its schema: {}.", plain_json_error(&mistake.to_string()))
        })
    }
}

/// A judgement with a key per criterion.
#[derive(Deserialize)]
struct KeyedJudgement {
    #[serde(default)]
    reasoning: String,
    #[serde(default)]
    feedback: Option<String>,
    #[serde(default)]
    confidence: Option<f64>,
    #[serde(flatten)]
    criteria: Map<String, Value>,
}

/// The outcome under a criterion's key.
#[derive(Deserialize)]
struct KeyedOutcome {
    #[serde(default)]
    gap: Option<String>,
    met: bool,
}

impl KeyedJudgement {
    fn into_judgement(self) -> Judgement {
        let outcomes = self.criteria.into_iter().filter(|(key, _)| is_criterion_key(key));
        let criteria = outcomes.filter_map(|(criterion, outcome)| {
            let KeyedOutcome { gap, met } = serde_json::from_value(outcome).ok()?;
            Some(CriterionJudgement { criterion, gap, met })
        });
        let criteria: Vec<CriterionJudgement> = criteria.collect();
        let passed = criteria.iter().all(|one| one.met);
        let Self { reasoning, feedback, confidence, .. } = self;
        Judgement { task_id: None, criteria, reasoning, feedback, passed, confidence }
    }
}

/// A judgement with a list of criteria. `passed` may be missing.
#[derive(Deserialize)]
struct ListedJudgement {
    #[serde(default)]
    task_id: Option<String>,
    criteria: Vec<CriterionJudgement>,
    #[serde(default)]
    reasoning: String,
    #[serde(default)]
    feedback: Option<String>,
    #[serde(default)]
    passed: Option<bool>,
    #[serde(default)]
    confidence: Option<f64>,
}

impl ListedJudgement {
    fn into_judgement(self) -> Judgement {
        let Self { task_id, criteria, reasoning, feedback, passed, confidence } = self;
        let passed = passed.unwrap_or_else(|| criteria.iter().all(|one| one.met));
        Judgement { task_id, criteria, reasoning, feedback, passed, confidence }
    }
}

/// `true` for the key of a criterion, such as `C1`.
fn is_criterion_key(key: &str) -> bool {
    key.strip_prefix('C')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the form of a verdict on this many criteria. The reason for an outcome comes before it: models write in this
/// order.
pub(super) fn judgement_schema(name: &str, criteria: usize, ability: ModelAbility) -> AnswerSchema {
    let text = |most: u32, about: &str| match ability.is_small() {
        true => json!({"type": "string", "maxLength": most}),
        false => json!({"type": "string", "maxLength": most, "description": about}),
    };
    let outcome = json!({
        "type": "object",
        "properties": {
            "gap": text(MAX_GAP, "What is missing, if it is not met."),
            "met": {"type": "boolean"},
        },
        "required": ["met"],
        "additionalProperties": false,
    });
    let keys: Vec<String> = (1..=criteria).map(|number| format!("C{number}")).collect();
    let mut properties: Map<String, Value> = keys.iter().map(|key| (key.clone(), outcome.clone())).collect();
    properties.insert("reasoning".into(), text(MAX_REASONING, "Why, in a few sentences."));
    if !ability.is_small() {
        let feedback = "If a criterion is not met: what the next attempt must do differently.";
        properties.insert("feedback".into(), text(MAX_REASONING, feedback));
        properties.insert(
            "confidence".into(),
            json!({"type": "number", "minimum": 0, "maximum": 1, "description": "Your confidence."}),
        );
    }
    let required: Vec<String> = keys.into_iter().chain(["reasoning".to_owned()]).collect();
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    AnswerSchema { name: name.to_owned(), schema }
}

/// Validates the answers of one review. It remembers the corrections that it gave, so that a resumed review, which sees the
/// same answers in the same order, has the same outcome.
pub(crate) struct JudgementValidator<'a> {
    task: &'a TaskId,
    criteria: &'a [String],
    /// `true` once a correction about an omitted criterion was sent.
    has_corrected_omission: AtomicBool,
}

impl<'a> JudgementValidator<'a> {
    pub fn new(task: &'a TaskId, criteria: &'a [String]) -> Self {
        Self { task, criteria, has_corrected_omission: AtomicBool::new(false) }
    }

    /// Returns the answer with the criteria in their original words, each once.
    pub fn validate_judgement(&self, answer: Judgement) -> Result<Judgement, String> {
        if let Some(other) = answer.task_id.as_deref().filter(|id| id.trim() != self.task.as_str()) {
            let other: String = other.chars().take(80).collect();
            return Err(format!(
                "You judge the result of the task {}, but 'task_id' names {other:?}.",
                self.task
            ));
        }
        let given = self.complete_listed_form(&answer);
        let (criteria, left_out) = self.assign_judgements(&given);
        let mut judged =
            Judgement { criteria, feedback: trim_non_empty(answer.feedback.as_deref()), ..answer };
        if !left_out.is_empty() {
            if !self.has_corrected_omission.swap(true, Ordering::Relaxed) {
                return Err(format!(
                    "'criteria' leaves out {}. Judge every criterion up to C{} in one answer.",
                    left_out.join(", "),
                    self.criteria.len()
                ));
            }
            // A critic that omits a criterion twice could not confirm it.
            judged.feedback = judged.feedback.or(Some(LEFT_OUT.to_owned()));
        }
        Ok(judged.with_computed_verdict())
    }

    /// Returns the judgements of an answer. A list may have none for the standing criterion: there `passed` tells of it,
    /// unless another criterion explains a rejection.
    fn complete_listed_form(&self, answer: &Judgement) -> Vec<CriterionJudgement> {
        let mut given = answer.criteria.clone();
        let standing = self.criteria.iter().position(|criterion| criterion == ANSWERS);
        let is_given = |at: usize| given.iter().any(|one| self.find_criterion(&one.criterion) == Some(at));
        if let Some(at) = standing.filter(|at| !is_given(*at)) {
            let met = answer.passed || given.iter().any(|one| !one.met);
            let reason =
                trim_non_empty(answer.feedback.as_deref()).unwrap_or_else(|| answer.reasoning.clone());
            let criterion = format!("C{}", at + 1);
            given.push(CriterionJudgement { criterion, gap: (!met).then_some(reason), met });
        }
        given
    }

    /// Assigns judgements to the requested criteria, in their order, followed by the critic's own; also returns the
    /// numbers of the omitted ones.
    fn assign_judgements(&self, judgements: &[CriterionJudgement]) -> (Vec<CriterionJudgement>, Vec<String>) {
        let mut requested: Vec<Option<CriterionJudgement>> = vec![None; self.criteria.len()];
        let mut own: Vec<CriterionJudgement> = Vec::new();
        for one in judgements {
            match self.find_criterion(&one.criterion) {
                Some(at) => {
                    let criterion = self.criteria[at].clone();
                    let before = requested[at].take();
                    requested[at] =
                        Some(merge_judgements(before, CriterionJudgement { criterion, ..one.clone() }));
                }
                None => own.push(merge_judgements(None, one.clone())),
            }
        }
        let numbers = (1..).zip(&requested).filter(|(_, one)| one.is_none()).map(|(n, _)| format!("C{n}"));
        let left_out = numbers.collect();
        let missing = |at: usize| CriterionJudgement {
            criterion: self.criteria[at].clone(),
            gap: Some(LEFT_OUT.to_owned()),
            met: false,
        };
        let requested = requested.into_iter().enumerate().map(|(at, one)| one.unwrap_or_else(|| missing(at)));
        (requested.chain(own).collect(), left_out)
    }

    /// The index of the criterion that a model refers to: by its own words, or by its number and possibly more.
    fn find_criterion(&self, text: &str) -> Option<usize> {
        let plain = |text: &str| collapse_whitespace(text).trim_end_matches('.').to_lowercase();
        let same = self.criteria.iter().position(|criterion| plain(criterion) == plain(text));
        same.or_else(|| {
            let text = text.trim();
            let numbered = text.strip_prefix(['C', 'c']).unwrap_or(text);
            let digits = numbered.bytes().take_while(u8::is_ascii_digit).count();
            let ends = numbered[digits..].chars().next().is_none_or(|next| !next.is_alphanumeric());
            let number: usize = numbered[..digits].parse().ok().filter(|_| ends)?;
            number.checked_sub(1).filter(|at| *at < self.criteria.len())
        })
    }
}

/// Merges two judgements of one criterion: it is met if both are.
fn merge_judgements(before: Option<CriterionJudgement>, next: CriterionJudgement) -> CriterionJudgement {
    let met = next.met && before.as_ref().is_none_or(|before| before.met);
    let gap = trim_non_empty(before.and_then(|before| before.gap).as_deref())
        .or_else(|| trim_non_empty(next.gap.as_deref()));
    CriterionJudgement { met, gap: gap.filter(|_| !met), ..next }
}

fn trim_non_empty(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

impl Judgement {
    /// Computes whether the result passes from the criteria, and completes the feedback.
    fn with_computed_verdict(mut self) -> Self {
        self.passed = self.criteria.iter().all(|one| one.met);
        self.confidence = self.confidence.filter(|confidence| (0.0..=1.0).contains(confidence));
        if !self.passed && self.feedback.is_none() {
            self.feedback = Some(self.build_fallback_feedback());
        }
        self
    }

    /// Feedback for a rejection that has none: the unmet criteria and the reasoning.
    fn build_fallback_feedback(&self) -> String {
        let failed = self.criteria.iter().filter(|one| !one.met);
        let lines = failed.map(|one| match &one.gap {
            Some(gap) => format!("Not met: {} {gap}", one.criterion),
            None => format!("Not met: {}", one.criterion),
        });
        lines.chain(trim_non_empty(Some(&self.reasoning))).collect::<Vec<_>>().join("\n")
    }

    /// Converts the judgement to a verdict.
    pub fn to_verdict(&self) -> Verdict {
        let outcome = |one: &CriterionJudgement| CriterionOutcome {
            criterion: one.criterion.clone(),
            met: one.met,
            gap: one.gap.clone(),
        };
        Verdict {
            passed: self.passed,
            criteria: self.criteria.iter().map(outcome).collect(),
            reasoning: self.reasoning.clone(),
            feedback: self.feedback.clone().filter(|_| !self.passed),
            confidence: self.confidence,
            ..Verdict::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_id() -> TaskId {
        TaskId::new("t").unwrap()
    }

    fn sample_criteria() -> Vec<String> {
        vec!["It names the law.".into(), "It is  short".into()]
    }

    fn parse_judgement(value: Value) -> Judgement {
        Judgement::parse_answer(&value.to_string()).unwrap()
    }

    fn correction_for(value: Value) -> String {
        JudgementValidator::new(&task_id(), &sample_criteria())
            .validate_judgement(parse_judgement(value))
            .unwrap_err()
    }

    fn validate(value: Value) -> Result<Verdict, String> {
        let judged = JudgementValidator::new(&task_id(), &sample_criteria())
            .validate_judgement(parse_judgement(value));
        judged.map(|judgement| judgement.to_verdict())
    }

    #[test]
    fn the_form_has_a_bounded_key_per_criterion_and_asks_for_no_verdict() {
        for ability in crate::model::ModelAbility::ALL {
            let schema = judgement_schema("verdict", 2, ability).schema;
            assert_eq!(schema["required"], json!(["C1", "C2", "reasoning"]));
            assert_eq!(schema["additionalProperties"], json!(false));
            assert_eq!(schema["properties"]["C1"]["properties"]["gap"]["maxLength"], 300);
            assert!(schema["properties"].get("passed").is_none() && schema["properties"].get("C3").is_none());
        }
    }

    #[test]
    fn the_verdict_is_computed_from_the_criteria() {
        let keyed = |second: bool| json!({"C1": {"met": true}, "C2": {"gap": "long", "met": second}, "reasoning": "r"});
        assert!(validate(keyed(true)).unwrap().passed);
        let rejected = validate(keyed(false)).unwrap();
        assert_eq!((rejected.passed, rejected.find_inconsistency()), (false, None));
        assert_eq!(rejected.feedback.as_deref(), Some("Not met: It is  short long\nr"));
        // A list, whose redundant field contradicts its criteria.
        let met = |first: bool| json!([{"criterion": "C1", "met": first}, {"criterion": "C2", "met": true}]);
        for (first, claimed) in [(true, false), (false, true)] {
            let answer =
                json!({"criteria": met(first), "reasoning": "r", "passed": claimed, "confidence": 7});
            assert!(Judgement::is_other_form(&answer, &Value::Null));
            let verdict = validate(answer).unwrap();
            assert_eq!((verdict.passed, verdict.find_inconsistency()), (first, None), "{claimed}");
        }
        // Without a key of its own, the standing criterion is what `passed` is about.
        let (task, criteria) = (task_id(), [sample_criteria(), vec![ANSWERS.to_owned()]].concat());
        for passed in [true, false] {
            let answer =
                json!({"criteria": met(true), "reasoning": "It misses the point.", "passed": passed});
            let judged =
                JudgementValidator::new(&task, &criteria).validate_judgement(parse_judgement(answer));
            let verdict = judged.unwrap().to_verdict();
            assert_eq!((verdict.passed, verdict.find_inconsistency()), (passed, None));
            assert_eq!(verdict.criteria[2].gap.as_deref(), (!passed).then_some("It misses the point."));
        }
    }

    #[test]
    fn criteria_are_matched_by_number_or_words() {
        let (task, criteria) = (task_id(), sample_criteria());
        let number = |text: &str| JudgementValidator::new(&task, &criteria).find_criterion(text);
        for (text, expected) in [
            ("C1", Some(0)),
            ("c2", Some(1)),
            ("2", Some(1)),
            ("C1: It names the law", Some(0)),
            (" 2. short", Some(1)),
            ("it is short.", Some(1)),
            ("C0", None),
            ("C3", None),
            ("C1st", None),
            ("Clear", None),
            ("", None),
            ("it is shorter", None),
        ] {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }

    #[test]
    fn criteria_keep_their_own_words_and_appear_once() {
        let answer = parse_judgement(json!({
            "task_id": "t",
            "criteria": [
                {"criterion": "C2", "met": true, "gap": ""},
                {"criterion": "It quotes.", "met": true},
                {"criterion": "C1", "met": true},
                {"criterion": "C1", "met": false, "gap": "which law?"}
            ],
            "reasoning": "r", "passed": false, "feedback": "name it", "confidence": 0.5
        }));
        let verdict = JudgementValidator::new(&task_id(), &sample_criteria())
            .validate_judgement(answer)
            .unwrap()
            .to_verdict();
        let shown: Vec<(&str, bool, Option<&str>)> = verdict
            .criteria
            .iter()
            .map(|one| (one.criterion.as_str(), one.met, one.gap.as_deref()))
            .collect();
        let expected = [
            ("It names the law.", false, Some("which law?")),
            ("It is  short", true, None),
            ("It quotes.", true, None),
        ];
        assert_eq!(shown, expected);
        assert_eq!((verdict.find_inconsistency(), verdict.confidence), (None, Some(0.5)));
        assert_eq!(verdict.feedback.as_deref(), Some("name it"));
    }

    #[test]
    fn corrections_are_worded_for_the_model() {
        let met = |first: bool| json!([{"criterion": "C1", "met": first}, {"criterion": "C2", "met": true}]);
        for (value, expected) in [
            (
                json!({"task_id": "u", "criteria": met(true), "reasoning": "", "passed": true}),
                "You judge the result of the task t, but 'task_id' names \"u\".",
            ),
            (
                json!({"criteria": [], "reasoning": "", "passed": true}),
                "'criteria' leaves out C1, C2. Judge every criterion up to C2 in one answer.",
            ),
        ] {
            let text = correction_for(value);
            assert!(text.starts_with(expected), "{text}\n{expected}");
        }
        assert!(Judgement::parse_answer("no").unwrap_err().starts_with("The answer is not one JSON object"));
    }

    #[test]
    fn a_rejection_without_feedback_gets_its_reasons_as_feedback() {
        let (task, criteria) = (task_id(), sample_criteria());
        let check = JudgementValidator::new(&task, &criteria);
        let answer = parse_judgement(json!({
            "criteria": [{"criterion": "C1", "met": false, "gap": "Which?"}, {"criterion": "C2", "met": false}],
            "reasoning": "It is vague.", "passed": false
        }));
        let feedback = check.validate_judgement(answer).unwrap().to_verdict().feedback.unwrap();
        assert_eq!(feedback, "Not met: It names the law. Which?\nNot met: It is  short\nIt is vague.");
    }

    #[test]
    fn a_criterion_omitted_twice_is_not_met() {
        let (task, criteria) = (task_id(), sample_criteria());
        let check = JudgementValidator::new(&task, &criteria);
        let answer = parse_judgement(json!({
            "criteria": [{"criterion": "C2", "met": true}], "reasoning": "fine", "passed": true
        }));
        let correction = check.validate_judgement(answer.clone()).unwrap_err();
        assert_eq!(correction, "'criteria' leaves out C1. Judge every criterion up to C2 in one answer.");
        let verdict = check.validate_judgement(answer).unwrap().to_verdict();
        assert_eq!((verdict.passed, verdict.find_inconsistency()), (false, None));
        assert_eq!(verdict.criteria[0].gap.as_deref(), Some(LEFT_OUT));
        assert!(verdict.feedback.is_some());
    }
}
