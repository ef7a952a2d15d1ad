//! Results that are too long for the conversation are stored in the workspace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{FileContent, FileEntry, FilePath, Files, FilesError, WriteCondition};
use millrace_agent::tool::{Call, Output, Tool, ToolError, ToolSpec, Toolbox, tool_from_function};
use millrace_agent::turn::{MAX_RESULT, MemoryHost, PlainText};
use serde_json::{Value, json};

use super::support::{self, Look, Scripted, attempt, call, calls, conversation, look, says};

#[derive(Default)]
struct Memory(Mutex<BTreeMap<String, (String, String)>>);

impl Files for Memory {
    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        unreachable!("no test lists")
    }

    fn read<'a>(&'a self, _: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        unreachable!("no test reads")
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        _: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        let text = String::from_utf8(bytes).unwrap();
        if text.starts_with("refused") {
            return futures::future::ready(Err(FilesError::Denied("no".into()))).boxed();
        }
        self.0.lock().unwrap().insert(path.to_string(), (key.to_owned(), text));
        futures::future::ready(Ok(1)).boxed()
    }

    fn delete<'a>(
        &'a self,
        _: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        unreachable!("no test deletes")
    }
}

/// A tool that returns its argument, however long.
struct Echo {
    bounds_itself: bool,
}

impl Tool for Echo {
    fn spec(&self) -> ToolSpec {
        look().0.spec()
    }

    fn has_bounded_output(&self) -> bool {
        self.bounds_itself
    }

    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let text = arguments["at"].as_str().unwrap().to_owned();
        futures::future::ready(Ok(text.into())).boxed()
    }
}

/// The text of a result that the model sees, and the files in the workspace after it.
async fn shown(text: &str, bounds_itself: bool, reads: bool) -> (String, BTreeMap<String, (String, String)>) {
    let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(Echo { bounds_itself })];
    if reads {
        tools.push(tool_from_function(
            "read_file",
            "Reads.",
            |Look { at, .. }: Look, _| async move { Ok(at) },
        ));
    }
    let tools = Toolbox::new(tools).unwrap();
    let model = Scripted::new(vec![calls(vec![call("a", json!({"at": text}))]), says("done")]);
    let files = Arc::new(Memory::default());
    let mut journal = MemoryHost::default();
    let mut conversation = conversation(&model, &tools);
    (conversation.attempt, conversation.files) = (attempt(), Some(files.clone() as Arc<dyn Files>));
    support::drive::<PlainText>(conversation, &mut journal).await.unwrap();
    let text = journal.steps()[1].value["text"].as_str().unwrap().to_owned();
    let stored = files.0.lock().unwrap().clone();
    (text, stored)
}

#[tokio::test]
async fn long_result_is_stored_as_a_file_and_shown_abridged() {
    let lines: String = (1..=20_000).map(|n| format!("line {n}\n")).collect();
    let (text, kept) = shown(&lines, false, true).await;
    assert_eq!(kept.len(), 1);
    let (path, (key, content)) = kept.into_iter().next().unwrap();
    assert_eq!((path.as_str(), key.as_str()), ("/large_results/t1/2/0.0.txt", "r1/t1/2/0.0"));
    assert_eq!(content, lines);
    assert!(text.contains(&path) && text.contains("line 1\n") && text.ends_with("line 20000"), "{text}");
    assert!(text.chars().count() < 1_000);
}

#[tokio::test]
async fn short_bounded_or_unreadable_results_stay_inline() {
    let short = "ä".repeat(MAX_RESULT);
    assert_eq!(shown(&short, false, true).await, (short.clone(), BTreeMap::new()));
    let long = "x".repeat(MAX_RESULT + 1);
    assert_eq!(shown(&long, true, true).await, (long.clone(), BTreeMap::new()));
    let (cut, kept) = shown(&"x".repeat(3 * MAX_RESULT), false, false).await;
    assert!(kept.is_empty() && cut.contains("160000 characters left out"));
    let (cut, kept) = shown(&format!("refused{long}"), false, true).await;
    assert!(kept.is_empty() && cut.contains("8 characters left out") && cut.len() < MAX_RESULT + 100);
}
