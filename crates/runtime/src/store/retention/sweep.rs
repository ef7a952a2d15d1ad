//! The sweep: removes the blobs that the mark has not found. See the module docs of [`super`] for its rules.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use millrace_protocol::retention::{BlobName, SweepReport, format_blob_name};
use tracing::{debug, info};

use super::hold::is_held;
use super::mark::{Mark, StreamEnds};
use super::objects::{BlobIndex, blob_size, paged};
use crate::nats::direct_get::read_last_per_subject;
use crate::nats::error::fault_from_client_error;
use crate::nats::object_store::{self, StoredObjectInfo, object_parts_subject};
use crate::nats::topology::{ARCHIVE, BLOBS, object_stream};
use crate::{Bus, Fault};

/// The number of blobs that are removed between two looks at holds.
const BATCH: usize = 64;
/// The number of blobs that are removed at the same time.
const CONCURRENT: usize = 4;
/// The number of subjects that are looked up at once.
const MAX_LOOKUPS: usize = 500;

#[derive(Debug, Clone, Copy)]
pub struct SweepOptions {
    /// The age below which unreferenced blobs stay.
    pub grace: Duration,
    /// `true` if the sweep pauses as long as it reads, so that others come first.
    pub is_paced: bool,
}

/// Removes the blobs that nothing refers to. Returns `None` if a backup is taken.
///
/// # Errors
/// The server does not respond. What has been removed until then was unreferenced.
pub async fn sweep_blobs(bus: &Bus, options: SweepOptions) -> Result<Option<SweepReport>, Fault> {
    if is_held(bus).await? {
        return Ok(None);
    }
    // The order matters: the second check reads everything after these ends, and all blobs that are not in the index.
    let began = Timestamp::now();
    let ends = StreamEnds::read(bus).await?;
    let none = HashSet::new();
    let mut mark = Mark::begin(bus, &none, options.is_paced).await?;
    let old: Vec<BlobName> = mark
        .index
        .iter()
        .filter(|(_, descriptions)| is_older_than(descriptions, options.grace, began))
        .map(|(name, _)| *name)
        .collect();
    let mut report = SweepReport { blobs: mark.index.len() as u64, ..SweepReport::default() };
    mark.mark_all().await?;
    mark.mark_new(&ends).await?;
    report.referenced = mark.referenced_count() as u64;
    let condemned: Vec<BlobName> = old.into_iter().filter(|name| !mark.is_referenced(name)).collect();
    report.too_young = (mark.index.len() as u64).saturating_sub(report.referenced + condemned.len() as u64);
    for batch in condemned.chunks(BATCH) {
        if is_held(bus).await? {
            info!("a backup is being taken; ending the sweep of blobs early");
            return Ok(Some(report));
        }
        let removals: Vec<_> = batch.iter().map(|name| remove_blob(bus, &mark.index, name)).collect();
        let mut removals = futures::stream::iter(removals).buffer_unordered(CONCURRENT);
        while let Some(removed) = removals.next().await {
            if let Some(bytes) = removed? {
                report.removed += 1;
                report.removed_bytes += bytes;
            }
        }
    }
    remove_renewed_descriptions(bus, &mark).await?;
    for bucket in [BLOBS, ARCHIVE] {
        remove_parts_without_description(bus, bucket, options.grace).await?;
    }
    Ok(Some(report))
}

fn is_older_than(descriptions: &[StoredObjectInfo], age: Duration, now: Timestamp) -> bool {
    let is_old = |at| Duration::try_from(now.duration_since(at)).is_ok_and(|actual| actual >= age);
    descriptions.last().is_some_and(|last| is_old(last.at))
}

/// Removes a blob unless somebody has stored it again since its descriptions were read. Returns its size; `None` if it stays.
async fn remove_blob(bus: &Bus, index: &BlobIndex, name: &BlobName) -> Result<Option<u64>, Fault> {
    let (context, text) = (bus.request_context(), format_blob_name(name));
    let descriptions = index.descriptions(name);
    let Some(last) = descriptions.last() else { return Ok(None) };
    // A sweep that died may have written this description already.
    let end = if last.info.deleted {
        last.sequence
    } else {
        let tombstone = last.info.clone().into_deleted();
        match object_store::append_description(context, BLOBS, &tombstone, last.sequence).await? {
            Some(sequence) => sequence,
            None => {
                debug!(blob = text, "the blob was stored again; keeping it");
                return Ok(None);
            }
        }
    };
    let mut removed = HashSet::new();
    for stored in descriptions.iter().filter(|stored| index.is_sole_owner(&stored.info)) {
        if !removed.insert(&stored.info.nuid) {
            continue;
        }
        object_store::remove_object_parts(context, BLOBS, &stored.info).await?;
    }
    object_store::remove_descriptions(context, BLOBS, &text, end + 1).await?;
    Ok(Some(blob_size(descriptions)))
}

/// Removes all but the last description of each blob whose descriptions have the same parts.
async fn remove_renewed_descriptions(bus: &Bus, mark: &Mark<'_>) -> Result<(), Fault> {
    for (name, descriptions) in mark.index.iter().filter(|(name, _)| mark.is_referenced(name)) {
        let Some((last, earlier)) = descriptions.split_last() else { continue };
        let is_same =
            |one: &StoredObjectInfo| one.info.nuid == last.info.nuid && one.info.size == last.info.size;
        let is_renewed = !last.info.deleted && !last.provenance.is_forged();
        if is_renewed && !earlier.is_empty() && earlier.iter().all(is_same) {
            let (context, name) = (bus.request_context(), format_blob_name(name));
            object_store::remove_descriptions(context, BLOBS, &name, last.sequence).await?;
        }
    }
    Ok(())
}

/// Removes the parts that no description names: of objects whose writers died.
async fn remove_parts_without_description(bus: &Bus, bucket: &str, age: Duration) -> Result<(), Fault> {
    let what = || format!("listing the parts of {bucket}");
    let handle = bus.request_context().get_stream_no_info(object_stream(bucket)).await;
    let handle = handle.map_err(|error| fault_from_client_error(&what(), error))?;
    let subjects = handle.info_with_subjects(object_parts_subject(bucket, ">")).await;
    let mut subjects = subjects.map_err(|error| fault_from_client_error(&what(), error))?;
    let mut parts = HashSet::new();
    while let Some(entry) = subjects.next().await {
        parts.insert(entry.map_err(|error| fault_from_client_error(&what(), error))?.0);
    }
    // After the parts: an object that is described meanwhile is complete.
    let mut pages = paged(bus, object_stream(bucket), format!("$O.{bucket}.M.>"), 1);
    loop {
        let records = pages.next_page().await?;
        if records.is_empty() {
            break;
        }
        for stored in records.iter().filter_map(|record| StoredObjectInfo::parse(bucket, record)) {
            parts.remove(&object_parts_subject(bucket, &stored.info.nuid));
        }
    }
    let (parts, now): (Vec<String>, _) = (parts.into_iter().collect(), Timestamp::now());
    for batch in parts.chunks(MAX_LOOKUPS) {
        let last = read_last_per_subject(bus.client(), &object_stream(bucket), batch).await?;
        let is_old = |at| Duration::try_from(now.duration_since(at)).is_ok_and(|actual| actual >= age);
        for record in last.unwrap_or_default().iter().filter(|record| is_old(record.time)) {
            let purged = handle.purge().filter(record.subject.to_string()).await;
            purged.map_err(|error| fault_from_client_error(&what(), error))?;
        }
    }
    Ok(())
}
