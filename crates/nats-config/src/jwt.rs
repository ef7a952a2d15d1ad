//! Contents and signatures of NATS JWTs, version 2. Pure: reads and writes no files.

use std::collections::BTreeMap;
use std::fmt::Write;

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use jiff::Timestamp;
use millrace_runtime::nats::access::{Permissions, api_mapping};
use nkeys::KeyPair;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512_256};

use crate::accounts::HEAD;
use crate::keys::seed_text;
use crate::limits::{MAX_CONNECTIONS, MAX_CONSUMERS, MAX_MEMORY, MAX_SUBSCRIPTIONS, max_streams};
use crate::settings::ByteSize;

/// Returns the name of the credentials file of an identity.
#[must_use]
pub fn credentials_file_name(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.creds")
}

pub struct JwtSubject<'a> {
    /// Its public key.
    pub key: &'a str,
    pub name: &'a str,
    /// The claims about it.
    pub claims: Value,
}

/// Returns a JWT signed by `issuer`, or the token `before` if it has the same content.
#[must_use]
pub fn issue_jwt(issuer: &KeyPair, subject: JwtSubject<'_>, before: Option<&str>, now: Timestamp) -> String {
    let JwtSubject { key, name, claims } = subject;
    let content = json!({ "iss": issuer.public_key(), "name": name, "sub": key, "nats": claims });
    if let Some(before) =
        before.map(str::trim).filter(|before| decode_claims(before).as_ref() == Some(&content))
    {
        return before.to_owned();
    }
    let mut body = json!({ "iat": now.as_second() });
    merge_json_objects(&mut body, content);
    let id = BASE32_NOPAD.encode(&Sha512_256::digest(body.to_string()));
    merge_json_objects(&mut body, json!({ "jti": id }));
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" }).to_string();
    let signed = format!(
        "{}.{}",
        BASE64URL_NOPAD.encode(header.as_bytes()),
        BASE64URL_NOPAD.encode(body.to_string().as_bytes())
    );
    let signature = issuer.sign(signed.as_bytes()).expect("a key pair with a seed can sign");
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

fn merge_json_objects(body: &mut Value, more: Value) {
    if let (Value::Object(body), Value::Object(more)) = (body, more) {
        body.extend(more);
    }
}

/// Returns the content of a JWT without time and id.
fn decode_claims(token: &str) -> Option<Value> {
    let body = token.split('.').nth(1)?;
    let mut content: Map<String, Value> =
        serde_json::from_slice(&BASE64URL_NOPAD.decode(body.as_bytes()).ok()?).ok()?;
    content.remove("iat");
    content.remove("jti");
    Some(Value::Object(content))
}

/// Returns the claims about an operator.
#[must_use]
pub fn operator_claims(system_account: &str) -> Value {
    json!({ "system_account": system_account, "type": "operator", "version": 2 })
}

/// Revoked users of an account: public key and time of revocation.
pub type RevokedKeys = BTreeMap<String, i64>;

/// Returns the revoked users in the JWT of an account.
#[must_use]
pub fn revocations_in_jwt(token: &str) -> RevokedKeys {
    let revocations = decode_claims(token.trim()).and_then(|content| {
        let revoked = content.get("nats")?.get("revocations")?.clone();
        serde_json::from_value(revoked).ok()
    });
    revocations.unwrap_or_default()
}

/// Returns the claims about the system account: its exports and revocations.
#[must_use]
pub fn system_account_claims(revoked: &RevokedKeys) -> Value {
    let export = |subject| json!({ "name": subject, "subject": subject, "type": "service" });
    let mut claims = account_claims(json!({}), &[], revoked);
    merge_json_objects(
        &mut claims,
        json!({ "exports": [export(api_mapping::JETSTREAM_API), export(api_mapping::UNUSED)] }),
    );
    claims
}

/// Returns the claims about a tenant's account, with the imports of the JetStream API from the account `system`.
#[must_use]
pub fn tenant_account_claims(
    max_store: Option<ByteSize>,
    lanes: u16,
    scopes: &[Value],
    revoked: &RevokedKeys,
    system: &str,
) -> Value {
    let import = |subject, to, share| {
        json!({
            "name": subject, "subject": subject, "account": system, "local_subject": to, "type": "service",
            "share": share,
        })
    };
    let imports = [
        import(api_mapping::UNUSED, api_mapping::JETSTREAM_API, false),
        import(api_mapping::JETSTREAM_API, api_mapping::MAPPED_API, true),
    ];
    let ways: Map<String, Value> = api_mapping::subject_mappings()
        .map(|(from, to)| (from, json!([{ "subject": to, "weight": 100 }])))
        .collect();
    let limits = json!({
        "subs": MAX_SUBSCRIPTIONS, "conn": MAX_CONNECTIONS, "mem_storage": MAX_MEMORY,
        "disk_storage": max_store.map_or(json!(-1), |size| json!(size.0)), "streams": max_streams(lanes),
        "consumer": MAX_CONSUMERS, "max_ack_pending": -1, "mem_max_stream_bytes": -1, "disk_max_stream_bytes": -1,
    });
    let mut claims = account_claims(limits, scopes, revoked);
    merge_json_objects(&mut claims, json!({ "imports": imports, "mappings": ways }));
    claims
}

/// Returns the claims about any account: signing keys with their scopes, and revocations. `own_limits` are those that are
/// not unlimited; without limits of storage, the account has none.
fn account_claims(own_limits: Value, scopes: &[Value], revoked: &RevokedKeys) -> Value {
    let mut limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    merge_json_objects(&mut limits, own_limits);
    json!({
        "limits": limits,
        "signing_keys": scopes,
        "default_permissions": { "pub": {}, "sub": {} },
        "revocations": revoked,
        "type": "account",
        "version": 2,
    })
}

/// Returns a scoped signing key of an account with the permissions of its users. Permissions are in the account's JWT and
/// not in those of users, because a user JWT must fit into a line of 4 KiB and must not change when permissions change.
#[must_use]
pub fn signing_key_scope(key: &str, role: &str, permissions: &Permissions) -> Value {
    let template = json!({
        "pub": permission_rule(&permissions.publish), "sub": permission_rule(&permissions.subscribe), "subs": -1, "data": -1, "payload": -1,
    });
    json!({ "kind": "user_scope", "key": key, "role": role, "template": template })
}

/// The placeholder for the public key of a user in the permissions of a scope.
pub const USER_KEY: &str = "{{subject()}}";

/// Returns the claims about a user with the permissions of a scope.
#[must_use]
pub fn scoped_user_claims(account: &str) -> Value {
    json!({ "pub": {}, "sub": {}, "issuer_account": account, "type": "user", "version": 2 })
}

/// Returns the claims about a user without restrictions within its account.
#[must_use]
pub fn unscoped_user_claims() -> Value {
    json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 })
}

