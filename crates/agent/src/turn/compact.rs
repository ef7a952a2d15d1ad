//! Compacts a conversation that became too long for its model and whose context has no settings: that of a planner or a judge.
//! The others are shortened by [`super::context`]. It keeps the task, the agent's notes and the newest messages, and never separates a call from its results.

use super::context::{approximate_size, group_messages, leave_out_images};
use super::scratch::Scratchpad;
use crate::model::{Message, ToolResult};
use crate::tool::keep_head_and_tail;

/// The maximum number of characters of notes that are kept.
const MAX_NOTES: usize = 6_000;
/// The number of characters kept of each result of the newest calls.
const NEWEST_RESULT: usize = 4_000;
/// The number of characters kept of each older result.
const OLDER_RESULT: usize = 800;

const RECOVERY: &str = "The conversation became longer than the model's context, so most of it was left out. Your task \
is above, unchanged. Below is everything that was kept: your notes, your to-do list, and the newest messages, with only \
the beginning and end of long tool results. Treat the notes as established: do not repeat that work. Continue from there. \
Request smaller pieces from tools than before, take notes of your findings, and answer as soon as you can.";

/// Shortens the conversation to about half its length: its first message, a notice of the cut with the notes and to-do
/// list, and the newest messages that fit. `compacted`: the second message is the notice of an earlier cut. Messages
/// whose text is one of `obsolete` are left out, since they no longer hold.
pub(super) fn compact_conversation(
    messages: &[Message],
    compacted: bool,
    scratch: &Scratchpad,
    obsolete: &[&str],
) -> Vec<Message> {
    let Some((task, rest)) = messages.split_first() else {
        return Vec::new();
    };
    let rest = rest.get(usize::from(compacted)..).unwrap_or_default();
    let recovery = Message::User { text: format_recovery_notice(scratch) };
    let fixed = approximate_size(task) + approximate_size(&recovery);
    let mut room = (messages.iter().map(approximate_size).sum::<usize>() / 2).saturating_sub(fixed);
    let mut newest_groups = Vec::new();
    let mut limit = NEWEST_RESULT;
    for group in group_messages(rest)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .filter(|group| !is_obsolete_user_message(group, obsolete))
    {
        let group: Vec<Message> = group.iter().map(|message| shorten_message(message, limit)).collect();
        let length = group.iter().map(approximate_size).sum::<usize>();
        if length > room {
            break;
        }
        room -= length;
        if group.len() > 1 {
            limit = OLDER_RESULT;
        }
        newest_groups.push(group);
    }
    let newest = newest_groups.into_iter().rev().flatten();
    [task.clone(), recovery].into_iter().chain(newest).collect()
}

fn format_recovery_notice(scratch: &Scratchpad) -> String {
    let notes = scratch.format_newest_notes(MAX_NOTES).unwrap_or_else(|| "(none)".into());
    let todos = scratch.format_todo_list().unwrap_or_else(|| "(none)".into());
    format!("{RECOVERY}\n\n## Your notes\n{notes}\n\n## Your to-do list\n{todos}")
}

fn is_obsolete_user_message(group: &[Message], obsolete: &[&str]) -> bool {
    matches!(group, [Message::User { text }] if obsolete.contains(&text.as_str()))
}

fn shorten_message(message: &Message, limit: usize) -> Message {
    match message {
        Message::Tool(result) => {
            let text = keep_head_and_tail(&result.text, limit);
            let result = ToolResult { text, ..result.clone() };
            Message::Tool(if limit == OLDER_RESULT { leave_out_images(result) } else { result })
        }
        Message::User { .. } | Message::Assistant { .. } => message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::ToolCall;
    use crate::tool::InnerTool;

    fn user_message(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    /// A reply with `calls` calls and their results, `length` characters each.
    fn turn_messages(name: &str, calls: usize, length: usize) -> Vec<Message> {
        let ids: Vec<String> = (0..calls).map(|n| format!("{name}{n}")).collect();
        let call = |id: &String| ToolCall { id: id.clone(), name: "look".into(), arguments: "{}".into() };
        let reply = Message::Assistant {
            text: name.into(),
            calls: ids.iter().map(call).collect(),
            provider_state: None,
        };
        let result = |id: String| {
            Message::Tool(ToolResult {
                call_id: id,
                text: "r".repeat(length),
                is_error: false,
                images: Vec::new(),
            })
        };
        std::iter::once(reply).chain(ids.into_iter().map(result)).collect()
    }

    #[test]
    fn task_notes_and_newest_turns_are_kept() {
        let mut scratch = Scratchpad::default();
        scratch.run_inner_tool(InnerTool::AppendNote, json!({"note": "the sky is blue"})).unwrap();
        let todos = json!({"todos": [{"content": "look again", "status": "pending"}]});
        scratch.run_inner_tool(InnerTool::WriteTodos, todos).unwrap();
        let turns =
            [turn_messages("a", 2, 9_000), turn_messages("b", 1, 3_000), turn_messages("c", 2, 5_000)]
                .concat();
        let messages = [vec![user_message("the task")], turns, vec![user_message("no calls left")]].concat();

        let compacted = compact_conversation(&messages, false, &scratch, &["no calls left"]);
        let texts: Vec<String> = compacted
            .iter()
            .map(|message| match message {
                Message::User { text } | Message::Assistant { text, .. } => text.clone(),
                Message::Tool(result) => format!("{} {}", result.call_id, result.text.len()),
            })
            .collect();
        assert_eq!(texts[0], "the task");
        assert!(
            texts[1].contains("1. the sky is blue") && texts[1].contains("[pending] look again"),
            "{}",
            texts[1]
        );
        assert_eq!(texts.len(), 10, "{texts:?}");
        assert_eq!((texts[2].as_str(), texts[5].as_str(), texts[7].as_str()), ("a", "b", "c"));
        let length = |at: usize| texts[at].rsplit(' ').next().unwrap().parse::<usize>().unwrap();
        assert!((4_000..4_100).contains(&length(8)) && (800..900).contains(&length(6)), "{texts:?}");

        // Everything left would fit, including the notice of the first cut.
        let longer = [compacted[..2].to_vec(), turn_messages("d", 1, 60_000)].concat();
        let again = compact_conversation(&longer, true, &scratch, &[]);
        assert_eq!(again[0], messages[0]);
        let is_notice =
            |message: &&Message| matches!(message, Message::User { text } if text.starts_with(RECOVERY));
        assert_eq!(again.iter().filter(is_notice).count(), 1, "only the notice of the later cut is kept");
        assert_eq!(again.len(), 4);
    }

    #[test]
    fn results_are_never_separated_from_their_calls() {
        for length in [0, 10, 500, 2_000, 5_000, 40_000] {
            let turns = (0..6).flat_map(|n| turn_messages(&format!("t{n}-"), 3, length + n));
            let messages: Vec<Message> = std::iter::once(user_message("the task")).chain(turns).collect();
            let compacted = compact_conversation(&messages, false, &Scratchpad::default(), &[]);
            let mut open: Vec<String> = Vec::new();
            for message in &compacted {
                match message {
                    Message::User { .. } => assert_eq!(open, Vec::<String>::new()),
                    Message::Assistant { calls, .. } => {
                        assert_eq!(open, Vec::<String>::new());
                        open = calls.iter().map(|call| call.id.clone()).collect();
                    }
                    Message::Tool(result) => assert_eq!(open.remove(0), result.call_id),
                }
            }
            assert_eq!(open, Vec::<String>::new());
        }
    }
}
