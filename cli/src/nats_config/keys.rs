//! The nkeys of identities: each in a file of its own, made once and kept. While one is exchanged the old one stands
//! beside it, and the server lets both in. Seeds go into files and nowhere else.

use nkeys::{KeyPair, KeyPairType};

use super::Error;
use super::folder::{Folder, Kept};

/// The keys of an identity.
pub struct Keys {
    /// What it is to use.
    pub current: KeyPair,
    /// What it may still use.
    pub old: Option<KeyPair>,
    /// The public half of what it may use no more.
    pub retired: Option<String>,
}

impl Keys {
    /// The keys that the server lets in: the current one first.
    pub fn public(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.current).chain(&self.old).map(KeyPair::public_key)
    }
}

/// What is to be done with the keys of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// They stay.
    None,
    /// A new one is made, and the one that was current becomes the old one.
    Rotate,
    /// The old one is let in no more.
    Retire,
}

/// The file of the current seed.
#[must_use]
pub fn current_file(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.nk")
}

/// The file of the seed that is on its way out.
#[must_use]
pub fn old_file(owner: &str, identity: &str) -> String {
    format!("seeds/{owner}/{identity}.old.nk")
}

/// Says whether an exchange can be made, before anything is written.
///
/// # Errors
/// There is an old key already, or none.
pub fn check(folder: &Folder, owner: &str, identity: &str, exchange: Exchange) -> Result<(), Error> {
    let has_old = folder.read(&old_file(owner, identity))?.is_some();
    match exchange {
        Exchange::Rotate if has_old => Err(Error::OldKey { identity: format!("{owner}/{identity}") }),
        Exchange::Retire if !has_old => Err(Error::NoOldKey { identity: format!("{owner}/{identity}") }),
        Exchange::None | Exchange::Rotate | Exchange::Retire => Ok(()),
    }
}

/// Reads the keys of an identity, makes what is missing, and exchanges them. The file of a retired key stays.
///
/// # Errors
/// A file can't be read or written, or holds no seed of a user.
pub fn of_user(folder: &mut Folder, owner: &str, identity: &str, exchange: Exchange) -> Result<Keys, Error> {
    let (current, old) = (current_file(owner, identity), old_file(owner, identity));
    match exchange {
        Exchange::Rotate => folder.rename(&current, &old)?,
        Exchange::None | Exchange::Retire => {}
    }
    let current = of(folder, &current, KeyPairType::User)?;
    let old = read(folder, &old, KeyPairType::User)?;
    Ok(match exchange {
        Exchange::None | Exchange::Rotate => Keys { current, old, retired: None },
        Exchange::Retire => Keys { current, old: None, retired: old.map(|pair| pair.public_key()) },
    })
}

/// The key of a file; a new one where there is none.
///
/// # Errors
/// The file can't be read or written, or holds something else.
pub fn of(folder: &mut Folder, file: &str, kind: KeyPairType) -> Result<KeyPair, Error> {
    if let Some(pair) = read(folder, file, kind.clone())? {
        return Ok(pair);
    }
    let pair = KeyPair::new(kind);
    folder.write(file, Kept::Secret, &(seed(&pair) + "\n"), "")?;
    Ok(pair)
}

fn read(folder: &Folder, file: &str, kind: KeyPairType) -> Result<Option<KeyPair>, Error> {
    let Some(text) = folder.read(file)? else {
        return Ok(None);
    };
    let no_seed = |why: String| Error::NoSeed { path: folder.path(file), why };
    let pair = KeyPair::from_seed(text.trim()).map_err(|error| no_seed(error.to_string()))?;
    if pair.key_pair_type() == kind {
        Ok(Some(pair))
    } else {
        Err(no_seed(format!("it is a seed of kind {:?}, not {kind:?}", pair.key_pair_type())))
    }
}

/// The seed of a pair that has one, to be written to a file.
#[must_use]
pub fn seed(pair: &KeyPair) -> String {
    pair.seed().expect("a pair that was made or read from its seed has it")
}
