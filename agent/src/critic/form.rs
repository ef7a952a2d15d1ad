//! The form of a critic's answer and what makes one unusable. It owns the corrections that a model is told; what a
//! verdict means for the task is the rules'.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{CriterionOutcome, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::citations::fold;
use crate::model::AnswerSchema;
use crate::tool::{read_json, schema_of};
use crate::turn::Answer;

/// What a criterion is told that a critic does not speak of, asked twice.
const LEFT_OUT: &str = "The critic did not say whether it is met.";

/// What a critic is told that rejects a result and gives the next attempt nothing to go by.
const MUTE: &str =
    "The verdict rejects the result without 'feedback': say what the next attempt must do differently.";

/// What a critic answers. The reasons stand before what rests on them: models write in this order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judgement {
    /// The task whose result this judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Every criterion with its outcome.
    #[schemars(length(min = 1))]
    pub criteria: Vec<Answered>,
    /// Why, in a few sentences.
    pub reasoning: String,
    /// Where it does not pass: what the next attempt must do differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Whether the result is accepted: exactly if all criteria are met.
    pub passed: bool,
    /// How sure you are, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// One criterion of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    /// Its number, such as C1; one without a number in your own words.
    pub criterion: String,
    /// What is missing, where it is not met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
    /// Whether the result meets it.
    pub met: bool,
}

impl Answer for Judgement {
    fn schema(name: &str) -> Option<AnswerSchema> {
        Some(AnswerSchema { name: name.to_owned(), schema: schema_of::<Self>() })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value =
            read_json(text).map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
        serde_json::from_value(value)
            .map_err(|mistake| format!("The answer does not fit its schema: {mistake}."))
    }
}

/// What an answer is held to. It remembers what the model was told, so that a resume, which shows it the same answers in
/// the same order, comes to the same.
pub(crate) struct Asked<'a> {
    task: &'a TaskId,
    criteria: &'a [String],
    /// Whether the model was told that it had left a criterion out.
    was_told: AtomicBool,
    /// Whether it was told that it had rejected the result without feedback.
    was_told_of_feedback: AtomicBool,
}

impl<'a> Asked<'a> {
    pub fn new(task: &'a TaskId, criteria: &'a [String]) -> Self {
        Self {
            task,
            criteria,
            was_told: AtomicBool::new(false),
            was_told_of_feedback: AtomicBool::new(false),
        }
    }

    /// The answer with the criteria in their own words, each once.
    ///
    /// # Errors
    /// What is wrong with it, as the model reads it.
    pub fn check(&self, given: Judgement) -> Result<Judgement, String> {
        if let Some(other) = given.task_id.as_deref().filter(|id| id.trim() != self.task.as_str()) {
            let other: String = other.chars().take(80).collect();
            return Err(format!(
                "You judge the result of the task {}, and 'task_id' names {other:?}.",
                self.task
            ));
        }
        let (criteria, left_out) = self.told_apart(&given.criteria);
        let mut judged = Judgement { criteria, feedback: said(given.feedback.as_deref()), ..given };
        if !left_out.is_empty() {
            if !self.was_told.swap(true, Ordering::Relaxed) {
                return Err(format!(
                    "'criteria' leaves out {}. Speak of every criterion up to C{} in one answer.",
                    left_out.join(", "),
                    self.criteria.len()
                ));
            }
            // Whoever is asked twice and does not say that something is met does not know it to be.
            (judged.passed, judged.feedback) = (false, judged.feedback.or(Some(LEFT_OUT.to_owned())));
        }
        if let Some(contradiction) = judged.verdict().inconsistency() {
            return Err(format!("The verdict contradicts itself: {contradiction}."));
        }
        if !judged.passed && judged.feedback.is_none() {
            if !self.was_told_of_feedback.swap(true, Ordering::Relaxed) {
                return Err(MUTE.to_owned());
            }
            judged.feedback = Some(judged.reasons());
        }
        Ok(judged)
    }

