//! The calibrations of models, remembered for all work of a process, and on disk for later processes. The files can be deleted at any
//! time.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use millrace_verification::{Calibration, Form};
use sha2::{Digest, Sha256};

use crate::corpus::encode_hex;

/// The folder for the files, in the cache.
const FOLDER: &str = "verifiers";

/// The calibrations of models.
#[derive(Debug, Default)]
pub struct CalibrationMemory {
    cache: Option<PathBuf>,
    known: Mutex<BTreeMap<String, Calibration>>,
}

impl CalibrationMemory {
    /// A memory with files in a cache folder, if there is one.
    pub fn new(cache: Option<PathBuf>) -> Self {
        Self { cache, ..Self::default() }
    }

    /// Returns the calibration of a model in a form, if it is known.
    pub fn recall(&self, model: &str, form: Form) -> Option<Calibration> {
        let key = key_of(model, form);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calibration) = known.get(&key) {
            return Some(calibration.clone());
        }
        let text = fs::read_to_string(self.path_of(&key)?).ok()?;
        // A file that can't be read is written anew.
        let calibration: Calibration = serde_json::from_str(&text).ok()?;
        known.insert(key, calibration.clone());
        Some(calibration)
    }

    /// Remembers a calibration. A model that answered nothing is probed again the next time.
    pub fn remember(&self, calibration: &Calibration) {
        if calibration.answered == 0 {
            return;
        }
        let key = key_of(&calibration.model, calibration.form);
        if let Some(path) = self.path_of(&key) {
            let text = serde_json::to_string(calibration).expect("it holds only texts and numbers");
            let written =
                path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
            if let Err(error) = written {
                tracing::warn!(path = %path.display(), %error, "cannot store the calibration of a verifier");
            }
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, calibration.clone());
    }

    fn path_of(&self, key: &str) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join(FOLDER).join(format!("{key}.json")))
    }
}

fn key_of(model: &str, form: Form) -> String {
    encode_hex(&Sha256::digest(format!("{}:{model}", form.version())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_is_known_to_later_processes_unless_nothing_was_answered() {
        let cache = tempfile::tempdir().unwrap();
        let open = || CalibrationMemory::new(Some(cache.path().to_owned()));
        let known = Calibration {
            model: "ollama:a/b".into(),
            form: Form::Single,
            threshold: 0.4,
            accuracy: 0.9,
            answered: 32,
            claims: 32,
        };
        open().remember(&known);
        assert_eq!(open().recall("ollama:a/b", Form::Single).as_ref(), Some(&known));
        assert_eq!(open().recall("ollama:a/b", Form::Several), None);
        open().remember(&Calibration { model: "mute".into(), answered: 0, ..known });
        assert_eq!(open().recall("mute", Form::Single), None);
    }
}
