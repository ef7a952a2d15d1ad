//! Approvals: the rules of a capability file that say which calls of an agent need a person, and the questions that such calls
//! and the tool `ask_user` put. A question parks the attempt, so that nothing is used up until somebody answers.
//!
//! # Invariants
//!
//! - I113: A call that needs an approval runs only as it was approved, at most once, and never after a rejection, across crashes
//!   and changes of its capability file; the other calls of its turn run at once.
//!   (`crates/agent/tests/turn/approvals.rs::approved_calls_run_once_whenever_the_worker_is_lost`,
//!   `crates/agent/tests/turn/approvals.rs::calls_run_as_they_were_approved_and_the_others_at_once`,
//!   `crates/agent/tests/turn/approvals.rs::answers_count_after_the_rules_have_changed`,
//!   `crates/agent/tests/turn/approvals.rs::answers_do_not_apply_to_other_calls_after_the_tools_have_changed`,
//!   `tests/tests/questions.rs::agent_runs_the_edited_call_on_another_worker`,
//!   `tests/tests/questions.rs::kills_lose_no_question_and_no_answer`)

use std::time::Duration;

use millrace_protocol::question::{
    AnswerKind, ExpiryAction, MAX_QUESTION_TEXT, Question, QuestionExpiry, QuestionSubject,
};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::corpus::encode_hex;

/// The longest time after which a question expires, in seconds: a year.
const MAX_EXPIRY: u32 = 31_536_000;
/// The largest number of proposed answers.
const MAX_OPTIONS: usize = 20;
/// The maximum length of a proposed answer, in bytes.
const MAX_OPTION: usize = 500;
/// The answers that a rule allows by default.
const DEFAULT_DECISIONS: [AnswerKind; 3] = [AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject];
/// The answers that are possible for a tool call.
const CALL_DECISIONS: [AnswerKind; 4] =
    [AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject, AnswerKind::Respond];

/// A rule of a capability file: calls of a tool that need a person's approval before they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRule {
    /// The name of the tool. `*` at its end stands for any rest, such as `github_*` for the tools of an MCP server.
    pub tool: String,
    /// The condition on an argument; without one, every call needs an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ArgumentCondition>,
    /// The allowed answers; approve, edit and reject by default. `respond`: the person's text is the result of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<AnswerKind>,
    /// A text for the person: what the call does, and what to look at.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The person or role that should answer, for people who read the list of questions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// The number of seconds after which the question expires; never by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub expires_s: Option<u32>,
    /// The consequence of an expired question; `reject` by default. It is never an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<ExpiryAction>,
    /// The person or role that gets the question when it expires, for `on_expiry: escalate`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub escalate_to: String,
}

/// A condition on an argument of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArgumentCondition {
    /// The name of the argument.
    pub argument: String,
    /// A regular expression; the condition holds if it matches anywhere in the argument, as JSON if that is no text.
    pub matches: String,
}

/// The compiled approval rules of a capability. The first rule that fits a call applies.
#[derive(Debug, Clone, Default)]
pub struct ApprovalRules(Vec<CompiledApprovalRule>);

#[derive(Debug, Clone)]
struct CompiledApprovalRule {
    rule: ApprovalRule,
    pattern: Option<Regex>,
    expiry: Option<QuestionExpiry>,
}

impl ApprovalRules {
    /// Compiles rules.
    pub fn compile(rules: Vec<ApprovalRule>) -> Result<Self, String> {
        rules.into_iter().map(CompiledApprovalRule::compile).collect::<Result<_, _>>().map(Self)
    }

    /// The tools that the rules name.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|rule| rule.rule.tool.as_str())
    }

    /// Returns the question for a call that needs an approval; `None` if it needs none. `reason` is the tool's own reason, if it has
    /// one; `schema` is the schema of its arguments.
    pub fn question_for_call(
        &self,
        tool: &str,
        arguments: &Value,
        reason: Option<String>,
        schema: Option<&Value>,
    ) -> Option<Question> {
        let fitting = self.0.iter().find(|rule| rule.fits(tool, arguments));
        if fitting.is_none() && reason.is_none() {
            return None;
        }
        let description =
            fitting.map(|fitting| fitting.rule.description.clone()).filter(|text| !text.is_empty());
        let text = description.or(reason).unwrap_or_else(|| format!("the agent wants to call {tool}"));
        let asked = approval_question(tool, arguments, &text, schema);
        let Some(CompiledApprovalRule { rule, expiry, .. }) = fitting else { return Some(asked) };
        let decisions =
            if rule.decisions.is_empty() { asked.decisions.clone() } else { rule.decisions.clone() };
        Some(Question { decisions, to: rule.to.clone(), expiry: expiry.clone(), ..asked })
    }
}

