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

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::safe_text::is_unsafe;
use crate::tenant::{InvalidTenant, TenantName};

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

/// The beginning of the text of each token, by which scanners for secrets recognise it.
pub const TOKEN_PREFIX: &str = "mrt";
/// The length of an id.
const ID_LENGTH: usize = 16;
/// The length of a secret: 256 bits with 5 bits a character.
const SECRET_LENGTH: usize = 52;

/// The id of a token: 16 characters of base 32. It is not secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct TokenId(String);

impl TokenId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TokenId {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        if is_base32(text, ID_LENGTH) { Ok(Self(text.to_owned())) } else { Err(InvalidToken) }
    }
}

impl TryFrom<String> for TokenId {
    type Error = InvalidToken;
    fn try_from(text: String) -> Result<Self, InvalidToken> {
        text.parse()
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A text that is no token, or no id of one. It is not quoted, since it may contain a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no token: one begins with mrt_ and is printed by `millrace token create`")]
pub struct InvalidToken;

/// The text of a token, with its secret. It is shown once, and never in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    /// The tenant that has the token; `None` for the only tenant of a gateway.
    pub tenant: Option<TenantName>,
    /// The id.
    pub id: TokenId,
    secret: String,
}

impl TokenText {
    /// Creates a token from random bytes.
    #[must_use]
    pub fn from_random(tenant: Option<TenantName>, id: [u8; 10], secret: [u8; 32]) -> Self {
        Self { tenant, id: TokenId(base32(&id)), secret: base32(&secret) }
    }

    /// Returns the SHA-256 of the secret in hexadecimal, which is what is stored of it.
    pub fn secret_hash(&self) -> String {
        Sha256::digest(&self.secret).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the whole text with the secret.
    pub fn reveal(&self) -> String {
        let Self { tenant, id, secret } = self;
        match tenant {
            Some(tenant) => format!("{TOKEN_PREFIX}_{tenant}_{id}_{secret}"),
            None => format!("{TOKEN_PREFIX}_{id}_{secret}"),
        }
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenText")
            .field("tenant", &self.tenant)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl FromStr for TokenText {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let parts: Vec<&str> = text.split('_').collect();
        let (tenant, id, secret) = match parts[..] {
            [TOKEN_PREFIX, id, secret] => (None, id, secret),
            [TOKEN_PREFIX, tenant, id, secret] => {
                (Some(tenant.parse().map_err(|InvalidTenant| InvalidToken)?), id, secret)
            }
            _ => return Err(InvalidToken),
        };
        if !is_base32(secret, SECRET_LENGTH) {
            return Err(InvalidToken);
        }
        Ok(Self { tenant, id: id.parse()?, secret: secret.to_owned() })
    }
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Returns bytes in base 32 without padding.
fn base32(bytes: &[u8]) -> String {
    let bit = |index: usize| bytes.get(index / 8).is_some_and(|byte| byte >> (7 - index % 8) & 1 == 1);
    let digit =
        |start: usize| (start..start + 5).fold(0, |digit, index| digit << 1 | usize::from(bit(index)));
    (0..bytes.len() * 8).step_by(5).map(|start| char::from(BASE32[digit(start)])).collect()
}

fn is_base32(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| BASE32.contains(&byte))
}

/// A kind of operations of the HTTP API. No scope includes another one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Reads runs, their files and events, and the state of the cluster.
    Read,
    /// Submits runs.
    Submit,
    /// Sends commands to runs.
    Steer,
    /// Answers the questions of runs.
    Answer,
    /// Changes what holds for all runs: tokens, limits.
    Admin,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no scope, or none at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no scope; use one or more of read, submit, steer, answer and admin, separated by commas"
)]
pub struct InvalidScope {
    /// The text, cut to 100 characters.
    pub text: String,
}

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        let scope = Self::ALL.into_iter().find(|scope| scope.name() == text);
        scope.ok_or_else(|| InvalidScope { text: text.chars().take(100).collect() })
    }
}

/// The scopes of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ScopeSet(BTreeSet<Scope>);

impl ScopeSet {
    /// Returns the set of all scopes.
    #[must_use]
    pub fn all() -> Self {
        Self(Scope::ALL.into())
    }

    /// Returns `true` if the set has this scope.
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Returns `true` if the set has every scope of another one.
    pub fn includes(&self, other: &Self) -> bool {
        self.0.is_superset(&other.0)
    }

    /// Returns `true` if there is no scope.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the scopes in the order of their declaration.
    pub fn iter(&self) -> impl Iterator<Item = Scope> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<Scope> for ScopeSet {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

impl FromStr for ScopeSet {
    type Err = InvalidScope;

    /// Parses names that are separated by commas, at least one.
    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        text.split(',').map(|name| name.trim().parse()).collect()
    }
}

impl fmt::Display for ScopeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Scope::name).collect();
        f.pad(&names.join(","))
    }
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

    #[test]
    fn texts_of_tokens_are_parsed_back_and_others_are_refused() {
        let tenant = |name: &str| Some(name.parse::<TenantName>().unwrap());
        for tenant in [None, tenant("acme"), tenant("a-1")] {
            let token = TokenText::from_random(tenant, [7; 10], [255; 32]);
            assert_eq!(token.reveal().parse(), Ok(token.clone()));
            assert!(!format!("{token:?}").contains(&token.secret), "{token:?}");
        }
        let text = TokenText::from_random(None, [7; 10], [1; 32]).reveal();
        for wrong in [
            "",
            "mrt__",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}a"),
            &text.to_uppercase(),
            &text.replacen('_', "_A_", 1),
            &text.replacen('_', "_a_b_", 1),
        ] {
            assert_eq!(wrong.parse::<TokenText>(), Err(InvalidToken), "{wrong}");
        }
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(&[255]), "74");
    }

    #[test]
    fn scopes_are_lists_of_names() {
        let scopes: ScopeSet = "answer, read".parse().unwrap();
        assert_eq!(scopes.to_string(), "read,answer");
        assert!(scopes.contains(Scope::Read) && !scopes.contains(Scope::Admin));
        assert_eq!(serde_json::to_string(&scopes).unwrap(), r#"["read","answer"]"#);
        for text in ["", "read,", "write", "Read", "all"] {
            assert!(text.parse::<ScopeSet>().is_err(), "{text}");
        }
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
        }
    }
}
