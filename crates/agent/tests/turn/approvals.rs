//! Calls that need a person's approval, and questions to a person.

use std::sync::{Arc, Mutex};

use millrace_agent::approval::{ApprovalRule, ApprovalRules, approval_question};
use millrace_agent::tool::{Effect, Tool, Toolbox, ask_user_tool, tool_with_effect};
use millrace_agent::turn::{DriveError, MemoryHost, PlainText, WorkOutcome, WorkSummary};
use millrace_protocol::question::{Answer, AnswerKind, Question, QuestionSubject};
use millrace_protocol::wait::{EndedWait, Wait, WaitCondition, WaitEnd};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::support::{self, Scripted, calls, conversation, named, names, says};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Act {
    /// The object.
    on: String,
}

type Runs = Arc<Mutex<Vec<String>>>;

/// The tools `send` (not repeatable), `put` (repeatable) and `ask_user`, and the list of their runs.
fn tools() -> (Toolbox, Runs) {
    let runs = Runs::default();
    let tool = |name: &'static str, effect: Effect| -> Arc<dyn Tool> {
        let runs = runs.clone();
        tool_with_effect(effect, name, "Acts.", move |Act { on }: Act, call| {
            runs.lock().unwrap().push(format!("{name} {on}"));
            async move { Ok(format!("{name} did {on}{}", if call.is_approved { ", approved" } else { "" })) }
        })
    };
    let all = [tool("send", Effect::Effect), tool("put", Effect::Idempotent), ask_user_tool()];
    (Toolbox::new(all).unwrap(), runs)
}

/// Every `send` needs an approval, and `put` of things whose name has an x.
fn approvals() -> ApprovalRules {
    let rules = json!([
        {"tool": "send", "decisions": ["approve", "edit", "reject", "respond"]},
        {"tool": "put", "when": {"argument": "on", "matches": "x"}}
    ]);
    ApprovalRules::compile(serde_json::from_value::<Vec<ApprovalRule>>(rules).unwrap()).unwrap()
}

fn model() -> Arc<Scripted> {
    let on = |id: &str, tool: &str, on: &str| named(id, tool, &json!({"on": on}).to_string());
    let turn = vec![on("a", "send", "a"), on("b", "put", "b"), on("c", "put", "x"), on("d", "send", "d")];
    Scripted::new(vec![calls(turn), says("done")])
}

async fn drive_with(
    model: &Arc<Scripted>,
    tools: &Toolbox,
    journal: &mut MemoryHost,
    can_wait: bool,
) -> Result<WorkSummary<PlainText>, DriveError> {
    let mut conversation = conversation(model, tools);
    (conversation.approvals, conversation.can_wait) = (approvals(), can_wait);
    support::drive(conversation, journal).await.map_err(|failure| *failure.error)
}

async fn drive(
    model: &Arc<Scripted>,
    tools: &Toolbox,
    journal: &mut MemoryHost,
) -> Result<WorkSummary<PlainText>, DriveError> {
    drive_with(model, tools, journal, true).await
}

fn parked_waits(ended: Result<WorkSummary<PlainText>, DriveError>) -> Vec<Wait> {
    match ended {
        Err(DriveError::Parked(waits, _)) => waits,
        other => panic!("it is not parked: {other:?}"),
    }
}

fn question(wait: &Wait) -> &Question {
    wait.condition.question().unwrap()
}

fn answered(keys: &[(&str, Answer)]) -> Vec<EndedWait> {
    let end = |answer: &Answer| WaitEnd::Answered { by: "ann".into(), answer: answer.clone() };
    keys.iter().map(|(key, answer)| EndedWait { key: (*key).to_owned(), end: end(answer) }).collect()
}

fn ran(runs: &Runs) -> Vec<String> {
    runs.lock().unwrap().clone()
}

/// The key of the approval of a call.
fn key(index: usize, tool: &str, on: &str) -> String {
    let digest = approval_question(tool, &json!({"on": on}), "", None).digest;
    format!("approve.0.{index}.{tool}.{}", &digest[..16])
}

/// The keys of the calls that need an approval.
fn keys() -> [String; 3] {
    [key(0, "send", "a"), key(2, "put", "x"), key(3, "send", "d")]
}

