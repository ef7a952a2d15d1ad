//! Cuts in the older messages of a conversation: long arguments of calls that wrote files, and long results. Calls are never
//! separated from their results.

use serde_json::Value;

use super::{approximate_size, group_messages};
use crate::files::FilePath;
use crate::model::{Message, ToolCall, ToolResult};
use crate::tool::keep_head_and_tail;

/// The tools whose arguments hold file contents, which the files have too.
const WRITERS: [&str; 2] = ["edit_file", "write_file"];
/// The number of characters from which on an argument is cut.
const LONG_ARGUMENT: usize = 2_000;
/// The number of characters that are kept of a cut argument.
const KEPT_OF_ARGUMENT: usize = 20;
/// The number of characters from which on a result is cut.
const LONG_RESULT: usize = 2_000;
/// The number of characters that are kept of a cut result, at both ends together.
const KEPT_OF_RESULT: usize = 400;
/// The length of the mark in a cut text, at most.
const CUT_MARK: usize = 60;

/// Returns the position of the first of the newest messages that have at most `size` bytes together; the last group is always
/// among them. Messages before `from` are not.
pub(in crate::turn) fn first_recent_message(messages: &[Message], from: usize, size: usize) -> usize {
    let groups: Vec<&[Message]> = group_messages(messages.get(from..).unwrap_or_default()).collect();
    let (mut first, mut total) = (messages.len(), 0);
    for (count, group) in groups.into_iter().rev().enumerate() {
        total += group.iter().map(approximate_size).sum::<usize>();
        if count > 0 && total > size {
            break;
        }
        first -= group.len();
    }
    first
}

/// Cuts the long parts of the messages before `recent`, except `kept`. `path` is that of the file with the whole text.
pub(in crate::turn) fn cut_older_messages(
    messages: &[Message],
    kept: std::ops::Range<usize>,
    recent: usize,
    path: Option<&FilePath>,
) -> Vec<Message> {
    let cut = |(at, message): (usize, &Message)| match message {
        _ if at >= recent || kept.contains(&at) => message.clone(),
        Message::User { .. } => message.clone(),
        Message::Tool(result) => {
            let cut = cut_result(result, LONG_RESULT, KEPT_OF_RESULT, path);
            Message::Tool(leave_out_images(cut))
        }
        Message::Assistant { text, calls, provider_state } => Message::Assistant {
            text: text.clone(),
            calls: calls.iter().map(|call| cut_call(call, path)).collect(),
            provider_state: provider_state.clone(),
        },
    };
    messages.iter().enumerate().map(cut).collect()
}

/// Shortens the results among the newest messages evenly, so that these have about `size` bytes together.
pub(in crate::turn) fn shorten_recent_messages(
    messages: &[Message],
    size: usize,
    path: Option<&FilePath>,
) -> Vec<Message> {
    let total: usize = messages.iter().map(approximate_size).sum();
    let results = messages.iter().filter(|message| matches!(message, Message::Tool(_))).count();
    if total <= size || results == 0 {
        return messages.to_vec();
    }
    let of_results = |message: &Message| match message {
        Message::Tool(result) => result.text.len(),
        Message::User { .. } | Message::Assistant { .. } => 0,
    };
    let fixed = total - messages.iter().map(of_results).sum::<usize>();
    let limit = (size.saturating_sub(fixed) / results).max(KEPT_OF_RESULT);
    let last = messages.iter().rposition(|message| matches!(message, Message::Tool(_)));
    let shorten = |(at, message): (usize, &Message)| match message {
        Message::Tool(result) => {
            let cut = cut_result(result, limit, limit, path);
            Message::Tool(if Some(at) == last { cut } else { leave_out_images(cut) })
        }
        Message::User { .. } | Message::Assistant { .. } => message.clone(),
    };
    messages.iter().enumerate().map(shorten).collect()
}

