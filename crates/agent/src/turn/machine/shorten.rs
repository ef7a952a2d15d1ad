//! Shortening of a conversation that nears its model's context window: when it begins, and the conversation afterwards. The
//! rules for messages are in [`crate::turn::context`]; this file owns the state of them.

use std::ops::Range;
use std::time::Duration;

use millrace_models::families::find_window_in_message;
use millrace_models::limits::estimate_sent_tokens;
use serde::{Deserialize, Serialize};

use super::next_request::{LAST_TURN, NEARLY_SPENT, NO_CALLS_LEFT};
use super::repetition::RepetitionTracker;
use super::{MAX_COMPACTIONS, Machine, MachineState, UnexpectedInput};
use crate::model::{Message, Request};
use crate::turn::context::{
    ContextSettings, ContextStep, HistoryState, ShortenCause, Shortening, approximate_size,
    build_summary_request, cut_older_messages, first_recent_message, format_history, format_notice,
    shorten_recent_messages,
};
use crate::turn::{Answer, StopReason, UsageTotals};

/// The share of the window that the newest messages keep, in percent.
const RECENT_PERCENT: u64 = 10;
/// The share of the window that the last reply may have with its results, which the model has not seen yet, in percent.
const UNSEEN_PERCENT: u64 = 40;
/// The share of the trigger below which cutting arguments and results is enough, in percent.
const ENOUGH_PERCENT: u64 = 60;
/// The share of the trigger that must be new since the last shortening, in percent: less is not worth another one.
const NEW_PERCENT: u64 = 5;
/// The share of the window that the messages to summarise may have, in percent.
const SUMMARISED_PERCENT: u64 = 70;
/// The assumed bytes of a token.
const BYTES_PER_TOKEN: u64 = 4;

/// The state of a conversation's context.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ContextState {
    /// The settings; `None` for conversations that are only shortened after an overflow, from the agent's notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<ContextSettings>,
    /// The messages with the current task.
    task: Range<usize>,
    /// The number of messages that the history file has.
    saved: usize,
    /// The number of shortenings.
    count: u32,
    /// The measured tokens of a request in percent of the estimated ones; 0 before the first measurement.
    density: u64,
    /// `true` if the agent has asked for a shortening.
    is_requested: bool,
    /// `true` if the history can't be saved, so that nothing may be dropped.
    is_fixed: bool,
}

impl ContextState {
    /// The state of a conversation with its current task in these messages.
    pub fn with_task(task: Range<usize>) -> Self {
        Self { task, ..Self::default() }
    }

    /// `true` for conversations of attempts that have no settings.
    pub fn is_unmanaged(&self) -> bool {
        self.settings.is_none()
    }
}

impl<A: Answer> Machine<A> {
    /// Keeps the conversation within its model's window by these settings. Call it before the first step.
    #[must_use]
    pub fn with_context(mut self, settings: Option<ContextSettings>) -> Self {
        self.context.settings = settings;
        self
    }

    /// The reason to shorten the conversation before the next request, if there is one.
    pub(super) fn shortening_cause(&self) -> Option<ShortenCause> {
        let settings = self.context.settings?;
        let new = self.request.messages.get(self.context.saved..).unwrap_or_default();
        if self.context.is_fixed || self.turns == 0 || new.is_empty() {
            return None;
        }
        if self.context.is_requested {
            return Some(ShortenCause::Requested);
        }
        let trigger = settings.trigger()?;
        let new_tokens = new.iter().map(approximate_size).sum::<usize>() as u64 / BYTES_PER_TOKEN;
        let is_worth_it = new_tokens.saturating_mul(100) >= trigger.saturating_mul(NEW_PERCENT);
        (is_worth_it && self.measured_tokens(&self.request) >= trigger).then_some(ShortenCause::Trigger)
    }

