//! Files that people write: strict YAML (JSON is YAML too) whose every mistake is told with its line, what was
//! expected, and where a name is unknown the nearest that is known. It owns the reading; what a file means is its
//! reader's. A file is read as a tree of [`Node`]s that know their places, and these field by field ([`Fields`]) or
//! whole as a type ([`typed`]).

mod fields;
mod mistake;
mod typed;
mod yaml;

use std::path::Path;

pub use fields::Fields;
pub use mistake::{Fault, Kind, Mistake, Place, any_of, did_you_mean};
pub use typed::typed;
pub use yaml::{Entry, Node, Value, read};

/// Reads a file of a kind and of at most `max` bytes with `parse`.
///
/// # Errors
/// It can't be read, is too large, or has a mistake in it.
pub fn load<T>(
    path: &Path,
    kind: Kind,
    max: u64,
    parse: impl FnOnce(&[u8]) -> Result<T, Mistake>,
) -> Result<T, Fault> {
    let file = || path.display().to_string();
    let unreadable = |source| Fault::Unreadable { kind: kind.name, file: file(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > max {
        return Err(Fault::TooLarge { kind: kind.name, file: file(), bytes, max });
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    parse(&bytes).map_err(|mistake| Fault::Mistake { file: file(), mistake })
}
