//! The deletion of runs: its records, the rules that select runs by age, and the names of blobs in messages. No I/O.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::RunId;
use crate::labels::LabelSelector;
use crate::plan::EndReason;
use crate::registry::RunSummary;

/// The time for which a blob without references stays in the store, unless the cluster has another setting.
const DEFAULT_BLOB_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest possible setting of that time. Who stores a blob must append a message that refers to it within this time less
/// [`BLOB_RENEWAL_AGE`].
pub const MIN_BLOB_GRACE: Duration = Duration::from_secs(60 * 60);
/// The age from which a blob that is stored again is marked as used.
pub const BLOB_RENEWAL_AGE: Duration = Duration::from_secs(10 * 60);
/// The length of a blob's name: a SHA-256 in hexadecimal.
const NAME_LENGTH: usize = 64;

/// The record of a deletion. It is written before anything is removed, and stays for a while after the run is gone: whoever
/// continues the deletion starts from it, and readers learn from it that the run was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionRecord {
    /// The run.
    pub run: RunId,
    /// The author of the request: a person, or a retention rule.
    pub by: String,
    /// When the deletion was requested.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub requested: Timestamp,
    /// Its progress.
    pub state: DeletionState,
}

/// The progress of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeletionState {
    /// A supervisor has not looked at it yet, or waits until the run is archived. Until then no command changes the run.
    Requested,
    /// The run is live. Nothing of it was removed.
    Refused,
    /// The run counts as deleted, and is being removed.
    Removing,
    /// Nothing of the run is left, apart from blobs, which are swept later.
    Removed {
        /// When the last part was removed.
        #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
        at: Timestamp,
    },
}

impl DeletionState {
    /// `true` if the run counts as deleted.
    pub fn is_deleted(&self) -> bool {
        match self {
            Self::Removing | Self::Removed { .. } => true,
            Self::Requested | Self::Refused => false,
        }
    }

    /// `true` if a supervisor has something to do.
    pub fn is_pending(&self) -> bool {
        match self {
            Self::Requested | Self::Removing => true,
            Self::Refused | Self::Removed { .. } => false,
        }
    }
}

/// The next step of a requested deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletionStep {
    /// Remove the run.
    Remove,
    /// Wait: the run has ended, and its messages are moved to the archive. A run that can be resumed stays in its lane until somebody
    /// gives that up.
    Wait {
        /// `true` if the run can be resumed.
        is_resumable: bool,
    },
    /// Refuse: the run is live.
    Refuse,
}

/// Decides on the deletion of a run with this summary. `is_submitted` says that the lane holds its submission.
#[must_use]
pub fn deletion_step(summary: Option<&RunSummary>, is_submitted: bool) -> DeletionStep {
    match summary {
        Some(summary) if summary.archived || summary.log_damage.is_some() => DeletionStep::Remove,
        Some(summary) if summary.end.is_some() => DeletionStep::Wait { is_resumable: summary.is_resumable },
        Some(_) => DeletionStep::Refuse,
        None if is_submitted => DeletionStep::Refuse,
        None => DeletionStep::Remove,
    }
}

/// A selection of ended runs by age, labels and the reason of their end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneSelection {
    /// Only runs that ended longer ago than this, in milliseconds.
    #[serde(rename = "older_than_ms", with = "whole_millis")]
    #[schemars(with = "u64")]
    pub older_than: Duration,
    /// Only runs with all these labels: `NAME=VALUE`, or `NAME` for any value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub labels: Vec<LabelSelector>,
    /// Only runs that ended for one of these reasons; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<EndReason>,
}

impl PruneSelection {
    /// `true` if it selects a run with this summary. A run that has not ended is never selected.
    pub fn selects(&self, summary: &RunSummary, now: Timestamp) -> bool {
        let Some(end) = summary.end else { return false };
        let age = Duration::try_from(now.duration_since(summary.updated)).unwrap_or_default();
        age >= self.older_than
            && (self.states.is_empty() || self.states.contains(&end))
            && self.labels.iter().all(|label| label.selects(&summary.labels))
    }
}

/// A rule of the cluster: supervisors delete the runs that it selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionRule {
    /// The runs.
    pub selection: PruneSelection,
    /// Its author.
    pub by: String,
}

/// The settings of the sweep of blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepSettings {
    /// The time in milliseconds for which a blob stays in the store after it was last written or used, even if nothing
    /// refers to it.
    pub blob_grace_ms: u64,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self::with_blob_grace(DEFAULT_BLOB_GRACE)
    }
}

impl SweepSettings {
    /// Settings with this grace period.
    #[must_use]
    pub fn with_blob_grace(grace: Duration) -> Self {
        Self { blob_grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX) }
    }

    /// The time for which an unreferenced blob stays.
    pub fn blob_grace(&self) -> Duration {
        Duration::from_millis(self.blob_grace_ms)
    }
}

/// The outcome of a sweep of blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SweepReport {
    /// The number of blobs in the store before the sweep.
    pub blobs: u64,
    /// The number of blobs that messages, files, archives or other blobs refer to.
    pub referenced: u64,
    /// The number of removed blobs.
    pub removed: u64,
    /// The bytes of the removed blobs.
    pub removed_bytes: u64,
    /// The number of unreferenced blobs that stay because they were written or used a short while ago.
    pub too_young: u64,
}