    /// Handles a call of `compact_conversation`.
    pub(super) fn request_compaction(&mut self) -> Result<String, String> {
        let Some(settings) = self.context.settings.filter(|_| !self.context.is_fixed) else {
            return Err("this conversation can't be compacted".into());
        };
        let (tokens, least) = (self.measured_tokens(&self.request), settings.trigger().unwrap_or(0) / 2);
        if tokens < least {
            return Err(format!(
                "the conversation has about {tokens} tokens and need not be compacted; it can be from {least} tokens on"
            ));
        }
        self.context.is_requested = true;
        Ok("The conversation is compacted before your next message.".into())
    }

    /// Measures how many tokens the estimate of a request stands for.
    pub(super) fn measure_density(&mut self, input_tokens: u64) {
        if self.context.is_unmanaged() || input_tokens == 0 {
            return;
        }
        let estimated = estimate_sent_tokens(&self.request).max(1);
        self.context.density = (input_tokens.saturating_mul(100) / estimated).clamp(100, 1_000);
    }

    /// The estimated tokens of a request, by what the provider has counted before.
    fn measured_tokens(&self, request: &Request) -> u64 {
        let estimated = estimate_sent_tokens(request).saturating_mul(self.density()) / 100;
        self.last_input.max(estimated)
    }

    fn density(&self) -> u64 {
        self.context.density.max(100)
    }

    /// Shortens a conversation that the provider has refused as too long, at most [`MAX_COMPACTIONS`] times in a row.
    pub(super) fn shorten_after_overflow(&mut self, message: String) {
        if self.compactions == MAX_COMPACTIONS || self.context.is_fixed {
            return self.stop_with_reason(StopReason::Context { compactions: self.compactions, message });
        }
        self.compactions += 1;
        let refused = self.measured_tokens(&self.request);
        if let Some(settings) = &mut self.context.settings {
            let named = find_window_in_message(&message);
            settings.window = named.or(settings.window).or(Some(refused));
        }
        self.begin_shortening(ShortenCause::Overflow(message));
    }

    /// Prepares a shortening: what the history file lacks, and the request for a summary if cutting is not enough.
    pub(super) fn begin_shortening(&mut self, cause: ShortenCause) {
        let messages = &self.request.messages;
        let (recent, task) = (self.first_recent(), self.context.task.clone());
        let before = self.measured_tokens(&self.request);
        let cut = cut_older_messages(messages, task.clone(), recent, None);
        let enough = match &cause {
            ShortenCause::Trigger => self.trigger().saturating_mul(ENOUGH_PERCENT) / 100,
            ShortenCause::Overflow(_) => before / 2,
            ShortenCause::Requested => 0,
        };
        let has_older = recent > task.end;
        let summary = (has_older && self.tokens_with_messages(&cut) > enough).then(|| {
            let size = self.bytes_of_tokens(self.window().saturating_mul(SUMMARISED_PERCENT) / 100);
            let request = |messages: &[Message], size| {
                let older = messages.get(..recent).unwrap_or_default();
                Box::new(build_summary_request(older, size, Some(self.window())))
            };
            // The cut messages are for a model that counts more tokens, or has a smaller window.
            (request(messages, size), request(&cut, size / 2))
        });
        let (summary, shorter_summary) = summary.unzip();
        let history = format_history(messages.get(self.context.saved..).unwrap_or_default());
        let number = self.context.count;
        let shortening = Shortening { number, history, summary, shorter_summary, tokens: before, cause };
        self.state = MachineState::Shortening(Box::new(shortening));
    }

