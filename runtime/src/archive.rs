//! Runs that are over: all messages of a run as one compressed object, so that a lane holds live runs only. The
//! archive answers whatever the lane would have answered.

use std::io::{BufRead, BufReader, Write};

use bytes::Bytes;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::Encoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bus::Bus;
use crate::fault::{lag, pause};
use crate::record::Record;
use crate::topology::ARCHIVE;
use crate::{Fault, log, objects, registry};

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

/// An archive while it is written: an LZ4 frame of MessagePack values, one a message.
struct Writer {
    frame: FrameEncoder<Vec<u8>>,
    last: u64,
    /// The message without which it is not whole.
    end: u64,
    is_whole: bool,
}

impl Writer {
    fn new(end: u64) -> Self {
        Self { frame: FrameEncoder::new(Vec::new()), last: 0, end, is_whole: false }
    }

    fn add(&mut self, records: Vec<Record>) {
        for record in records {
            self.last = record.sequence;
            self.is_whole |= record.sequence == self.end;
            // An archive keeps no headers, by which it would be told.
            if record.is_stray {
                continue;
            }
            let kept = Kept {
                sequence: record.sequence,
                subject: record.subject.to_string(),
                payload: record.payload.into(),
                json: record.encoding == Encoding::Json,
                time: record.time,
            };
            let bytes = rmp_serde::to_vec_named(&kept).expect("a kept message has a form in MessagePack");
            self.frame.write_all(&bytes).expect("memory takes what is written to it");
        }
    }

    fn finish(self) -> Vec<u8> {
        self.frame.finish().expect("memory takes what is written to it")
    }
}

/// Writes what the lane holds of a run as its archive, page by page, so that a large run needs little memory. Writing
/// it again replaces it. Gives the sequence of the last message that is in it.
///
/// `end` is the sequence of the decision that ended the run. Where the lane does not hold it any more, somebody else
/// has archived the run and is removing it, perhaps while it was read here: then nothing is written, and 0 is given.
///
/// # Errors
/// The server does not answer or is full.
pub async fn write(bus: &Bus, lane: Lane, run: &RunId, end: u64) -> Result<u64, Fault> {
    let mut pages = log::pages_of_run(bus, lane, run);
    let mut writer = Writer::new(end);
    loop {
        let records = pages.next().await?;
        if records.is_empty() {
            break;
        }
        writer = tokio::task::spawn_blocking(move || {
            writer.add(records);
            writer
        })
        .await
        .map_err(|error| Fault::unavailable(format!("compressing run {run}"), error))?;
    }
    let last = writer.last;
    if !writer.is_whole {
        return Ok(0);
    }
    let bytes = writer.finish();
    let earlier = objects::said(bus.client(), ARCHIVE, run.as_str()).await?;
    let end = earlier.last().map_or(0, |said| said.sequence);
    let digest = Sha256::digest(&bytes);
    if !objects::write(bus.control(), ARCHIVE, run.as_str(), &bytes, &digest, end).await? {
        return Err(Fault::unavailable(format!("archiving run {run}"), "somebody else does it, too"));
    }
    for said in earlier.iter().filter(|said| !said.is_stray) {
        objects::forget(bus.control(), ARCHIVE, &said.info).await?;
    }
    Ok(last)
}

/// The messages of an archived run, oldest first; `None` if there is no archive of it.
///
/// # Errors
/// The server does not answer, or the archive can't be read.
pub async fn read(bus: &Bus, run: &RunId) -> Result<Option<Vec<Record>>, Fault> {
    let what = || format!("reading the archive of run {run}");
    let said = objects::genuine(bus.client(), ARCHIVE, run.as_str()).await?;
    let Some(said) = said.filter(|said| !said.info.deleted) else { return Ok(None) };
    let bytes = objects::described(bus.client(), ARCHIVE, &said).await?;
    let bytes =
        bytes.ok_or_else(|| Fault::unavailable(what(), "it is not all there, or not what was written"))?;
    let records = tokio::task::spawn_blocking(move || unpack(&bytes));
    let records = records.await.map_err(|error| Fault::unavailable(what(), error))?;
    records.map(Some).map_err(|why| Fault::unavailable(what(), why))
}

/// Whether the archive holds all of a run, written by somebody who may. What is not there is asked for again for as long
/// as the copy that answers may lag.
///
/// # Errors
/// The server does not answer.
pub async fn holds(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        let said = objects::genuine(bus.client(), ARCHIVE, run.as_str()).await?;
        if let Some(said) = said.filter(|said| !said.info.deleted)
            && objects::described(bus.client(), ARCHIVE, &said).await?.is_some()
        {
            return Ok(true);
        }
        if started.elapsed() >= lag {
            return Ok(false);
        }
        tries += 1;
        tokio::time::sleep(pause(tries)).await;
    }
}

fn unpack(bytes: &[u8]) -> Result<Vec<Record>, String> {
    let mut plain = BufReader::new(FrameDecoder::new(bytes));
    let mut records = Vec::new();
    while !plain.fill_buf().map_err(|error| error.to_string())?.is_empty() {
        let kept: Kept = rmp_serde::from_read(&mut plain).map_err(|error| error.to_string())?;
        records.push(kept.into_record());
    }
    Ok(records)
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
            is_stray: false,
        }
    }
}

/// All messages of a run, oldest first, wherever they are: in its lane or in the archive. Empty if there is no such
/// run.
///
/// # Errors
/// The server does not answer.
pub async fn find_run(bus: &Bus, lane: Lane, run: &RunId) -> Result<Vec<Record>, Fault> {
    let records = log::read_run(bus, lane, run, 1).await?;
    // Asked behind the reading: it says so before anything is removed, so what was read otherwise is not a part.
    let is_archived = registry::summary(bus, run).await?.is_some_and(|summary| summary.archived);
    if !is_archived && records.iter().any(is_of_plan) {
        return Ok(records);
    }
    Ok(read(bus, run).await?.unwrap_or(records))
}

fn is_of_plan(record: &Record) -> bool {
    !record.is_stray && matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan)))
}
