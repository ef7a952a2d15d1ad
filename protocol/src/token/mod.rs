//! The tokens of the HTTP API: their text, what is stored of them, and the kinds of operations that they allow.
//!
//! ```text
//! mrt_<id>_<secret>              a token of the only tenant of a gateway
//! mrt_<tenant>_<id>_<secret>     a token of one of several tenants
//! ```
//!
//! The id is the key of the stored token, so that it is found by one read. The secret has 256 random bits; only its hash is
//! stored. The tenant tells the gateway in whose account the token is stored. It proves nothing: only the account that has the
//! token can verify it.

mod scope;
mod text;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::safe_text::is_unsafe;

pub use scope::{InvalidScope, Scope, ScopeSet};
pub use text::{InvalidToken, TOKEN_PREFIX, TokenId, TokenText};

/// The maximum length of the name of a token in bytes.
const MAX_NAME: usize = 100;

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    /// The id.
    pub id: TokenId,
    /// The name of its holder, which is the author of commands and answers in the log.
    pub name: String,
    /// The operations that it allows.
    pub scopes: ScopeSet,
    /// The SHA-256 of the secret in hexadecimal.
    pub sha256: String,
    /// When it was created.
    pub created: Timestamp,
    /// The user or token holder that created it.
    pub created_by: String,
    /// When it expires; `None` for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The revocation, if it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// The end of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// When it was revoked.
    pub at: Timestamp,
    /// The user or token holder that revoked it.
    pub by: String,
}

/// The state of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It is accepted.
    Active,
    /// Its time is over.
    Expired,
    /// It was revoked.
    Revoked,
}

impl StoredToken {
    /// Returns `true` if this is what is stored of a token. The time that it takes does not depend on the secret.
    pub fn is_of(&self, text: &TokenText) -> bool {
        self.id == text.id && self.sha256.as_bytes().ct_eq(text.secret_hash().as_bytes()).into()
    }

    /// Returns the state at a time.
    pub fn state_at(&self, now: Timestamp) -> TokenState {
        if self.revoked.is_some() {
            TokenState::Revoked
        } else if self.expires.is_some_and(|expires| expires <= now) {
            TokenState::Expired
        } else {
            TokenState::Active
        }
    }
}

/// Returns the mistake in the name of a token, if there is one.
#[must_use]
pub fn find_token_name_problem(name: &str) -> Option<String> {
    if name.trim() != name || name.is_empty() || name.len() > MAX_NAME {
        return Some(format!("a name has 1 to {MAX_NAME} bytes and no space at its ends"));
    }
    name.chars()
        .any(|c| is_unsafe(c) || c.is_control())
        .then(|| "a name has printable characters only".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revocation_outweighs_expiry() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = StoredToken {
            id: TokenText::from_random(None, [0; 10], [0; 32]).id,
            name: "ci".into(),
            scopes: ScopeSet::all(),
            sha256: String::new(),
            created: at(0),
            created_by: "ann".into(),
            expires: Some(at(10)),
            revoked: None,
        };
        assert_eq!(token.state_at(at(9)), TokenState::Active);
        assert_eq!(token.state_at(at(10)), TokenState::Expired);
        let revoked = StoredToken { revoked: Some(Revocation { at: at(5), by: "ann".into() }), ..token };
        assert_eq!(revoked.state_at(at(9)), TokenState::Revoked);
    }

    #[test]
    fn names_of_tokens_are_printable() {
        assert_eq!(find_token_name_problem("ci of team ä"), None);
        for name in ["", " a", "a\n", "a\u{202e}", &"x".repeat(101)] {
            assert!(find_token_name_problem(name).is_some(), "{name:?}");
        }
    }
}
