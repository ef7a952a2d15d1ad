//! Whether another question is asked, and with what: the limits before it, the tools that are taken away for the last
//! one, and what the agent is told of its end. It changes nothing of the conversation but by adding to it.

use super::{Machine, State};
use crate::turn::allowance::Allowance;
use crate::turn::{Answer, Stop};

pub(super) const NO_CALLS_LEFT: &str =
    "You have no tool calls left. Answer now with what you have, and say what is missing.";
pub(super) const LAST_TURN: &str =
    "This is your last turn, without tools. Answer now with what you have, and say what is missing.";
pub(super) const NEARLY_SPENT: &str = "You have used most of what this task may use. Come to an end: make only the \
calls that you can't do without, then answer with what you have, and say what is missing.";

impl<A: Answer> Machine<A> {
    /// Goes on to the next question, unless a limit stands against it. A reply may take what is left of the tokens and
    /// no more.
    pub(super) fn ask_again(&mut self) {
        if let Some(stop) = self.reached() {
            return self.stop(stop);
        }
        self.take_spent_tools_away();
        self.hint_at_the_end();
        let left = self.allowance().of_next_reply(&self.spent.usage, self.last_input);
        self.request.max_output_tokens = self.max_output_tokens.min(left);
        self.state = State::Asking;
    }

    pub(super) fn reached(&self) -> Option<Stop> {
        let limit = self.limits.turns;
        if self.turns >= u64::from(limit) {
            return Some(Stop::Turns { limit });
        }
        let own = self.limits.reached(&self.spent.usage, self.worked, self.last_input);
        own.or_else(|| self.allowance().reached(&self.spent.usage, self.last_input))
    }

    /// Takes the tools away, and says so, where no call is left, or no question in which its result could be told.
    fn take_spent_tools_away(&mut self) {
        let last = self.turns + 1 == u64::from(self.limits.turns)
            || self.allowance().is_last(&self.spent.usage, self.last_input);
        let told = match (self.calls_counted >= self.calls_allowed, last) {
            (true, _) => NO_CALLS_LEFT,
            (false, true) => LAST_TURN,
            (false, false) => return,
        };
        if !self.request.tools.is_empty() {
            self.out_of_calls = true;
            self.request.tools = Vec::new();
            self.tell(told.to_owned());
        }
    }

    /// Says once that it is time to come to an end, where most of what may be used is.
    fn hint_at_the_end(&mut self) {
        if !self.told_to_end && !self.out_of_calls && self.allowance().is_nearly_used(&self.spent.usage) {
            self.told_to_end = true;
            self.tell(NEARLY_SPENT.to_owned());
        }
    }

    pub(super) fn allowance(&self) -> Allowance {
        Allowance::of(&self.limits, self.reserved)
    }
}
