//! The secrets of webhooks, as Standard Webhooks defines them.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

/// The beginning of the text of each secret.
pub const SECRET_PREFIX: &str = "whsec_";
/// The allowed lengths of a secret in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret by which the messages of a webhook are signed, and by which their receiver verifies them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SigningSecret(Vec<u8>);

/// A text that is no secret. It is not quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret is whsec_ and 24 to 64 bytes in Base64; leave it out to have one created")]
pub struct InvalidSecret;

impl SigningSecret {
    /// Creates a secret of random bytes.
    ///
    /// # Panics
    /// Never: the length is right.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(bytes.to_vec())
    }

    /// The key of the signatures.
    pub fn key(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, which is shown once, and never in logs.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", BASE64.encode(&self.0))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let text = text.strip_prefix(SECRET_PREFIX).ok_or(InvalidSecret)?;
        let bytes = BASE64.decode(text.as_bytes()).map_err(|_| InvalidSecret)?;
        if LENGTHS.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(InvalidSecret) }
    }
}

impl TryFrom<String> for SigningSecret {
    type Error = InvalidSecret;
    fn try_from(text: String) -> Result<Self, InvalidSecret> {
        text.parse()
    }
}

impl From<SigningSecret> for String {
    fn from(secret: SigningSecret) -> Self {
        secret.reveal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_back_and_never_shown() {
        let secret = SigningSecret::from_bytes(&[255; 32]);
        assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains("//"), "{secret:?}");
        let short = format!("{SECRET_PREFIX}{}", BASE64.encode(&[1; 23]));
        for wrong in ["", "whsec_", "whsec_x", &short, &secret.reveal()[1..]] {
            assert_eq!(wrong.parse::<SigningSecret>(), Err(InvalidSecret), "{wrong}");
        }
    }
}
