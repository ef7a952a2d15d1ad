//! The next model request: the limits that are checked before it, the tools withdrawn from the last one, and the notices
//! to the agent. It only ever appends to the conversation.

use millrace_models::limits::estimate_sent_tokens;
use millrace_protocol::plan::{ResourceAmounts, ResourceKind};

use super::{Machine, MachineState};

use crate::model::ToolSpec;
use crate::turn::limits::AttemptAllowance;
use crate::turn::{Answer, StopReason};

pub(super) const NO_CALLS_LEFT: &str =
    "You have no tool calls left. Answer now from the information you have, and list the missing parts.";
pub(super) const LAST_TURN: &str = "This is your last turn, without tools. Answer now from the information you have, and list the missing parts.";
pub(super) const NEARLY_SPENT: &str = "You have used most of this task's budget. Finish now: make only the calls that you \
can't do without, then answer with what you have, and state what is missing.";

/// The shortest reply that is of use, in tokens. A request that leaves less room for its reply is not worth its input.
const MIN_REPLY: u64 = 256;

impl<A: Answer> Machine<A> {
    /// Prepares the next request, unless a limit is reached. The reply may use at most the tokens that are left.
    pub(super) fn request_reply(&mut self) {
        if let Some(stop) = self.find_exceeded_limit() {
            return self.stop_with_reason(stop);
        }
        if let Some(cause) = self.shortening_cause() {
            return self.begin_shortening(cause);
        }
        self.withdraw_tools_if_spent();
        self.send_wrap_up_notice();
        let left = self.attempt_allowance().max_reply_tokens(&self.limited_usage(), self.estimated_input());
        self.request.max_output_tokens = self.max_output_tokens.min(left);
        self.state = MachineState::Asking;
    }

    /// The tokens that the next request sends: at least those of the last one, and at least what its text is estimated at.
    fn estimated_input(&self) -> u64 {
        self.last_input.max(estimate_sent_tokens(&self.request))
    }

    /// What the first request needs, with a reply long enough to be of use; `None` if the reservation pays for it.
    pub(in crate::turn) fn unaffordable_first_request(&self) -> Option<ResourceAmounts> {
        if self.turns > 0 {
            return None;
        }
        let input = self.estimated_input();
        let reply = MIN_REPLY.min(u64::from(self.max_output_tokens));
        let needs = ResourceAmounts {
            tokens: Some(input.saturating_add(reply)),
            input_tokens: Some(input),
            output_tokens: Some(reply),
            model_calls: Some(1),
            ..ResourceAmounts::default()
        };
        let is_short = |(dimension, reserved): (ResourceKind, u64)| {
            needs.get(dimension).is_some_and(|needs| needs > reserved)
        };
        self.reserved.iter().any(is_short).then(|| needs.of_same_dimensions(self.reserved))
    }

    pub(super) fn find_exceeded_limit(&self) -> Option<StopReason> {
        let limit = self.limits.turns;
        if self.turns >= u64::from(limit) {
            return Some(StopReason::Turns { limit });
        }
        let own = self.limits.find_exceeded_limit(&self.limited_usage(), self.worked, self.last_input);
        // The driver returns an attempt that can't pay for its first request.
        let input = if self.turns == 0 { 0 } else { self.estimated_input() };
        own.or_else(|| self.attempt_allowance().find_exceeded_limit(&self.limited_usage(), input))
    }

    /// Withdraws the tools, with a notice, if no calls are left or the next request is the last one.
    fn withdraw_tools_if_spent(&mut self) {
        let last = self.turns + 1 == u64::from(self.limits.turns)
            || self.attempt_allowance().is_last_request(&self.limited_usage(), self.last_input);
        let notice = match (self.calls_counted >= self.calls_allowed, last) {
            (true, _) => NO_CALLS_LEFT,
            (false, true) => LAST_TURN,
            (false, false) => return,
        };
        if !self.request.tools.is_empty() {
            self.out_of_calls = true;
            self.request.tools = Vec::new();
            self.push_user_message(notice.to_owned());
        }
    }

    /// Tells the agent once to finish, when most of its amounts are used.
    fn send_wrap_up_notice(&mut self) {
        if !self.has_wrap_up_notice
            && !self.out_of_calls
            && self.attempt_allowance().is_nearly_used_up(&self.limited_usage())
        {
            self.has_wrap_up_notice = true;
            self.push_user_message(NEARLY_SPENT.to_owned());
        }
    }

    /// The tools of the next request: none while a correction is awaited or calls are used up.
    pub(super) fn offered_tools(&self) -> Vec<ToolSpec> {
        if self.out_of_calls || self.is_correcting {
            return Vec::new();
        }
        let is_offered = |tool: &&ToolSpec| {
            !self.repetition.is_withdrawn(&tool.name) && self.is_available_in_state(&tool.name)
        };
        self.tools.iter().filter(is_offered).filter_map(|spec| self.resolve_tool_spec(spec).ok()).collect()
    }

    /// `true` if the cost of the attempt is limited, by its capability or by its reservation.
    pub(in crate::turn) fn limits_cost(&self) -> bool {
        self.limits.cost.is_some() || self.reserved.cost_micros.is_some()
    }

    pub(super) fn attempt_allowance(&self) -> AttemptAllowance {
        AttemptAllowance::new(&self.limits, self.reserved)
    }
}
