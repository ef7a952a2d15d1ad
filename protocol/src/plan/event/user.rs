//! Commands and messages of users.

use std::fmt;

use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use crate::question::{StandingAnswer, StandingAnswerJson};
use crate::wait::{Signal, SignalJson};

/// A user's command or message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ApiForm)]
pub enum UserEvent {
    /// A user's command was applied; its consequences follow.
    #[api(name = "user_command")]
    Commanded {
        /// The id of the command.
        id: String,
        /// The user.
        by: String,
        /// The command, for a person.
        #[api(name = "description")]
        what: String,
    },
    /// A user sent the planner a message.
    #[api(name = "user_message")]
    MessageReceived {
        /// The user.
        by: String,
        /// The message.
        text: String,
    },
    /// A user or a program signalled an event to the run.
    #[api(name = "event_signalled")]
    Signalled(#[api(form(SignalJson<'a>))] Signal),
    /// A person's answer also decides further calls.
    #[api(name = "standing_answer")]
    StandingAnswerGiven(#[api(form(StandingAnswerJson<'a>))] StandingAnswer),
}

impl fmt::Display for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commanded { by, what, .. } => write!(f, "{by}: {what}"),
            Self::MessageReceived { by, text } => write!(f, "{by} to the planner: {text}"),
            Self::Signalled(Signal { name, by, .. }) => write!(f, "{by} signalled the event {name:?}"),
            Self::StandingAnswerGiven(StandingAnswer { capability, tool, digest, by, answer }) => {
                let calls = if digest.is_some() { "the same calls" } else { "all calls" };
                write!(f, "{by} {answer}, for {calls} of {tool} by {capability}")
            }
        }
    }
}
