//! Whatever a model says and a tool gives, the machine neither panics nor runs for ever, keeps every call with its
//! result, and goes on the same after it was written down.

use std::time::Duration;

use millrace_agent::model::{Finish, Message, Reply, ToolCall};
use millrace_agent::tool::{Toolbox, append_note, read_notes, think, write_todos};
use millrace_agent::turn::{Brief, Dollars, Ended, Limits, Machine, Outcome, Step};
use millrace_protocol::result::{MAX_PRODUCED, TaskResult, Usage};
use proptest::prelude::*;

use crate::support::{brief, look, result};

#[derive(Debug, Clone)]
enum Event {
    Reply(Box<Reply>),
    Overflow,
    TimeUp,
}

fn arguments() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#"{"at": "sky"}"#.to_owned()),
        Just(r#"{"thought": "hm"}"#.to_owned()),
        Just(r#"{"note": "x"}"#.to_owned()),
        Just(r#"{"todos": [{"content": "a", "status": "pending"}]}"#.to_owned()),
        Just("{}".to_owned()),
        "[a-z]{1,5}".prop_map(|at| format!(r#"{{"at": "{at}"}}"#)),
        any::<String>(),
        r#"[\[\]{}",:a0-9 \\]{0,40}"#,
    ]
}

fn tool_call() -> impl Strategy<Value = ToolCall> {
    let name = prop_oneof![
        3 => Just("look".to_owned()),
        1 => Just("think".to_owned()),
        1 => Just("write_todos".to_owned()),
        1 => Just("append_note".to_owned()),
        1 => Just("read_notes".to_owned()),
        1 => any::<String>(),
    ];
    ("[a-c]", name, arguments()).prop_map(|(id, name, arguments)| ToolCall { id, name, arguments })
}

fn reply() -> impl Strategy<Value = Reply> {
    let text = prop_oneof![Just(String::new()), Just(r#"{"output": "x"}"#.to_owned()), any::<String>()];
    let calls = prop::collection::vec(tool_call(), 0..4);
    let finish = prop_oneof![
        8 => Just(Finish::Stop),
        8 => Just(Finish::ToolCalls),
        2 => Just(Finish::Length),
        1 => Just(Finish::ContentFilter),
    ];
    (text, calls, finish, any::<[u32; 3]>()).prop_map(|(text, calls, finish, [input, output, cost])| {
        let usage = Usage {
            input_tokens: u64::from(input % 500),
            output_tokens: u64::from(output % 50),
            cost_micros: u64::from(cost % 2_000),
            ..Usage::default()
        };
        Reply { text, calls, finish, usage, ..Reply::default() }
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![12 => reply().prop_map(|reply| Event::Reply(Box::new(reply))), 2 => Just(Event::Overflow), 1 => Just(Event::TimeUp)]
}

fn limits() -> impl Strategy<Value = Limits> {
    let some = |most: u64| prop::option::of(0..most);
    (0..12u32, 0..8u32, 1..4u32, 0..3u32, some(5_000), some(500), some(20_000)).prop_map(
        |(turns, tool_calls, identical_calls, repairs, input_tokens, output_tokens, cost)| Limits {
            turns,
            tool_calls,
            identical_calls,
            repairs,
            input_tokens,
            output_tokens,
            cached_tokens: None,
            cost: cost.map(Dollars::of_micros),
            time: Some(Duration::from_secs(60)),
        },
    )
}

/// Each call is followed by its results, in order, before anything else is said.
fn is_whole(messages: &[Message]) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        match message {
            Message::User { .. } if open.is_empty() => {}
            Message::Assistant { calls, .. } if open.is_empty() => {
                open = calls.iter().map(|call| call.id.as_str()).collect();
            }
            Message::Tool(result) if open.first() == Some(&result.call_id.as_str()) => {
                open.remove(0);
            }
            Message::User { .. } | Message::Assistant { .. } | Message::Tool(_) => return false,
        }
    }
    open.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_replies_end_in_an_outcome_and_no_call_is_left_without_its_result(
        limits in limits(),
        events in prop::collection::vec(event(), 0..40),
        length in 0..3_000usize,
    ) {
        let tools = Toolbox::new([look().0, think(), write_todos(), append_note(), read_notes()]).unwrap();
        let form = <TaskResult as millrace_agent::turn::Answer>::schema("research");
        let mut machine: Machine<TaskResult> =
            Machine::new(Brief { limits, ..brief(&tools, form) });
        // A model that has no more to say overflows, which ends too.
        let mut events = events.into_iter();
        let mut steps = 0;
        let Ended { outcome, usage, produced, .. } = loop {
            steps += 1;
            prop_assert!(steps < 200, "it goes on for ever");
            let copy: Machine<TaskResult> =
                serde_json::from_str(&serde_json::to_string(&machine).unwrap()).unwrap();
            prop_assert_eq!(&copy, &machine);
            match copy.next() {
                Step::AskModel(request) => {
                    prop_assert!(is_whole(&request.messages), "{:?}", request.messages);
                    let took = Duration::from_millis(10);
                    match events.next().unwrap_or(Event::Overflow) {
                        Event::Reply(reply) => machine.feed_reply(*reply, took).unwrap(),
                        Event::Overflow => machine.feed_overflow("too long".into(), took).unwrap(),
                        Event::TimeUp => machine.feed_time_up(took).unwrap(),
                    }
                }
                Step::CallTools(calls) => {
                    prop_assert!(!calls.is_empty());
                    let results = calls.iter().map(|call| result(&call.call_id, &"r".repeat(length)));
                    let results = results.collect();
                    machine.feed_results(results).unwrap();
                }
                Step::CheckAnswer(answer) => {
                    let answer = answer.clone();
                    machine.feed_check(if steps % 2 == 0 { Ok(answer) } else { Err("No.".into()) }).unwrap();
                }
                Step::Done(ended) => break ended,
            }
        };
        prop_assert!(usage.model_calls <= u64::from(limits.turns));
        prop_assert!(usage.tool_calls <= u64::from(limits.tool_calls) * 3);
        prop_assert!(produced.unwrap_or_default().chars().count() <= MAX_PRODUCED);
        match outcome {
            Outcome::Answered(result) => prop_assert!(!result.is_empty()),
            Outcome::Stopped(stop) => prop_assert!(!stop.to_string().is_empty()),
        }
    }
}
