//! The conversation as Markdown, for the history file that the agent can read later and for the model that summarises it.

use std::fmt::Write;

use crate::model::Message;

/// Formats messages, each with a heading.
pub(in crate::turn) fn format_history(messages: &[Message]) -> String {
    let mut text = String::new();
    for message in messages {
        write_message(&mut text, message);
    }
    text
}

fn write_message(to: &mut String, message: &Message) {
    let written = match message {
        Message::User { text } => write!(to, "## User\n\n{text}\n\n"),
        Message::Tool(result) => {
            let state = if result.is_error { " (failed)" } else { "" };
            let images = result.images.iter().map(|image| format!("[{}]\n\n", image.describe()));
            let images: String = images.collect();
            write!(to, "## Result of call {}{state}\n\n{}\n\n{images}", result.call_id, result.text)
        }
        Message::Assistant { text, calls, provider_state: _ } => {
            to.push_str("## Agent\n\n");
            if !text.trim().is_empty() {
                to.push_str(text.trim_end());
                to.push_str("\n\n");
            }
            calls
                .iter()
                .try_for_each(|call| write!(to, "Call {}: {} {}\n\n", call.id, call.name, call.arguments))
        }
    };
    written.expect("writing to a String can't fail");
}
