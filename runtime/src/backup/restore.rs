//! Putting a backup into an empty account: checked first, then all of it or nothing. Until the end the settings there
//! say that something is being restored, so that no supervisor begins in the middle. Nothing is started: the first
//! supervisor makes what is derived, and goes on.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use async_nats::Client;
use async_nats::jetstream::{Context, kv};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::subject;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::check::{self, Missing, Object};
use super::leading::Leading;
use super::manifest::{Content, Manifest, Part};
use super::take::Line;
use super::{Error, Progress, Told, folder, snapshot};
use crate::Fault;
use crate::bus::{Bus, alone};
use crate::connection::{Connection, without_passwords};
use crate::topology::{
    self, ARCHIVE, BEATS, BLOBS, CAPABILITIES, CLUSTER, FILES, LEASES, LIMITS, MEMBERS, RESTORING, RUNS,
    SETTINGS, WORK, Wanted, bucket, bucket_stream, fault, keep, lane_stream, object_stream,
};

/// How many entries of a bucket are under way at once.
const AT_ONCE: usize = 256;

/// What is wanted of a restore.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The backup's folder.
    pub folder: PathBuf,
    /// How many copies of everything there are to be, if not as many as there were.
    pub replicas: Option<u8>,
    /// Whether what a restore left that was killed is removed first.
    pub again: bool,
}

/// What was restored.
#[derive(Debug)]
pub struct Restored {
    /// The backup.
    pub manifest: Manifest,
    /// The settings of the cluster as it is now.
    pub settings: ClusterSettings,
    /// How many runs are in the archive.
    pub archived: usize,
    /// The runs that are in their lanes: under way, waiting, or over and not yet archived.
    pub live: Vec<RunId>,
    /// What a message names and nobody has.
    pub missing: Vec<Missing>,
}

/// Puts a backup into an empty account. When it fails or is stopped, the account is empty again.
///
/// # Errors
/// The backup is damaged, the account is not empty, the server does not take something, or `stop` was asked for.
pub fn restore<'a>(
    connection: &'a Connection,
    wish: &'a Wish,
    stop: &'a CancellationToken,
    told: Told<'a>,
) -> BoxFuture<'a, Result<Restored, Error>> {
    async move {
        let manifest = folder::verify(&wish.folder, stop, told)?;
        let settings = ClusterSettings {
            replicas: wish.replicas.unwrap_or(manifest.settings.replicas),
            // The queues begin anew.
            unmarked_orders_through: Some(0),
            ..manifest.settings.clone()
        };
        alone(connection, "millrace-restore", async |client, context| {
            let url = without_passwords(&connection.url);
            let restoring = Restoring { client, context, url, manifest, settings, stop, told };
            restoring.run(wish).boxed().await
        })
        .await
    }
    .boxed()
}

/// What an account says of the cluster in it.
enum Standing {
    /// Nothing.
    Silent,
    /// Something is being restored there, or was.
    Unfinished,
    /// It is a cluster.
    Made,
}

/// A restore that is under way.
struct Restoring<'a> {
    client: Client,
    context: Context,
    url: String,
    manifest: Manifest,
    settings: ClusterSettings,
    stop: &'a CancellationToken,
    told: Told<'a>,
}