/// Reads the expiry of a question as capability files and plans write it.
pub(crate) fn read_expiry(
    expires_s: Option<u32>,
    on_expiry: Option<ExpiryAction>,
    escalate_to: &str,
) -> Result<Option<QuestionExpiry>, String> {
    if expires_s.is_none() && on_expiry.is_some() {
        return Err("\"on_expiry\" needs \"expires_s\": the question never expires without it".into());
    }
    if (on_expiry == Some(ExpiryAction::Escalate)) == escalate_to.is_empty() {
        return Err("\"on_expiry\": escalate and \"escalate_to\" belong together".into());
    }
    let Some(seconds) = expires_s else { return Ok(None) };
    if !(1..=MAX_EXPIRY).contains(&seconds) {
        return Err(format!("\"expires_s\" must be from 1 to {MAX_EXPIRY}"));
    }
    let after = Duration::from_secs(seconds.into());
    let action = on_expiry.unwrap_or(ExpiryAction::Reject);
    Ok(Some(QuestionExpiry { after, action, escalate_to: escalate_to.to_owned() }))
}

impl CompiledApprovalRule {
    fn compile(rule: ApprovalRule) -> Result<Self, String> {
        let pattern = rule.when.as_ref().map(|when| {
            Regex::new(&when.matches)
                .map_err(|error| format!("{:?} is no regular expression: {error}", when.matches))
        });
        let pattern = pattern.transpose()?;
        if let Some(kind) = rule.decisions.iter().find(|kind| !CALL_DECISIONS.contains(kind)) {
            let allowed = CALL_DECISIONS.map(AnswerKind::name).join(", ");
            return Err(format!("{kind} is no answer to a tool call; use {allowed}"));
        }
        if !rule.decisions.is_empty() && !rule.decisions.contains(&AnswerKind::Reject) {
            return Err("\"decisions\" must contain reject, so that a person can refuse".into());
        }
        let expiry = read_expiry(rule.expires_s, rule.on_expiry, &rule.escalate_to)?;
        Ok(Self { rule, pattern, expiry })
    }

    fn fits(&self, tool: &str, arguments: &Value) -> bool {
        let fits_name = match self.rule.tool.strip_suffix('*') {
            Some(beginning) => tool.starts_with(beginning),
            None => self.rule.tool == tool,
        };
        let Some((when, pattern)) = self.rule.when.as_ref().zip(self.pattern.as_ref()) else {
            return fits_name;
        };
        let is_match = |argument: &Value| match argument.as_str() {
            Some(text) => pattern.is_match(text),
            None => pattern.is_match(&argument.to_string()),
        };
        fits_name && arguments.get(&when.argument).is_some_and(is_match)
    }
}

/// Creates the question for the approval of an action with these arguments. `text` says what the action does; `schema` is that of the
/// arguments, which edited ones must fit.
#[must_use]
pub fn approval_question(action: &str, arguments: &Value, text: &str, schema: Option<&Value>) -> Question {
    let schema = schema.map(Value::to_string).filter(|schema| schema.len() <= MAX_QUESTION_TEXT);
    let whole = arguments.to_string();
    Question {
        digest: digest_of_call(action, &whole),
        subject: QuestionSubject::Approval {
            tool: action.to_owned(),
            arguments: cut(whole),
            schema: schema.unwrap_or_default(),
        },
        text: cut(text.to_owned()),
        decisions: DEFAULT_DECISIONS.to_vec(),
        to: String::new(),
        expiry: None,
    }
}

/// Checks the parts of a question to a person.
pub fn check_input(text: &str, options: &[String], schema: Option<&Value>) -> Result<(), String> {
    if text.trim().is_empty() || text.len() > MAX_QUESTION_TEXT {
        return Err(format!("a question has 1 to {MAX_QUESTION_TEXT} bytes"));
    }
    if options.len() > MAX_OPTIONS || options.iter().any(|option| option.len() > MAX_OPTION) {
        return Err(format!("at most {MAX_OPTIONS} options of {MAX_OPTION} bytes each are possible"));
    }
    let Some(schema) = schema else { return Ok(()) };
    if schema.to_string().len() > MAX_QUESTION_TEXT {
        return Err(format!("the schema is longer than {MAX_QUESTION_TEXT} bytes"));
    }
    match jsonschema::validator_for(schema) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("\"schema\" is not a valid JSON Schema: {error}")),
    }
}

