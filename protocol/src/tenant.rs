//! Names of tenants.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum length of a name.
const MAX_TENANT: usize = 40;

/// The name of a tenant: of its NATS account, and in the tokens of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct TenantName(String);

/// A text that is no name of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tenant name has up to 40 characters a-z, 0-9 and '-', and begins with a letter")]
pub struct InvalidTenant;

impl TenantName {
    /// The default tenant.
    pub const DEFAULT: &'static str = "millrace";

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantName {
    type Err = InvalidTenant;

    /// Parses a name; it is also valid as a Kubernetes namespace.
    fn from_str(text: &str) -> Result<Self, InvalidTenant> {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name = text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.chars().all(inside)
            && text.len() <= MAX_TENANT;
        if is_name { Ok(Self(text.to_owned())) } else { Err(InvalidTenant) }
    }
}

impl TryFrom<String> for TenantName {
    type Error = InvalidTenant;
    fn try_from(text: String) -> Result<Self, InvalidTenant> {
        text.parse()
    }
}

impl From<TenantName> for String {
    fn from(tenant: TenantName) -> Self {
        tenant.0
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