/// The storage that a deletion of runs frees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PruneForecast {
    /// The number of runs.
    pub runs: u64,
    /// The bytes of their archives.
    pub archive_bytes: u64,
    /// The number of blobs to which nothing else refers.
    pub blobs: u64,
    /// The bytes of these blobs.
    pub blob_bytes: u64,
}

/// The record of the last sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// When it began. Runs that were removed before count as swept.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub began: Timestamp,
    /// When it ended.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub ended: Timestamp,
    /// Its outcome.
    pub report: SweepReport,
}

/// The name of a blob as bytes: a SHA-256.
pub type BlobName = [u8; 32];

/// Parses the name of a blob: 64 lowercase hexadecimal digits.
#[must_use]
pub fn parse_blob_name(text: &[u8]) -> Option<BlobName> {
    let digits: &[u8; NAME_LENGTH] = text.try_into().ok()?;
    let mut name = BlobName::default();
    for (byte, pair) in name.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hexadecimal_digit(pair[0])? << 4 | hexadecimal_digit(pair[1])?;
    }
    Some(name)
}

/// Formats the name of a blob.
#[must_use]
pub fn format_blob_name(name: &BlobName) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hexadecimal_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Finds everything in a value that may be the name of a blob, while its bytes arrive in parts: every sequence of 64
/// lowercase hexadecimal digits, also within a longer sequence. It knows no message types: whatever refers to a blob writes
/// its name as text, in MessagePack and in JSON.
#[derive(Debug, Default)]
pub struct BlobNameScanner {
    /// The trailing hexadecimal digits so far.
    digits: Vec<u8>,
}

impl BlobNameScanner {
    /// Reads the next bytes and reports the names that end in them.
    pub fn read(&mut self, bytes: &[u8], mut on_name: impl FnMut(BlobName)) {
        for &byte in bytes {
            if hexadecimal_digit(byte).is_none() {
                self.digits.clear();
                continue;
            }
            if self.digits.len() == 4 * NAME_LENGTH {
                self.digits.drain(..=3 * NAME_LENGTH);
            }
            self.digits.push(byte);
            if let Some(start) = self.digits.len().checked_sub(NAME_LENGTH)
                && let Some(name) = parse_blob_name(&self.digits[start..])
            {
                on_name(name);
            }
        }
    }
}

/// Finds everything in a value that may be the name of a blob.
pub fn find_blob_names(bytes: &[u8], on_name: impl FnMut(BlobName)) {
    BlobNameScanner::default().read(bytes, on_name);
}

/// Durations as whole milliseconds.
mod whole_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(parts: &[&[u8]]) -> Vec<BlobName> {
        let (mut names, mut scanner) = (Vec::new(), BlobNameScanner::default());
        for part in parts {
            scanner.read(part, |name| names.push(name));
        }
        names
    }

    #[test]
    fn names_are_found_wherever_they_are() {
        let name = "0123456789abcdef".repeat(4);
        let parsed = parse_blob_name(name.as_bytes()).unwrap();
        assert_eq!(format_blob_name(&parsed), name);
        let text = format!("{{\"sha256\":\"{name}\",\"size\":7}}");
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            assert_eq!(names_in(&[head, tail]), [parsed], "cut at {cut}");
        }
        assert_eq!(names_in(&[format!("{}x", &name[1..]).as_bytes()]), [] as [BlobName; 0], "63 digits");
        assert_eq!(names_in(&[name.to_uppercase().as_bytes()]), [] as [BlobName; 0]);
        assert_eq!(names_in(&["\u{e9}".as_bytes(), name.as_bytes()]), [parsed]);
    }

    #[test]
    fn names_are_found_within_longer_sequences_of_digits() {
        let name = "fedcba9876543210".repeat(4);
        let parsed = parse_blob_name(name.as_bytes()).unwrap();
        for before in [1, 63, 64, 100, 255, 256, 257, 1000] {
            let text = format!("{}{name}{}", "7".repeat(before), "8".repeat(before));
            assert!(names_in(&[text.as_bytes()]).contains(&parsed), "{before} digits before it");
        }
    }

    #[test]
    fn every_position_of_a_long_sequence_is_a_name() {
        let text = "0123456789abcdef".repeat(100);
        assert_eq!(names_in(&[text.as_bytes()]).len(), text.len() - NAME_LENGTH + 1);
    }

    #[test]
    fn selections_are_read_and_written() {
        let text = r#"{"older_than_ms":86400000,"labels":["team=a","x"],"states":["failed"]}"#;
        let selection: PruneSelection = serde_json::from_str(text).unwrap();
        assert_eq!(selection.older_than, Duration::from_secs(86_400));
        assert_eq!(serde_json::to_string(&selection).unwrap(), text);
        assert!(serde_json::from_str::<PruneSelection>(r#"{"older_than_ms":1,"label":["a"]}"#).is_err());
        assert!(serde_json::from_str::<PruneSelection>(r#"{"older_than_ms":1,"labels":["a b"]}"#).is_err());
    }
}
