//! Images that tools read: the model gets their bytes, the journal names them by their hash, and a takeover sends the same.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::FolderFiles;
use millrace_agent::files::permissions::CompiledPermissions;
use millrace_agent::model::{DeltaListener, Message, Model, ModelError, Reply, Request};
use millrace_agent::tool::Toolbox;
use millrace_agent::tool::files::create_file_tools;
use millrace_agent::turn::{Host, JournalStep, MemoryHost, PlainText};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::support::{self, calls, conversation, named, says};

/// A PNG image of 2 by 3 pixels with a megabyte after its header.
fn large_png() -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0".to_vec();
    bytes.resize(1_000_000, 7);
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A journal in memory with a blob store that outlives it.
#[derive(Clone, Default)]
struct StoringJournal {
    journal: MemoryHost,
    blobs: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Host for StoringJournal {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        self.journal.replay(names)
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        self.journal.peek()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        self.journal.record(name, value)
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), TaskError>> {
        self.blobs.lock().unwrap().insert(sha256(&bytes), bytes);
        ready(Ok(())).boxed()
    }

    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, TaskError>> {
        let InlineOrStoredBytes::Stored(blob) = stored else { panic!("only images are loaded") };
        let bytes = self.blobs.lock().unwrap().get(&blob.sha256).cloned();
        ready(bytes.ok_or_else(|| TaskError::new(ErrorKind::Other, "there is no such blob"))).boxed()
    }
}

/// A model that notes the text of each result and the bytes of its images.
struct Watcher {
    replies: Vec<Reply>,
    last: Mutex<Vec<(String, Vec<Vec<u8>>)>>,
}

impl Model for Watcher {
    fn name(&self) -> &str {
        "test:watcher"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let turn = request.messages.iter().filter(|m| matches!(m, Message::Assistant { .. })).count();
        let seen = request.messages.iter().filter_map(|message| match message {
            Message::Tool(result) => {
                let images = result.images.iter().map(|image| image.bytes().unwrap().to_vec());
                Some((result.text.clone(), images.collect()))
            }
            Message::User { .. } | Message::Assistant { .. } => None,
        });
        *self.last.lock().unwrap() = seen.collect();
        ready(Ok(self.replies[turn].clone())).boxed()
    }
}

/// Runs an agent that reads an image, then a text, from what the journal holds. Returns what its model saw last.
async fn run(folder: &Path, journal: &mut StoringJournal) -> Vec<(String, Vec<Vec<u8>>)> {
    let read = |id: &str, path: &str| named(id, "read_file", &json!({ "file_path": path }).to_string());
    let replies = vec![
        calls(vec![read("a", "/plot.png")]),
        calls(vec![read("b", "/notes.txt")]),
        says("It is a plot."),
    ];
    let files = Arc::new(FolderFiles::open(folder).unwrap());
    let tools = Toolbox::new(create_file_tools(files, CompiledPermissions::default())).unwrap();
    let model = Arc::new(Watcher { replies, last: Mutex::default() });
    support::drive::<PlainText>(conversation(&model, &tools), journal).await.unwrap();
    model.last.lock().unwrap().clone()
}

#[tokio::test]
async fn image_that_was_read_is_sent_and_recorded_by_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plot.png"), large_png()).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "It grows.\n").unwrap();
    let mut journal = StoringJournal::default();
    let seen = run(folder.path(), &mut journal).await;
    assert!(seen[0].0.starts_with("@@ image /plot.png, PNG 2×3, 1000 kB | version "), "{}", seen[0].0);
    assert_eq!((&seen[0].1, seen[1].1.len()), (&vec![large_png()], 0));
    let recorded = journal.journal.steps()[1].value.to_string();
    assert!(recorded.contains(&sha256(&large_png())) && recorded.len() < 1_000, "{recorded}");

    // The file is removed; a worker that takes over sends the same bytes.
    let steps: Vec<JournalStep> = journal.journal.steps().to_vec();
    std::fs::remove_file(folder.path().join("plot.png")).unwrap();
    for after in 2..steps.len() {
        let journal_of_next = MemoryHost::with_steps(steps[..after].to_vec());
        let mut next = StoringJournal { journal: journal_of_next, blobs: journal.blobs.clone() };
        assert_eq!(run(folder.path(), &mut next).await, seen, "after {after} steps");
        let results = |steps: &[JournalStep]| -> Vec<Value> {
            steps.iter().map(|step| step.value["images"].clone()).collect()
        };
        assert_eq!(results(next.journal.steps()), results(&steps));
    }
}

#[tokio::test]
async fn results_of_older_releases_have_no_images() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "It grows.\n").unwrap();
    let old =
        json!({"call_id": "a", "text": "'/plot.png' can't be shown as text", "is_error": true, "took_ms": 1});
    let reply = json!({"heard": {"reply": {"calls": [{"id": "a", "name": "read_file",
        "arguments": "{\"file_path\":\"/plot.png\"}"}], "finish": "tool_calls"}}, "took_ms": 1});
    let steps = [("model.0", reply), ("tool.0.0.read_file", old)];
    let steps = steps.map(|(name, value)| JournalStep { name: name.into(), value });
    let journal = MemoryHost::with_steps(steps.to_vec());
    let mut journal = StoringJournal { journal, ..StoringJournal::default() };
    let seen = run(folder.path(), &mut journal).await;
    assert_eq!(seen[0], ("'/plot.png' can't be shown as text".into(), Vec::new()));
}
