//! Keeping a conversation within its model's context window: when it is shortened, what is cut, and the summary that replaces
//! its older part. Pure rules over messages; the machine decides by them, and the driver stores the history and asks the model.
//!
//! ```text
//! estimate ≥ trigger ──▶ older arguments and results are cut ──still too long──▶ a summary replaces all but the newest messages
//!                              └─ before either: the whole conversation is in the history file
//! ```
//!
//! # Invariants
//!
//! - I145: Nothing is dropped from a conversation before the history file has it; if that can't be written, the conversation only
//!   grows. (`crates/agent/tests/turn/context.rs::two_million_characters_go_through_a_small_window_and_nothing_is_lost`,
//!   `crates/agent/tests/turn/context.rs::nothing_is_dropped_while_the_history_can_not_be_saved`)
//! - I146: Between two shortenings a conversation begins with the one before, byte for byte, and a takeover after any step
//!   shortens identically and asks for no summary twice.
//!   (`crates/agent/tests/turn/context.rs::two_million_characters_go_through_a_small_window_and_nothing_is_lost`,
//!   `crates/agent/tests/turn/context.rs::resume_after_any_step_shortens_identically`)

mod cut;
mod history;
mod step;
mod summary;

use cut::shorten_to_fit;
pub(super) use cut::{cut_older_messages, first_recent_message, leave_out_images, shorten_recent_messages};
pub(super) use history::format_history;
pub use step::ContextSettings;
pub(crate) use step::{ContextStep, HistoryState};
pub(super) use step::{ShortenCause, Shortening};
pub(super) use summary::{build_summary_request, format_notice};

use crate::model::{Image, Message};

/// The approximate size of a message in bytes.
pub(super) fn approximate_size(message: &Message) -> usize {
    match message {
        Message::User { text } => text.len(),
        // At four bytes per token.
        Message::Tool(result) => {
            result.text.len() + 4 * result.images.iter().map(Image::tokens).sum::<usize>()
        }
        Message::Assistant { text, calls, provider_state } => {
            let calls: usize = calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
            text.len() + calls + provider_state.as_ref().map_or(0, |state| state.items.to_string().len())
        }
    }
}

/// Splits messages into groups that belong together: a reply with the results of its calls, or one message.
pub(super) fn group_messages(messages: &[Message]) -> impl Iterator<Item = &[Message]> {
    messages.chunk_by(|_, next| matches!(next, Message::Tool(_)))
}
