//! Questions as lines for a person. Every text comes from a model or a user, and is made safe and put on one line. Pure.

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, QuestionState, RunQuestion};
use millrace_protocol::question::{AnswerKind, ExpiryAction, Question, QuestionExpiry, QuestionSubject};
use millrace_protocol::safe_text::single_line;

use super::{full_id, open_questions_of_plan};
use crate::invocation::{command_hint, quote};
use crate::view::{format_age, format_clock, format_short_duration};

/// The smallest width to which lines are wrapped.
const MIN_WIDTH: usize = 40;
/// Maximum number of questions below a board.
const MAX_BOARD_QUESTIONS: usize = 3;

/// Returns the lines of an open question, as the inbox shows it.
pub fn format_question(
    run: &RunId,
    record: &RunQuestion<'_>,
    now: Timestamp,
    width: Option<usize>,
) -> Vec<String> {
    let RunQuestion { question, wait, .. } = record;
    let age = format_age(now.duration_since(wait.since));
    let mut lines = vec![format!("{}  {}  {age} ago", full_id(run, &record.id), question.subject.name())];
    let mut add = |label: &str, text: &str| lines.extend(wrap_labelled("  ", label, text, width));
    add_subject(question, &mut add);
    if !question.to.is_empty() {
        add("to: ", &single_line(&question.to));
    }
    add("allowed: ", &names_of_decisions(&question.decisions));
    if let Some((at, expiry)) = record.expires_at().zip(question.expiry.as_ref()) {
        let left = at.duration_since(now);
        let when = if left.is_positive() { format!("in {}", format_age(left)) } else { "now".into() };
        let consequence = describe_expiry(question, expiry, wait.round);
        add("expires: ", &format!("{when}, at {}; then {consequence}", format_clock(at)));
    }
    // Not wrapped: it is copied.
    lines.push(format!("  answer: {}", answer_command(run, record)));
    lines
}

/// Returns the lines of a closed question, with the decision, its author, its time and its duration.
pub fn format_closed_question(run: &RunId, record: &RunQuestion<'_>, width: Option<usize>) -> Vec<String> {
    let RunQuestion { question, .. } = record;
    let mut lines =
        vec![format!("{}  {}  {}", full_id(run, &record.id), question.subject.name(), describe_end(record))];
    let mut add = |label: &str, text: &str| lines.extend(wrap_labelled("  ", label, text, width));
    add_subject(question, &mut add);
    lines
}

/// Describes the end of a question: `approved by ann at 12:00:00 UTC after 5.0 s`.
pub fn describe_end(record: &RunQuestion<'_>) -> String {
    let when = record.wait.ended_at.map(|at| format!(" at {}", format_clock(at))).unwrap_or_default();
    let after = record.time_to_decide().map(format_short_duration);
    let after = after.map(|after| format!(" after {after}")).unwrap_or_default();
    match &record.state {
        QuestionState::Open => "open".into(),
        QuestionState::Answered { by, answer } => {
            format!("{}{when}{after}", single_line(&format!("{by} {answer}")))
        }
        QuestionState::Expired => format!("expired{when}{after}"),
        QuestionState::Withdrawn(reason) => format!("withdrawn: {}", single_line(reason)),
    }
}

/// Adds the text and the subject of a question.
pub fn add_subject(question: &Question, add: &mut impl FnMut(&str, &str)) {
    match &question.subject {
        QuestionSubject::Plan { .. } => {}
        QuestionSubject::Approval { .. } | QuestionSubject::Input { .. } | QuestionSubject::Review { .. } => {
            add("", &single_line(&question.text));
        }
    }
    match &question.subject {
        QuestionSubject::Approval { tool, arguments, .. } => {
            add("tool: ", &single_line(tool));
            for (name, value) in argument_lines(arguments) {
                add(&format!("  {name}"), &value);
            }
        }
        QuestionSubject::Input { options, .. } => {
            for (number, option) in (1..).zip(options) {
                add(&format!("{number}. "), &single_line(option));
            }
        }
        QuestionSubject::Review { summary, criteria, critic } => {
            add("result: ", &single_line(summary));
            for criterion in criteria {
                add("criterion: ", &single_line(criterion));
            }
            if !critic.is_empty() {
                add("the critic: ", &single_line(critic));
            }
        }
        QuestionSubject::Plan { .. } => question.text.lines().for_each(|line| add("- ", &single_line(line))),
    }
}

/// Returns a line for each argument, or one for all if they are no object.
fn argument_lines(arguments: &str) -> Vec<(String, String)> {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments) {
        Ok(fields) => {
            let line = |(name, value): (&String, &serde_json::Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                (format!("{}: ", single_line(name)), single_line(&value))
            };
            fields.iter().map(line).collect()
        }
        Err(_) => vec![("arguments: ".into(), single_line(arguments))],
    }
}

