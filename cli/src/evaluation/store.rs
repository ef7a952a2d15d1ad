//! The results folder of an evaluation: a log of samples, one JSON object a line, appended as they start and end, so that an
//! interrupted evaluation continues where it stopped.
//!
//! The log holds what a sample delivered, not its score: facts can be corrected in the evaluation file without measuring
//! again. A sample is identified by its configuration, objective, number and method, and by a fingerprint of everything that
//! determines its outcome; after a change it is measured again. A line that a crash has torn is ignored.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::EndReason;
use millrace_protocol::result::{Usage, VerifiedStatement};
use millrace_views::AnswerState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exit::CommandError;
use crate::submission::create_private_folder;

const LOG: &str = "samples.jsonl";
const LOCK: &str = "lock";

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SampleKey {
    pub configuration: String,
    pub objective: String,
    /// Its number, from 1.
    pub sample: u32,
    /// The way it is measured.
    pub method: SampleMethod,
    /// The SHA-256 of everything that determines its outcome.
    pub fingerprint: String,
}

/// The way a sample is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SampleMethod {
    /// A run of Millrace.
    Run,
    /// The model alone, with the documents that have the answer in one prompt.
    Ceiling,
    /// The verifier, with the evidence of a claim as the only document.
    Verification,
    /// The verifier's model alone, with the claim and its whole evidence in one prompt.
    Direct,
}

