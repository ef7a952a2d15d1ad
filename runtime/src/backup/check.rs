//! Whether a cluster has all that its messages name: each blob, and each archived run, with all its parts. It reads and
//! repairs nothing.

use std::collections::{HashMap, HashSet};

use async_nats::jetstream::Context;
use futures::StreamExt;
use millrace_protocol::file::FileVersion;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{Command, Decision, Document, Submission};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{Blob, Message, Stored, stored};
use millrace_protocol::work::{Entry, Outcome};
use serde::Deserialize;

use super::leading::Leading;
use super::{Progress, Told};
use crate::bus::Bus;
use crate::fault::pause;
use crate::objects::about;
use crate::record::Record;
use crate::topology::{ARCHIVE, BLOBS, FILES, fault, lane_stream, object_stream};
use crate::{Fault, archive};

/// How often something is read again that is not there yet.
const TRIES: u32 = 12;

/// Something that a message names and nobody has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What it is: a blob by its SHA-256, or the archive of a run.
    pub what: String,
    /// The subject of a message that names it.
    pub named_by: String,
}

/// What is said of an object of an object store; of one object several things may be said, one behind the other.
pub struct Object {
    /// Its name.
    pub name: String,
    /// The subject of the message that says it.
    pub subject: String,
    /// The subject of its parts.
    pub parts: String,
    /// Whether it is there, with all of its parts.
    pub is_whole: bool,
    /// Whether nobody knows who said it: see [`crate::record::is_stray`]. Older programs left no mark.
    pub is_stray: bool,
}

/// What is said of an object, as far as it is needed here.
#[derive(Deserialize)]
struct Description {
    name: String,
    nuid: String,
    chunks: usize,
    #[serde(default)]
    deleted: bool,
}

/// What is said of the objects of a store, oldest first. What is said in another object's place is passed over.
pub async fn objects(context: &Context, store: &str) -> Result<Vec<Object>, Fault> {
    let parts = parts(context, store).await?;
    let mut reading = Leading::begin(context, &object_stream(store), &format!("$O.{store}.M.>"), 1).await?;
    let mut objects = Vec::new();
    loop {
        let records = reading.next().await?;
        if records.is_empty() {
            return Ok(objects);
        }
        // What can't be read says nothing of an object.
        let said = records.iter().filter_map(|record| {
            let Description { name, nuid, chunks, deleted } = serde_json::from_slice(&record.payload).ok()?;
            // Whoever removes what is named here must not be led elsewhere.
            let is_token = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric());
            if *record.subject != *about(store, &name) || !is_token(&nuid) {
                return None;
            }
            let of_it = format!("$O.{store}.C.{nuid}");
            let is_whole = !deleted && parts.get(&of_it).copied().unwrap_or_default() >= chunks;
            let (subject, is_stray) = (record.subject.to_string(), record.is_stray);
            Some(Object { name, subject, parts: of_it, is_whole, is_stray })
        });
        objects.extend(said);
    }
}

/// How many parts there are of each object of a store, by their subjects.
async fn parts(context: &Context, store: &str) -> Result<HashMap<String, usize>, Fault> {
    let what = || format!("listing the objects of {store}");
    let stream = context.get_stream_no_info(object_stream(store)).await;
    let stream = stream.map_err(|error| fault(&what(), &error))?;
    let mut subjects =
        stream.info_with_subjects(format!("$O.{store}.C.>")).await.map_err(|error| fault(&what(), &error))?;
    let mut parts = HashMap::new();
    while let Some(found) = subjects.next().await {
        let (subject, count) = found.map_err(|error| fault(&what(), &error))?;
        parts.insert(subject, count);
    }
    Ok(parts)
}

/// What the messages of a cluster name and nobody has. Reads all of them.
pub async fn missing(bus: &Bus, archived: &HashSet<RunId>, told: Told<'_>) -> Result<Vec<Missing>, Fault> {
    let whole = |objects: Vec<Object>| -> HashSet<String> {
        objects.into_iter().filter(|object| object.is_whole).map(|object| object.name).collect()
    };
    let blobs = whole(objects(bus.control(), BLOBS).await?);
    let archives = archives(objects(bus.control(), ARCHIVE).await?);
    let mut check = Check { bus, blobs, missing: Vec::new(), bytes: 0 };
    for lane in (0..bus.settings().lanes).map(Lane) {
        check.stream(&lane_stream(lane), told).await?;
    }
    check.stream(FILES, told).await?;
    for run in archived {
        let is_there = archives.contains(run.as_str());
        let records = if is_there { patiently(|| archive::read(bus, run)).await? } else { None };
        if records.is_none() {
            let what = format!("the archive of run {run}");
            check.missing.push(Missing { what, named_by: "its summary".into() });
        }
        for record in records.unwrap_or_default() {
            check.record(&record).await?;
        }
    }
    told(Progress { doing: "checking", what: ARCHIVE, bytes: check.bytes, is_done: true });
    Ok(check.missing)
}

