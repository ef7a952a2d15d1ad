//! The prompt below the live view at which a person answers the open questions of a run, one after the other: a state machine
//! over keys and states of the run. Pure.
//!
//! # Invariants
//!
//! - I112: Keys typed at the prompt below the live view before a question is replaced by another one never answer that other one,
//!   and the terminal has its modes again when the command ends.
//!   (`cli/src/questions/prompt.rs::question_that_is_closed_takes_what_was_typed_for_it_away`,
//!   `cli/tests/questions.rs::question_at_the_prompt_disappears_when_it_is_answered_elsewhere`,
//!   `cli/tests/questions.rs::interrupt_at_the_prompt_interrupts_the_run`)

use std::collections::BTreeSet;

use millrace_protocol::foreign_json::{JsonOrText, mend_json_text, parse_json_or_text};
use millrace_protocol::plan::Plan;
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope, Question, QuestionId, QuestionSubject};
use millrace_protocol::safe_text::single_line;

use super::text::{add_subject, cut_end, describe_end, wrap_labelled};
use super::{AnswerOutcome, OutcomeKind, json_text, open_questions_of_plan};

/// Maximum number of lines of a question.
const MAX_LINES: usize = 14;
/// Maximum number of bytes that a person may type.
const MAX_TYPED: usize = 16_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Erases the last character.
    Backspace,
    EraseLine,
    /// Ends the line.
    Enter,
}

/// The work that a key leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum PromptAction {
    Send {
        id: QuestionId,
        /// The question as the person has seen it.
        question: Box<Question>,
        answer: Answer,
    },
    /// Opens an editor on the arguments of the call.
    Edit {
        /// The arguments, as indented JSON.
        arguments: String,
    },
}

/// The input that the prompt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptState {
    /// A decision, or the value of an input.
    Decision,
    /// The complete arguments of the call, as JSON.
    Arguments,
    Reason,
    Response,
    /// The feedback on a result that is rejected.
    Feedback,
    Editor,
    /// The decision of a supervisor on the answer.
    Sending,
}

#[derive(Debug)]
struct CurrentQuestion {
    id: QuestionId,
    question: Question,
    state: PromptState,
}

#[derive(Debug)]
pub struct QuestionPrompt {
    current: Option<CurrentQuestion>,
    skipped: BTreeSet<QuestionId>,
    /// The number of open questions that are not shown.
    others: usize,
    typed: String,
    /// The last mistake.
    notice: Option<String>,
    has_editor: bool,
}

impl QuestionPrompt {
    /// A prompt without a question; with `has_editor`, arguments are edited in an editor.
    pub fn new(has_editor: bool) -> Self {
        let (skipped, typed) = (BTreeSet::new(), String::new());
        Self { current: None, skipped, others: 0, typed, notice: None, has_editor }
    }

    /// Follows the state of the run. Returns a line if the question that was shown has been closed.
    pub fn follow(&mut self, plan: &Plan) -> Option<String> {
        let open = open_questions_of_plan(plan);
        let mut line = None;
        if let Some(current) = &self.current
            && !open.iter().any(|record| record.id == current.id)
        {
            let closed = plan.questions().find(|record| record.id == current.id);
            // Also after an own answer: the run may end with it, before its outcome arrives.
            line =
                closed.map(|record| format!("question {} is closed: {}", record.id, describe_end(&record)));
            self.show(None);
        }
        if self.current.is_none() {
            let next = open.iter().find(|record| !self.skipped.contains(&record.id));
            let next = next.map(|record| (record.id.clone(), record.question.clone()));
            self.show(next);
        }
        self.others = open.len() - usize::from(self.current.is_some());
        line
    }

