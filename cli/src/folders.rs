//! The platform's folders for lasting data and for caches, as the XDG base-directory rules and macOS name them.
//!
//! Only names are made up here: nothing is created or checked.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

const APPLICATION: &str = "millrace";

/// The default data folder: `$XDG_DATA_HOME/millrace` or `~/.local/share/millrace`; on macOS
/// `~/Library/Application Support/millrace`. Without a home folder, `.millrace` in the current one.
pub fn data() -> PathBuf {
    base("XDG_DATA_HOME", ".local/share", "Library/Application Support")
        .map_or_else(|| PathBuf::from(".millrace"), |base| base.join(APPLICATION))
}

/// The cache folder: `$XDG_CACHE_HOME/millrace` or `~/.cache/millrace`; on macOS `~/Library/Caches/millrace`.
/// Without a home folder, `.millrace/cache` in the current one.
pub fn cache() -> PathBuf {
    base("XDG_CACHE_HOME", ".cache", "Library/Caches")
        .map_or_else(|| PathBuf::from(".millrace/cache"), |base| base.join(APPLICATION))
}

fn base(variable: &str, below_home: &str, below_home_on_macos: &str) -> Option<PathBuf> {
    let below_home = if cfg!(target_os = "macos") { below_home_on_macos } else { below_home };
    choose(env::var_os(variable), env::home_dir(), below_home)
}

/// The XDG rules say that a relative path in one of their variables is to be ignored.
fn choose(named: Option<OsString>, home: Option<PathBuf>, below_home: &str) -> Option<PathBuf> {
    let named = named.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|path| path.is_absolute());
    named.or_else(|| home.map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_home_folder() {
        let chosen = choose(Some("/elsewhere".into()), Some("/home/a".into()), ".cache");
        assert_eq!(chosen, Some("/elsewhere".into()));
    }

    #[test]
    fn a_relative_or_empty_variable_is_ignored() {
        for named in ["relative", ""] {
            let chosen = choose(Some(named.into()), Some("/home/a".into()), ".cache");
            assert_eq!(chosen, Some("/home/a/.cache".into()));
        }
    }

    #[test]
    fn without_a_home_there_is_no_platform_folder() {
        assert_eq!(choose(None, Some("".into()), ".cache"), None);
        assert_eq!(choose(None, None, ".cache"), None);
    }
}
