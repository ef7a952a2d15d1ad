//! Property tests: with any replies and tool results, the machine neither panics nor loops forever, keeps every call
//! with its result, and continues identically after serialisation.

use std::time::Duration;

use millrace_agent::model::{FinishReason, Message, Reply, ToolCall};
use millrace_agent::tool::{Toolbox, append_note_tool, read_notes_tool, think_tool, write_todos_tool};
use millrace_agent::turn::{AgentBrief, Dollars, Limits, Machine, MachineStep, WorkOutcome, WorkSummary};
use millrace_protocol::result::{MAX_PRODUCED, TaskResult, Usage};
use proptest::prelude::*;

use super::support::{brief, look, result};

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
        8 => Just(FinishReason::Stop),
        8 => Just(FinishReason::ToolCalls),
        2 => Just(FinishReason::Length),
        1 => Just(FinishReason::ContentFilter),
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
            cost: cost.map(Dollars::from_micros),
            time: Some(Duration::from_secs(60)),
        },
    )
}

/// `true` if each call is followed by its result, in order, before any other message.
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
    fn any_replies_end_in_an_outcome_with_all_calls_answered(
        limits in limits(),
        events in prop::collection::vec(event(), 0..40),
        length in 0..3_000usize,
    ) {
        let tools = Toolbox::new([look().0, think_tool(), write_todos_tool(), append_note_tool(), read_notes_tool()]).unwrap();
        let form = <TaskResult as millrace_agent::turn::Answer>::answer_schema("research");
        let mut machine: Machine<TaskResult> =
            Machine::new(AgentBrief { limits, ..brief(&tools, form) });
// A model with no replies left overflows, which ends the turn too.
        let mut events = events.into_iter();
        let mut steps = 0;
        let WorkSummary { outcome, usage, produced, .. } = loop {
            steps += 1;
            prop_assert!(steps < 200, "it loops forever");
            let copy: Machine<TaskResult> =
                serde_json::from_str(&serde_json::to_string(&machine).unwrap()).unwrap();
            prop_assert_eq!(&copy, &machine);
            match copy.next_step() {
                MachineStep::AskModel(request) => {
                    prop_assert!(is_whole(&request.messages), "{:?}", request.messages);
                    let took = Duration::from_millis(10);
                    match events.next().unwrap_or(Event::Overflow) {
                        Event::Reply(reply) => machine.feed_reply(*reply, took).unwrap(),
                        Event::Overflow => machine.feed_overflow("too long".into(), took).unwrap(),
                        Event::TimeUp => machine.feed_time_up(took).unwrap(),
                    }
                }
                MachineStep::CallTools(calls) => {
                    prop_assert!(!calls.is_empty());
                    let results = calls.iter().map(|call| result(&call.call_id, &"r".repeat(length)));
                    let results = results.collect();
                    machine.feed_results(results).unwrap();
                }
                MachineStep::Shorten(_) => unreachable!("its context has no settings"),
                MachineStep::CheckAnswer(answer) => {
                    let answer = answer.clone();
                    machine.feed_checked_answer(if steps % 2 == 0 { Ok(answer) } else { Err("No.".into()) }).unwrap();
                }
                MachineStep::Done(ended) => break ended,
            }
        };
        prop_assert!(usage.model_calls <= u64::from(limits.turns));
        prop_assert!(usage.tool_calls <= u64::from(limits.tool_calls) * 3);
        prop_assert!(produced.unwrap_or_default().chars().count() <= MAX_PRODUCED);
        match outcome {
            WorkOutcome::Answered(result) => prop_assert!(!result.is_empty()),
            WorkOutcome::Stopped(stop) => prop_assert!(!stop.to_string().is_empty()),
        }
    }
}