/// The names of the archives that are whole. Where one of ours has said something of it, nothing else counts.
fn archives(objects: Vec<Object>) -> HashSet<String> {
    let ours: HashSet<String> =
        objects.iter().filter(|object| !object.is_stray).map(|object| object.name.clone()).collect();
    let counting = objects.into_iter().filter(|object| !object.is_stray || !ours.contains(&object.name));
    counting.filter(|object| object.is_whole).map(|object| object.name).collect()
}

struct Check<'a> {
    bus: &'a Bus,
    blobs: HashSet<String>,
    missing: Vec<Missing>,
    bytes: u64,
}

impl Check<'_> {
    async fn stream(&mut self, stream: &str, told: Told<'_>) -> Result<(), Fault> {
        let mut reading = Leading::begin(self.bus.control(), stream, ">", 1).await?;
        loop {
            let records = reading.next().await?;
            if records.is_empty() {
                break;
            }
            for record in records {
                self.record(&record).await?;
            }
        }
        told(Progress {
            doing: "checking",
            what: stream,
            bytes: std::mem::take(&mut self.bytes),
            is_done: true,
        });
        Ok(())
    }

    /// Looks at what one message names. What can't be read names nothing: whoever works with it says so.
    async fn record(&mut self, record: &Record) -> Result<(), Fault> {
        self.bytes += record.payload.len() as u64;
        match subject::parse(&record.subject) {
            Some((_, _, Topic::Plan)) => drop(self.envelope::<Decision>(record)),
            Some((_, _, Topic::Submitted)) => self.submission(record).await?,
            Some((_, _, Topic::Control)) => drop(self.envelope::<Command>(record)),
            Some((_, _, Topic::Task(..) | Topic::Review(..) | Topic::Planning(..))) => {
                self.body::<Entry>(record, of_entry).await?;
            }
            None if subject::parse_file(&record.subject).is_some() => {
                self.body::<FileVersion>(record, |file| file.content.as_ref()).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Looks where the body of a message is; `false` if it is nowhere.
    fn envelope<M: Message>(&mut self, record: &Record) -> bool {
        match stored::<M>(&record.payload, record.encoding) {
            Ok(Some(place)) => self.look_for(&place, record),
            Ok(None) | Err(_) => true,
        }
    }

    /// Looks where the body of a message is, and what the body names.
    async fn body<M: Message>(
        &mut self,
        record: &Record,
        named: fn(&M) -> Option<&Blob>,
    ) -> Result<(), Fault> {
        if !self.envelope::<M>(record) {
            return Ok(());
        }
        match patiently(|| self.bus.open::<M>(record)).await {
            Ok(message) => {
                if let Some(Blob::Stored(place)) = named(&message) {
                    self.look_for(place, record);
                }
                Ok(())
            }
            Err(fault) if fault.is_transient() => Err(fault),
            Err(_) => Ok(()),
        }
    }

    /// Looks where a submission is, and the documents that come with it.
    async fn submission(&mut self, record: &Record) -> Result<(), Fault> {
        if !self.envelope::<Submission>(record) {
            return Ok(());
        }
        let submission = match patiently(|| self.bus.open::<Submission>(record)).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(_) => return Ok(()),
            Ok(submission) => submission,
        };
        let Some(documents) = submission.documents else { return Ok(()) };
        if !self.look_for_blob(&documents.manifest, "a list of documents", record) {
            return Ok(());
        }
        let list = patiently(|| self.bus.blobs().get(&documents.manifest)).await?;
        for document in rmp_serde::from_slice::<Vec<Document>>(&list).unwrap_or_default() {
            self.look_for_blob(&document.sha256, &format!("the document {}", document.path), record);
        }
        Ok(())
    }

    /// Whether a value is there.
    fn look_for(&mut self, place: &Stored, record: &Record) -> bool {
        self.look_for_blob(&place.sha256, &format!("{} bytes", place.size), record)
    }

    fn look_for_blob(&mut self, sha256: &str, what: &str, record: &Record) -> bool {
        let is_there = self.blobs.contains(sha256);
        if !is_there {
            let what = format!("blob {sha256} ({what})");
            let named_by = format!("{} at {}", record.subject, record.sequence);
            self.missing.push(Missing { what, named_by });
        }
        is_there
    }
}

/// Asks again for as long as the copy that answers may lag behind the others.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    for tries in 1..TRIES {
        match ask().await {
            Err(fault) if fault.is_transient() || matches!(fault, Fault::Missing { .. }) => {
                tokio::time::sleep(pause(tries)).await;
            }
            answered => return answered,
        }
    }
    ask().await
}

fn of_entry(entry: &Entry) -> Option<&Blob> {
    match entry {
        Entry::Step { value, .. } => Some(value),
        Entry::Outcome { outcome: Outcome::Finished { result, .. }, .. } => Some(result),
        Entry::Outcome { .. } | Entry::Claimed { .. } | Entry::Note { .. } | Entry::Released { .. } => None,
    }
}