    /// The criteria that were asked for, in their order, and then the critic's own; and the numbers of those that it
    /// says nothing of.
    fn told_apart(&self, given: &[Answered]) -> (Vec<Answered>, Vec<String>) {
        let mut asked: Vec<Option<Answered>> = vec![None; self.criteria.len()];
        let mut own: Vec<Answered> = Vec::new();
        for one in given {
            match self.number(&one.criterion) {
                Some(at) => {
                    let criterion = self.criteria[at].clone();
                    let before = asked[at].take();
                    asked[at] = Some(both(before, Answered { criterion, ..one.clone() }));
                }
                None => own.push(both(None, one.clone())),
            }
        }
        let numbers = (1..).zip(&asked).filter(|(_, one)| one.is_none()).map(|(n, _)| format!("C{n}"));
        let left_out = numbers.collect();
        let missing = |at: usize| Answered {
            criterion: self.criteria[at].clone(),
            gap: Some(LEFT_OUT.to_owned()),
            met: false,
        };
        let asked = asked.into_iter().enumerate().map(|(at, one)| one.unwrap_or_else(|| missing(at)));
        (asked.chain(own).collect(), left_out)
    }

    /// Which criterion a model means, from 0: by its own words, or by its number and perhaps more.
    fn number(&self, said: &str) -> Option<usize> {
        let plain = |text: &str| fold(text).trim_end_matches('.').to_lowercase();
        let same = self.criteria.iter().position(|criterion| plain(criterion) == plain(said));
        same.or_else(|| {
            let said = said.trim();
            let numbered = said.strip_prefix(['C', 'c']).unwrap_or(said);
            let digits = numbered.bytes().take_while(u8::is_ascii_digit).count();
            let ends = numbered[digits..].chars().next().is_none_or(|next| !next.is_alphanumeric());
            let number: usize = numbered[..digits].parse().ok().filter(|_| ends)?;
            number.checked_sub(1).filter(|at| *at < self.criteria.len())
        })
    }
}

/// A criterion that is spoken of twice is met if both say so.
fn both(before: Option<Answered>, next: Answered) -> Answered {
    let met = next.met && before.as_ref().is_none_or(|before| before.met);
    let gap = said(before.and_then(|before| before.gap).as_deref()).or_else(|| said(next.gap.as_deref()));
    Answered { met, gap: gap.filter(|_| !met), ..next }
}