    /// Feeds the record of a shortening.
    pub(in crate::turn) fn feed_shortened(&mut self, step: ContextStep) -> Result<(), UnexpectedInput> {
        let MachineState::Shortening(shortening) = &self.state else {
            return Err(self.out_of_step_error("a shortened conversation"));
        };
        let (cause, has_summary) = (shortening.cause.clone(), shortening.summary.is_some());
        let ContextStep { history, summary, usage, models, took_ms, .. } = step;
        self.worked += Duration::from_millis(took_ms);
        self.spent.add_totals(&UsageTotals { usage, models });
        self.context.count += 1;
        self.context.is_requested = false;
        match (history, cause) {
            (HistoryState::Failed(_), ShortenCause::Overflow(message)) => {
                let compactions = self.compactions;
                self.stop_with_reason(StopReason::Context { compactions, message });
                return Ok(());
            }
            (HistoryState::Failed(_), ShortenCause::Trigger | ShortenCause::Requested) => {
                self.context.is_fixed = true;
            }
            (history @ (HistoryState::Saved { .. } | HistoryState::NoWorkspace), _) => {
                self.replace_messages(&history, has_summary.then_some(summary.as_deref()));
            }
        }
        self.request_reply();
        Ok(())
    }

    /// Replaces the conversation by its shorter form. `summary` is that of the older messages, if these are dropped; `None`
    /// within it if the model gave none.
    fn replace_messages(&mut self, history: &HistoryState, summary: Option<Option<&str>>) {
        let path = history.readable_path();
        let (recent, task) = (self.first_recent(), self.context.task.clone());
        let messages = &self.request.messages;
        let unseen = self.bytes_of_tokens(self.window().saturating_mul(UNSEEN_PERCENT) / 100);
        let newest: Vec<Message> = messages
            .get(recent..)
            .unwrap_or_default()
            .iter()
            .filter(|it| !is_obsolete(it))
            .cloned()
            .collect();
        let newest = shorten_recent_messages(&newest, unseen >> self.compactions, path);
        let mut shorter: Vec<Message> = match summary {
            None => cut_older_messages(messages, task.clone(), recent, path).drain(..recent).collect(),
            Some(summary) => {
                let notice = Message::User { text: format_notice(summary, &self.scratch, path) };
                let current = messages.get(task.start.max(1)..task.end.max(1)).unwrap_or_default();
                let first = messages.first().cloned().into_iter();
                first.chain([notice]).chain(current.iter().cloned()).collect()
            }
        };
        if summary.is_some() && task.start > 0 {
            self.context.task = 2..shorter.len();
        }
        shorter.extend(newest);
        self.context.saved = shorter.len();
        self.request.messages = shorter;
        // Earlier results are gone from the conversation, so repeating their calls is allowed.
        self.repetition = RepetitionTracker::default();
        self.last_input = 0;
        self.request.tools = self.offered_tools();
    }

    /// The position of the first of the newest messages, which stay.
    fn first_recent(&self) -> usize {
        let size = self.bytes_of_tokens(self.window().saturating_mul(RECENT_PERCENT) / 100);
        first_recent_message(&self.request.messages, self.context.task.end, size >> self.compactions)
    }

    /// The estimated tokens of the next request if it had these messages.
    fn tokens_with_messages(&self, messages: &[Message]) -> u64 {
        let size = |messages: &[Message]| messages.iter().map(approximate_size).sum::<usize>() as u64;
        let now = estimate_sent_tokens(&self.request);
        let saved = size(&self.request.messages).saturating_sub(size(messages)) / BYTES_PER_TOKEN;
        now.saturating_sub(saved).saturating_mul(self.density()) / 100
    }

    fn bytes_of_tokens(&self, tokens: u64) -> usize {
        let bytes = tokens.saturating_mul(BYTES_PER_TOKEN).saturating_mul(100) / self.density();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The window; if it is not known, the size of the conversation.
    fn window(&self) -> u64 {
        let known = self.context.settings.and_then(|settings| settings.window);
        known.unwrap_or_else(|| self.measured_tokens(&self.request))
    }

    fn trigger(&self) -> u64 {
        self.context.settings.and_then(ContextSettings::trigger).unwrap_or_else(|| self.window())
    }
}

/// `true` for a notice that no longer holds after a shortening, or is sent again.
fn is_obsolete(message: &Message) -> bool {
    let notices = [NO_CALLS_LEFT, LAST_TURN, NEARLY_SPENT];
    matches!(message, Message::User { text } if notices.contains(&text.as_str()))
}