/// Creates the question of an agent to a person. `options` are proposed answers, `schema` is that of the answer.
#[must_use]
pub fn input_question(text: &str, options: Vec<String>, schema: Option<&Value>) -> Question {
    let schema = schema.map(Value::to_string).unwrap_or_default();
    let digest = hash(&["input", text, &options.join("\n"), &schema]);
    Question {
        subject: QuestionSubject::Input { options, schema },
        text: cut(text.to_owned()),
        digest,
        decisions: vec![AnswerKind::Answer, AnswerKind::Decline],
        to: String::new(),
        expiry: None,
    }
}

/// The digest of a call: SHA-256 of the tool and its arguments as JSON, each after its length.
pub(crate) fn digest_of_call(tool: &str, arguments: &str) -> String {
    hash(&["call", tool, arguments])
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    encode_hex(&hasher.finalize())
}

/// Cuts a text to the length that a question may have.
fn cut(mut text: String) -> String {
    const MARK: &str = "…";
    if text.len() > MAX_QUESTION_TEXT {
        let end = text.floor_char_boundary(MAX_QUESTION_TEXT - MARK.len());
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(rules: Value) -> Result<ApprovalRules, String> {
        ApprovalRules::compile(serde_json::from_value(rules).unwrap())
    }

    #[test]
    fn the_first_rule_that_fits_a_call_asks() {
        let rules = rules(json!([
            {"tool": "execute", "when": {"argument": "command", "matches": "rm|sudo"}, "decisions": ["approve", "reject", "respond"], "to": "ops"},
            {"tool": "github_*", "expires_s": 60}
        ]))
        .unwrap();
        let ask = |tool: &str, arguments: Value| rules.question_for_call(tool, &arguments, None, None);
        assert!(ask("execute", json!({"command": "ls"})).is_none());
        assert!(ask("execute", json!({})).is_none());
        let asked = ask("execute", json!({"command": "sudo reboot"})).unwrap();
        assert_eq!((asked.to.as_str(), asked.decisions.len(), asked.expiry), ("ops", 3, None));
        assert!(ask("execute", json!({"command": ["sudo"]})).is_some(), "an argument that is no text");
        let expiry = ask("github_delete", json!({})).unwrap().expiry.unwrap();
        assert_eq!((expiry.after.as_secs(), expiry.action), (60, ExpiryAction::Reject));
        assert!(ask("git", json!({})).is_none());
        let own = rules.question_for_call("write_file", &json!({}), Some("by permission".into()), None);
        assert_eq!(own.unwrap().text, "by permission");
    }

    #[test]
    fn digests_differ_with_tool_and_arguments() {
        let all = [("a", "{}"), ("b", "{}"), ("a", r#"{"x":1}"#), ("a{", "}")];
        let digests: std::collections::BTreeSet<_> =
            all.iter().map(|(tool, with)| digest_of_call(tool, with)).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn mistakes_in_rules_are_refused() {
        for (rule, mistake) in [
            (json!([{"tool": "a", "when": {"argument": "x", "matches": "("}}]), "is no regular expression"),
            (
                json!([{"tool": "a", "decisions": ["decline", "reject"]}]),
                "decline is no answer to a tool call",
            ),
            (json!([{"tool": "a", "decisions": ["approve"]}]), "must contain reject"),
            (json!([{"tool": "a", "on_expiry": "reject"}]), "needs \"expires_s\""),
            (json!([{"tool": "a", "expires_s": 0}]), "must be from 1"),
            (json!([{"tool": "a", "expires_s": 9, "on_expiry": "escalate"}]), "belong together"),
        ] {
            let refused = rules(rule).unwrap_err();
            assert!(refused.contains(mistake), "{refused}");
        }
    }

    #[test]
    fn long_arguments_are_cut_and_hashed_as_a_whole() {
        let rules = rules(json!([{"tool": "write_file"}])).unwrap();
        let ask = |end: &str| {
            let arguments = json!({"content": "ä".repeat(MAX_QUESTION_TEXT) + end});
            rules.question_for_call("write_file", &arguments, None, None).unwrap()
        };
        let QuestionSubject::Approval { arguments, .. } = ask("1").subject else { panic!("an approval") };
        assert!(arguments.len() <= MAX_QUESTION_TEXT && arguments.ends_with('…'));
        assert_ne!(ask("1").digest, ask("2").digest);
    }
}
