//! What stands in the JWTs of NATS, version 2, and how they are signed. Pure: it reads and writes no file.

use std::collections::BTreeMap;
use std::fmt::Write;

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use jiff::Timestamp;
use millrace_runtime::access::{Permissions, gate};
use nkeys::KeyPair;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512_256};

use super::accounts::HEAD;
use super::keys::seed;
use super::settings::Size;

/// The file of an identity's credentials.
#[must_use]
pub fn credentials_file(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.creds")
}

/// What a JWT is about.
pub struct Subject<'a> {
    /// Its public key.
    pub key: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What is said of it.
    pub claims: Value,
}

/// A JWT, signed by `issuer`; the one that was there `before` where it says the same.
#[must_use]
pub fn issue(issuer: &KeyPair, subject: Subject<'_>, before: Option<&str>, now: Timestamp) -> String {
    let Subject { key, name, claims } = subject;
    let said = json!({ "iss": issuer.public_key(), "name": name, "sub": key, "nats": claims });
    if let Some(before) = before.map(str::trim).filter(|before| content(before).as_ref() == Some(&said)) {
        return before.to_owned();
    }
    let mut body = json!({ "iat": now.as_second() });
    merge(&mut body, said);
    let id = BASE32_NOPAD.encode(&Sha512_256::digest(body.to_string()));
    merge(&mut body, json!({ "jti": id }));
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" }).to_string();
    let signed = format!(
        "{}.{}",
        BASE64URL_NOPAD.encode(header.as_bytes()),
        BASE64URL_NOPAD.encode(body.to_string().as_bytes())
    );
    let signature = issuer.sign(signed.as_bytes()).expect("a pair with a seed signs");
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

fn merge(body: &mut Value, more: Value) {
    if let (Value::Object(body), Value::Object(more)) = (body, more) {
        body.extend(more);
    }
}

/// What a JWT says, without when it was said.
fn content(token: &str) -> Option<Value> {
    let body = token.split('.').nth(1)?;
    let mut said: Map<String, Value> =
        serde_json::from_slice(&BASE64URL_NOPAD.decode(body.as_bytes()).ok()?).ok()?;
    said.remove("iat");
    said.remove("jti");
    Some(Value::Object(said))
}

/// What is said of an operator.
#[must_use]
pub fn operator(system_account: &str) -> Value {
    json!({ "system_account": system_account, "type": "operator", "version": 2 })
}

/// The users that an account lets in no more, by public key, with the time since when.
pub type Revocations = BTreeMap<String, i64>;

/// Whom an account's JWT lets in no more.
#[must_use]
pub fn revocations(token: &str) -> Revocations {
    let found = content(token.trim()).and_then(|said| {
        let revoked = said.get("nats")?.get("revocations")?.clone();
        serde_json::from_value(revoked).ok()
    });
    found.unwrap_or_default()
}

/// What is said of the servers' own account: what it lends to others, and whom it lets in no more.
#[must_use]
pub fn system_account(revoked: &Revocations) -> Value {
    let export = |subject| json!({ "name": subject, "subject": subject, "type": "service" });
    let mut claims = account(Store::None, &[], revoked);
    merge(&mut claims, json!({ "exports": [export(gate::API), export(gate::NOWHERE)] }));
    claims
}

/// What is said of a tenant's account: beside the rest, where it has the API of the servers, whose account `system` is.
#[must_use]
pub fn tenant_account(store: Store, scopes: &[Value], revoked: &Revocations, system: &str) -> Value {
    let import = |subject, to, share| {
        json!({
            "name": subject, "subject": subject, "account": system, "local_subject": to, "type": "service",
            "share": share,
        })
    };
    let imports = [import(gate::NOWHERE, gate::API, false), import(gate::API, gate::GATE, true)];
    let ways: Map<String, Value> =
        gate::ways().map(|(from, to)| (from, json!([{ "subject": to, "weight": 100 }]))).collect();
    let mut claims = account(store, scopes, revoked);
    merge(&mut claims, json!({ "imports": imports, "mappings": ways }));
    claims
}

/// What is said of any account: whom it has sign for it, and whom it lets in no more.
fn account(store: Store, scopes: &[Value], revoked: &Revocations) -> Value {
    let mut limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let disk = match store {
        Store::None => None,
        Store::Unlimited => Some(json!(-1)),
        Store::Limited(size) => Some(json!(size.0)),
    };
    if let Some(disk) = disk {
        let store = json!({
            "mem_storage": -1, "disk_storage": disk, "streams": -1, "consumer": -1, "max_ack_pending": -1,
            "mem_max_stream_bytes": -1, "disk_max_stream_bytes": -1,
        });
        merge(&mut limits, store);
    }
    json!({
        "limits": limits,
        "signing_keys": scopes,
        "default_permissions": { "pub": {}, "sub": {} },
        "revocations": revoked,
        "type": "account",
        "version": 2,
    })
}

/// What an account may keep in JetStream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Nothing: the servers' own account.
    None,
    /// As much as the servers have room for.
    Unlimited,
    /// At most so much on disk, all copies on all servers together.
    Limited(Size),
}