    /// `true` if keys are read: a question is shown, and no editor has the terminal.
    pub fn wants_keys(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.state != PromptState::Editor)
    }

    /// Shows a question; text that was typed for another one is discarded.
    fn show(&mut self, question: Option<(QuestionId, Question)>) {
        self.typed.clear();
        self.notice = None;
        self.current = question.map(|(id, question)| {
            let state = PromptState::Decision;
            CurrentQuestion { id, question, state }
        });
    }

    pub fn press(&mut self, key: Key) -> Option<PromptAction> {
        let state = self.current.as_ref()?.state;
        if state == PromptState::Sending || state == PromptState::Editor {
            return None;
        }
        match key {
            Key::Char(typed) => {
                if self.typed.len() < MAX_TYPED {
                    self.typed.push(typed);
                }
                None
            }
            Key::Backspace => {
                self.typed.pop();
                None
            }
            Key::EraseLine => {
                self.typed.clear();
                None
            }
            Key::Enter => {
                let line = std::mem::take(&mut self.typed);
                self.notice = None;
                self.enter(state, line.trim())
            }
        }
    }

    fn enter(&mut self, state: PromptState, line: &str) -> Option<PromptAction> {
        match state {
            PromptState::Decision => self.decide(line),
            PromptState::Arguments if line.is_empty() => self.wait_for(PromptState::Decision),
            PromptState::Arguments => self.send(Answer::Edit { arguments: line.into() }),
            PromptState::Reason => self.send(Answer::Reject { message: line.into() }),
            PromptState::Response | PromptState::Feedback if line.is_empty() => {
                self.wait_for(PromptState::Decision)
            }
            PromptState::Feedback => self.send(Answer::Fail { feedback: line.into() }),
            PromptState::Response => self.send(Answer::Respond { content: line.into() }),
            PromptState::Editor | PromptState::Sending => None,
        }
    }

    /// Handles a line that contains a decision.
    fn decide(&mut self, line: &str) -> Option<PromptAction> {
        let question = &self.current.as_ref()?.question;
        let is_input = matches!(question.subject, QuestionSubject::Input { .. });
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (word, is_input) {
            ("", _) => None,
            ("s" | "skip", false) | ("/s" | "/skip", true) => self.skip(),
            ("a" | "approve", false) if rest.is_empty() => self.send(Answer::Approve),
            ("e" | "edit", false) if rest.is_empty() => self.edit(),
            ("e" | "edit", false) => self.send(Answer::Edit { arguments: rest.into() }),
            ("r" | "reject", false) if rest.is_empty() => self.wait_for(PromptState::Reason),
            ("r" | "reject", false) => self.send(Answer::Reject { message: rest.into() }),
            ("respond", false) if rest.is_empty() => self.wait_for(PromptState::Response),
            ("p" | "pass", false) if rest.is_empty() => self.send(Answer::Pass),
            ("f" | "fail", false) if rest.is_empty() => self.wait_for(PromptState::Feedback),
            ("f" | "fail", false) => self.send(Answer::Fail { feedback: rest.into() }),
            ("respond", false) => self.send(Answer::Respond { content: rest.into() }),
            ("/d" | "/decline", true) => self.send(Answer::Decline),
            (_, true) => match typed_value(question, line) {
                Ok(value) => self.send(Answer::Answer { value }),
                Err(mistake) => self.refuse(format!("this {mistake}")),
            },
            (_, false) => self.refuse(format!("{:?} is none of the decisions", single_line(word))),
        }
    }

    fn refuse(&mut self, mistake: String) -> Option<PromptAction> {
        self.notice = Some(mistake);
        None
    }

    fn wait_for(&mut self, state: PromptState) -> Option<PromptAction> {
        let kind = match state {
            PromptState::Reason => Some(AnswerKind::Reject),
            PromptState::Response => Some(AnswerKind::Respond),
            PromptState::Feedback => Some(AnswerKind::Fail),
            PromptState::Arguments | PromptState::Editor => Some(AnswerKind::Edit),
            PromptState::Decision | PromptState::Sending => None,
        };
        let current = self.current.as_mut()?;
        if kind.is_some_and(|kind| !current.question.decisions.contains(&kind)) {
            return self.refuse("this decision is not allowed here".into());
        }
        current.state = state;
        None
    }

    fn skip(&mut self) -> Option<PromptAction> {
        let current = self.current.take()?;
        self.skipped.insert(current.id);
        None
    }

    fn edit(&mut self) -> Option<PromptAction> {
        let state = if self.has_editor { PromptState::Editor } else { PromptState::Arguments };
        self.wait_for(state);
        let current = self.current.as_ref().filter(|current| current.state == PromptState::Editor)?;
        let QuestionSubject::Approval { arguments, .. } = &current.question.subject else { return None };
        let indented = serde_json::from_str::<serde_json::Value>(arguments)
            .and_then(|value| serde_json::to_string_pretty(&value));
        Some(PromptAction::Edit { arguments: indented.unwrap_or_else(|_| arguments.clone()) })
    }

    /// Handles the end of the editor: the text, or a mistake. Unchanged arguments decide nothing.
    pub fn finish_editing(&mut self, edited: Result<Option<String>, String>) -> Option<PromptAction> {
        self.current.as_ref().filter(|current| current.state == PromptState::Editor)?;
        self.wait_for(PromptState::Decision);
        match edited {
            Ok(Some(arguments)) => self.send(Answer::Edit { arguments }),
            Ok(None) => self.refuse("the arguments were not changed; nothing was sent".into()),
            Err(mistake) => self.refuse(single_line(&mistake)),
        }
    }

    fn send(&mut self, answer: Answer) -> Option<PromptAction> {
        let current = self.current.as_mut()?;
        if let Err(mistake) = current.question.check_answer(&answer, AnswerScope::Once) {
            return self.refuse(single_line(&mistake));
        }
        current.state = PromptState::Sending;
        Some(PromptAction::Send {
            id: current.id.clone(),
            question: Box::new(current.question.clone()),
            answer,
        })
    }

    /// Handles the outcome of the answer to a question. Returns the line about it, unless the state of the run has shown it already:
    /// then another question is shown by now.
    pub fn finish_sending(
        &mut self,
        id: &QuestionId,
        outcome: Result<AnswerOutcome, String>,
    ) -> Option<String> {
        let is_it =
            |current: &&mut CurrentQuestion| current.id == *id && current.state == PromptState::Sending;
        let current = self.current.as_mut().filter(is_it)?;
        current.state = PromptState::Decision;
        match outcome {
            Ok(outcome) => {
                if outcome.kind != OutcomeKind::Refused {
                    // The view may not have read the decision yet.
                    self.skip();
                }
                Some(outcome.line())
            }
            Err(error) => Some(format!("the answer was not sent: {}", single_line(&error))),
        }
    }

    /// The lines of the prompt, at most `width` characters each; empty if there is no question to show.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let Some(CurrentQuestion { id, question, state }) = &self.current else { return Vec::new() };
        let more = if self.others > 0 { format!("  ({} more)", self.others) } else { String::new() };
        let to = single_line(&question.to);
        let to = if to.is_empty() { to } else { format!(" to {to}") };
        let mut lines = vec![cut_end(&format!("? {}  {id}{to}{more}", question.subject.name()), width)];
        // Nothing of a call is cut as long as there is room: the end of a command is as important as its beginning.
        let mut add = |label: &str, text: &str| lines.extend(wrap_labelled("  ", label, text, Some(width)));
        add_subject(question, &mut add);
        if lines.len() > MAX_LINES {
            lines.truncate(MAX_LINES - 1);
            lines.push("  … this is not all: `millrace inbox` shows the whole question".into());
        }
        lines.extend(self.notice.iter().map(|notice| format!("  {notice}")));
        let mut lines: Vec<String> = lines.into_iter().map(|line| cut_end(&line, width)).collect();
        let head = prompt_text(question, *state);
        let room = width.saturating_sub(head.chars().count() + 2);
        lines.push(cut_end(&format!("{head}{}_", keep_end(&single_typed(&self.typed), room)), width));
        lines
    }
}