/// Cuts about `excess` bytes from messages, and no more if possible: first from the arguments that files have too, then from the
/// longest results, so that these become equally long.
pub(super) fn shorten_to_fit(messages: &[Message], excess: usize) -> Vec<Message> {
    let total = |messages: &[Message]| messages.iter().map(approximate_size).sum::<usize>();
    let whole = total(messages);
    let cut_arguments = |message: &Message| match message {
        Message::Assistant { text, calls, provider_state } => Message::Assistant {
            text: text.clone(),
            calls: calls.iter().map(|call| cut_call(call, None)).collect(),
            provider_state: provider_state.clone(),
        },
        Message::User { .. } | Message::Tool(_) => message.clone(),
    };
    let shorter: Vec<Message> = messages.iter().map(cut_arguments).collect();
    let Some(excess) = excess.checked_sub(whole - total(&shorter)).filter(|excess| *excess > 0) else {
        return shorter;
    };
    let lengths = shorter.iter().filter_map(|message| match message {
        Message::Tool(result) => Some(result.text.len()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    let limit = length_limit(lengths.collect(), excess).max(KEPT_OF_RESULT);
    let cut_to_limit = |message: &Message| match message {
        Message::Tool(result) if result.text.len() > limit => {
            // The limit is in bytes, and results are cut by characters.
            let kept = result.text.chars().count() * limit / result.text.len();
            let text = keep_head_and_tail(&result.text, kept);
            Message::Tool(ToolResult { text, ..result.clone() })
        }
        Message::User { .. } | Message::Assistant { .. } | Message::Tool(_) => message.clone(),
    };
    shorter.iter().map(cut_to_limit).collect()
}

/// Returns the largest length to which texts of these lengths must be cut, so that together they lose `excess`.
fn length_limit(mut lengths: Vec<usize>, excess: usize) -> usize {
    lengths.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0;
    for (at, length) in lengths.iter().enumerate() {
        sum += length;
        let next = lengths.get(at + 1).copied().unwrap_or(0);
        // The first `at + 1` texts are cut to one length, which is at least that of the next text.
        let lost = excess + (at + 1) * CUT_MARK;
        if sum.saturating_sub((at + 1) * next) >= lost {
            return (sum - lost) / (at + 1);
        }
    }
    0
}

/// Replaces the images of a result by their descriptions.
pub(in crate::turn) fn leave_out_images(mut result: ToolResult) -> ToolResult {
    for image in std::mem::take(&mut result.images) {
        let note = format!("\n[{}: left out, since the conversation is long]", image.describe());
        result.text.push_str(&note);
    }
    result
}

fn cut_result(result: &ToolResult, long: usize, kept: usize, path: Option<&FilePath>) -> ToolResult {
    if result.text.chars().count() <= long {
        return result.clone();
    }
    // It may be a part itself: the tool may have cut it, or a file may have the rest.
    let place = path.map(|path| format!("\nAs you saw it, it is in {path}.")).unwrap_or_default();
    let text = format!("{}{place}", keep_head_and_tail(&result.text, kept));
    ToolResult { text, ..result.clone() }
}

fn cut_call(call: &ToolCall, path: Option<&FilePath>) -> ToolCall {
    if !WRITERS.contains(&call.name.as_str()) || call.arguments.chars().count() <= LONG_ARGUMENT {
        return call.clone();
    }
    match serde_json::from_str::<Value>(&call.arguments) {
        Ok(Value::Object(mut fields)) => {
            fields.values_mut().for_each(|value| cut_argument(value, path));
            ToolCall { arguments: Value::Object(fields).to_string(), ..call.clone() }
        }
        Ok(_) | Err(_) => call.clone(),
    }
}

fn cut_argument(value: &mut Value, path: Option<&FilePath>) {
    if let Value::String(text) = value
        && text.chars().count() > LONG_ARGUMENT
    {
        let beginning: String = text.chars().take(KEPT_OF_ARGUMENT).collect();
        let place = path.map(|path| format!(" All of it is in {path}.")).unwrap_or_default();
        *text = format!("{beginning}[… argument cut.{place}]");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reply(calls: Vec<ToolCall>) -> Message {
        Message::Assistant { text: String::new(), calls, provider_state: None }
    }

    fn call(id: &str, name: &str, arguments: &Value) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: arguments.to_string() }
    }

    fn result(id: &str, length: usize) -> Message {
        Message::Tool(ToolResult {
            call_id: id.into(),
            text: "r".repeat(length),
            is_error: false,
            images: Vec::new(),
        })
    }

    #[test]
    fn long_arguments_of_writes_and_long_results_are_cut_in_older_messages_only() {
        let content = |length: usize| json!({"file_path": "/a", "content": "c".repeat(length)});
        let messages = [
            Message::User { text: "u".repeat(5_000) },
            reply(vec![call("1", "write_file", &content(2_001)), call("2", "grep", &content(2_001))]),
            result("1", 2_000),
            result("2", 2_001),
            reply(vec![call("3", "write_file", &content(9_000))]),
            result("3", 9_000),
        ];
        let path = FilePath::new("/conversation_history/t/1.md").unwrap();
        let cut = cut_older_messages(&messages, 0..1, 4, Some(&path));
        assert_eq!((&cut[0], &cut[2]), (&messages[0], &messages[2]), "short or kept");
        assert_eq!(cut[4..], messages[4..], "recent");
        let Message::Assistant { calls, .. } = &cut[1] else { panic!() };
        let written: Value = serde_json::from_str(&calls[0].arguments).unwrap();
        let mark = "[… argument cut. All of it is in /conversation_history/t/1.md.]";
        assert_eq!(written["content"], format!("{}{mark}", "c".repeat(20)));
        assert_eq!(written["file_path"], "/a");
        assert!(calls[1].arguments.len() > 2_000, "other tools' arguments are not in any file");
        let Message::Tool(result) = &cut[3] else { panic!() };
        assert!(result.text.len() < 600 && result.text.ends_with("t/1.md."), "{}", result.text);
    }

    #[test]
    fn only_what_does_not_fit_is_cut() {
        let content = |length: usize| json!({"file_path": "/a", "content": "c".repeat(length)});
        let messages = [
            reply(vec![call("1", "write_file", &content(3_000)), call("2", "look", &content(3_000))]),
            result("1", 500),
            result("2", 6_000),
            result("3", 9_000),
        ];
        let lengths =
            |messages: &[Message]| -> Vec<usize> { messages.iter().map(approximate_size).collect() };
        let whole = lengths(&messages);
        let total = |messages: &[Message]| lengths(messages).iter().sum::<usize>();
        let arguments = shorten_to_fit(&messages, 2_500);
        assert_eq!(lengths(&arguments)[1..], whole[1..], "the file has the arguments");
        assert!(lengths(&arguments)[0] < whole[0] - 2_500);
        for excess in [3_500, 5_000, 9_000, 12_000] {
            let cut = shorten_to_fit(&messages, excess);
            let lost = total(&messages) - total(&cut);
            assert!((excess..excess + 200).contains(&lost), "{lost} of {excess}");
            assert_eq!(lengths(&cut)[1], 500, "short results stay");
        }
        let cut = lengths(&shorten_to_fit(&messages, 3_500));
        assert_eq!(cut[2], 6_000, "the longest result is cut first: {cut:?}");
        let least = lengths(&shorten_to_fit(&messages, 100_000));
        assert!(least[2] < 500 && least[3] < 500, "{least:?}");
    }

    #[test]
    fn images_count_and_are_left_out_of_older_messages() {
        const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0";
        let image = crate::model::Image::from_bytes("/plot.png", PNG).unwrap();
        let look = |id: &str| {
            let images = vec![image.clone()];
            let result =
                ToolResult { call_id: id.into(), text: "seen".into(), images, ..ToolResult::default() };
            [reply(vec![call(id, "look", &json!({}))]), Message::Tool(result)]
        };
        let messages: Vec<Message> = [look("1"), look("2")].concat();
        assert!(approximate_size(&messages[1]) > 6_000);
        let cut = cut_older_messages(&messages, 0..0, 2, None);
        let Message::Tool(result) = &cut[1] else { panic!() };
        let note = "[image /plot.png, PNG 2×3, 29 bytes: left out, since the conversation is long]";
        assert_eq!((result.text.as_str(), result.images.len()), (format!("seen\n{note}").as_str(), 0));
        assert_eq!(cut[2..], messages[2..]);
        let shortened = shorten_recent_messages(&messages, 1_000, None);
        let images =
            |message: &Message| matches!(message, Message::Tool(result) if !result.images.is_empty());
        assert_eq!(shortened.iter().map(images).collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[test]
    fn newest_messages_fit_and_are_never_separated_from_their_calls() {
        let turn = |id: &str, length| [reply(vec![call(id, "look", &json!({}))]), result(id, length)];
        let messages: Vec<Message> = [turn("1", 900), turn("2", 900), turn("3", 900)].concat();
        for (size, first) in [(0, 4), (950, 4), (1_900, 2), (10_000, 0)] {
            assert_eq!(first_recent_message(&messages, 0, size), first, "{size}");
        }
        assert_eq!(first_recent_message(&messages, 2, 10_000), 2);
        let shortened = shorten_recent_messages(&messages, 1_500, None);
        let total: usize = shortened.iter().map(approximate_size).sum();
        assert!((1_300..1_800).contains(&total), "{total}");
        assert_eq!(shorten_recent_messages(&messages, 5_000, None), messages);
    }
}
