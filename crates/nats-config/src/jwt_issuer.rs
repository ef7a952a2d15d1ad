//! Identities as JWTs: the operator signs account JWTs, each account has a scoped signing key per identity, and the server
//! only trusts the operator. Permissions are the same as with bare nkeys. A JWT whose content is unchanged is kept.

use jiff::Timestamp;
use nkeys::{KeyPair, KeyPairType};
use serde_json::Value;

use crate::folder::{ConfigFolder, FileAccess};
use crate::jwt::{self, JwtSubject, SignedJwt};
use crate::keys::{self, UserKeys};
use crate::{AccountWithUsers, ConfigError, REQUESTED, SYSTEM, identity_permissions};

/// Name of the operator and of its files; not allowed as a tenant name.
const OPERATOR: &str = "OPERATOR";

/// Issues missing and outdated JWTs, and returns the text of `accounts.conf`.
///
/// # Errors
/// A file can't be read or written, or contains another kind of seed.
pub fn issue_jwts(
    folder: &mut ConfigFolder,
    system: &UserKeys,
    accounts: &[AccountWithUsers],
    lanes: u16,
    now: Timestamp,
) -> Result<String, ConfigError> {
    let operator = keys::read_or_create_key_pair(folder, &seed_file_name(OPERATOR), KeyPairType::Operator)?;
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
        keys::read_or_create_key_pair(self.folder, &seed_file_name(owner), KeyPairType::Account)
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
            let signs = keys::read_or_create_key_pair(
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
