//! The nkeys of identities: one file each, generated once. During a key rotation the old key has a second file, and the
//! server accepts both. Seeds are written to files and nowhere else.

use nkeys::{KeyPair, KeyPairType};

use crate::ConfigError;
use crate::folder::{ConfigFolder, FileAccess};

/// The keys of an identity.
pub struct UserKeys {
    pub current: KeyPair,
    /// The old key, still valid during a rotation.
    pub old: Option<KeyPair>,
    /// The public key that is being retired.
    pub retired: Option<String>,
}

impl UserKeys {
    /// Returns the valid public keys, the current one first.
    pub fn public_keys(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.current).chain(&self.old).map(KeyPair::public_key)
    }
}

/// A change to the keys of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// No change.
    None,
    /// Generate a new key; the current one becomes the old one.
    Rotate,
    /// Revoke the old key.
    Retire,
}

/// Returns the file of the current seed.
#[must_use]
pub fn current_key_file_name(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.nk")
}

/// Returns the file of the old seed.
#[must_use]
pub fn old_key_file_name(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.old.nk")
}

/// Checks that a change is possible, before anything is written.
///
/// # Errors
/// A rotation is in progress already, or there is none to finish.
pub fn check_key_change(
    folder: &ConfigFolder,
    owner: &str,
    identity: &str,
    change: KeyChange,
) -> Result<(), ConfigError> {
    let has_old = folder.read_file(&old_key_file_name(owner, identity))?.is_some();
    match change {
        KeyChange::Rotate if has_old => Err(ConfigError::OldKey { identity: format!("{owner}/{identity}") }),
        KeyChange::Retire if !has_old => {
            Err(ConfigError::NoOldKey { identity: format!("{owner}/{identity}") })
        }
        KeyChange::None | KeyChange::Rotate | KeyChange::Retire => Ok(()),
    }
}

/// Reads the keys of an identity, generates missing ones, and applies the change. The file of a retired key stays.
///
/// # Errors
/// A file can't be read or written, or contains no user seed.
pub fn read_or_change_user_keys(
    folder: &mut ConfigFolder,
    owner: &str,
    identity: &str,
    change: KeyChange,
) -> Result<UserKeys, ConfigError> {
    let (current, old) = (current_key_file_name(owner, identity), old_key_file_name(owner, identity));
    match change {
        KeyChange::Rotate => folder.rename_file(&current, &old)?,
        KeyChange::None | KeyChange::Retire => {}
    }
    let current = read_or_create_key_pair(folder, &current, KeyPairType::User)?;
    let old = read_key_pair(folder, &old, KeyPairType::User)?;
    Ok(match change {
        KeyChange::None | KeyChange::Rotate => UserKeys { current, old, retired: None },
        KeyChange::Retire => UserKeys { current, old: None, retired: old.map(|pair| pair.public_key()) },
    })
}

/// Reads the key in a file; generates it if there is none.
///
/// # Errors
/// The file can't be read or written, or contains something else.
pub fn read_or_create_key_pair(
    folder: &mut ConfigFolder,
    file: &str,
    kind: KeyPairType,
) -> Result<KeyPair, ConfigError> {
    if let Some(pair) = read_key_pair(folder, file, kind.clone())? {
        return Ok(pair);
    }
    let pair = KeyPair::new(kind);
    folder.write_file(file, FileAccess::Secret, &(seed_text(&pair) + "\n"), "")?;
    Ok(pair)
}

fn read_key_pair(
    folder: &ConfigFolder,
    file: &str,
    kind: KeyPairType,
) -> Result<Option<KeyPair>, ConfigError> {
    let Some(text) = folder.read_file(file)? else {
        return Ok(None);
    };
    let no_seed = |why: String| ConfigError::NoSeed { path: folder.file_path(file), why };
    let pair = KeyPair::from_seed(text.trim()).map_err(|error| no_seed(error.to_string()))?;
    if pair.key_pair_type() == kind {
        Ok(Some(pair))
    } else {
        Err(no_seed(format!("it is a seed of kind {:?}, not {kind:?}", pair.key_pair_type())))
    }
}

/// Returns the seed of a key pair.
#[must_use]
pub fn seed_text(pair: &KeyPair) -> String {
    pair.seed().expect("a generated or parsed key pair has a seed")
}
