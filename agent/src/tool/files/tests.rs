//! The file tools over files in memory: what the model reads, what is refused, and what a resume remembers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::future::ready;
use serde_json::json;

use super::*;
use crate::files::permissions::{Permissions, Rules};
use crate::files::{Content, Entry, Expected, FilePath, FilesError, is_below};
use crate::tool::check;

/// One version: who wrote it under which key, and what.
type Version = (String, String, Option<Vec<u8>>);

/// Files in memory, all versions of them.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<FilePath, Vec<Version>>>);

impl Memory {
    fn add(&self, path: &str, author: &str, content: Option<&[u8]>) {
        let version = (author.to_owned(), format!("{author}'s"), content.map(<[u8]>::to_vec));
        self.0.lock().unwrap().entry(FilePath::new(path).unwrap()).or_default().push(version);
    }

    fn current(&self, path: &FilePath) -> Option<Content> {
        let all = self.0.lock().unwrap();
        let versions = all.get(path)?;
        let (author, _, bytes) = versions.last()?;
        let bytes = bytes.clone()?;
        let (size, version) = (bytes.len() as u64, versions.len() as u64);
        Some(Content { entry: Entry { path: path.clone(), size, version, author: author.clone() }, bytes })
    }

    fn append(
        &self,
        path: &FilePath,
        bytes: Option<Vec<u8>>,
        expected: Expected,
        key: &str,
    ) -> Result<u64, FilesError> {
        let keyed = |(_, other, _): &Version| other == key;
        if let Some(at) = self.0.lock().unwrap().get(path).and_then(|all| all.iter().position(keyed)) {
            return Ok(at as u64 + 1);
        }
        let current = self.current(path);
        let fits = match expected {
            Expected::Anything => true,
            Expected::Nothing => current.is_none(),
            Expected::Version(version) => current.as_ref().is_some_and(|now| now.entry.version == version),
        };
        if !fits {
            return Err(FilesError::Stale { path: path.clone(), current: current.map(Box::new) });
        }
        let mut all = self.0.lock().unwrap();
        let versions = all.entry(path.clone()).or_default();
        versions.push(("me".into(), key.into(), bytes));
        Ok(versions.len() as u64)
    }
}

impl Files for Memory {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<Entry>, FilesError>> {
        let paths: Vec<FilePath> = self.0.lock().unwrap().keys().cloned().collect();
        let found = paths.iter().filter(|path| is_below(path, folder)).filter_map(|path| self.current(path));
        ready(Ok(found.map(|content| content.entry).collect())).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<Content>, FilesError>> {
        ready(Ok(self.current(path))).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        ready(self.append(path, Some(bytes), expected, key)).boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: Expected,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        ready(self.append(path, None, expected, key).map(|_| ())).boxed()
    }

    fn made<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        let all = self.0.lock().unwrap();
        let at = all.get(path).and_then(|all| all.iter().position(|(_, other, _)| other == key));
        ready(Ok(at.map(|at| at as u64 + 1))).boxed()
    }
}

/// An agent's tools, with a turn for each call.
struct Agent {
    tools: Vec<Arc<dyn Tool>>,
    turn: u64,
    /// What was called and what came of it.
    record: Vec<(String, Value, ToolResult, Call)>,
}

impl Agent {
    fn new(files: &Arc<Memory>) -> Self {
        Self::with(files, Rules::default())
    }

    fn with(files: &Arc<Memory>, rules: Rules) -> Self {
        Self { tools: file_tools(files.clone(), rules), turn: 0, record: Vec::new() }
    }

    fn tool(&self, name: &str) -> &Arc<dyn Tool> {
        self.tools.iter().find(|tool| tool.spec().name == name).expect(name)
    }

    /// Calls a tool in a turn of its own.
    async fn call(&mut self, name: &str, arguments: Value) -> Result<String, String> {
        self.turn += 1;
        let call = Call { key: format!("r/t/1/{}.0", self.turn), turn: self.turn, ..Call::default() };
        self.call_as(name, arguments, &call).await
    }