fn said(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

impl Judgement {
    /// What the next attempt can take from a rejection that does not say what to do.
    fn reasons(&self) -> String {
        let failed = self.criteria.iter().filter(|one| !one.met);
        let told = failed.map(|one| match &one.gap {
            Some(gap) => format!("Not met: {} {gap}", one.criterion),
            None => format!("Not met: {}", one.criterion),
        });
        told.chain(said(Some(&self.reasoning))).collect::<Vec<_>>().join("\n")
    }

    /// The verdict that it is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let outcome = |one: &Answered| CriterionOutcome {
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
    use serde_json::{Value, json};

    use super::*;

    fn task() -> TaskId {
        TaskId::new("t").unwrap()
    }

    fn criteria() -> Vec<String> {
        vec!["It names the law.".into(), "It is  short".into()]
    }

    fn judgement(value: Value) -> Judgement {
        Judgement::parse(&value.to_string()).unwrap()
    }

    fn told(value: Value) -> String {
        Asked::new(&task(), &criteria()).check(judgement(value)).unwrap_err()
    }

    #[test]
    fn a_verdict_is_asked_for_with_its_reasons_first() {
        let schema = Judgement::schema("verdict").unwrap().schema;
        let names =
            |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let all = ["task_id", "criteria", "reasoning", "feedback", "passed", "confidence"];
        assert_eq!(names(&schema), all);
        assert_eq!(names(&schema["properties"]["criteria"]["items"]), ["criterion", "gap", "met"]);
        assert_eq!(schema["required"], json!(["criteria", "reasoning", "passed"]));
    }

    #[test]
    fn criteria_are_known_by_their_numbers_and_by_their_words() {
        let (task, criteria) = (task(), criteria());
        let number = |said: &str| Asked::new(&task, &criteria).number(said);
        for (said, expected) in [
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
            assert_eq!(number(said), expected, "{said:?}");
        }
    }

    #[test]
    fn a_good_verdict_has_the_criteria_in_their_own_words_and_each_once() {
        let given = judgement(json!({
            "task_id": "t",
            "criteria": [
                {"criterion": "C2", "met": true, "gap": ""},
                {"criterion": "It quotes.", "met": true},
                {"criterion": "C1", "met": true},
                {"criterion": "C1", "met": false, "gap": "which law?"}
            ],
            "reasoning": "r", "passed": false, "feedback": "name it", "confidence": 0.5
        }));
        let verdict = Asked::new(&task(), &criteria()).check(given).unwrap().verdict();
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
        assert_eq!((verdict.inconsistency(), verdict.confidence), (None, Some(0.5)));
        assert_eq!(verdict.feedback.as_deref(), Some("name it"));
    }

    #[test]
    fn what_is_wrong_with_a_verdict_is_told_in_words_the_model_can_act_on() {
        let met = |first: bool| json!([{"criterion": "C1", "met": first}, {"criterion": "C2", "met": true}]);
        for (value, expected) in [
            (
                json!({"task_id": "u", "criteria": met(true), "reasoning": "", "passed": true}),
                "You judge the result of the task t, and 'task_id' names \"u\".",
            ),
            (
                json!({"criteria": met(false), "reasoning": "", "passed": true}),
                "The verdict contradicts itself: it passes a result with a criterion that is not met.",
            ),
            (
                json!({"criteria": met(true), "reasoning": "", "passed": false, "feedback": "x"}),
                "The verdict contradicts itself: it rejects a result that meets every criterion.",
            ),
            (
                json!({"criteria": met(false), "reasoning": "", "passed": false, "feedback": " "}),
                "The verdict rejects the result without 'feedback'",
            ),
            (
                json!({"criteria": met(true), "reasoning": "", "passed": true, "confidence": 2}),
                "The verdict contradicts itself: its confidence is not between 0 and 1.",
            ),
            (
                json!({"criteria": [], "reasoning": "", "passed": true}),
                "'criteria' leaves out C1, C2. Speak of every criterion up to C2 in one answer.",
            ),
        ] {
            let told = told(value);
            assert!(told.starts_with(expected), "{told}\n{expected}");
        }
        let none = Asked::new(&task(), &[]).check(Judgement { passed: true, ..Judgement::default() });
        assert_eq!(none.unwrap_err(), "The verdict contradicts itself: it names no criteria.");
        assert!(Judgement::parse("no").unwrap_err().starts_with("The answer is not one JSON object"));
    }

    #[test]
    fn a_rejection_that_stays_without_feedback_gives_its_reasons_in_place_of_it() {
        let (task, criteria) = (task(), criteria());
        let asked = Asked::new(&task, &criteria);
        let given = judgement(json!({
            "criteria": [{"criterion": "C1", "met": false, "gap": "Which?"}, {"criterion": "C2", "met": false}],
            "reasoning": "It is vague.", "passed": false
        }));
        assert_eq!(asked.check(given.clone()).unwrap_err(), MUTE);
        let feedback = asked.check(given).unwrap().verdict().feedback.unwrap();
        assert_eq!(feedback, "Not met: It names the law. Which?\nNot met: It is  short\nIt is vague.");
    }

    #[test]
    fn a_criterion_that_is_left_out_twice_is_not_met() {
        let (task, criteria) = (task(), criteria());
        let asked = Asked::new(&task, &criteria);
        let given = judgement(json!({
            "criteria": [{"criterion": "C2", "met": true}], "reasoning": "fine", "passed": true
        }));
        let told = asked.check(given.clone()).unwrap_err();
        assert_eq!(told, "'criteria' leaves out C1. Speak of every criterion up to C2 in one answer.");
        let verdict = asked.check(given).unwrap().verdict();
        assert_eq!((verdict.passed, verdict.inconsistency()), (false, None));
        assert_eq!(verdict.criteria[0].gap.as_deref(), Some(LEFT_OUT));
        assert!(verdict.feedback.is_some());
    }
}
