//! Makes a conversation shorter that became too long for its model. It owns what is kept: the task, what the agent wrote
//! down, and the newest messages, with no call parted from its results.

use super::scratch::Scratch;
use crate::model::{Message, ToolResult};
use crate::tool::head_and_tail;

/// The most characters of notes that go along.
const MAX_NOTES: usize = 6_000;
/// What is kept of each result of the newest calls, in characters.
const NEWEST_RESULT: usize = 4_000;
/// What is kept of each older result.
const OLDER_RESULT: usize = 800;

const RECOVERY: &str = "The conversation became longer than the model can hold, so most of it was left out. Your task \
stands above, unchanged. What follows is all that was kept: your notes, your to-do list, and the newest messages, with \
only the two ends of long tool results. The notes count as established: do not do that work again. Go on from there. \
Ask tools for smaller pieces than before, keep notes of what you find, and answer as soon as you can.";

/// The conversation in about half its length: its first message, what the agent is told of the cut, its notes and to-do
/// list, and the newest messages that fit. `compacted` says whether the second message is that of an earlier cut;
/// messages whose text is one of `passing` are left out, since what they say does not hold any more.
pub(super) fn compact(
    messages: &[Message],
    compacted: bool,
    scratch: &Scratch,
    passing: &[&str],
) -> Vec<Message> {
    let Some((task, rest)) = messages.split_first() else {
        return Vec::new();
    };
    let rest = rest.get(usize::from(compacted)..).unwrap_or_default();
    let recovery = Message::User { text: recovery(scratch) };
    let fixed = size(task) + size(&recovery);
    let mut room = (messages.iter().map(size).sum::<usize>() / 2).saturating_sub(fixed);
    let mut kept = Vec::new();
    let mut limit = NEWEST_RESULT;
    for group in groups(rest).into_iter().rev().filter(|group| !passes(group, passing)) {
        let group: Vec<Message> = group.iter().map(|message| shortened(message, limit)).collect();
        let length = group.iter().map(size).sum::<usize>();
        if length > room {
            break;
        }
        room -= length;
        if group.len() > 1 {
            limit = OLDER_RESULT;
        }
        kept.push(group);
    }
    let newest = kept.into_iter().rev().flatten();
    [task.clone(), recovery].into_iter().chain(newest).collect()
}

fn recovery(scratch: &Scratch) -> String {
    let notes = scratch.newest_notes(MAX_NOTES).unwrap_or_else(|| "(none)".into());
    let todos = scratch.todo_list().unwrap_or_else(|| "(none)".into());
    format!("{RECOVERY}\n\n## Your notes\n{notes}\n\n## Your to-do list\n{todos}")
}

/// The messages in pieces that belong together: a reply with the results of its calls, or one message.
fn groups(messages: &[Message]) -> Vec<&[Message]> {
    messages.chunk_by(|_, next| matches!(next, Message::Tool(_))).collect()
}

fn passes(group: &[Message], passing: &[&str]) -> bool {
    matches!(group, [Message::User { text }] if passing.contains(&text.as_str()))
}

fn shortened(message: &Message, limit: usize) -> Message {
    match message {
        Message::Tool(result) => {
            Message::Tool(ToolResult { text: head_and_tail(&result.text, limit), ..result.clone() })
        }
        Message::User { .. } | Message::Assistant { .. } => message.clone(),
    }
}

/// About how much room a message takes, in bytes.
fn size(message: &Message) -> usize {
    match message {
        Message::User { text } => text.len(),
        Message::Tool(result) => result.text.len(),
        Message::Assistant { text, calls, keepsake } => {
            let calls: usize = calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
            text.len() + calls + keepsake.as_ref().map_or(0, |keepsake| keepsake.items.to_string().len())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::ToolCall;
    use crate::tool::Inner;

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    /// A reply with `calls` calls and their results, `length` characters each.
    fn turn(name: &str, calls: usize, length: usize) -> Vec<Message> {
        let ids: Vec<String> = (0..calls).map(|n| format!("{name}{n}")).collect();
        let call = |id: &String| ToolCall { id: id.clone(), name: "look".into(), arguments: "{}".into() };
        let said =
            Message::Assistant { text: name.into(), calls: ids.iter().map(call).collect(), keepsake: None };
        let result =
            |id: String| Message::Tool(ToolResult { call_id: id, text: "r".repeat(length), is_error: false });
        std::iter::once(said).chain(ids.into_iter().map(result)).collect()
    }

    #[test]
    fn the_task_the_notes_and_the_newest_turns_are_kept_whole() {
        let mut scratch = Scratch::default();
        scratch.call(Inner::AppendNote, json!({"note": "the sky is blue"})).unwrap();
        let todos = json!({"todos": [{"content": "look again", "status": "pending"}]});
        scratch.call(Inner::WriteTodos, todos).unwrap();
        let turns = [turn("a", 2, 9_000), turn("b", 1, 3_000), turn("c", 2, 5_000)].concat();
        let messages = [vec![user("the task")], turns, vec![user("no calls left")]].concat();

        let kept = compact(&messages, false, &scratch, &["no calls left"]);
        let texts: Vec<String> = kept
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

        // All that is left of this would fit, the words of the first cut as well.
        let longer = [kept[..2].to_vec(), turn("d", 1, 60_000)].concat();
        let again = compact(&longer, true, &scratch, &[]);
        assert_eq!(again[0], messages[0]);
        let told =
            |message: &&Message| matches!(message, Message::User { text } if text.starts_with(RECOVERY));
        assert_eq!(again.iter().filter(told).count(), 1, "of two cuts only the later is told");
        assert_eq!(again.len(), 4);
    }

    #[test]
    fn no_result_stands_without_its_call_however_little_fits() {
        for length in [0, 10, 500, 2_000, 5_000, 40_000] {
            let turns = (0..6).flat_map(|n| turn(&format!("t{n}-"), 3, length + n));
            let messages: Vec<Message> = std::iter::once(user("the task")).chain(turns).collect();
            let kept = compact(&messages, false, &Scratch::default(), &[]);
            let mut open: Vec<String> = Vec::new();
            for message in &kept {
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
