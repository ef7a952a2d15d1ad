//! What the probes said of models, remembered for all work of a process, and on disk for later processes. The files can be deleted at
//! any time.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use millrace_verification::{Calibration, Form, hash_text};

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

    /// Returns what a probe in this form said of a model.
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

    /// Remembers what a probe said. A model that answered nothing is asked again the next time.
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
                tracing::warn!(path = %path.display(), %error, "cannot remember what the probe said of a verifier");
            }
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, calibration.clone());
    }

    fn path_of(&self, key: &str) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join(FOLDER).join(format!("{key}.json")))
    }
}

fn key_of(model: &str, form: Form) -> String {
    hash_text(&[model, &form.version()])
}
