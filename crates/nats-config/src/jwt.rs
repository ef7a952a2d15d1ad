//! Identities as NATS JWTs, version 2: the operator signs account JWTs, each account has a scoped signing key per identity, and the server
//! only trusts the operator. Permissions are the same as with bare nkeys. A JWT whose content is unchanged is kept.

use std::collections::BTreeMap;
use std::fmt::Write;

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use jiff::Timestamp;
use millrace_runtime::nats::access::{self, Permissions};
use nkeys::{KeyPair, KeyPairType};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512_256};

use crate::accounts::{self, HEAD, UserKeys, seed_text};
use crate::folder::{ConfigFolder, FileAccess};
use crate::settings::{ByteSize, MAX_CONNECTIONS, MAX_CONSUMERS, MAX_MEMORY, MAX_SUBSCRIPTIONS, max_streams};
use crate::{AccountWithUsers, ConfigError, REQUESTED, SYSTEM, identity_permissions, jwt};

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
        json!({ "exports": [export(access::JETSTREAM_API), export(access::UNUSED)] }),
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
        import(access::UNUSED, access::JETSTREAM_API, false),
        import(access::JETSTREAM_API, access::MAPPED_API, true),
    ];
    let ways: Map<String, Value> = access::subject_mappings()
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

/// Name of the operator and of its files; not allowed as a tenant name.
const OPERATOR: &str = "OPERATOR";

/// Issues missing and outdated JWTs, and returns the text of `accounts.conf`.
/// Errors: a file can't be read or written, or contains another kind of seed.
pub fn issue_jwts(
    folder: &mut ConfigFolder,
    system: &UserKeys,
    accounts: &[AccountWithUsers],
    lanes: u16,
    now: Timestamp,
) -> Result<String, ConfigError> {
    let operator =
        accounts::read_or_create_key_pair(folder, &seed_file_name(OPERATOR), KeyPairType::Operator)?;
    let mut issuer = JwtIssuer { folder, operator, now };
    let system_account = issuer.read_or_create_account_key(SYSTEM.0)?;
    issuer.write_user_credentials(&system_account, SYSTEM, &system.current, jwt::unscoped_user_claims())?;
    let revoked = issuer.revoked_keys(SYSTEM.0, [system])?;
    let mut tokens =
        vec![issuer.issue_account_jwt(SYSTEM.0, &system_account, jwt::system_account_claims(&revoked))?];
    for account in accounts {
        tokens.push(issuer.issue_tenant_jwts(account, lanes, &system_account.public_key())?);
    }
    let operator = issuer.issue_operator_jwt(&system_account.public_key())?;
    Ok(jwt::accounts_conf_with_jwts(&operator, &system_account.public_key(), &tokens))
}

fn seed_file_name(owner: &str) -> String {
    format!("jwt/{owner}.nk")
}

fn token_file_name(owner: &str) -> String {
    format!("jwt/{owner}.jwt")
}

/// Returns the file of the signing key of an identity.
fn scope_key_file_name(owner: &str, identity: &str) -> String {
    format!("jwt/{owner}/{identity}.nk")
}

/// Issues JWTs and keeps earlier ones that are unchanged.
struct JwtIssuer<'a> {
    folder: &'a mut ConfigFolder,
    operator: KeyPair,
    now: Timestamp,
}

impl JwtIssuer<'_> {
    fn read_or_create_account_key(&mut self, owner: &str) -> Result<KeyPair, ConfigError> {
        accounts::read_or_create_key_pair(self.folder, &seed_file_name(owner), KeyPairType::Account)
    }

    /// Issues the JWTs of the users of a tenant, then that of its account with their permissions.
    fn issue_tenant_jwts(
        &mut self,
        account: &AccountWithUsers,
        lanes: u16,
        system: &str,
    ) -> Result<SignedJwt, ConfigError> {
        let owner = account.owner.as_str();
        let key = self.read_or_create_account_key(owner)?;
        let mut scopes = Vec::new();
        for (identity, keys) in &account.members {
            let signs = accounts::read_or_create_key_pair(
                self.folder,
                &scope_key_file_name(owner, &identity.name),
                KeyPairType::Account,
            )?;
            let permissions = identity_permissions(identity, lanes, jwt::USER_KEY);
            scopes.push(jwt::signing_key_scope(&signs.public_key(), &identity.name, &permissions));
            self.write_user_credentials(
                &signs,
                (owner, &identity.name),
                &keys.current,
                jwt::scoped_user_claims(&key.public_key()),
            )?;
        }
        let revoked = self.revoked_keys(owner, account.members.iter().map(|(_, keys)| keys))?;
        let claims = jwt::tenant_account_claims(account.max_store, lanes, &scopes, &revoked, system);
        self.issue_account_jwt(owner, &key, claims)
    }

    fn issue_operator_jwt(&mut self, system_account: &str) -> Result<String, ConfigError> {
        let file = token_file_name(OPERATOR);
        let before = self.folder.read_file(&file)?;
        let key = self.operator.public_key();
        let subject =
            JwtSubject { key: &key, name: "millrace", claims: jwt::operator_claims(system_account) };
        let token = jwt::issue_jwt(&self.operator, subject, before.as_deref(), self.now);
        self.folder.write_file(&file, FileAccess::Shared, &(token.clone() + "\n"), REQUESTED)?;
        Ok(token)
    }

    fn issue_account_jwt(
        &mut self,
        owner: &str,
        key: &KeyPair,
        claims: Value,
    ) -> Result<SignedJwt, ConfigError> {
        let file = token_file_name(owner);
        let before = self.folder.read_file(&file)?;
        let key = key.public_key();
        let token = jwt::issue_jwt(
            &self.operator,
            JwtSubject { key: &key, name: owner, claims },
            before.as_deref(),
            self.now,
        );
        self.folder.write_file(&file, FileAccess::Shared, &(token.clone() + "\n"), REQUESTED)?;
        Ok(SignedJwt { name: owner.to_owned(), key, token })
    }

    /// Returns the earlier revocations of an account and those of keys that are retired now.
    fn revoked_keys<'k>(
        &self,
        owner: &str,
        members: impl IntoIterator<Item = &'k UserKeys>,
    ) -> Result<jwt::RevokedKeys, ConfigError> {
        let before = self.folder.read_file(&token_file_name(owner))?;
        let mut revoked = before.as_deref().map(jwt::revocations_in_jwt).unwrap_or_default();
        let retired = members.into_iter().filter_map(|keys| keys.retired.clone());
        revoked.extend(retired.map(|key| (key, self.now.as_second())));
        Ok(revoked)
    }

    /// Writes the credentials of a user, given by owner and name.
    fn write_user_credentials(
        &mut self,
        signing_key: &KeyPair,
        (owner, name): (&str, &str),
        pair: &KeyPair,
        claims: Value,
    ) -> Result<(), ConfigError> {
        let file = jwt::credentials_file_name(owner, name);
        let before = self.folder.read_file(&file)?;
        let before = before.as_deref().and_then(jwt::jwt_in_credentials);
        let token = jwt::issue_jwt(
            signing_key,
            JwtSubject { key: &pair.public_key(), name, claims },
            before,
            self.now,
        );
        self.folder.write_file(
            &file,
            FileAccess::Secret,
            &jwt::credentials_file_text(&token, pair),
            REQUESTED,
        )
    }
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
