//! Restoring a backup into an empty account: the backup is verified first, then restored completely or not at all.
//! Until the end the settings mark the cluster as being restored, so that no supervisor starts on it. This module
//! starts nothing: the first supervisor creates all derived data and resumes the runs.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, kv};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject::{self, FileSpace, Topic};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::check::{self, DanglingReference, ObjectDescription};
use super::copy::{BucketEntryLine, LeaderReader, has_entries_with_ids};
use super::{
    BackupError, BackupManifest, BackupPart, BackupPartContent, BackupProgress, OnBackupProgress, folder,
    snapshot,
};
use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error};
use crate::nats::bus::Bus;
use crate::nats::connect::with_connection;
use crate::nats::connection::{ConnectionSettings, without_passwords};
use crate::nats::record::{ID_HEADER, new_id};
use crate::nats::topology::{
    self, ARCHIVE, AUDIT, BLOBS, CAPABILITIES, CLUSTER, ClusterOptions, DELIVERIES, DELIVERY_RECORD_AGE,
    FILES, HEARTBEATS, KEYS, LEASES, LIMITS, MEMBERS, RESTORING, RETENTION, RUNS, SESSIONS, SETTINGS,
    THE_SETTINGS, TOKENS, WEBHOOKS, WORK, bucket_stream, ensure_bucket, lane_stream, object_stream,
    shared_bucket_config,
};

/// The maximum number of bucket entries that wait for acknowledgements.
const MAX_IN_FLIGHT: usize = 256;

#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// The folder of the backup.
    pub folder: PathBuf,
    /// The number of replicas, if it differs from the backup.
    pub replicas: Option<u8>,
    /// `true` to remove the remains of a killed restore first.
    pub again: bool,
}

/// The result of a restore.
#[derive(Debug)]
pub struct RestoreReport {
    pub manifest: BackupManifest,
    /// The settings of the restored cluster.
    pub settings: ClusterSettings,
    /// The number of archived runs.
    pub archived: usize,
    /// The runs in the lanes: live, or ended and not archived yet.
    pub live: Vec<RunId>,
    pub missing: Vec<DanglingReference>,
}

/// Restores a backup into an empty account. If it fails or is stopped, the account is empty again.
/// Errors: the backup is damaged, the account is not empty, the server rejects a stream, or `stop` was cancelled.
pub fn restore_backup<'a>(
    connection: &'a ConnectionSettings,
    options: &'a RestoreOptions,
    stop: &'a CancellationToken,
    on_progress: OnBackupProgress<'a>,
) -> BoxFuture<'a, Result<RestoreReport, BackupError>> {
    async move {
        let manifest = folder::verify_backup(&options.folder, stop, on_progress)?;
        let settings = ClusterSettings {
            replicas: options.replicas.unwrap_or(manifest.settings.replicas),
            ..manifest.settings.clone()
        };
        with_connection(connection, "millrace-restore", async |client, context| {
            let url = without_passwords(&connection.url);
            let restore = RestoreOperation { client, context, url, manifest, settings, stop, on_progress };
            restore.restore_all_parts(options).boxed().await
        })
        .await
    }
    .boxed()
}

enum RestoreAccountState {
    NoSettings,
    /// A restore is in progress there, or was killed.
    Unfinished,
    /// It has a cluster.
    Complete,
}

/// A restore in progress.
struct RestoreOperation<'a> {
    client: Client,
    context: Context,
    url: String,
    manifest: BackupManifest,
    settings: ClusterSettings,
    stop: &'a CancellationToken,
    on_progress: OnBackupProgress<'a>,
}

