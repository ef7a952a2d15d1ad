//! The text of a token.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tenant::{InvalidTenant, TenantName};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
