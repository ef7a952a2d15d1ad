//! Questions of a run as permission requests: each decision that the question allows is an option. A question that needs a
//! text is a message, and the next prompt is its answer. Pure.

use agent_client_protocol::schema::v1::{
    PermissionOption, PermissionOptionId, PermissionOptionKind, ToolKind,
};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::RunQuestion;
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope, Question, QuestionSubject};
use millrace_protocol::safe_text::{single_line, terminal_text};
use serde_json::Value;

use super::updates::{call_title, kind_of_tool};
use crate::invocation::command_hint;
use crate::questions::{full_id, json_text};

/// The reason that an agent or planner reads if a person rejects something in the editor, which asks for no reason.
const NO_REASON: &str = "rejected in the editor without a reason";

/// An option of a permission request, with the answer that it stands for.
#[derive(Debug, Clone)]
pub struct Choice {
    pub option: PermissionOption,
    pub answer: Answer,
    pub scope: AnswerScope,
}

/// A question as the editor shows it.
#[derive(Debug, Clone)]
pub struct ShownQuestion {
    pub title: String,
    pub kind: ToolKind,
    pub text: String,
    /// The arguments of the tool call that needs an approval; `null` for other questions.
    pub arguments: Value,
    /// The options; empty if the answer is a text.
    pub choices: Vec<Choice>,
}

impl ShownQuestion {
    pub fn new(run: &RunId, record: &RunQuestion<'_>) -> Self {
        let question = record.question;
        let (title, kind, arguments) = match &question.subject {
            QuestionSubject::Approval { tool, arguments, .. } => {
                // Long arguments are cut, and are no JSON then.
                let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.as_str().into());
                (call_title(tool, &arguments), kind_of_tool(tool), arguments)
            }
            QuestionSubject::Input { .. } => (single_line(&question.text), ToolKind::Other, Value::Null),
            QuestionSubject::Review { .. } => ("Review of a result".into(), ToolKind::Think, Value::Null),
            QuestionSubject::Plan { tasks } => {
                (format!("Approval of the plan with {tasks} tasks"), ToolKind::Think, Value::Null)
            }
        };
        let text = question_text(run, record, &arguments);
        Self { title, kind, text, arguments, choices: choices_of(question) }
    }

    pub fn find_choice(&self, id: &str) -> Option<&Choice> {
        self.choices.iter().find(|choice| *choice.option.option_id.0 == *id)
    }
}

/// Returns the text of a question with all that a decision needs.
fn question_text(run: &RunId, record: &RunQuestion<'_>, arguments: &Value) -> String {
    let question = record.question;
    let mut lines = vec![terminal_text(&question.text)];
    match &question.subject {
        QuestionSubject::Approval { tool, .. } => {
            let arguments = arguments.as_str().map_or_else(|| format!("{arguments:#}"), str::to_owned);
            lines.push(format!("{}\n{}", single_line(tool), terminal_text(&arguments)));
        }
        QuestionSubject::Review { summary, criteria, critic } => {
            lines.push(terminal_text(summary));
            lines.extend(criteria.iter().map(|criterion| format!("- {}", single_line(criterion))));
            if !critic.is_empty() {
                lines.push(format!("The critic: {}", single_line(critic)));
            }
        }
        QuestionSubject::Input { .. } | QuestionSubject::Plan { .. } => {}
    }
    if !question.to.is_empty() {
        lines.push(format!("For: {}", single_line(&question.to)));
    }
    let other: Vec<&str> = question
        .decisions
        .iter()
        .filter_map(|kind| match kind {
            AnswerKind::Edit => Some("--edit FILE"),
            AnswerKind::Respond => Some("--respond TEXT"),
            AnswerKind::Approve
            | AnswerKind::Reject
            | AnswerKind::Answer
            | AnswerKind::Decline
            | AnswerKind::Pass
            | AnswerKind::Fail => None,
        })
        .collect();
    if let Some(first) = other.first() {
        let command = command_hint(&format!("answer {} {first}", full_id(run, &record.id)));
        lines.push(format!("Another answer, in a terminal: `{command}`"));
    }
    lines.retain(|line| !line.trim().is_empty());
    lines.join("\n\n")
}

