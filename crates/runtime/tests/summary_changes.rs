//! The changes of the summaries of runs against a real server: each pass returns every summary that was written since the last one.

use std::collections::BTreeMap;

use async_nats::jetstream;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::nats::topology::{ClusterOptions, RUNS};
use millrace_runtime::store::bucket::{BucketChange, BucketChanges};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::NatsServer;
use serde_json::json;

/// A summary whose number of questions says which version it is.
fn summary(run: &str, version: u32) -> RunSummary {
    serde_json::from_value(json!({
        "run": run, "lane": 0, "objective": "test", "end": null, "started": 1, "updated": 2,
        "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "questions": version, "archived": false, "is_resumable": false, "is_paused": false,
        "winding_down": null, "usage": {},
    }))
    .expect("it is a summary")
}

/// The runs as a reader knows them.
struct Reader {
    changes: BucketChanges<RunSummary>,
    runs: BTreeMap<RunId, u32>,
}

impl Reader {
    fn after(revision: u64) -> Self {
        Self { changes: registry::follow_summaries(revision), runs: BTreeMap::new() }
    }

    /// Reads one pass; returns the number of changes.
    async fn read_pass(&mut self, bus: &Bus) -> usize {
        let mut count = 0;
        while let Some(page) = self.changes.next_page(bus).await.expect("the server responds") {
            for change in page {
                count += 1;
                match change {
                    BucketChange::Set(entry) => {
                        assert!(entry.sequence <= self.changes.seen());
                        self.runs.insert(entry.value.run, entry.value.questions);
                    }
                    BucketChange::Removed(run) => drop(self.runs.remove(&RunId::new(run).expect("an id"))),
                }
            }
        }
        count
    }
}

#[tokio::test]
async fn each_pass_returns_every_summary_that_was_written_since() {
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(&server.url);
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default())
        .await
        .expect("the cluster is created");
    follow_passes(&bus).await;
    // A stream that has had many messages.
    let context = jetstream::new(bus.client().clone());
    let stream = context.get_stream(format!("KV_{RUNS}")).await.expect("it exists");
    stream.purge().sequence(100_000).await.expect("it is purged");
    follow_passes(&bus).await;
}

async fn follow_passes(bus: &Bus) {
    let mut reader = Reader::after(0);
    assert_eq!(reader.read_pass(bus).await, 0);
    let mut written = BTreeMap::new();
    // Passes of nothing, of few summaries, of as many as are read one by one, and of more.
    for (version, count) in (1..).zip([3_u32, 0, 1, 15, 16, 17, 60, 2, 0]) {
        for number in 0..count {
            let summary = summary(&format!("r-{}", number * 3 % 41), version);
            registry::write_summary(bus, &summary).await.expect("it is written");
            written.insert(summary.run, version);
        }
        reader.read_pass(bus).await;
        assert_eq!(reader.runs, written, "version {version}");
    }
    let (removed, last) = (RunId::new("r-3").expect("it is a name"), reader.changes.seen());
    registry::remove_summary(bus, &removed).await.expect("it is removed");
    let context = jetstream::new(bus.client().clone());
    let bucket = context.get_key_value(RUNS).await.expect("it exists");
    // A summary under the key of another run, and one of an unknown format.
    let copy = serde_json::to_vec(&summary("r-0", 99)).expect("it serialises").into();
    bucket.put("r-1", copy).await.expect("it is written");
    bucket.put("r-2", "{}".into()).await.expect("it is written");
    written.remove(&removed);
    assert_eq!(reader.read_pass(bus).await, 1);
    assert_eq!(reader.runs, written);
    // One that starts later misses what was before.
    let mut later = Reader::after(last);
    assert_eq!((later.read_pass(bus).await, later.runs.len()), (1, 0));
    assert_eq!(later.changes.seen(), reader.changes.seen());
}