/// Returns the value that was typed for an input: the number of an option, JSON if there is a schema for it, or a text.
fn typed_value(question: &Question, line: &str) -> Result<String, String> {
    let QuestionSubject::Input { options, schema } = &question.subject else { return Ok(json_text(line)) };
    let number = line.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    if let Some(option) = number.and_then(|at| options.get(at)) {
        return Ok(json_text(option));
    }
    if schema.is_empty() {
        return Ok(json_text(line));
    }
    Ok(match parse_json_or_text(line.as_bytes())? {
        JsonOrText::Json(_) => mend_json_text(line.to_owned()),
        JsonOrText::Text(text) => json_text(&text),
    })
}

/// The text before what is typed.
fn prompt_text(question: &Question, state: PromptState) -> String {
    match (state, &question.subject) {
        (
            PromptState::Decision,
            QuestionSubject::Approval { .. } | QuestionSubject::Review { .. } | QuestionSubject::Plan { .. },
        ) => {
            let names = question.decisions.iter().filter_map(|kind| match kind {
                AnswerKind::Approve => Some("approve (a)"),
                AnswerKind::Edit => Some("edit (e)"),
                AnswerKind::Reject => Some("reject (r)"),
                AnswerKind::Respond => Some("respond TEXT"),
                AnswerKind::Pass => Some("pass (p)"),
                AnswerKind::Fail => Some("fail (f)"),
                AnswerKind::Answer | AnswerKind::Decline => None,
            });
            format!("{}, skip (s): ", names.collect::<Vec<_>>().join(", "))
        }
        (PromptState::Decision, QuestionSubject::Input { options, .. }) => {
            let number = if options.is_empty() { "text" } else { "number or text" };
            format!("{number}, decline (/d), skip (/s): ")
        }
        (PromptState::Arguments, _) => "new arguments as JSON (empty: back): ".into(),
        (PromptState::Reason, _) => "reason for the agent (may be empty): ".into(),
        (PromptState::Feedback, _) => "feedback for the next attempt (empty: back): ".into(),
        (PromptState::Response, _) => "result for the agent (empty: back): ".into(),
        (PromptState::Editor, _) => "waiting for the editor ".into(),
        (PromptState::Sending, _) => "sending the answer ".into(),
    }
}