    async fn call_as(&mut self, name: &str, arguments: Value, call: &Call) -> Result<String, String> {
        let tool = self.tool(name).clone();
        check(&tool.spec().schema, &arguments)?;
        let done = match tool.call(arguments.clone(), call).await {
            Ok(output) => Ok(output.text),
            Err(ToolError::Refused(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        };
        let text = done.clone().unwrap_or_else(|text| text);
        let result = ToolResult { call_id: "c".into(), text, is_error: done.is_err() };
        self.record.push((name.to_owned(), arguments, result, call.clone()));
        done
    }

    /// The same agent on another machine: it is told what was recorded.
    fn resumed(&self, files: &Arc<Memory>) -> Self {
        let agent = Self { turn: self.turn, ..Self::new(files) };
        for (name, arguments, result, call) in &self.record {
            agent.tool(name).replayed(arguments, result, call);
        }
        agent
    }
}

fn files(all: &[(&str, &str)]) -> Arc<Memory> {
    let files = Memory::default();
    all.iter().for_each(|(path, text)| files.add(path, "task other", Some(text.as_bytes())));
    Arc::new(files)
}

#[tokio::test]
async fn a_reading_says_which_lines_and_which_version_it_shows() {
    let files = files(&[("/a.txt", "one\ntwo\nthree"), ("/empty", "")]);
    let mut agent = Agent::new(&files);
    for (arguments, expected) in [
        (json!({}), Ok("@@ lines 1-3 of 3 | version 1 @@\none\ntwo\nthree")),
        (json!({"limit": 1}), Ok("@@ lines 1-1 of 3 | next offset 1 | version 1 @@\none\n")),
        (json!({"offset": 1, "limit": 1}), Ok("@@ lines 2-2 of 3 | next offset 2 | version 1 @@\ntwo\n")),
        (json!({"offset": 2}), Ok("@@ lines 3-3 of 3 | version 1 @@\nthree")),
        (json!({"offset": 3}), Err("Error: Line offset 3 exceeds file length (3 lines)")),
        (
            json!({"offset": -5, "limit": 1}),
            Ok("@@ lines 1-1 of 3 | next offset 1 | version 1 @@\n(`offset` was -5; it was read from the \
                beginning)\none\n"),
        ),
        (json!({"limit": 0}), Ok("no lines were read because `limit` was 0; the file has 3 lines")),
        (
            json!({"file_path": "empty"}),
            Ok("@@ lines 0-0 of 0 | version 1 @@\nSystem reminder: File exists but has empty contents"),
        ),
        (json!({"file_path": "/A.txt"}), Err("Error: File '/A.txt' not found; did you mean /a.txt?")),
        (
            json!({"file_path": "../a"}),
            Err("\"../a\" is no path here: '.' and '..' are not allowed as parts"),
        ),
    ] {
        let mut whole = json!({"file_path": "/a.txt"});
        whole.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        let read = agent.call("read_file", whole).await;
        assert_eq!(read.as_deref().map_err(String::as_str), expected, "{arguments}");
    }
}

#[tokio::test]
async fn a_long_reading_is_cut_behind_a_whole_line_and_bytes_are_named() {
    let files = files(&[]);
    let line = "x".repeat(9_999) + "\n";
    files.add("/lines", "other", Some(line.repeat(20).as_bytes()));
    files.add("/line", "other", Some("ä".repeat(200_000).as_bytes()));
    files.add("/image", "other", Some(b"\x89PNG\r\n\x1a\n\0\0"));
    let mut agent = Agent::new(&files);
    let read = agent.call("read_file", json!({"file_path": "/lines"})).await.unwrap();
    assert!(read.starts_with("@@ lines 1-7 of 20 | next offset 7 | version 1 @@\n"), "{}", &read[..60]);
    assert!(read.ends_with("[cut at 79000 characters, behind a whole line; go on with offset 7]"));
    assert!(read.chars().count() < 80_000);
    let read = agent.call("read_file", json!({"file_path": "/line"})).await.unwrap();
    assert!(read.contains("[line 1 has 200,000 characters, of which the first 79000 are shown"));
    let told = agent.call("read_file", json!({"file_path": "/image"})).await.unwrap_err();
    assert_eq!(told, "Error: '/image' can't be shown as text: it is an image (PNG), 10 bytes");
}

#[tokio::test]
async fn nobody_changes_what_he_has_not_seen() {
    let files = files(&[("/a.txt", "one two")]);
    let mut agent = Agent::new(&files);
    let write = json!({"file_path": "/a.txt", "content": "mine"});
    let told = agent.call("write_file", write.clone()).await.unwrap_err();
    assert!(
        told.starts_with("Error: /a.txt exists, written by task other, and you have not read it"),
        "{told}"
    );
    assert!(told.ends_with("\none two"), "{told}");
    // By that it has seen it.
    assert_eq!(agent.call("write_file", write).await.unwrap(), "Updated file /a.txt (version 2)");
    files.add("/a.txt", "task other", Some(b"mine and theirs"));
    let edit = json!({"file_path": "/a.txt", "old_string": "mine", "new_string": "ours"});
    let told = agent.call("edit_file", edit.clone()).await.unwrap_err();
    assert!(
        told.starts_with(
            "Error: /a.txt was changed since you read it, by task other; nothing was changed. It has version 3\n"
        ),
        "{told}"
    );
    let done = agent.call("edit_file", edit).await.unwrap();
    assert_eq!(done, "Successfully replaced 1 instance(s) of the string in '/a.txt' (version 4)");
    assert_eq!(files.current(&FilePath::new("/a.txt").unwrap()).unwrap().bytes, b"ours and theirs");
    // Deleted by another.
    files.add("/a.txt", "task other", None);
    let told = agent.call("write_file", json!({"file_path": "/a.txt", "content": "x"})).await.unwrap_err();
    assert!(told.starts_with("Error: /a.txt was deleted since you read it"), "{told}");
    let made = agent.call("write_file", json!({"file_path": "/a.txt", "content": "x"})).await;
    assert_eq!(made.unwrap(), "Created file /a.txt (version 6)");
    let deleted = agent.call("delete", json!({"file_path": "a.txt"})).await;
    assert_eq!(deleted.unwrap(), "Deleted /a.txt");
    let told = agent.call("delete", json!({"file_path": "a.txt"})).await.unwrap_err();
    assert!(told.starts_with("Error: File '/a.txt' not found"), "{told}");
}

#[tokio::test]
async fn edits_that_make_no_sense_are_refused() {
    let files = files(&[("/a.txt", "one")]);
    let mut agent = Agent::new(&files);
    agent.call("read_file", json!({"file_path": "/a.txt"})).await.unwrap();
    for (old, new, told) in [
        ("", "x", "Error: old_string is empty"),
        ("one", "one", "Error: old_string and new_string are the same"),
        ("zz", "x", "Error: String not found in file: 'zz'"),
    ] {
        let edit = json!({"file_path": "/a.txt", "old_string": old, "new_string": new});
        assert!(agent.call("edit_file", edit).await.unwrap_err().starts_with(told), "{told}");
    }
    let edit = json!({"file_path": "/b.txt", "old_string": "a", "new_string": "b"});
    let told = agent.call("edit_file", edit).await.unwrap_err();
    assert_eq!(told, "Error: File '/b.txt' not found; did you mean /a.txt?");
    files.add("/image", "other", Some(b"\x89PNG\r\n\0"));
    let write = json!({"file_path": "/image", "content": "x"});
    let told = agent.call("write_file", write).await.unwrap_err();
    assert!(told.ends_with("('/image' can't be shown as text: it is an image (PNG), 7 bytes)"), "{told}");
    let edit = json!({"file_path": "/image", "old_string": "a", "new_string": "b"});
    assert!(agent.call("edit_file", edit).await.unwrap_err().contains("can't be edited as text"));
}

#[tokio::test]
async fn two_changes_of_one_path_in_one_message_are_one_too_many() {
    let files = files(&[]);
    let mut agent = Agent::new(&files);
    let call = |index: u32, turn: u64| Call { key: format!("r/t/1/{turn}.{index}"), turn, ..Call::default() };
    let write = json!({"file_path": "/d/a", "content": "x"});
    agent.call_as("write_file", write.clone(), &call(0, 1)).await.unwrap();
    let edit = json!({"file_path": "d/a", "old_string": "x", "new_string": "y"});
    let told = agent.call_as("edit_file", edit.clone(), &call(1, 1)).await.unwrap_err();
    assert!(told.starts_with("Error: parallel file mutations to the same path are not allowed"), "{told}");
    let told_first = told;
    let told = agent.call_as("delete", json!({"file_path": "/d"}), &call(2, 1)).await.unwrap_err();
    assert!(told.starts_with("Error: parallel file mutations"), "{told}");
    // Also where the first was made by a worker that was lost.
    let mut lost = Agent::new(&files);
    lost.record.push(agent.record[0].clone());
    let mut again = lost.resumed(&files);
    assert_eq!(again.call_as("edit_file", edit.clone(), &call(1, 1)).await.unwrap_err(), told_first);
    // And where only the second was recorded, the first is still the first.
    let mut lost = Agent::new(&files);
    lost.record.push(agent.record[1].clone());
    let mut again = lost.resumed(&files);
    again.call_as("write_file", write.clone(), &call(0, 1)).await.unwrap();
    // The same call once more is the same, and another message another matter.
    agent.call_as("write_file", write, &call(0, 1)).await.unwrap();
    agent.call_as("edit_file", edit, &call(0, 2)).await.unwrap();
    assert_eq!(files.current(&FilePath::new("/d/a").unwrap()).unwrap().bytes, b"y");
}

#[tokio::test]
async fn what_was_seen_is_known_again_after_a_resume_and_nothing_is_done_twice() {
    let files = files(&[("/read", "1"), ("/refused", "2"), ("/d/x", "3"), ("/d/y", "4")]);
    let mut agent = Agent::new(&files);
    agent.call("read_file", json!({"file_path": "/read"})).await.unwrap();
    agent.call("write_file", json!({"file_path": "/refused", "content": "x"})).await.unwrap_err();
    agent.call("write_file", json!({"file_path": "/made", "content": "x"})).await.unwrap();
    let told = agent.call("delete", json!({"file_path": "/d"})).await.unwrap_err();
    assert!(told.contains("\n/d/x\t1 byte, by task other, version 1\n"), "{told}");
    for path in ["/read", "/refused", "/made"] {
        let mut again = agent.resumed(&files);
        let write = json!({"file_path": path, "content": "by the other"});
        assert!(again.call("write_file", write).await.is_ok(), "{path} was seen");
    }
    let mut again = agent.resumed(&files);
    assert_eq!(again.call("delete", json!({"file_path": "/d"})).await.unwrap(), "Deleted /d with 2 files");

    // A worker was lost between a change and its record: the next one makes the call again, with the same key.
    let edits = Arc::new(Memory::default());
    edits.add("/a", "task other", Some(b"one"));
    let mut agent = Agent::new(&edits);
    agent.call("read_file", json!({"file_path": "/a"})).await.unwrap();
    let lost = agent.resumed(&edits);
    let edit = json!({"file_path": "/a", "old_string": "one", "new_string": "one one"});
    agent.call("edit_file", edit.clone()).await.unwrap();
    edits.add("/a", "task other", Some(b"one one and more"));
    let mut again = Agent { record: Vec::new(), ..lost };
    let done = again.call("edit_file", edit).await.unwrap();
    assert_eq!(done, "Successfully replaced the string in '/a' (version 2)");
    assert_eq!(edits.current(&FilePath::new("/a").unwrap()).unwrap().bytes, b"one one and more");
    let told = again.call("write_file", json!({"file_path": "/a", "content": "x"})).await.unwrap_err();
    assert!(told.contains("was changed since you read it, by task other"), "{told}");
}

#[tokio::test]
async fn what_may_not_be_read_is_not_seen_and_what_may_not_be_changed_stays() {
    let files =
        files(&[("/d/open", "word"), ("/d/secret/key", "word"), ("/fixed/a", "word"), ("/asked/a", "word")]);
    let rules: Permissions = serde_json::from_value(json!([
        {"paths": ["/**/secret"], "mode": "deny"},
        {"operations": ["write"], "paths": ["/fixed"], "mode": "deny"},
        {"operations": ["write"], "paths": ["/asked"], "mode": "ask"}
    ]))
    .unwrap();
    let mut agent = Agent::with(&files, rules.compile().unwrap());
    assert_eq!(
        agent.call("ls", json!({"path": "/d"})).await.unwrap(),
        "/d/open (4 bytes, version 1 by task other)"
    );
    assert_eq!(
        agent.call("glob", json!({"pattern": "**/k*"})).await.unwrap(),
        "No files found that fit **/k* in /"
    );
    let found = agent.call("grep", json!({"pattern": "word"})).await.unwrap();
    assert_eq!(found, "/asked/a\n/d/open\n/fixed/a\n");
    let told = agent.call("read_file", json!({"file_path": "/d/secret/key"})).await.unwrap_err();
    assert!(told.contains("this capability's permissions deny it"), "{told}");
    assert!(agent.call("grep", json!({"pattern": "w", "path": "/d/secret/key"})).await.is_err());
    let told = agent.call("delete", json!({"file_path": "/d"})).await.unwrap_err();
    assert!(told.contains("something in it may not be changed by this capability. Delete"), "{told}");
    for path in ["/fixed/a", "/asked/a"] {
        agent.call("read_file", json!({"file_path": path})).await.unwrap();
        for (tool, arguments) in [
            ("write_file", json!({"file_path": path, "content": "x"})),
            ("edit_file", json!({"file_path": path, "old_string": "word", "new_string": "x"})),
            ("delete", json!({"file_path": path})),
        ] {
            let told = agent.call(tool, arguments).await.unwrap_err();
            assert!(told.contains("deny it") || told.contains("nobody can be asked here yet"), "{told}");
        }
    }
    assert_eq!(files.0.lock().unwrap().values().map(Vec::len).sum::<usize>(), 4, "nothing was written");
}

#[tokio::test]
async fn files_are_listed_and_found_by_pattern() {
    let files = files(&[("/a.md", "x"), ("/d/b.md", "xy"), ("/d/e/c.txt", ""), ("/gone", "")]);
    files.add("/gone", "task other", None);
    let mut agent = Agent::new(&files);
    for (tool, arguments, expected) in [
        ("ls", json!({}), "/d/ (2 files)\n/a.md (1 byte, version 1 by task other)"),
        ("ls", json!({"path": "/d/"}), "/d/e/ (1 file)\n/d/b.md (2 bytes, version 1 by task other)"),
        ("ls", json!({"path": "a.md"}), "/a.md (1 byte, version 1 by task other)"),
        ("ls", json!({"path": "/none"}), "No files found in /none"),
        ("glob", json!({"pattern": "*.md"}), "/a.md"),
        ("glob", json!({"pattern": "**/*.md"}), "/a.md\n/d/b.md"),
        ("glob", json!({"pattern": "*.md", "path": "/d"}), "/d/b.md"),
        ("glob", json!({"pattern": "/d/**"}), "/d/b.md\n/d/e/c.txt"),
        ("glob", json!({"pattern": "*.{txt,pdf}"}), "No files found that fit *.{txt,pdf} in /"),
    ] {
        assert_eq!(agent.call(tool, arguments.clone()).await.unwrap(), expected, "{tool} {arguments}");
    }
    let told = agent.call("glob", json!({"pattern": "["})).await.unwrap_err();
    assert!(told.contains("unclosed character class"), "{told}");
    assert!(agent.call("ls", json!({"path": "/.."})).await.is_err());
}

#[tokio::test]
async fn a_search_shows_files_lines_or_counts_and_says_what_it_left_out() {
    let files = files(&[("/a", "One\ntwo one\n"), ("/d/b", "one\n"), ("/c", "three")]);
    files.add("/image", "other", Some(b"\x89PNG\0one"));
    let mut agent = Agent::new(&files);
    let note = "[1 file with no text passed over]\n";
    for (arguments, expected) in [
        (json!({"pattern": "one"}), format!("/a\n/d/b\n{note}")),
        (
            json!({"pattern": "one", "output_mode": "content"}),
            format!("/a:\n  2: two one\n/d/b:\n  1: one\n{note}"),
        ),
        (
            json!({"pattern": "ONE", "ignore_case": true, "output_mode": "count"}),
            format!("/a: 2\n/d/b: 1\n{note}"),
        ),
        (json!({"pattern": "one", "path": "/d"}), "/d/b\n".to_owned()),
        (json!({"pattern": "one", "path": "/a", "output_mode": "count"}), "/a: 1\n".to_owned()),
        (json!({"pattern": "one", "glob": "d/*"}), "/d/b\n".to_owned()),
        (
            json!({"pattern": "one", "max_count": 1}),
            "/a\n[there may be more matches: this is as many as were asked for]\n".to_owned(),
        ),
        (json!({"pattern": "zz"}), format!("No matches found for 'zz' in 4 files\n{note}")),
    ] {
        assert_eq!(agent.call("grep", arguments.clone()).await.unwrap(), expected, "{arguments}");
    }
    let found = agent.call("grep", json!({"pattern": "one.*two"})).await.unwrap();
    assert!(found.contains("is no regular expression"), "{found}");
    assert!(agent.call("grep", json!({"pattern": ""})).await.is_err());
    assert!(agent.call("grep", json!({"pattern": "a\nb"})).await.is_err());
}