fn decisions() -> Vec<EndedWait> {
    let edit = Answer::Edit { arguments: r#"{"on":"y"}"#.into() };
    let reject = Answer::Reject { message: "not today.".into() };
    let [first, second, third] = keys();
    answered(&[(&first, Answer::Approve), (&second, edit), (&third, reject)])
}

#[tokio::test]
async fn calls_run_as_they_were_approved_and_the_others_at_once() {
    let (model, (tools, runs)) = (model(), tools());
    let mut journal = MemoryHost::default();
    let waits = parked_waits(drive(&model, &tools, &mut journal).await);
    let asked_keys: Vec<&str> = waits.iter().map(|wait| wait.key.as_str()).collect();
    assert_eq!(asked_keys, keys());
    assert_eq!(ran(&runs), ["put b"], "the call that needs nobody ran");
    assert_eq!(names(&journal), ["model.0", "tool.0.1.put"]);
    let asked = question(&waits[0]);
    assert!(matches!(&asked.subject, QuestionSubject::Approval { tool, arguments, schema }
        if tool == "send" && arguments == r#"{"on":"a"}"# && schema.contains("\"on\"")));
    assert!(asked.decisions.contains(&AnswerKind::Respond));
    assert!(!question(&waits[1]).decisions.contains(&AnswerKind::Respond), "the default has no respond");
    assert_ne!(asked.digest, question(&waits[2]).digest);

    let mut journal = journal.with_ended_waits(decisions());
    let ended = drive(&model, &tools, &mut journal).await.unwrap();
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(ran(&runs), ["put b", "send a", "put y"]);
    let result = |name: &str| {
        journal.steps().iter().find(|step| step.name == name).unwrap().value["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(result("tool.0.0.send"), "send did a, approved");
    let edited = result("tool.0.2.put");
    assert!(
        edited.starts_with("put did y, approved") && edited.contains("A person changed the arguments"),
        "{edited}"
    );
    let rejected = result("tool.0.3.send");
    assert!(rejected.contains("rejected this call: not today. It did not run"), "{rejected}");
}

#[tokio::test]
async fn call_whose_approval_was_withdrawn_does_not_run() {
    let (model, (tools, runs)) = (model(), tools());
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools, &mut journal).await);
    let [first, second, third] = keys();
    let withdrawn = |key: String| EndedWait { key, end: WaitEnd::Withdrawn };
    let approved = answered(&[(&first, Answer::Approve)]);
    let mut journal =
        journal.with_ended_waits([approved, vec![withdrawn(second), withdrawn(third)]].concat());
    drive(&model, &tools, &mut journal).await.unwrap();
    assert_eq!(ran(&runs), ["put b", "send a"]);
    let texts: String = journal.steps().iter().map(|step| step.value.to_string()).collect();
    assert_eq!(texts.matches("The call was not approved and did not run.").count(), 2, "{texts}");
}

/// The worker is lost after any step: an approved call that may have run is reported as unknown, and nothing runs twice.
#[tokio::test]
async fn approved_calls_run_once_whenever_the_worker_is_lost() {
    let (model, (tools, _)) = (model(), tools());
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools, &mut journal).await);
    let before = journal.steps().len();
    let mut whole = journal.with_ended_waits(decisions());
    drive(&model, &tools, &mut whole).await.unwrap();
    assert!(names(&whole).contains(&"begin.0.0"), "{:?}", names(&whole));
    for kept in before..=whole.steps().len() {
        let (tools, runs) = self::tools();
        let steps = whole.steps()[..kept].to_vec();
        let recorded: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        let mut resumed = MemoryHost::with_steps(steps).with_ended_waits(decisions());
        drive(&model, &tools, &mut resumed).await.unwrap();
        let has = |name: &str| recorded.contains(&name.to_owned());
        let sends = ran(&runs).iter().filter(|run| run.starts_with("send")).count();
        assert_eq!(sends, usize::from(!has("begin.0.0")), "after {recorded:?}");
        if has("begin.0.0") && !has("tool.0.0.send") {
            let unknown = resumed.steps().iter().find(|step| step.name == "tool.0.0.send").unwrap();
            assert!(unknown.value.to_string().contains("It is unknown whether this call took effect"));
        }
        assert!(!ran(&runs).contains(&"send d".to_owned()), "the rejected call ran");
    }
}

#[tokio::test]
async fn responses_and_unfit_arguments_run_nothing() {
    let (model, (tools, runs)) = (model(), tools());
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools, &mut journal).await);
    let unfit = Answer::Edit { arguments: r#"{"off":1}"#.into() };
    let respond = Answer::Respond { content: "the answer is 42".into() };
    let [first, second, third] = keys();
    let ends = answered(&[(&first, respond), (&second, unfit), (&third, Answer::Approve)]);
    let mut journal = journal.with_ended_waits(ends);
    drive(&model, &tools, &mut journal).await.unwrap();
    assert_eq!(ran(&runs), ["put b", "send d"]);
    let text = |name: &str| {
        journal.steps().iter().find(|step| step.name == name).unwrap().value["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text("tool.0.0.send"), "the answer is 42");
    assert!(text("tool.0.2.put").contains("they do not fit"), "{}", text("tool.0.2.put"));
}

/// An answer counts even if the rules of the capability have changed since the question.
#[tokio::test]
async fn answers_count_after_the_rules_have_changed() {
    let (model, (tools, runs)) = (model(), tools());
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools, &mut journal).await);
    let mut journal = journal.with_ended_waits(decisions());
    support::drive::<PlainText>(conversation(&model, &tools), &mut journal).await.unwrap();
    assert_eq!(ran(&runs), ["put b", "send a", "put y"], "the rejected call does not run");
}