impl Restoring<'_> {
    async fn run(self, wish: &Wish) -> Result<Restored, Error> {
        topology::check_jetstream(&self.context, &self.url).await?;
        self.make_room(wish.again).await?;
        let claim = self.claim().await?;
        match self.fill(&wish.folder, &claim).await {
            Ok((archived, live, missing)) => {
                let Self { manifest, settings, .. } = self;
                Ok(Restored { manifest, settings, archived, live, missing })
            }
            Err(error) => {
                if let Err(fault) = self.clear().await {
                    warn!(%fault, "what was restored so far could not be removed; --again does");
                }
                Err(error)
            }
        }
    }

    /// Whether a stop was asked for. A step that the server has begun is gone through with: what it makes later could
    /// not be removed.
    fn go_on(&self) -> Result<(), Error> {
        if self.stop.is_cancelled() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Sees to it that there is nothing of a cluster in the account.
    async fn make_room(&self, again: bool) -> Result<(), Error> {
        let found = self.found().await?;
        if found.is_empty() {
            return Ok(());
        }
        match self.standing().await? {
            // Whoever made it was killed before it could say what for: it is claimed as if it were not there.
            Standing::Silent if found == [bucket_stream(CLUSTER)] => return Ok(()),
            Standing::Silent | Standing::Made => return Err(self.occupied(&found)),
            Standing::Unfinished if !again => return Err(Error::Unfinished { url: self.url.clone() }),
            Standing::Unfinished => self.clear().await?,
        }
        match self.found().await? {
            left if left.is_empty() => Ok(()),
            left => Err(self.occupied(&left)),
        }
    }

    fn occupied(&self, found: &[String]) -> Error {
        Error::Occupied { url: self.url.clone(), what: found.join(", ") }
    }

    /// The streams of a cluster that are in the account.
    async fn found(&self) -> Result<Vec<String>, Fault> {
        let names: Vec<String> = self
            .context
            .stream_names()
            .try_collect()
            .await
            .map_err(|error| fault("listing the streams of the account", &error))?;
        let mut names: Vec<String> = names.into_iter().filter(|name| is_ours(name)).collect();
        names.sort();
        Ok(names)
    }

    /// What the account says of its cluster.
    async fn standing(&self) -> Result<Standing, Fault> {
        let Ok(store) = self.context.get_key_value(CLUSTER).await else { return Ok(Standing::Silent) };
        let found = store.get(SETTINGS).await.map_err(|error| fault("the cluster's settings", &error))?;
        let Some(found) = found else { return Ok(Standing::Silent) };
        let settings: Option<ClusterSettings> = serde_json::from_slice(&found).ok();
        let is_unfinished = settings.is_some_and(|settings| settings.version == RESTORING);
        Ok(if is_unfinished { Standing::Unfinished } else { Standing::Made })
    }

    /// Says in the account that something is being restored there; of two who try, one is refused.
    async fn claim(&self) -> Result<kv::Store, Error> {
        let config = kv::Config { bucket: CLUSTER.into(), ..keep(self.settings.replicas.into()) };
        let store = bucket(&self.context, config).await?;
        let marker = ClusterSettings { version: RESTORING, ..self.settings.clone() };
        let marker = serde_json::to_vec(&marker).expect("settings have a form in JSON");
        match store.create(SETTINGS, marker.into()).await {
            Ok(_) => Ok(store),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => {
                Err(self.occupied(&self.found().await?))
            }
            Err(error) => Err(fault("the cluster's settings", &error).into()),
        }
    }

    /// Removes all that is there of a cluster. The claim goes last, and only when the rest has gone: until then it says
    /// what that is.
    async fn clear(&self) -> Result<(), Fault> {
        let claim = bucket_stream(CLUSTER);
        let mut found = self.found().await?;
        found.sort_by_key(|name| *name == claim);
        let mut left = None;
        for stream in found {
            if stream == claim && left.is_some() {
                break;
            }
            if let Err(error) = self.context.delete_stream(&stream).await {
                let what = format!("removing {stream}, which an unfinished restore has left");
                left = left.or_else(|| Some(fault(&what, &error)));
            }
        }
        left.map_or(Ok(()), Err)
    }

    async fn fill(
        &self,
        folder: &Path,
        claim: &kv::Store,
    ) -> Result<(usize, Vec<RunId>, Vec<Missing>), Error> {
        let mut archived = HashSet::new();
        for part in &self.manifest.parts {
            self.go_on()?;
            let file = folder.join(&part.file);
            match &part.content {
                Content::Stream { name, config, state } => {
                    let config = self.changed(config);
                    self.put(name, &config, state, &file).await?;
                }
                Content::Bucket { name, .. } => {
                    let keys = self.fill_bucket(name, &file, part).await?;
                    if name == RUNS {
                        archived = keys.into_iter().filter_map(|key| RunId::new(key).ok()).collect();
                    }
                }
            }
        }
        let live = self.cut_lanes(&archived).await?;
        self.go_on()?;
        self.cut_archive(&archived).await?;
        self.go_on()?;
        self.cut_files(&archived).await?;
        let bus = Bus::on(self.client.clone(), self.context.clone(), self.settings.clone()).await?;
        let missing = tokio::select! {
            missing = check::missing(&bus, &archived, self.told) => missing?,
            () = self.stop.cancelled() => return Err(Error::Stopped),
        };
        let settings = serde_json::to_vec(&self.settings).expect("settings have a form in JSON");
        claim
            .put(SETTINGS, settings.into())
            .await
            .map_err(|error| fault("the cluster's settings", &error))?;
        topology::ensure(&self.context, &self.url, &Wanted::default()).await?;
        Ok((archived.len(), live, missing))
    }

    async fn put(&self, name: &str, config: &Value, state: &Value, file: &Path) -> Result<(), Error> {
        let snapshot = snapshot::Snapshot { stream: name, config, state, file };
        snapshot::put(&self.client, &snapshot, self.stop, self.told).await
    }

    /// The configuration of a stream as it is to be here.
    fn changed(&self, config: &Value) -> Value {
        let mut config = config.clone();
        config["num_replicas"] = self.settings.replicas.into();
        // On which servers it was says nothing of where it will be.
        if let Some(fields) = config.as_object_mut() {
            fields.remove("placement");
        }
        config
    }

    /// Makes a bucket and puts its entries there. Gives their keys.
    async fn fill_bucket(&self, name: &str, file: &Path, part: &Part) -> Result<Vec<String>, Error> {
        let reading = |why| folder::file("reading", file, why);
        let config = kv::Config { bucket: name.into(), ..keep(self.settings.replicas.into()) };
        bucket(&self.context, config).await?;
        let lines = BufReader::new(File::open(file).map_err(reading)?).lines();
        let mut keys = Vec::new();
        let mut under_way = std::collections::VecDeque::new();
        for line in lines {
            let line = line.map_err(reading)?;
            let line: Line = serde_json::from_str(&line).map_err(|error| reading(error.into()))?;
            let subject = format!("$KV.{name}.{}", line.key);
            let sent = self.context.publish(subject, line.value.into()).await;
            under_way.push_back(sent.map_err(|error| fault(&format!("bucket {name}"), &error))?);
            keys.push(line.key);
            if under_way.len() >= AT_ONCE
                && let Some(oldest) = under_way.pop_front()
            {
                oldest.await.map_err(|error| fault(&format!("bucket {name}"), &error))?;
            }
        }
        for acknowledgement in under_way {
            acknowledgement.await.map_err(|error| fault(&format!("bucket {name}"), &error))?;
        }
        (self.told)(Progress { doing: "restoring", what: name, bytes: part.bytes, is_done: true });
        Ok(keys)
    }

    /// Removes from the lanes what they hold of runs that are in the archive. Gives the other runs.
    async fn cut_lanes(&self, archived: &HashSet<RunId>) -> Result<Vec<RunId>, Error> {
        let mut live = Vec::new();
        for lane in (0..self.settings.lanes).map(Lane) {
            let name = lane_stream(lane);
            let what = || format!("removing archived runs from {name}");
            let stream =
                self.context.get_stream_no_info(&name).await.map_err(|error| fault(&what(), &error))?;
            let mut subjects = stream
                .info_with_subjects(subject::lane(lane))
                .await
                .map_err(|error| fault(&what(), &error))?;
            let mut runs = HashSet::new();
            while let Some(found) = subjects.next().await {
                let (subject, _) = found.map_err(|error| fault(&what(), &error))?;
                runs.extend(subject::parse(&subject).map(|(_, run, _)| run));
            }
            for run in runs {
                if !archived.contains(&run) {
                    live.push(run);
                    continue;
                }
                let purged = stream.purge().filter(subject::run(lane, &run)).await;
                purged.map_err(|error| fault(&what(), &error))?;
            }
        }
        live.sort();
        Ok(live)
    }

    /// Removes from the archive the runs that are in their lanes: they were archived behind the moment of the backup.
    async fn cut_archive(&self, archived: &HashSet<RunId>) -> Result<(), Error> {
        let name = object_stream(ARCHIVE);
        let what = || format!("removing what is too new from {name}");
        let stream = self.context.get_stream_no_info(&name).await.map_err(|error| fault(&what(), &error))?;
        for subject in too_new(check::objects(&self.context, ARCHIVE).await?, archived) {
            let purged = stream.purge().filter(subject).await;
            purged.map_err(|error| fault(&what(), &error))?;
        }
        Ok(())
    }

    /// Removes the versions of files that came behind the moment of their run's lane.
    async fn cut_files(&self, archived: &HashSet<RunId>) -> Result<(), Error> {
        let Some(first) = self.manifest.files_through.iter().min() else { return Ok(()) };
        if !self.manifest.parts.iter().any(|part| part.name() == FILES) {
            return Ok(());
        }
        let what = || format!("removing what is too new from {FILES}");
        let stream = self.context.get_stream_no_info(FILES).await.map_err(|error| fault(&what(), &error))?;
        let mut reading = Leading::begin(&self.context, FILES, subject::ALL_FILES, first + 1).await?;
        loop {
            let records = reading.next().await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                let Some((run, _)) = subject::parse_file(&record.subject) else { continue };
                let lane = usize::from(run.lane(self.settings.lanes).0);
                let through = self.manifest.files_through.get(lane).copied().unwrap_or(u64::MAX);
                if record.sequence > through && !archived.contains(&run) {
                    let removed = stream.delete_message(record.sequence).await;
                    removed.map_err(|error| fault(&what(), &error))?;
                }
            }
        }
    }
}