impl SampleMethod {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Ceiling => "ceiling",
            Self::Verification => "verification",
            Self::Direct => "direct",
        }
    }

    /// `true` for the method that an evaluation always has.
    pub fn is_main(self) -> bool {
        match self {
            Self::Run | Self::Verification => true,
            Self::Ceiling | Self::Direct => false,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SampleRecord {
    /// When it ended.
    pub at: Timestamp,
    /// The run; `None` for the ceiling.
    pub run: Option<RunId>,
    /// The end of the run; `None` for the ceiling.
    pub end: Option<EndReason>,
    /// Details of the end, for a person.
    pub detail: String,
    /// The text of the deliverable; `None` if there is none.
    pub answer: Option<String>,
    /// The relation of the deliverable to the question, as the run's result has it.
    pub state: AnswerState,
    /// The statements of the deliverable or of the claim, with their verdicts.
    #[serde(default)]
    pub statements: Vec<VerifiedStatement>,
    /// The numbers in statements without a mark that no document has.
    #[serde(default)]
    pub invented: Vec<String>,
    pub citations: u32,
    pub resolved_citations: u32,
    pub usage: Usage,
    /// The working time in milliseconds.
    pub elapsed_ms: u64,
}

impl SampleRecord {
    /// A record without a run.
    pub fn of_model(answer: Option<String>, detail: String, usage: Usage, elapsed: Duration) -> Self {
        Self {
            at: Timestamp::now(),
            run: None,
            end: None,
            detail,
            answer,
            state: AnswerState::Answered,
            statements: Vec::new(),
            invented: Vec::new(),
            citations: 0,
            resolved_citations: 0,
            usage,
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum LogLine {
    /// A run was submitted for a sample.
    Started {
        #[serde(flatten)]
        key: SampleKey,
        run: RunId,
    },
    /// A sample has ended.
    Finished {
        #[serde(flatten)]
        key: SampleKey,
        record: SampleRecord,
    },
}

/// The results folder, locked by this process.
#[derive(Debug)]
pub struct ResultsFolder {
    path: PathBuf,
    log: File,
    finished: HashMap<SampleKey, SampleRecord>,
    started: HashMap<SampleKey, RunId>,
    _lock: File,
}

impl ResultsFolder {
    /// Opens a results folder, and creates it if there is none.
    pub fn open(path: &Path) -> Result<Self, CommandError> {
        let unusable = CommandError::unusable_environment;
        create_private_folder(path).map_err(unusable)?;
        let lock = File::options().create(true).append(true).open(path.join(LOCK));
        let lock = lock.with_context(|| format!("can't open {}", path.join(LOCK).display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(unusable(anyhow!(
                    "another evaluation is using {}; wait for it, or choose another folder with --results",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => {
                return Err(unusable(anyhow!("can't lock {}: {error}", path.display())));
            }
        }
        let log_path = path.join(LOG);
        let bytes = match std::fs::read(&log_path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(unusable(anyhow!("can't read {}: {error}", log_path.display()))),
        };
        let log = File::options().create(true).append(true).open(&log_path);
        let mut log = log.with_context(|| format!("can't open {}", log_path.display()))?;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            // A torn line gets an end, so that the next one is a line of its own.
            log.write_all(b"\n").with_context(|| format!("can't write {}", log_path.display()))?;
        }
        let (mut finished, mut started) = (HashMap::new(), HashMap::new());
        for line in bytes.split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(LogLine::Started { key, run }) => drop(started.insert(key, run)),
                Ok(LogLine::Finished { key, record }) => drop(finished.insert(key, record)),
                // A torn line, or one of a later version.
                Err(_) => {}
            }
        }
        Ok(Self { path: path.to_owned(), log, finished, started, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the outcome of a sample that has ended.
    pub fn find_record(&self, key: &SampleKey) -> Option<&SampleRecord> {
        self.finished.get(key)
    }

    /// Returns the run of a sample that was submitted and has not ended.
    pub fn find_started_run(&self, key: &SampleKey) -> Option<&RunId> {
        self.started.get(key).filter(|_| !self.finished.contains_key(key))
    }

    /// Records that a run was submitted for a sample.
    pub fn record_start(&mut self, key: &SampleKey, run: &RunId) -> Result<(), CommandError> {
        self.append(&LogLine::Started { key: key.clone(), run: run.clone() })?;
        self.started.insert(key.clone(), run.clone());
        Ok(())
    }

    pub fn record_end(&mut self, key: &SampleKey, record: SampleRecord) -> Result<(), CommandError> {
        self.append(&LogLine::Finished { key: key.clone(), record: record.clone() })?;
        self.finished.insert(key.clone(), record);
        Ok(())
    }

    fn append(&mut self, line: &LogLine) -> Result<(), CommandError> {
        let mut bytes = serde_json::to_vec(line).expect("lines of the log can be serialized");
        bytes.push(b'\n');
        let written = self.log.write_all(&bytes).and_then(|()| self.log.sync_data());
        written
            .with_context(|| format!("can't write {}", self.path.join(LOG).display()))
            .map_err(CommandError::unusable_environment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_key(sample: u32) -> SampleKey {
        SampleKey {
            configuration: "small".into(),
            objective: "leave".into(),
            sample,
            method: SampleMethod::Run,
            fingerprint: "f".into(),
        }
    }

    fn sample_record() -> SampleRecord {
        let answer = Some("28 days".into());
        SampleRecord::of_model(answer, String::new(), Usage::default(), Duration::from_millis(5))
    }

    #[test]
    fn a_torn_line_is_ignored_and_the_next_one_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunId::generate(Timestamp::UNIX_EPOCH, 7);
        {
            let mut results = ResultsFolder::open(folder.path()).unwrap();
            results.record_start(&sample_key(1), &run).unwrap();
            results.record_end(&sample_key(1), sample_record()).unwrap();
            results.record_start(&sample_key(2), &run).unwrap();
        }
        let mut log = File::options().append(true).open(folder.path().join(LOG)).unwrap();
        log.write_all(b"{\"type\":\"finished\",\"configur").unwrap();
        let mut results = ResultsFolder::open(folder.path()).unwrap();
        results.record_start(&sample_key(3), &run).unwrap();
        drop(results);
        let results = ResultsFolder::open(folder.path()).unwrap();
        assert_eq!(results.find_record(&sample_key(1)).unwrap().answer.as_deref(), Some("28 days"));
        assert_eq!(results.find_started_run(&sample_key(1)), None, "it has ended");
        assert_eq!(results.find_started_run(&sample_key(2)), Some(&run));
        assert_eq!(results.find_started_run(&sample_key(3)), Some(&run));
        assert!(results.find_record(&sample_key(2)).is_none());
    }

    #[test]
    fn a_folder_is_used_by_one_evaluation_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = ResultsFolder::open(folder.path()).unwrap();
        let refused = ResultsFolder::open(folder.path()).unwrap_err();
        assert!(refused.error.to_string().contains("--results"), "{}", refused.error);
        drop(first);
        ResultsFolder::open(folder.path()).unwrap();
    }
}