/// A tool is withdrawn while its call waits, so that the others have other places. No answer is taken for another call.
#[tokio::test]
async fn answers_do_not_apply_to_other_calls_after_the_tools_have_changed() {
    let on = |id: &str, tool: &str, on: &str| named(id, tool, &json!({"on": on}).to_string());
    let turn = vec![on("a", "send", "a"), on("b", "put", "x"), on("c", "put", "xx")];
    let model = Scripted::new(vec![calls(turn), says("done")]);
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools().0, &mut journal).await);
    let keys = [key(0, "send", "a"), key(1, "put", "x"), key(2, "put", "xx")];
    let reject = Answer::Reject { message: String::new() };
    let ends = answered(&[(&keys[0], Answer::Approve), (&keys[1], Answer::Approve), (&keys[2], reject)]);
    let runs = Runs::default();
    let put = {
        let runs = runs.clone();
        tool_with_effect(Effect::Idempotent, "put", "Acts.", move |Act { on }: Act, _| {
            runs.lock().unwrap().push(on);
            async move { Ok(String::new()) }
        })
    };
    let fewer = Toolbox::new([put]).unwrap();
    let mut journal = journal.with_ended_waits(ends);
    let asked_again = parked_waits(drive(&model, &fewer, &mut journal).await);
    assert_eq!(asked_again.len(), 2);
    assert!(ran(&runs).is_empty(), "a call ran with the answer for another one: {:?}", ran(&runs));
}

#[tokio::test]
async fn work_that_can_not_wait_is_refused_such_calls() {
    let (model, (tools, runs)) = (model(), tools());
    let mut journal = MemoryHost::default();
    drive_with(&model, &tools, &mut journal, false).await.unwrap();
    assert_eq!(ran(&runs), ["put b"]);
    let refused =
        journal.steps().iter().filter(|step| step.value.to_string().contains("needs a person's approval"));
    assert_eq!(refused.count(), 3);
}

#[tokio::test]
async fn agents_ask_a_person_and_continue_with_the_answer() {
    let asks = |id: &str, arguments: serde_json::Value| named(id, "ask_user", &arguments.to_string());
    let turn = vec![
        asks("a", json!({"question": "Which region?", "options": ["eu", "us"]})),
        asks("b", json!({"question": "How many?", "schema": {"type": "integer"}})),
        asks("c", json!({"question": "Why?"})),
        asks("d", json!({"question": "How?", "schema": {"type": "intger"}})),
    ];
    let model = Scripted::new(vec![calls(turn), says("done")]);
    let (tools, _) = tools();
    let mut journal = MemoryHost::default();
    let waits = parked_waits(drive(&model, &tools, &mut journal).await);
    assert_eq!(waits.len(), 3, "the question with an invalid schema is refused");
    assert!(
        matches!(&waits[0].condition, WaitCondition::Answer(question) if question.text == "Which region?")
    );
    let value = |value: &str| Answer::Answer { value: value.into() };
    let keys: Vec<&str> = waits.iter().map(|wait| wait.key.as_str()).collect();
    let ends = answered(&[(keys[0], value("\"eu\"")), (keys[1], value("3")), (keys[2], Answer::Decline)]);
    let mut journal = journal.with_ended_waits(ends);
    drive(&model, &tools, &mut journal).await.unwrap();
    let texts: Vec<String> =
        journal.steps().iter().filter_map(|step| step.value["text"].as_str().map(str::to_owned)).collect();
    assert!(texts[0].contains("not a valid JSON Schema"), "{texts:?}");
    assert_eq!(texts[1..3], ["eu", "3"]);
    assert!(texts[3].contains("does not want to answer"), "{texts:?}");
}