impl RestoreOperation<'_> {
    async fn restore_all_parts(self, options: &RestoreOptions) -> Result<RestoreReport, BackupError> {
        topology::check_jetstream(&self.context, &self.url).await?;
        self.ensure_account_is_empty(options.again).await?;
        let claim = self.mark_account_as_restoring().await?;
        match self.restore_streams_and_buckets(&options.folder, &claim).await {
            Ok((archived, live, missing)) => {
                let Self { manifest, settings, .. } = self;
                Ok(RestoreReport { manifest, settings, archived, live, missing })
            }
            Err(error) => {
                if let Err(fault) = self.remove_cluster_streams().await {
                    warn!(%fault, "cleanup after the failed restore failed too; run restore with --again");
                }
                Err(error)
            }
        }
    }

    /// Fails if a stop was requested. Called between requests only: what the server creates after an interrupted
    /// request could not be removed.
    fn fail_if_stop_requested(&self) -> Result<(), BackupError> {
        if self.stop.is_cancelled() { Err(BackupError::Stopped) } else { Ok(()) }
    }

    /// Makes sure that the account has no streams of a cluster.
    async fn ensure_account_is_empty(&self, again: bool) -> Result<(), BackupError> {
        let existing = self.list_existing_streams().await?;
        if existing.is_empty() {
            return Ok(());
        }
        match self.read_account_state().await? {
            // A restore was killed after it created the bucket and before it claimed it.
            RestoreAccountState::NoSettings if existing == [bucket_stream(CLUSTER)] => return Ok(()),
            RestoreAccountState::NoSettings | RestoreAccountState::Complete => {
                return Err(self.account_occupied_error(&existing));
            }
            RestoreAccountState::Unfinished if !again => {
                return Err(BackupError::Unfinished { url: self.url.clone() });
            }
            RestoreAccountState::Unfinished => self.remove_cluster_streams().await?,
        }
        match self.list_existing_streams().await? {
            remaining if remaining.is_empty() => Ok(()),
            remaining => Err(self.account_occupied_error(&remaining)),
        }
    }

    fn account_occupied_error(&self, streams: &[String]) -> BackupError {
        BackupError::Occupied { url: self.url.clone(), what: streams.join(", ") }
    }

    /// Returns the streams of a cluster that exist in the account.
    async fn list_existing_streams(&self) -> Result<Vec<String>, Fault> {
        let names: Vec<String> =
            self.context.stream_names().try_collect().await.or_fault("listing the streams of the account")?;
        let mut names: Vec<String> = names.into_iter().filter(|name| is_cluster_stream(name)).collect();
        names.sort();
        Ok(names)
    }

    async fn read_account_state(&self) -> Result<RestoreAccountState, Fault> {
        let Ok(store) = self.context.get_key_value(CLUSTER).await else {
            return Ok(RestoreAccountState::NoSettings);
        };
        let bytes = store.get(SETTINGS).await.or_fault(THE_SETTINGS)?;
        let Some(bytes) = bytes else { return Ok(RestoreAccountState::NoSettings) };
        let settings: Option<ClusterSettings> = serde_json::from_slice(&bytes).ok();
        let is_unfinished = settings.is_some_and(|settings| settings.version == RESTORING);
        Ok(if is_unfinished { RestoreAccountState::Unfinished } else { RestoreAccountState::Complete })
    }

    /// Marks the account as being restored. Of two concurrent restores one fails.
    async fn mark_account_as_restoring(&self) -> Result<kv::Store, BackupError> {
        let config =
            kv::Config { bucket: CLUSTER.into(), ..shared_bucket_config(self.settings.replicas.into()) };
        let store = ensure_bucket(&self.context, config).await?;
        let marker = ClusterSettings { version: RESTORING, ..self.settings.clone() };
        let marker = serde_json::to_vec(&marker).expect("settings serialise to JSON");
        match store.create(SETTINGS, marker.into()).await {
            Ok(_) => Ok(store),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => {
                Err(self.account_occupied_error(&self.list_existing_streams().await?))
            }
            Err(error) => Err(fault_from_client_error(THE_SETTINGS, error).into()),
        }
    }

    /// Removes all streams of a cluster. The marker goes last, and only when all others are removed: until then it
    /// marks what they are.
    async fn remove_cluster_streams(&self) -> Result<(), Fault> {
        let claim = bucket_stream(CLUSTER);
        let mut streams = self.list_existing_streams().await?;
        streams.sort_by_key(|name| *name == claim);
        let mut first_fault = None;
        for stream in streams {
            if stream == claim && first_fault.is_some() {
                break;
            }
            if let Err(error) = self.context.delete_stream(&stream).await {
                let what = format!("removing {stream} of an unfinished restore");
                first_fault = first_fault.or_else(|| Some(fault_from_client_error(&what, error)));
            }
        }
        first_fault.map_or(Ok(()), Err)
    }

    async fn restore_streams_and_buckets(
        &self,
        folder: &Path,
        claim: &kv::Store,
    ) -> Result<(usize, Vec<RunId>, Vec<DanglingReference>), BackupError> {
        let mut archived = HashSet::new();
        for part in &self.manifest.parts {
            self.fail_if_stop_requested()?;
            let file = folder.join(&part.file);
            match &part.content {
                BackupPartContent::Stream { name, config, state } => {
                    let config = self.adapt_stream_config(config);
                    self.restore_stream_part(name, &config, state, &file).await?;
                }
                BackupPartContent::Bucket { name, .. } => {
                    let keys = self.restore_bucket_part(name, &file, part).await?;
                    if name == RUNS {
                        archived = keys.into_iter().filter_map(|key| RunId::new(key).ok()).collect();
                    }
                }
            }
        }
        let bus = Bus::from_open_connection(self.client.clone(), self.context.clone(), self.settings.clone())
            .await?;
        self.remove_newer_archives(&archived).await?;
        self.fail_if_stop_requested()?;
        let live = self.remove_archived_runs(&bus, &archived).await?;
        self.fail_if_stop_requested()?;
        let ended = archived.iter().filter(|run| live.binary_search(run).is_err()).cloned().collect();
        self.remove_newer_files(&ended).await?;
        let missing = tokio::select! {
            missing = check::find_dangling_references(&bus, &archived, self.on_progress) => missing?,
            () = self.stop.cancelled() => return Err(BackupError::Stopped),
        };
        let settings = serde_json::to_vec(&self.settings).expect("settings serialise to JSON");
        claim.put(SETTINGS, settings.into()).await.or_fault(THE_SETTINGS)?;
        topology::ensure_cluster(&self.context, &self.url, &ClusterOptions::default()).await?;
        Ok((ended.len(), live, missing))
    }

    async fn restore_stream_part(
        &self,
        name: &str,
        config: &Value,
        state: &Value,
        file: &Path,
    ) -> Result<(), BackupError> {
        let snapshot = snapshot::StreamSnapshot { stream: name, config, state, file };
        snapshot::restore_stream(&self.client, &snapshot, self.stop, self.on_progress).await
    }

    /// Adapts the configuration of a stream to this cluster.
    fn adapt_stream_config(&self, config: &Value) -> Value {
        let mut config = config.clone();
        config["num_replicas"] = self.settings.replicas.into();
        // The placement refers to servers of the old NATS cluster.
        if let Some(fields) = config.as_object_mut() {
            fields.remove("placement");
        }
        config
    }

    /// Creates a bucket and writes its entries. Returns their keys.
    async fn restore_bucket_part(
        &self,
        name: &str,
        file: &Path,
        part: &BackupPart,
    ) -> Result<Vec<String>, BackupError> {
        let reading = |why| folder::file_error("reading", file, why);
        let max_age = if name == DELIVERIES { DELIVERY_RECORD_AGE } else { Duration::ZERO };
        let config = kv::Config {
            bucket: name.into(),
            max_age,
            ..shared_bucket_config(self.settings.replicas.into())
        };
        ensure_bucket(&self.context, config).await?;
        let lines = BufReader::new(File::open(file).map_err(reading)?).lines();
        let mut keys = Vec::new();
        let mut in_flight = std::collections::VecDeque::new();
        for line in lines {
            let line = line.map_err(reading)?;
            let line: BucketEntryLine = serde_json::from_str(&line).map_err(|error| reading(error.into()))?;
            let subject = format!("$KV.{name}.{}", line.key);
            let message = PublishMessage::build().payload(line.value.into());
            let message = match has_entries_with_ids(name) {
                true => message.header(ID_HEADER, new_id().as_str()),
                false => message,
            };
            let sent = self.context.send_publish(subject, message).await;
            in_flight.push_back(sent.or_fault_with(|| format!("bucket {name}"))?);
            keys.push(line.key);
            if in_flight.len() >= MAX_IN_FLIGHT
                && let Some(oldest) = in_flight.pop_front()
            {
                oldest.await.or_fault_with(|| format!("bucket {name}"))?;
            }
        }
        for acknowledgement in in_flight {
            acknowledgement.await.or_fault_with(|| format!("bucket {name}"))?;
        }
        (self.on_progress)(BackupProgress {
            operation: "restoring",
            what: name,
            bytes: part.bytes,
            is_done: true,
        });
        Ok(keys)
    }

    /// Removes what the archive holds from the lanes. Returns the other runs, in their order, and those that were reopened.
    async fn remove_archived_runs(
        &self,
        bus: &Bus,
        archived: &HashSet<RunId>,
    ) -> Result<Vec<RunId>, BackupError> {
        let mut live = Vec::new();
        for lane in (0..self.settings.lanes).map(Lane) {
            let name = lane_stream(lane);
            let what = || format!("removing archived runs from {name}");
            let stream = self.context.get_stream_no_info(&name).await.or_fault_with(what)?;
            let mut subjects =
                stream.info_with_subjects(subject::all_subjects_of_lane(lane)).await.or_fault_with(what)?;
            let mut runs = HashSet::new();
            while let Some(entry) = subjects.next().await {
                let (subject, _) = entry.or_fault_with(what)?;
                runs.extend(subject::parse_lane_subject(&subject).map(|(_, run, _)| run));
            }
            for run in runs {
                if !archived.contains(&run) {
                    live.push(run);
                    continue;
                }
                let through = match check::read_archive(bus, &run).await {
                    Ok(records) => records.and_then(|records| Some(records.last()?.sequence)),
                    // It is reported as missing.
                    Err(_) => None,
                };
                let purge = stream.purge().filter(subject::all_subjects_of_run(lane, &run));
                let purged = match through {
                    Some(through) => purge.sequence(through + 1).await,
                    None => purge.await,
                };
                purged.or_fault_with(what)?;
                let decisions = subject::topic_subject(lane, &run, &Topic::Plan);
                if stream.get_last_raw_message_by_subject(&decisions).await.is_ok() {
                    live.push(run);
                }
            }
        }
        live.sort();
        Ok(live)
    }

    /// Removes runs from the archive that are in their lanes: they were archived after the lane was copied.
    async fn remove_newer_archives(&self, archived: &HashSet<RunId>) -> Result<(), BackupError> {
        let name = object_stream(ARCHIVE);
        let what = || format!("removing newer objects from {name}");
        let stream = self.context.get_stream_no_info(&name).await.or_fault_with(what)?;
        for subject in subjects_of_other_archives(
            check::read_object_descriptions(&self.context, ARCHIVE).await?,
            archived,
        ) {
            let purged = stream.purge().filter(subject).await;
            purged.or_fault_with(what)?;
        }
        Ok(())
    }

    /// Removes file versions that are newer than the copied lane of their run.
    async fn remove_newer_files(&self, archived: &HashSet<RunId>) -> Result<(), BackupError> {
        let Some(first) = self.manifest.files_through.iter().min() else { return Ok(()) };
        if !self.manifest.parts.iter().any(|part| part.name() == FILES) {
            return Ok(());
        }
        let what = || format!("removing newer versions from {FILES}");
        let stream = self.context.get_stream_no_info(FILES).await.or_fault_with(what)?;
        let mut reading =
            LeaderReader::start_reading(&self.context, FILES, subject::ALL_FILES, first + 1).await?;
        loop {
            let records = reading.next_records().await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                // Memories belong to no run: a repeated write recognises its version.
                let Some((FileSpace::Run(run), _)) = subject::parse_file_subject(&record.subject) else {
                    continue;
                };
                let lane = usize::from(run.lane(self.settings.lanes).0);
                let through = self.manifest.files_through.get(lane).copied().unwrap_or(u64::MAX);
                if record.sequence > through && !archived.contains(&run) {
                    let removed = stream.delete_message(record.sequence).await;
                    removed.or_fault_with(what)?;
                }
            }
        }
    }
}

