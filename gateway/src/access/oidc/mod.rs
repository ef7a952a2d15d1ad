//! Tokens of an OpenID Connect provider: JSON Web Tokens that the provider has signed. A claim has the scopes of their holders.
//!
//! | module | contents |
//! |---|---|
//! | `jwt` | parses a token and checks its signature and claims |
//! | `keys` | the keys of the provider |

mod jwt;
mod keys;

use std::net::IpAddr;

use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{Scope, ScopeSet, find_token_name_problem};
use millrace_runtime::clock;
use serde_json::{Map, Value};
use url::Url;

use super::caller::Caller;
use crate::problem::{Problem, ProblemKind};
use jwt::{ClaimRules, SignedToken};
use keys::ProviderKeys;
pub use keys::is_safe_url as is_safe_provider_url;

/// The beginning of the values of a claim that name scopes.
const SCOPE_PREFIX: &str = "millrace:";

/// The provider whose tokens are accepted.
#[derive(Debug, Clone)]
pub struct OidcSettings {
    /// Its issuer URL, as in the claim `iss`.
    pub issuer: Url,
    /// The text of the issuer, which is compared exactly.
    pub issuer_text: String,
    /// This server, as in the claim `aud`.
    pub audience: String,
    /// The URL of its keys; found by the issuer if absent.
    pub keys_url: Option<Url>,
    /// The claim with the scopes of a holder.
    pub scope_claim: String,
    /// The scopes that a value of this claim gives; if there are none, `millrace:SCOPE` gives a scope.
    pub grants: Vec<ScopeGrant>,
    pub name_claim: String,
    /// Claims that a token must have, for example that of the tenant.
    pub required: Vec<RequiredClaim>,
    /// The claim with the tenants of a holder, at a gateway that serves several.
    pub tenant_claim: Option<String>,
}

/// The scopes that a value of a claim gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeGrant {
    pub value: String,
    pub scopes: ScopeSet,
}

/// A claim that a token must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredClaim {
    pub name: String,
    pub value: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TokenHolder {
    pub caller: Caller,
    /// The names of tenants in the claim for them. Other values, such as those of groups, are left out.
    pub tenants: Vec<TenantName>,
}

/// Accepts the tokens of a provider.
pub struct OidcVerifier {
    settings: OidcSettings,
    keys: ProviderKeys,
}

fn refused(detail: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, format!("the token is not valid: {detail}"))
}

impl OidcVerifier {
    /// Creates one.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(settings: OidcSettings) -> Result<Self, String> {
        let keys =
            ProviderKeys::new(settings.issuer.clone(), &settings.issuer_text, settings.keys_url.clone())?;
        Ok(Self { settings, keys })
    }

    /// `true` if a text has the form of a token of a provider.
    #[must_use]
    pub fn has_form_of_token(text: &str) -> bool {
        text.split('.').count() == 3
    }

    pub async fn find_holder(&self, text: &str, address: Option<IpAddr>) -> Result<TokenHolder, Problem> {
        let token = SignedToken::parse(text).map_err(refused)?;
        let keys = self.keys.find(token.key_id()).await.map_err(|error| {
            tracing::warn!(%error, issuer = %self.settings.issuer_text, "can't read the keys of the provider");
            Problem::new(ProblemKind::ProviderUnavailable, "the keys of the identity provider can't be read; try again")
        })?;
        let rules = ClaimRules {
            issuer: &self.settings.issuer_text,
            audience: &self.settings.audience,
            now: clock::now(),
        };
        let claims = token.verify(&keys, &rules).map_err(refused)?;
        Ok(TokenHolder { caller: self.caller_of(&claims, address)?, tenants: self.tenants_of(&claims) })
    }

    fn tenants_of(&self, claims: &Map<String, Value>) -> Vec<TenantName> {
        let Some(claim) = &self.settings.tenant_claim else { return Vec::new() };
        values_of(claims, claim).filter_map(|value| value.parse().ok()).collect()
    }

    fn caller_of(&self, claims: &Map<String, Value>, address: Option<IpAddr>) -> Result<Caller, Problem> {
        for RequiredClaim { name, value } in &self.settings.required {
            if !values_of(claims, name).any(|one| one == value) {
                return Err(refused(format!("this gateway needs the claim {name} with the value {value}")));
            }
        }
        let claim = &self.settings.name_claim;
        let name = claims.get(claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| refused(format!("it has no claim {claim}, which names its holder")))?;
        if let Some(problem) = find_token_name_problem(name) {
            return Err(refused(format!("the claim {claim}: {problem}")));
        }
        Ok(Caller {
            name: name.to_owned(),
            scopes: self.scopes_of(claims),
            token: None,
            address,
            is_local: false,
        })
    }

    fn scopes_of(&self, claims: &Map<String, Value>) -> ScopeSet {
        let OidcSettings { scope_claim, grants, .. } = &self.settings;
        let values = values_of(claims, scope_claim);
        let scopes = values.flat_map(|value| -> Vec<Scope> {
            if grants.is_empty() {
                return value
                    .strip_prefix(SCOPE_PREFIX)
                    .and_then(|name| name.parse().ok())
                    .into_iter()
                    .collect();
            }
            let granted = grants.iter().filter(|grant| grant.value == value);
            granted.flat_map(|grant| grant.scopes.iter()).collect()
        });
        scopes.collect()
    }
}

