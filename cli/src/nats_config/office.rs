//! Identities as JWTs: an operator vouches for accounts, an account has a key for each identity that signs for
//! its users, and the server knows the operator alone. The permissions are those that bare nkeys have. A JWT that says already what it is to say is kept.

use jiff::Timestamp;
use nkeys::{KeyPair, KeyPairType};
use serde_json::Value;

use super::folder::{Folder, Kept};
use super::jwt::{self, Store, Subject, Vouched};
use super::keys::{self, Keys};
use super::{Account, Error, FOLLOWS, SYSTEM, permissions};

/// The name of the operator, in its JWT and of its files; no tenant can be called so.
const OPERATOR: &str = "OPERATOR";

/// Issues what is missing or says something else than it should, and gives the text of `accounts.conf`.
///
/// # Errors
/// A file can't be read or written, or holds another kind of seed.
pub fn write(
    folder: &mut Folder,
    system: &Keys,
    accounts: &[Account],
    lanes: u16,
    now: Timestamp,
) -> Result<String, Error> {
    let operator = keys::of(folder, &seed_file(OPERATOR), KeyPairType::Operator)?;
    let mut office = Office { folder, operator, now };
    let system_account = office.account_key(SYSTEM.0)?;
    office.user(&system_account, SYSTEM, &system.current, jwt::free_user())?;
    let revoked = office.revoked(SYSTEM.0, [system])?;
    let mut tokens = vec![office.account(SYSTEM.0, &system_account, jwt::system_account(&revoked))?];
    for account in accounts {
        tokens.push(office.tenant(account, lanes, &system_account.public_key())?);
    }
    let operator = office.operator(&system_account.public_key())?;
    Ok(jwt::text(&operator, &system_account.public_key(), &tokens))
}

fn seed_file(owner: &str) -> String {
    format!("jwt/{owner}.nk")
}

fn token_file(owner: &str) -> String {
    format!("jwt/{owner}.jwt")
}

/// The key that signs for all who are called so.
fn scope_file(owner: &str, identity: &str) -> String {
    format!("jwt/{owner}/{identity}.nk")
}

/// Who signs, and what was signed before.
struct Office<'a> {
    folder: &'a mut Folder,
    operator: KeyPair,
    now: Timestamp,
}

impl Office<'_> {
    fn account_key(&mut self, owner: &str) -> Result<KeyPair, Error> {
        keys::of(self.folder, &seed_file(owner), KeyPairType::Account)
    }

    /// The users of a tenant, and then its account, which says what they may do.
    fn tenant(&mut self, account: &Account, lanes: u16, system: &str) -> Result<Vouched, Error> {
        let owner = account.owner.as_str();
        let key = self.account_key(owner)?;
        let mut scopes = Vec::new();
        for (identity, keys) in &account.members {
            let signs = keys::of(self.folder, &scope_file(owner, &identity.name), KeyPairType::Account)?;
            let permissions = permissions(identity, lanes, jwt::USER_KEY);
            scopes.push(jwt::scope(&signs.public_key(), &identity.name, &permissions));
            self.user(&signs, (owner, &identity.name), &keys.current, jwt::scoped_user(&key.public_key()))?;
        }
        let revoked = self.revoked(owner, account.members.iter().map(|(_, keys)| keys))?;
        let store = account.max_store.map_or(Store::Unlimited, Store::Limited);
        self.account(owner, &key, jwt::tenant_account(store, &scopes, &revoked, system))
    }

    fn operator(&mut self, system_account: &str) -> Result<String, Error> {
        let file = token_file(OPERATOR);
        let before = self.folder.read(&file)?;
        let key = self.operator.public_key();
        let subject = Subject { key: &key, name: "millrace", claims: jwt::operator(system_account) };
        let token = jwt::issue(&self.operator, subject, before.as_deref(), self.now);
        self.folder.write(&file, Kept::Open, &(token.clone() + "\n"), FOLLOWS)?;
        Ok(token)
    }

    fn account(&mut self, owner: &str, key: &KeyPair, claims: Value) -> Result<Vouched, Error> {
        let file = token_file(owner);
        let before = self.folder.read(&file)?;
        let key = key.public_key();
        let token = jwt::issue(
            &self.operator,
            Subject { key: &key, name: owner, claims },
            before.as_deref(),
            self.now,
        );
        self.folder.write(&file, Kept::Open, &(token.clone() + "\n"), FOLLOWS)?;
        Ok(Vouched { name: owner.to_owned(), key, token })
    }

    /// Whom the account let in no more before, and who comes to that now.
    fn revoked<'k>(
        &self,
        owner: &str,
        members: impl IntoIterator<Item = &'k Keys>,
    ) -> Result<jwt::Revocations, Error> {
        let before = self.folder.read(&token_file(owner))?;
        let mut revoked = before.as_deref().map(jwt::revocations).unwrap_or_default();
        let retired = members.into_iter().filter_map(|keys| keys.retired.clone());
        revoked.extend(retired.map(|key| (key, self.now.as_second())));
        Ok(revoked)
    }

    /// A user's credentials, by owner and name.
    fn user(
        &mut self,
        signs: &KeyPair,
        (owner, name): (&str, &str),
        pair: &KeyPair,
        claims: Value,
    ) -> Result<(), Error> {
        let file = jwt::credentials_file(owner, name);
        let before = self.folder.read(&file)?;
        let before = before.as_deref().and_then(jwt::token_in);
        let token = jwt::issue(signs, Subject { key: &pair.public_key(), name, claims }, before, self.now);
        self.folder.write(&file, Kept::Secret, &jwt::credentials(&token, pair), FOLLOWS)
    }
}