/// Returns an option for each allowed decision that needs no text.
fn choices_of(question: &Question) -> Vec<Choice> {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let mut choices = Vec::new();
    let mut add = |id: &str, name: String, kind, answer, scope| {
        choices.push(Choice {
            option: PermissionOption::new(PermissionOptionId::new(id), name, kind),
            answer,
            scope,
        });
    };
    let once = AnswerScope::Once;
    let reject = || Answer::Reject { message: NO_REASON.into() };
    let tool = match &question.subject {
        QuestionSubject::Approval { tool, .. } => Some(single_line(tool)),
        QuestionSubject::Input { .. } | QuestionSubject::Review { .. } | QuestionSubject::Plan { .. } => None,
    };
    for kind in &question.decisions {
        match (kind, &tool) {
            (AnswerKind::Approve, None) => add("approve", "Approve".into(), AllowOnce, Answer::Approve, once),
            (AnswerKind::Approve, Some(tool)) => {
                add("approve", "Allow".into(), AllowOnce, Answer::Approve, once);
                let name = format!("Allow all calls of {tool} in this run");
                add("approve-all", name, AllowAlways, Answer::Approve, AnswerScope::ThisToolInRun);
            }
            (AnswerKind::Reject, None) => add("reject", "Reject".into(), RejectOnce, reject(), once),
            (AnswerKind::Reject, Some(tool)) => {
                add("reject", "Reject".into(), RejectOnce, reject(), once);
                let name = format!("Reject all calls of {tool} in this run");
                add("reject-all", name, RejectAlways, reject(), AnswerScope::ThisToolInRun);
            }
            (AnswerKind::Answer, _) => {
                let QuestionSubject::Input { options, .. } = &question.subject else { continue };
                if options.is_empty() {
                    return Vec::new();
                }
                for (number, option) in (1..).zip(options) {
                    let answer = Answer::Answer { value: json_text(option) };
                    add(&format!("option-{number}"), single_line(option), AllowOnce, answer, once);
                }
            }
            (AnswerKind::Decline, _) => {
                add("decline", "Decline to answer".into(), RejectOnce, Answer::Decline, once);
            }
            (AnswerKind::Pass, _) => add("pass", "Accept the result".into(), AllowOnce, Answer::Pass, once),
            (AnswerKind::Fail, _) => {
                let answer = Answer::Fail { feedback: NO_REASON.into() };
                add("fail", "Reject the result".into(), RejectOnce, answer, once);
            }
            (AnswerKind::Edit | AnswerKind::Respond, _) => {}
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(subject: QuestionSubject, decisions: &[AnswerKind]) -> Question {
        let (text, digest, to) = ("Do it?".into(), "d".into(), String::new());
        Question { subject, text, digest, decisions: decisions.to_vec(), to, expiry: None }
    }

    fn input(options: &[&str], schema: &str) -> QuestionSubject {
        QuestionSubject::Input {
            options: options.iter().map(|&option| option.to_owned()).collect(),
            schema: schema.to_owned(),
        }
    }

    #[test]
    fn every_option_is_an_answer_that_the_question_accepts() {
        let approval = QuestionSubject::Approval {
            tool: "write_file".into(),
            arguments: "{}".into(),
            schema: String::new(),
        };
        let review =
            QuestionSubject::Review { summary: "s".into(), criteria: Vec::new(), critic: String::new() };
        for (subject, decisions, ids) in [
            (
                approval,
                &[AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject, AnswerKind::Respond][..],
                &["approve", "approve-all", "reject", "reject-all"][..],
            ),
            (
                QuestionSubject::Plan { tasks: 2 },
                &[AnswerKind::Approve, AnswerKind::Reject],
                &["approve", "reject"],
            ),
            (
                input(&["3", "north"], ""),
                &[AnswerKind::Answer, AnswerKind::Decline],
                &["option-1", "option-2", "decline"],
            ),
            (input(&[], ""), &[AnswerKind::Decline, AnswerKind::Answer], &[]),
            (review, &[AnswerKind::Pass, AnswerKind::Fail], &["pass", "fail"]),
        ] {
            let question = question(subject, decisions);
            let choices = choices_of(&question);
            let found: Vec<&str> = choices.iter().map(|choice| &*choice.option.option_id.0).collect();
            assert_eq!(found, ids);
            for choice in &choices {
                assert_eq!(question.check_answer(&choice.answer, choice.scope), Ok(()), "{choice:?}");
            }
        }
    }
}