/// Returns the values of a claim: the words of a text, or the texts of a list.
fn values_of<'a>(claims: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a str> {
    let (text, list) = match claims.get(name) {
        Some(Value::String(text)) => (Some(text.split_whitespace()), None),
        Some(Value::Array(list)) => (None, Some(list.iter().filter_map(Value::as_str))),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => (None, None),
    };
    text.into_iter().flatten().chain(list.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verifier(grants: Vec<ScopeGrant>, required: Vec<RequiredClaim>) -> OidcVerifier {
        let issuer = "https://id.example/";
        OidcVerifier::new(OidcSettings {
            issuer: issuer.parse().unwrap(),
            issuer_text: issuer.into(),
            audience: "millrace".into(),
            keys_url: None,
            scope_claim: "scope".into(),
            grants,
            name_claim: "sub".into(),
            required,
            tenant_claim: Some("groups".into()),
        })
        .unwrap()
    }

    fn claims(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn claims_give_scopes() {
        let scopes = |grants, value: Value| {
            let caller = verifier(grants, Vec::new())
                .caller_of(&claims(json!({ "sub": "ann", "scope": value })), None);
            caller.unwrap().scopes.to_string()
        };
        assert_eq!(
            scopes(Vec::new(), json!("openid millrace:read millrace:steer read millrace:x")),
            "read,steer"
        );
        assert_eq!(scopes(Vec::new(), json!(["millrace:admin"])), "admin");
        assert_eq!(scopes(Vec::new(), json!(7)), "");
        let grant =
            |value: &str, scopes: &str| ScopeGrant { value: value.into(), scopes: scopes.parse().unwrap() };
        let grants = vec![grant("engineers", "read,submit"), grant("leads", "steer")];
        assert_eq!(scopes(grants.clone(), json!(["engineers", "leads", "others"])), "read,submit,steer");
        assert_eq!(scopes(grants, json!("millrace:admin")), "", "grants replace the names of scopes");
    }

    #[test]
    fn a_claim_names_tenants_among_other_groups() {
        let verifier = verifier(Vec::new(), Vec::new());
        let tenants = |value: Value| {
            let tenants = verifier.tenants_of(&claims(json!({ "groups": value })));
            tenants.iter().map(TenantName::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(tenants(json!("acme")), "acme");
        assert_eq!(tenants(json!(["/staff", "acme", 7, "Globex", "globex"])), "acme globex");
        assert_eq!(tenants(json!(null)), "");
    }

    #[test]
    fn holders_have_names_and_the_required_claims() {
        let required = vec![RequiredClaim { name: "tenant".into(), value: "acme".into() }];
        let verifier = verifier(Vec::new(), required);
        let caller = |value| verifier.caller_of(&claims(value), None).map(|caller| caller.name);
        assert_eq!(caller(json!({ "sub": "ann", "tenant": "acme" })).unwrap(), "ann");
        assert_eq!(caller(json!({ "sub": "ann", "tenant": ["x", "acme"] })).unwrap(), "ann");
        for wrong in [
            json!({ "sub": "ann" }),
            json!({ "sub": "ann", "tenant": "other" }),
            json!({ "tenant": "acme" }),
            json!({ "tenant": "acme", "sub": "a\u{202e}" }),
            json!({ "tenant": "acme", "sub": "" }),
        ] {
            assert!(caller(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
