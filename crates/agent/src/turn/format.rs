//! The format of a conversation: the version of its rules, and the ability of the model that its prompts were written for.
//! It is recorded with the first request, so that a resumed attempt has the same conversation on any machine and after an
//! upgrade.
//!
//! # Invariants
//!
//! - I90: A resumed conversation is the one that began: its prompt, form and rules are recorded with its first request, and one
//!   that began under 0.4.0 keeps the rules of 0.4.0.
//!   (`crates/agent/tests/answers.rs::a_resumed_conversation_has_the_prompt_that_was_recorded`,
//!   `crates/agent/tests/answers.rs::an_answer_recorded_by_0_4_0_counts_as_it_did`,
//!   `crates/agent/tests/judge.rs::review_that_began_under_0_4_0_continues_as_it_was`)

use serde::{Deserialize, Serialize};

use crate::model::ModelAbility;

/// The version whose rules this program follows in new conversations.
const CURRENT: u32 = 3;

/// The format of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationFormat {
    /// 1: conversations of 0.4.0. 2: a correction is requested without tools, a reply that was cut off is not shown again,
    /// a call that repeats another with the same result withdraws its tool, and the stricter checks of answers apply. 3: lines
    /// that a small model has read with its tools are cited by code, as those of its passages are.
    version: u32,
    /// The ability of the model that the prompts were written for.
    pub ability: ModelAbility,
}

impl ConversationFormat {
    /// The format of conversations whose journal records none: those of 0.4.0.
    pub const ORIGINAL: Self = Self { version: 1, ability: ModelAbility::Strong };

    /// The format of a new conversation with a model of this ability.
    #[must_use]
    pub const fn current(ability: ModelAbility) -> Self {
        Self { version: CURRENT, ability }
    }

    /// `true` for conversations that follow the rules of 0.4.0.
    #[must_use]
    pub const fn is_original(self) -> bool {
        self.version < 2
    }

    /// `true` if code cites the lines that a small model has read with its tools.
    #[must_use]
    pub const fn cites_read_lines(self) -> bool {
        self.version >= 3 && self.is_small()
    }

    /// `true` if the prompts are those for small models.
    #[must_use]
    pub const fn is_small(self) -> bool {
        matches!(self.ability, ModelAbility::Small)
    }
}

impl Default for ConversationFormat {
    fn default() -> Self {
        Self::current(ModelAbility::Strong)
    }
}

/// For serde: the format of values that were stored without one.
pub(super) fn original_format() -> ConversationFormat {
    ConversationFormat::ORIGINAL
}