/// Returns what was typed without its control characters.
fn single_typed(typed: &str) -> String {
    typed.chars().filter(|c| !c.is_control()).collect()
}

fn keep_end(text: &str, room: usize) -> String {
    let over = text.chars().count().saturating_sub(room);
    text.chars().skip(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval(decisions: &[AnswerKind]) -> Question {
        Question {
            subject: QuestionSubject::Approval {
                tool: "execute".into(),
                arguments: "{\"command\":\"rm -r build\"}".into(),
                schema: String::new(),
            },
            text: "Deletes the build folder.".into(),
            digest: "d".into(),
            decisions: decisions.to_vec(),
            to: String::new(),
            expiry: None,
        }
    }

    fn input(options: &[&str], schema: &str) -> Question {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let subject = QuestionSubject::Input { options, schema: schema.into() };
        Question { subject, decisions: vec![AnswerKind::Answer, AnswerKind::Decline], ..approval(&[]) }
    }

    fn prompt_with(question: Question, has_editor: bool) -> QuestionPrompt {
        let mut prompt = QuestionPrompt::new(has_editor);
        prompt.show(Some(("t/1/1".parse().unwrap(), question)));
        prompt
    }

    /// Types a line; returns the answer that it sends.
    fn enter(prompt: &mut QuestionPrompt, line: &str) -> Option<Answer> {
        for typed in line.chars() {
            assert_eq!(prompt.press(Key::Char(typed)), None);
        }
        match prompt.press(Key::Enter) {
            Some(PromptAction::Send { answer, .. }) => Some(answer),
            Some(PromptAction::Edit { .. }) | None => None,
        }
    }

    fn last_line(prompt: &QuestionPrompt) -> String {
        prompt.lines(200).pop().unwrap_or_default()
    }

    #[test]
    fn approvals_are_decided_by_a_word_or_a_letter() {
        for (lines, answer) in [
            (&["a"][..], Answer::Approve),
            (&["approve"], Answer::Approve),
            (&["r", "not today"], Answer::Reject { message: "not today".into() }),
            (&["r", ""], Answer::Reject { message: String::new() }),
            (&["reject too late"], Answer::Reject { message: "too late".into() }),
            (&["respond", "it is gone"], Answer::Respond { content: "it is gone".into() }),
            (
                &["e", "", "e", "{\"command\":\"ls\"}"],
                Answer::Edit { arguments: "{\"command\":\"ls\"}".into() },
            ),
        ] {
            let all = [AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject, AnswerKind::Respond];
            let mut prompt = prompt_with(approval(&all), false);
            let sent: Vec<Answer> = lines.iter().filter_map(|line| enter(&mut prompt, line)).collect();
            assert_eq!(sent, [answer], "{lines:?}");
            assert_eq!(enter(&mut prompt, "a"), None, "one answer is sent at a time");
        }
    }

    #[test]
    fn mistakes_and_decisions_that_are_not_allowed_send_nothing() {
        let mut prompt = prompt_with(approval(&[AnswerKind::Approve]), false);
        for (line, notice) in [
            ("yes", "\"yes\" is none of the decisions"),
            ("e", "this decision is not allowed here"),
            ("r no", "reject is not allowed here; allowed: approve"),
        ] {
            assert_eq!(enter(&mut prompt, line), None);
            let lines = prompt.lines(200).join("\n");
            assert!(lines.contains(notice), "{line}: {lines}");
        }
        assert_eq!(enter(&mut prompt, ""), None, "an empty line decides nothing");
        assert_eq!(last_line(&prompt), "approve (a), skip (s): _");
    }

    #[test]
    fn inputs_are_given_by_number_or_text() {
        for (question, line, value) in [
            (input(&["north", "south"], ""), "2", "\"south\""),
            (input(&["north", "south"], ""), "3", "\"3\""),
            (input(&[], ""), "42", "\"42\""),
            (input(&[], "{\"type\":\"integer\"}"), "42", "42"),
            (input(&[], ""), "skip", "\"skip\""),
        ] {
            let sent = enter(&mut prompt_with(question, false), line);
            assert_eq!(sent, Some(Answer::Answer { value: value.into() }), "{line}");
        }
        assert_eq!(enter(&mut prompt_with(input(&[], ""), false), "/d"), Some(Answer::Decline));
        let mut prompt = prompt_with(input(&[], "{\"type\":\"integer\"}"), false);
        assert_eq!(enter(&mut prompt, "many"), None);
        assert!(prompt.lines(200).join("\n").contains("the answer: "), "{:?}", prompt.lines(200));
    }

    #[test]
    fn question_that_is_closed_takes_what_was_typed_for_it_away() {
        let mut prompt = prompt_with(approval(&[AnswerKind::Approve]), false);
        prompt.press(Key::Char('a'));
        // The plan has no such question any more.
        assert_eq!(prompt.follow(&Plan::default()), None);
        assert_eq!(prompt.press(Key::Enter), None);
        assert!(prompt.lines(80).is_empty());
        prompt.show(Some(("t/1/2".parse().unwrap(), approval(&[AnswerKind::Approve]))));
        assert_eq!(prompt.press(Key::Enter), None, "nothing of the other line is left");
    }

    #[test]
    fn late_outcome_does_not_close_another_question() {
        let mut prompt = prompt_with(input(&[], ""), false);
        let (first, second) = ("t/1/1".parse().unwrap(), "t/1/2".parse().unwrap());
        assert!(enter(&mut prompt, "north").is_some());
        // The state of the run shows the decision before its outcome arrives.
        prompt.show(Some((second, input(&[], ""))));
        assert!(enter(&mut prompt, "1.4").is_some());
        assert_eq!(prompt.finish_sending(&first, Err("too late".into())), None);
        assert_eq!(last_line(&prompt), "sending the answer _");
        let second = "t/1/2".parse().unwrap();
        let line = prompt.finish_sending(&second, Err("the server is away".into()));
        assert_eq!(line.as_deref(), Some("the answer was not sent: the server is away"));
        assert!(enter(&mut prompt, "1.4").is_some(), "it can be sent again");
    }

    #[test]
    fn edited_arguments_are_sent_only_if_they_were_changed() {
        let all = [AnswerKind::Approve, AnswerKind::Edit];
        let mut prompt = prompt_with(approval(&all), true);
        prompt.press(Key::Char('e'));
        let Some(PromptAction::Edit { arguments }) = prompt.press(Key::Enter) else { panic!("no editor") };
        assert_eq!(arguments, "{\n  \"command\": \"rm -r build\"\n}");
        assert!(!prompt.wants_keys(), "the editor has the terminal");
        assert_eq!(prompt.finish_editing(Ok(None)), None);
        assert!(prompt.wants_keys());
        prompt.press(Key::Char('e'));
        prompt.press(Key::Enter);
        assert_eq!(prompt.finish_editing(Ok(Some("[]".into()))), None, "it must be an object");
        prompt.press(Key::Char('e'));
        prompt.press(Key::Enter);
        let sent = prompt.finish_editing(Ok(Some("{}".into())));
        assert!(matches!(sent, Some(PromptAction::Send { answer: Answer::Edit { .. }, .. })), "{sent:?}");
    }

    #[test]
    fn long_calls_are_wrapped_and_typed_text_is_cut_at_its_beginning() {
        let mut question = approval(&[AnswerKind::Approve]);
        let command = format!("{} && rm -rf /", "echo hello ".repeat(12).trim_end());
        let arguments = serde_json::json!({"command": command}).to_string();
        question.subject =
            QuestionSubject::Approval { tool: "execute".into(), arguments, schema: String::new() };
        let mut prompt = prompt_with(question, false);
        prompt.press(Key::Char('\u{7}'));
        "word ".repeat(30).chars().for_each(|typed| drop(prompt.press(Key::Char(typed))));
        let lines = prompt.lines(60);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with("rm -rf /")), "{lines:#?}");
        assert!(lines.last().unwrap().ends_with("word word _"), "{lines:#?}");
    }
}