/// The subjects of the archives of other runs than these. Parts that an archive of these names stay, whoever else names
/// them.
fn too_new(objects: Vec<Object>, archived: &HashSet<RunId>) -> HashSet<String> {
    let stays = |object: &Object| RunId::new(object.name.clone()).is_ok_and(|run| archived.contains(&run));
    let (kept, others): (Vec<Object>, Vec<Object>) = objects.into_iter().partition(stays);
    let kept: HashSet<String> = kept.into_iter().map(|object| object.parts).collect();
    let subjects = others.into_iter().flat_map(|object| [object.subject, object.parts]);
    subjects.filter(|subject| !kept.contains(subject)).collect()
}

/// Whether a stream of that name is one of a cluster's.
fn is_ours(name: &str) -> bool {
    let buckets = [LEASES, MEMBERS, BEATS, CAPABILITIES, RUNS, CLUSTER, LIMITS];
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
    fn only_the_streams_of_a_cluster_are_ever_touched() {
        for name in ["LANE_0", "LANE_1023", "WORK", "FILES", "KV_cluster", "KV_runs", "OBJ_blobs"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["LANE_x", "LANES", "KV_orders", "OBJ_backups", "work", "ORDERS", ""] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn what_an_archive_that_stays_consists_of_is_never_removed_whoever_names_it() {
        let object = |name: &str, nuid: &str, is_stray| Object {
            name: name.into(),
            subject: format!("about {name}"),
            parts: format!("parts {nuid}"),
            is_whole: true,
            is_stray,
        };
        let said = vec![
            object("kept", "1", false),
            object("old", "2", true),
            object("new", "3", false),
            object("new", "1", true),
            object("forged", "2", true),
        ];
        let archived = ["kept", "old"].map(|name| RunId::new(name).unwrap()).into();
        let removed = ["about new", "about forged", "parts 3"].map(ToOwned::to_owned).into();
        assert_eq!(too_new(said, &archived), removed);
    }
}