/// Returns a permission rule. The server reads an empty allow list as "allow everything", so it becomes a deny rule.
fn permission_rule(subjects: &[String]) -> Value {
    if subjects.is_empty() { json!({ "deny": [">"] }) } else { json!({ "allow": subjects }) }
}

/// Returns the text of a credentials file.
#[must_use]
pub fn credentials_file_text(token: &str, user: &KeyPair) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        seed_text(user)
    )
}

/// Returns the JWT in the text of a credentials file.
#[must_use]
pub fn jwt_in_credentials(credentials: &str) -> Option<&str> {
    credentials.lines().map(str::trim).find(|line| line.starts_with("eyJ"))
}

/// The JWT of an account, signed by the operator.
pub struct SignedJwt {
    /// Name of the account.
    pub name: String,
    /// Public key of the account.
    pub key: String,
    /// The JWT.
    pub token: String,
}

/// Returns the text of `accounts.conf`: the operator, and the JWTs of all accounts by public key.
#[must_use]
pub fn accounts_conf_with_jwts(operator: &str, system: &str, accounts: &[SignedJwt]) -> String {
    let mut text = format!(
        "{HEAD}\noperator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {{\n"
    );
    for SignedJwt { name, key, token } in accounts {
        let _ = writeln!(text, "  # {name}\n  {key}: {token}");
    }
    text + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timestamp_at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_jwt_is_kept_while_content_and_issuer_are_the_same() {
        let (issuer, other) = (KeyPair::new_operator(), KeyPair::new_operator());
        let account = KeyPair::new_account().public_key();
        let issue = |issuer: &KeyPair, revoked: &RevokedKeys, before: Option<&str>, now| {
            let claims = system_account_claims(revoked);
            issue_jwt(issuer, JwtSubject { key: &account, name: "red", claims }, before, timestamp_at(now))
        };
        let first = issue(&issuer, &RevokedKeys::new(), None, 100);
        assert_eq!(issue(&issuer, &RevokedKeys::new(), Some(&first), 200), first);
        assert_ne!(issue(&other, &RevokedKeys::new(), Some(&first), 200), first);
        assert_ne!(issue(&issuer, &RevokedKeys::new(), Some("not one"), 200), first);

        let revoked = RevokedKeys::from([("UA".to_owned(), 150)]);
        let second = issue(&issuer, &revoked, Some(&first), 200);
        assert_eq!((revocations_in_jwt(&first), revocations_in_jwt(&second)), (RevokedKeys::new(), revoked));
    }

    #[test]
    fn a_jwt_is_signed_over_header_and_body() {
        let issuer = KeyPair::new_account();
        let key = KeyPair::new_user().public_key();
        let token = issue_jwt(
            &issuer,
            JwtSubject { key: &key, name: "a", claims: unscoped_user_claims() },
            None,
            timestamp_at(1),
        );
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        assert!(issuer.verify(signed.as_bytes(), &signature).is_ok());
        assert!(token.len() < 1000, "it must fit into a CONNECT line of 4 KiB");
    }

    #[test]
    fn an_empty_allow_list_denies_everything() {
        assert_eq!(permission_rule(&[]), json!({ "deny": [">"] }));
        assert_eq!(permission_rule(&["a".into()]), json!({ "allow": ["a"] }));
    }
}
