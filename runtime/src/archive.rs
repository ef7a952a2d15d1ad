//! Runs that are over: all messages of a run as one compressed object, so that a lane holds live runs only. The
//! archive answers whatever the lane would have answered.

use async_nats::jetstream::object_store;
use bytes::Bytes;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::wire::Encoding;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use crate::Fault;
use crate::bus::{Bus, Record};
use crate::log::read_run;
use crate::topology::{ARCHIVE, fault};

/// One message in an archive.
#[derive(Serialize, Deserialize)]
struct Kept {
    sequence: u64,
    subject: String,
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
    json: bool,
    #[serde(with = "jiff::fmt::serde::timestamp::nanosecond::required")]
    time: jiff::Timestamp,
}

/// Writes messages of a run, oldest first, as its archive. Writing it again replaces it.
///
/// # Errors
/// The server does not answer or is full.
pub async fn write(bus: &Bus, run: &RunId, records: &[Record]) -> Result<(), Fault> {
    let kept: Vec<Kept> = records
        .iter()
        .map(|record| Kept {
            sequence: record.sequence,
            subject: record.subject.to_string(),
            payload: record.payload.to_vec(),
            json: record.encoding == Encoding::Json,
            time: record.time,
        })
        .collect();
    let bytes = tokio::task::spawn_blocking(move || {
        let plain = rmp_serde::to_vec_named(&kept).expect("kept messages have a form in MessagePack");
        lz4_flex::compress_prepend_size(&plain)
    })
    .await
    .map_err(|error| Fault::unavailable(format!("compressing run {run}"), error))?;
    let mut reader = bytes.as_slice();
    let store = open(bus).await?;
    store
        .put(run.as_str(), &mut reader)
        .await
        .map(|_| ())
        .map_err(|error| fault(&format!("archiving run {run}"), &error))
}

/// The messages of an archived run, oldest first; `None` if there is no archive of it.
///
/// # Errors
/// The server does not answer, or the archive can't be read.
pub async fn read(bus: &Bus, run: &RunId) -> Result<Option<Vec<Record>>, Fault> {
    let store = open(bus).await?;
    let mut object = match store.get(run.as_str()).await {
        Ok(object) => object,
        Err(error) if error.kind() == object_store::GetErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(&format!("reading the archive of run {run}"), &error)),
    };
    let mut bytes = Vec::new();
    object
        .read_to_end(&mut bytes)
        .await
        .map_err(|error| Fault::unavailable(format!("reading the archive of run {run}"), error))?;
    let damaged = |why: String| Fault::unavailable(format!("reading the archive of run {run}"), why);
    let plain = lz4_flex::decompress_size_prepended(&bytes).map_err(|error| damaged(error.to_string()))?;
    let kept: Vec<Kept> = rmp_serde::from_slice(&plain).map_err(|error| damaged(error.to_string()))?;
    Ok(Some(kept.into_iter().map(Kept::into_record).collect()))
}

impl Kept {
    fn into_record(self) -> Record {
        Record {
            sequence: self.sequence,
            subject: self.subject.into(),
            payload: Bytes::from(self.payload),
            encoding: if self.json { Encoding::Json } else { Encoding::MessagePack },
            time: self.time,
            is_deletion: false,
        }
    }
}

async fn open(bus: &Bus) -> Result<object_store::ObjectStore, Fault> {
    bus.control().get_object_store(ARCHIVE).await.map_err(|error| fault("the archive", &error))
}

/// All messages of a run, oldest first, wherever they are: in its lane or in the archive. Empty if there is no such
/// run.
///
/// # Errors
/// The server does not answer.
pub async fn find_run(bus: &Bus, lane: Lane, run: &RunId) -> Result<Vec<Record>, Fault> {
    // The archive first: it is written before the lane is purged, and what the lane still has then is the same.
    if let Some(records) = read(bus, run).await? {
        return Ok(records);
    }
    let records = read_run(bus, lane, run, 1).await?;
    if !records.is_empty() {
        return Ok(records);
    }
    Ok(read(bus, run).await?.unwrap_or_default())
}
