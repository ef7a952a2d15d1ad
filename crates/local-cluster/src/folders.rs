//! The default data, cache and settings folders of the platform: XDG base directories, or those of macOS.
//!
//! Only computes paths: nothing is created or checked.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

const APPLICATION: &str = "millrace";

/// Returns the default data folder: `$XDG_DATA_HOME/millrace` or `~/.local/share/millrace`; on macOS
/// `~/Library/Application Support/millrace`. Without a home folder, `.millrace` in the current one.
pub fn default_data_folder() -> PathBuf {
    platform_folder("XDG_DATA_HOME", ".local/share", "Library/Application Support")
        .map_or_else(|| PathBuf::from(".millrace"), |base| base.join(APPLICATION))
}

/// Returns the cache folder: `$XDG_CACHE_HOME/millrace` or `~/.cache/millrace`; on macOS `~/Library/Caches/millrace`.
/// Without a home folder, `.millrace/cache` in the current one.
pub fn default_cache_folder() -> PathBuf {
    platform_folder("XDG_CACHE_HOME", ".cache", "Library/Caches")
        .map_or_else(|| PathBuf::from(".millrace/cache"), |base| base.join(APPLICATION))
}

/// Returns the folder in which this user's workers cache documents, and what they learn about models.
pub fn worker_cache_folder() -> PathBuf {
    let set = env::var_os("MILLRACE_DOCUMENT_CACHE").filter(|folder| !folder.is_empty());
    set.map_or_else(|| default_cache_folder().join("documents"), PathBuf::from)
}

/// Returns the folder of the user's settings: `$XDG_CONFIG_HOME/millrace` or `~/.config/millrace`, on all platforms.
pub fn default_settings_folder() -> Option<PathBuf> {
    platform_folder("XDG_CONFIG_HOME", ".config", ".config").map(|base| base.join(APPLICATION))
}

fn platform_folder(variable: &str, below_home: &str, below_home_on_macos: &str) -> Option<PathBuf> {
    let below_home = if cfg!(target_os = "macos") { below_home_on_macos } else { below_home };
    choose_folder(env::var_os(variable), env::home_dir(), below_home)
}

/// Returns the folder in the variable, or else the one below the home folder. XDG requires ignoring relative paths.
fn choose_folder(variable: Option<OsString>, home: Option<PathBuf>, below_home: &str) -> Option<PathBuf> {
    let folder = variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|path| path.is_absolute());
    folder.or_else(|| home.map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_takes_precedence_over_the_home_folder() {
        let chosen = choose_folder(Some("/elsewhere".into()), Some("/home/a".into()), ".cache");
        assert_eq!(chosen, Some("/elsewhere".into()));
    }

    #[test]
    fn a_relative_or_empty_variable_is_ignored() {
        for variable in ["relative", ""] {
            let chosen = choose_folder(Some(variable.into()), Some("/home/a".into()), ".cache");
            assert_eq!(chosen, Some("/home/a/.cache".into()));
        }
    }

    #[test]
    fn without_a_home_there_is_no_platform_folder() {
        assert_eq!(choose_folder(None, Some("".into()), ".cache"), None);
        assert_eq!(choose_folder(None, None, ".cache"), None);
    }
}