/// A key that signs for an account, and what whoever it signs for may do. It is said here and not in the users' own
/// JWTs, as each of those has to fit into a line of 4 KiB, and nobody's file changes when a permission does.
#[must_use]
pub fn scope(key: &str, role: &str, permissions: &Permissions) -> Value {
    let template = json!({
        "pub": rule(&permissions.publish), "sub": rule(&permissions.subscribe), "subs": -1, "data": -1, "payload": -1,
    });
    json!({ "kind": "user_scope", "key": key, "role": role, "template": template })
}

/// What stands for the public key of a user in the permissions of a scope.
pub const USER_KEY: &str = "{{subject()}}";

/// What is said of a user that a scope says the rest of.
#[must_use]
pub fn scoped_user(account: &str) -> Value {
    json!({ "pub": {}, "sub": {}, "issuer_account": account, "type": "user", "version": 2 })
}

/// What is said of a user that may do all that its account may.
#[must_use]
pub fn free_user() -> Value {
    json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 })
}

/// The server takes an empty list of what is allowed for everything.
fn rule(subjects: &[String]) -> Value {
    if subjects.is_empty() { json!({ "deny": [">"] }) } else { json!({ "allow": subjects }) }
}

/// The text of a credentials file.
#[must_use]
pub fn credentials(token: &str, user: &KeyPair) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        seed(user)
    )
}

/// The JWT in the text of a credentials file.
#[must_use]
pub fn token_in(credentials: &str) -> Option<&str> {
    credentials.lines().map(str::trim).find(|line| line.starts_with("eyJ"))
}

/// An account that the operator vouches for.
pub struct Vouched {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: String,
    /// Its JWT.
    pub token: String,
}

/// The text of `accounts.conf`: the operator, and the accounts that it vouches for by public key.
#[must_use]
pub fn text(operator: &str, system: &str, accounts: &[Vouched]) -> String {
    let mut text = format!(
        "{HEAD}\noperator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {{\n"
    );
    for Vouched { name, key, token } in accounts {
        let _ = writeln!(text, "  # {name}\n  {key}: {token}");
    }
    text + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_jwt_is_kept_while_it_says_the_same_and_its_signer_is_the_same() {
        let (issuer, other) = (KeyPair::new_operator(), KeyPair::new_operator());
        let account = KeyPair::new_account().public_key();
        let issue = |issuer: &KeyPair, revoked: &Revocations, before: Option<&str>, now| {
            let claims = system_account(revoked);
            issue(issuer, Subject { key: &account, name: "red", claims }, before, at(now))
        };
        let first = issue(&issuer, &Revocations::new(), None, 100);
        assert_eq!(issue(&issuer, &Revocations::new(), Some(&first), 200), first);
        assert_ne!(issue(&other, &Revocations::new(), Some(&first), 200), first);
        assert_ne!(issue(&issuer, &Revocations::new(), Some("not one"), 200), first);

        let revoked = Revocations::from([("UA".to_owned(), 150)]);
        let second = issue(&issuer, &revoked, Some(&first), 200);
        assert_eq!((revocations(&first), revocations(&second)), (Revocations::new(), revoked));
    }

    #[test]
    fn a_jwt_is_signed_over_its_head_and_body() {
        let issuer = KeyPair::new_account();
        let key = KeyPair::new_user().public_key();
        let token = issue(&issuer, Subject { key: &key, name: "a", claims: free_user() }, None, at(1));
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        assert!(issuer.verify(signed.as_bytes(), &signature).is_ok());
        assert!(
            token.len() < 1000,
            "it has to fit into a line of 4 KiB with everything else that a client says"
        );
    }

    #[test]
    fn nothing_allowed_is_nothing_allowed() {
        assert_eq!(rule(&[]), json!({ "deny": [">"] }));
        assert_eq!(rule(&["a".into()]), json!({ "allow": ["a"] }));
    }
}
