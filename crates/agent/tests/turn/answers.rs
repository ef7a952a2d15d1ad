//! Answers: their formats, mistakes in them, and corrections.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use millrace_agent::model::{
    AnswerSchema, Delta, DeltaListener, FinishReason, Model, ModelError, Reply, Request,
};
use millrace_agent::turn::{Answer, JsonAnswer, Machine, MemoryHost, PlainText, StopReason, WorkOutcome};
use millrace_protocol::result::{ErrorKind, TaskResult};
use serde_json::json;

use super::support::{Scripted, brief, conversation, drive, run, says, toolbox, user_messages};

#[tokio::test]
async fn invalid_answer_is_corrected_at_most_twice() {
    let (tools, _) = toolbox();
    let schema = || TaskResult::answer_schema("research");
    let good = says(r#"{"output": "x"}"#);
    let replies = vec![says("words"), says(r#"{"output": 7}"#), good.clone()];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let WorkOutcome::Answered(result) = ended.outcome else { panic!("{:?}", ended.outcome) };
    assert_eq!(result.output, "x");

    let replies = vec![says("words"), says("{}"), says(r#"{"output": 7}"#), good];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let mistake = "The answer does not fit its schema: 'output' must be a string, not number.".to_owned();
    assert_eq!(ended.outcome, WorkOutcome::Stopped(StopReason::UnusableAnswer { repairs: 2, mistake }));
    assert_eq!(ended.produced.as_deref(), Some(r#"{"output": 7}"#));
    assert_eq!(ended.into_result().unwrap_err().kind, ErrorKind::Model);
}

#[test]
fn model_sees_its_mistake_before_it_answers_again() {
    let (tools, _) = toolbox();
    let mut machine: Machine<TaskResult> = Machine::new(brief(&tools, TaskResult::answer_schema("research")));
    machine.feed_reply(says(r#"{"output": " "}"#), Duration::ZERO).unwrap();
    machine
        .feed_reply(Reply { finish: FinishReason::Length, ..says(r#"{"output": "lo"#) }, Duration::ZERO)
        .unwrap();
    assert_eq!(
        user_messages(&machine)[1..],
        [
            "Your answer is invalid. 'output' is empty and there is no 'data'. Give the complete corrected answer.",
            "Your answer is invalid. It is too long and was cut off at 100 tokens: give at most 50 words. Give the complete corrected answer.",
        ]
    );
}

#[tokio::test]
async fn reply_that_was_cut_off_is_no_answer() {
    let (tools, _) = toolbox();
    let cut_off = |text: &str| Reply { finish: FinishReason::Length, ..says(text) };
    let (ended, _) =
        run::<PlainText>(brief(&tools, None), &tools, vec![cut_off("a long t"), says("short")]).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("short".into())));
    // A server may close the brackets of a reply that it cuts off.
    let form = TaskResult::answer_schema("research");
    let replies = vec![cut_off(r#"{"output": "a long t"}"#), says(r#"{"output": "short"}"#)];
    let (ended, _) = run::<TaskResult>(brief(&tools, form), &tools, replies).await;
    let WorkOutcome::Answered(result) = ended.outcome else { panic!("{:?}", ended.outcome) };
    assert_eq!(result.output, "short");
}

#[tokio::test]
async fn data_answer_must_match_the_schema_of_the_brief() {
    let (tools, _) = toolbox();
    let schema = json!({
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["blue", "grey"]},
            "share": {"type": "integer"}
        },
        "required": ["colour"],
        "additionalProperties": false
    });
    let form = AnswerSchema { name: "sky".into(), schema };
    let replies = vec![
        says(r#"{"colour": "red", "tone": 1}"#),
        says("```json\n{\"colour\": \"blue\", \"share\": 3.0,}\n```"),
    ];
    let (ended, journal) = run::<JsonAnswer>(brief(&tools, Some(form)), &tools, replies).await;
    assert_eq!(ended.outcome, WorkOutcome::Answered(JsonAnswer(json!({"colour": "blue", "share": 3}))));
    assert_eq!(journal.steps().len(), 2);
}

#[tokio::test]
async fn check_errors_are_corrected_and_its_changes_kept() {
    let (tools, _) = toolbox();
    let check = |PlainText(text): PlainText| {
        if text.contains("[1]") {
            Ok(PlainText(text.replace("[1]", "[S1]")))
        } else {
            Err("Nothing is cited.".to_owned())
        }
    };
    let replies = vec![says("blue"), says("blue [1]")];
    let model = Scripted::new(replies);
    let mut journal = MemoryHost::default();
    let ended = conversation(&model, &tools).drive(&mut journal, &check).await.unwrap();
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("blue [S1]".into())));

    let model = Scripted::new(vec![]);
    let mut resumed = MemoryHost::with_steps(journal.steps().to_vec());
    assert_eq!(
        conversation(&model, &tools).drive(&mut resumed, &check).await.unwrap(),
        ended,
        "a resume repeats the check with the same result"
    );
}

#[tokio::test]
async fn watchers_see_the_reply_as_it_is_written() {
    struct StreamingModel;
    impl Model for StreamingModel {
        fn name(&self) -> &str {
            "test:writing"
        }
        fn reply<'a>(
            &'a self,
            _: &'a Request,
            watch: &'a dyn DeltaListener,
        ) -> futures::future::BoxFuture<'a, Result<Reply, ModelError>> {
            watch.on_delta(Delta::Text("bl"));
            watch.on_delta(Delta::Text("ue"));
            futures::future::ready(Ok(says("blue"))).boxed()
        }
    }
    #[derive(Default)]
    struct DeltaLog(Mutex<String>);
    impl DeltaListener for DeltaLog {
        fn on_delta(&self, delta: Delta<'_>) {
            if let Delta::Text(text) = delta {
                self.0.lock().unwrap().push_str(text);
            }
        }
    }
    let (tools, _) = toolbox();
    let (seen, mut journal) = (Arc::new(DeltaLog::default()), MemoryHost::default());
    let mut conversation = conversation(&Arc::new(StreamingModel), &tools);
    conversation.listener = seen.clone();
    drive::<PlainText>(conversation, &mut journal).await.unwrap();
    assert_eq!(*seen.0.lock().unwrap(), "blue");
}
