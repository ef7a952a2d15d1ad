//! Commands and messages of users.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::question::StandingAnswer;
use crate::wait::Signal;

/// A user's command or message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum UserEvent {
    /// A command is applied; the events that it causes follow.
    Commanded {
        /// The command's id.
        id: String,
        /// The user's name.
        by: String,
        /// A description of the command for a person.
        what: String,
    },
    /// A user sent the planner a message.
    MessageReceived {
        /// The user's name.
        by: String,
        /// The message.
        text: String,
    },
    /// A user or a program signalled an event to the run.
    Signalled(Signal),
    /// A person's answer also decides further calls.
    StandingAnswerGiven(StandingAnswer),
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