/// Returns the subjects of all archives of other runs. Parts that belong to an archive of these runs are left out, even
/// if another description names them.
fn subjects_of_other_archives(objects: Vec<ObjectDescription>, archived: &HashSet<RunId>) -> HashSet<String> {
    let is_kept =
        |object: &ObjectDescription| RunId::new(object.name.clone()).is_ok_and(|run| archived.contains(&run));
    let (archives, others): (Vec<ObjectDescription>, Vec<ObjectDescription>) =
        objects.into_iter().partition(is_kept);
    let parts: HashSet<String> = archives.into_iter().map(|object| object.parts).collect();
    let subjects = others.into_iter().flat_map(|object| [object.subject, object.parts]);
    subjects.filter(|subject| !parts.contains(subject)).collect()
}

/// `true` if a stream with this name belongs to a cluster.
fn is_cluster_stream(name: &str) -> bool {
    let buckets = [
        LEASES,
        MEMBERS,
        HEARTBEATS,
        CAPABILITIES,
        RUNS,
        CLUSTER,
        LIMITS,
        KEYS,
        SESSIONS,
        TOKENS,
        AUDIT,
        WEBHOOKS,
        DELIVERIES,
        RETENTION,
    ];
    let is_lane = |name: &str| name.strip_prefix("LANE_").is_some_and(|lane| lane.parse::<u16>().is_ok());
    [WORK, FILES].contains(&name)
        || is_lane(name)
        || name.strip_prefix("KV_").is_some_and(|name| buckets.contains(&name))
        || name.strip_prefix("OBJ_").is_some_and(|name| [BLOBS, ARCHIVE].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streams_of_a_cluster_are_removed() {
        for name in ["LANE_0", "LANE_1023", "WORK", "FILES", "KV_cluster", "KV_runs", "OBJ_blobs"] {
            assert!(is_cluster_stream(name), "{name}");
        }
        for name in ["LANE_x", "LANES", "KV_orders", "OBJ_backups", "work", "ORDERS", ""] {
            assert!(!is_cluster_stream(name), "{name}");
        }
    }

    #[test]
    fn parts_of_a_kept_archive_are_never_removed() {
        use crate::nats::record::Provenance::{Published, ServerReply};
        let object = |name: &str, nuid: &str, provenance| ObjectDescription {
            name: name.into(),
            subject: format!("about {name}"),
            parts: format!("parts {nuid}"),
            is_complete: true,
            provenance,
        };
        let descriptions = vec![
            object("kept", "1", Published),
            object("old", "2", ServerReply),
            object("new", "3", Published),
            object("new", "1", ServerReply),
            object("forged", "2", ServerReply),
        ];
        let archived = ["kept", "old"].map(|name| RunId::new(name).unwrap()).into();
        let removed = ["about new", "about forged", "parts 3"].map(ToOwned::to_owned).into();
        assert_eq!(subjects_of_other_archives(descriptions, &archived), removed);
    }
}
