//! Answers: their forms, what is wrong with them, and how they are mended.

use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use millrace_agent::model::{AnswerSchema, Delta, Finish, Model, ModelError, Reply, Request, Watch};
use millrace_agent::turn::{Answer, Data, Driver, Machine, MemoryJournal, Outcome, PlainText, Stop};
use millrace_protocol::result::{ErrorKind, TaskResult};
use serde_json::json;

use crate::support::{Scripted, asked, brief, run, says, toolbox};

#[tokio::test]
async fn a_wrong_answer_is_mended_at_most_twice() {
    let (tools, _) = toolbox();
    let schema = || TaskResult::schema("research");
    let good = says(r#"{"output": "x"}"#);
    let replies = vec![says("words"), says(r#"{"output": 7}"#), good.clone()];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let Outcome::Answered(result) = ended.outcome else { panic!("{:?}", ended.outcome) };
    assert_eq!(result.output, "x");

    let replies = vec![says("words"), says("{}"), says(r#"{"output": 7}"#), good];
    let (ended, _) = run::<TaskResult>(brief(&tools, schema()), &tools, replies).await;
    let mistake = "The answer does not fit its schema: 'output' must be a string, not number.".to_owned();
    assert_eq!(ended.outcome, Outcome::Stopped(Stop::UnusableAnswer { repairs: 2, mistake }));
    assert_eq!(ended.produced.as_deref(), Some(r#"{"output": 7}"#));
    assert_eq!(ended.into_result().unwrap_err().kind, ErrorKind::Model);
}

#[test]
fn a_mistake_is_shown_to_the_model_before_it_answers_again() {
    let (tools, _) = toolbox();
    let mut machine: Machine<TaskResult> = Machine::new(brief(&tools, TaskResult::schema("research")));
    machine.feed_reply(says(r#"{"output": " "}"#), Duration::ZERO).unwrap();
    machine
        .feed_reply(Reply { finish: Finish::Length, ..says(r#"{"output": "lo"#) }, Duration::ZERO)
        .unwrap();
    assert_eq!(
        asked(&machine)[1..],
        [
            "Your answer could not be used. 'output' is empty and there is no 'data'. Give the whole answer again, corrected.",
            "Your answer could not be used. It was cut off at 100 tokens; answer more briefly. Give the whole answer again, corrected.",
        ]
    );
}

#[tokio::test]
async fn a_text_that_was_cut_off_is_no_answer_but_whole_json_is() {
    let (tools, _) = toolbox();
    let cut_off = |text: &str| Reply { finish: Finish::Length, ..says(text) };
    let (ended, _) =
        run::<PlainText>(brief(&tools, None), &tools, vec![cut_off("a long t"), says("short")]).await;
    assert_eq!(ended.outcome, Outcome::Answered(PlainText("short".into())));
    let form = TaskResult::schema("research");
    let (ended, _) =
        run::<TaskResult>(brief(&tools, form), &tools, vec![cut_off(r#"{"output": "x"}"#)]).await;
    assert!(matches!(ended.outcome, Outcome::Answered(_)), "{:?}", ended.outcome);
}

#[tokio::test]
async fn data_is_any_object_that_fits_the_schema_of_the_brief() {
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
    let (ended, journal) = run::<Data>(brief(&tools, Some(form)), &tools, replies).await;
    assert_eq!(ended.outcome, Outcome::Answered(Data(json!({"colour": "blue", "share": 3}))));
    assert_eq!(journal.steps().len(), 2);
}

#[tokio::test]
async fn what_a_check_finds_is_mended_and_what_it_makes_of_an_answer_is_kept() {
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
    let mut journal = MemoryJournal::default();
    let machine = || Machine::<PlainText>::new(brief(&tools, None));
    let driver = Driver::new(&model, &tools, &mut journal).check(&check);
    let ended = driver.drive(machine()).await.unwrap();
    assert_eq!(ended.outcome, Outcome::Answered(PlainText("blue [S1]".into())));

    let model = Scripted::new(vec![]);
    let mut resumed = MemoryJournal::holding(journal.steps().to_vec());
    let driver = Driver::new(&model, &tools, &mut resumed).check(&check);
    assert_eq!(driver.drive(machine()).await.unwrap(), ended, "a resume checks again and finds the same");
}

#[tokio::test]
async fn whoever_watches_sees_the_reply_being_written() {
    struct Writing;
    impl Model for Writing {
        fn name(&self) -> &str {
            "test:writing"
        }
        fn reply<'a>(
            &'a self,
            _: &'a Request,
            watch: &'a dyn Watch,
        ) -> futures::future::BoxFuture<'a, Result<Reply, ModelError>> {
            watch.delta(Delta::Text("bl"));
            watch.delta(Delta::Text("ue"));
            futures::future::ready(Ok(says("blue"))).boxed()
        }
    }
    #[derive(Default)]
    struct Seen(Mutex<String>);
    impl Watch for Seen {
        fn delta(&self, delta: Delta<'_>) {
            if let Delta::Text(text) = delta {
                self.0.lock().unwrap().push_str(text);
            }
        }
    }
    let (tools, _) = toolbox();
    let (seen, mut journal) = (Seen::default(), MemoryJournal::default());
    let machine = Machine::<PlainText>::new(brief(&tools, None));
    Driver::new(&Writing, &tools, &mut journal).watch(&seen).drive(machine).await.unwrap();
    assert_eq!(*seen.0.lock().unwrap(), "blue");
}