fn names_of_decisions(decisions: &[AnswerKind]) -> String {
    decisions.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

/// Describes the consequence of an expired round. A question is escalated once.
fn describe_expiry(question: &Question, expiry: &QuestionExpiry, round: u32) -> String {
    match expiry.action {
        ExpiryAction::FailTask => "the task fails".into(),
        ExpiryAction::AskAgain => "a new round begins".into(),
        ExpiryAction::Escalate if round == 1 => format!("it goes to {}", single_line(&expiry.escalate_to)),
        ExpiryAction::Reject | ExpiryAction::Escalate => match question.subject {
            QuestionSubject::Approval { .. } => "the call counts as rejected".into(),
            QuestionSubject::Input { .. } => "it counts as declined".into(),
            QuestionSubject::Review { .. } => "it counts as a vote against the result".into(),
            QuestionSubject::Plan { .. } => "the plan counts as rejected".into(),
        },
    }
}

/// Returns the command that answers a question: with its first allowed decision, and the other ones as alternatives.
fn answer_command(run: &RunId, record: &RunQuestion<'_>) -> String {
    let (first, others) = answer_options(run, record);
    first + &others
}

fn answer_options(run: &RunId, record: &RunQuestion<'_>) -> (String, String) {
    let option = |kind: &AnswerKind| match kind {
        AnswerKind::Approve => "--approve".to_owned(),
        AnswerKind::Edit => "--edit FILE".into(),
        AnswerKind::Reject => "--reject TEXT".into(),
        AnswerKind::Respond => "--respond TEXT".into(),
        AnswerKind::Answer => format!("--value {}", example_value(record.question)),
        AnswerKind::Decline => "--decline".into(),
        AnswerKind::Pass => "--pass".into(),
        AnswerKind::Fail => "--fail TEXT".into(),
    };
    let mut options = record.question.decisions.iter().map(option);
    let first = options.next().unwrap_or_default();
    let command = command_hint(&format!("answer {} {first}", full_id(run, &record.id)));
    let others: Vec<String> = options.collect();
    let others = if others.is_empty() { String::new() } else { format!("   (or {})", others.join(", ")) };
    (command, others)
}

/// The first option, or a place for the value.
fn example_value(question: &Question) -> String {
    match &question.subject {
        QuestionSubject::Input { options, .. } => {
            options.first().map_or_else(|| "TEXT".into(), |option| quote(&single_line(option)))
        }
        QuestionSubject::Approval { .. } | QuestionSubject::Review { .. } | QuestionSubject::Plan { .. } => {
            "TEXT".into()
        }
    }
}

/// Returns an open question on one line, with the command that answers it.
pub fn format_question_line(run: &RunId, record: &RunQuestion<'_>) -> String {
    let question = record.question;
    let to =
        if question.to.is_empty() { String::new() } else { format!(" to {}", single_line(&question.to)) };
    format!(
        "question {}{to}: {}; answer it with: {}",
        full_id(run, &record.id),
        describe_question(question),
        answer_command(run, record)
    )
}

/// Returns the lines about the open questions of a run below its board: each with the command that answers it.
pub fn format_board_lines(run: &RunId, plan: &Plan, now: Timestamp, width: usize) -> Vec<String> {
    let open = open_questions_of_plan(plan);
    let mut lines = Vec::new();
    for record in open.iter().take(MAX_BOARD_QUESTIONS) {
        let RunQuestion { id, question, wait, .. } = record;
        let age = format_age(now.duration_since(wait.since));
        let what = describe_question(question);
        lines.push(cut_end(&format!("? {}  {id}  {age}, {what}", question.subject.name()), width));
        let (first, others) = answer_options(run, record);
        let whole = format!("  {first}{others}");
        lines.push(if whole.chars().count() <= width { whole } else { format!("  {first}") });
    }
    let hidden = open.len().saturating_sub(MAX_BOARD_QUESTIONS);
    let inbox = command_hint(&format!("inbox {run}"));
    lines.extend((hidden > 0).then(|| cut_end(&format!("? and {hidden} more questions: {inbox}"), width)));
    lines
}

pub fn cut_end(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Describes a question on one line: its text, and the call that needs the approval.
fn describe_question(question: &Question) -> String {
    let text = single_line(&question.text);
    match &question.subject {
        QuestionSubject::Approval { tool, arguments, .. } => {
            let call = single_line(&format!("{tool} {arguments}"));
            if text.is_empty() {
                format!("approval of {call}")
            } else {
                format!("approval of {call}: {text}")
            }
        }
        QuestionSubject::Input { options, .. } if options.is_empty() => text,
        QuestionSubject::Input { options, .. } => {
            let options =
                (1..).zip(options).map(|(number, option)| format!("{number}. {}", single_line(option)));
            format!("{text} [{}]", options.collect::<Vec<_>>().join(", "))
        }
        QuestionSubject::Review { summary, .. } => format!("judge the result: {}", single_line(summary)),
        QuestionSubject::Plan { .. } => question.to_string(),
    }
}

/// Wraps a text after a label at blanks; further lines are indented as far as the text.
pub fn wrap_labelled(indent: &str, label: &str, text: &str, width: Option<usize>) -> Vec<String> {
    let head = format!("{indent}{label}");
    let Some(width) = width else { return vec![format!("{head}{text}").trim_end().to_owned()] };
    let hang = " ".repeat(head.chars().count());
    let room = width.max(MIN_WIDTH).saturating_sub(hang.len()).max(MIN_WIDTH / 2);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is always a line");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= room {
                line.extend(std::iter::repeat_n(' ', gap).chain(word));
                break;
            }
            // A word that is longer than a line is cut.
            if used == 0 {
                line.extend(word.drain(..room));
            }
            lines.push(String::new());
        }
    }
    let mut heads = std::iter::once(head).chain(std::iter::repeat(hang));
    lines
        .into_iter()
        .map(|line| format!("{}{line}", heads.next().unwrap_or_default()).trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::SignedDuration;
    use millrace_protocol::plan::AttemptWait;
    use millrace_protocol::wait::{Wait, WaitCondition};

    use super::*;

    fn approval() -> Question {
        Question {
            subject: QuestionSubject::Approval {
                tool: "execute".into(),
                arguments: "{\"command\":\"rm -r build\\u001b[2J\",\"timeout_s\":5}".into(),
                schema: String::new(),
            },
            text: "Deletes the\nbuild folder.".into(),
            digest: "d".into(),
            decisions: vec![AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject],
            to: "release managers".into(),
            expiry: Some(QuestionExpiry {
                after: Duration::from_secs(3600),
                action: ExpiryAction::Escalate,
                escalate_to: "the head".into(),
            }),
        }
    }

    fn with_record<T>(question: Question, check: impl FnOnce(&RunId, &RunQuestion<'_>) -> T) -> T {
        let condition = WaitCondition::Answer(Box::new(question));
        let wait = AttemptWait::begin(Wait::new("k", condition), Timestamp::UNIX_EPOCH);
        let question = wait.wait.condition.question().unwrap();
        let id = "build/1/2".parse().unwrap();
        let record = RunQuestion { id, task: None, wait: &wait, question, state: QuestionState::Open };
        check(&RunId::new("r-1").unwrap(), &record)
    }

    #[test]
    fn question_is_shown_with_everything_that_a_decision_needs() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(5);
        let lines = with_record(approval(), |run, record| format_question(run, record, now, None));
        let expiry = format_clock(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1));
        assert_eq!(
            lines,
            [
                "r-1/build/1/2  approval  5 s ago",
                "  Deletes the build folder.",
                "  tool: execute",
                "    command: rm -r build [2J",
                "    timeout_s: 5",
                "  to: release managers",
                "  allowed: approve, edit, reject",
                &format!("  expires: in 59 min 55 s, at {expiry}; then it goes to the head"),
                "  answer: millrace answer r-1/build/1/2 --approve   (or --edit FILE, --reject TEXT)",
            ]
        );
    }

    #[test]
    fn questions_match_their_schema() {
        use crate::json::tests::assert_matches_schema;
        use crate::json::{AnswerLine, QuestionLine, to_value};
        use crate::questions::{AnswerOutcome, OutcomeKind};

        let line = with_record(approval(), |run, record| to_value(&QuestionLine::new(run, record.clone())));
        for command in ["inbox", "watch", "run"] {
            assert_matches_schema(command, &line);
        }
        assert_eq!(
            (&line["type"], &line["id"], &line["number"]),
            (&"question".into(), &"r-1/build/1/2".into(), &2.into())
        );
        let mut outcome = AnswerOutcome {
            id: "r-1/build/1/2".into(),
            kind: OutcomeKind::Already,
            by: Some("ann".into()),
            at: Some(Timestamp::UNIX_EPOCH),
            answer: Some(millrace_protocol::question::Answer::Reject { message: "no".into() }),
            message: "ann rejected: no".into(),
            candidates: Vec::new(),
        };
        assert_matches_schema("answer", &to_value(&AnswerLine::from(&outcome)));
        outcome =
            AnswerOutcome { by: None, at: None, answer: None, candidates: vec!["r/t/1/1".into()], ..outcome };
        assert_matches_schema("answer", &to_value(&AnswerLine::from(&outcome)));
    }

    #[test]
    fn command_for_an_input_quotes_its_first_option() {
        let options = vec!["north; rm -rf ~".into(), "south".into()];
        let subject = QuestionSubject::Input { options, schema: String::new() };
        let decisions = vec![AnswerKind::Answer, AnswerKind::Decline];
        let question = Question { subject, decisions, expiry: None, ..approval() };
        let command = with_record(question, answer_command);
        assert_eq!(command, "millrace answer r-1/build/1/2 --value 'north; rm -rf ~'   (or --decline)");
    }

    #[test]
    fn long_texts_are_wrapped_after_their_label() {
        let text = format!("{} {}", "word ".repeat(10).trim_end(), "x".repeat(50));
        let lines = wrap_labelled("  ", "to: ", &text, Some(46));
        assert_eq!(lines[0], "  to: word word word word word word word word");
        assert_eq!(lines[1], "      word word");
        assert_eq!(lines[2], format!("      {}", "x".repeat(40)));
        assert_eq!(lines[3], format!("      {}", "x".repeat(10)));
        assert!(lines.iter().all(|line| line.chars().count() <= 46), "{lines:?}");
    }
}
