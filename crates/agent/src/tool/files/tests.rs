//! The file tools over files in memory: their results, their refusals, and the state restored on resume.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::future::ready;
use serde_json::json;

use super::*;
use crate::files::permissions::{CompiledPermissions, PermissionRules};
use crate::files::{FileContent, FileEntry, FilePath, FilesError, WriteCondition, is_below};
use crate::tool::check_value_against_schema;

/// One version: its author, its key and its content.
type FileVersion = (String, String, Option<Vec<u8>>);

#[derive(Default)]
struct InMemoryFiles(Mutex<BTreeMap<FilePath, Vec<FileVersion>>>);

impl InMemoryFiles {
    fn add_version(&self, path: &str, author: &str, content: Option<&[u8]>) {
        let version = (author.to_owned(), format!("{author}'s"), content.map(<[u8]>::to_vec));
        self.0.lock().unwrap().entry(FilePath::new(path).unwrap()).or_default().push(version);
    }

    fn current_content(&self, path: &FilePath) -> Option<FileContent> {
        let all = self.0.lock().unwrap();
        let versions = all.get(path)?;
        let (author, _, bytes) = versions.last()?;
        let bytes = bytes.clone()?;
        let (size, version) = (bytes.len() as u64, versions.len() as u64);
        Some(FileContent {
            entry: FileEntry { path: path.clone(), size, version, author: author.clone() },
            bytes,
        })
    }

    fn append_version(
        &self,
        path: &FilePath,
        bytes: Option<Vec<u8>>,
        expected: WriteCondition,
        key: &str,
    ) -> Result<u64, FilesError> {
        let keyed = |(_, other, _): &FileVersion| other == key;
        if let Some(at) = self.0.lock().unwrap().get(path).and_then(|all| all.iter().position(keyed)) {
            return Ok(at as u64 + 1);
        }
        let current = self.current_content(path);
        let fits = match expected {
            WriteCondition::Always => true,
            WriteCondition::Absent => current.is_none(),
            WriteCondition::Version(version) => {
                current.as_ref().is_some_and(|now| now.entry.version == version)
            }
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

impl Files for InMemoryFiles {
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        let paths: Vec<FilePath> = self.0.lock().unwrap().keys().cloned().collect();
        let contents =
            paths.iter().filter(|path| is_below(path, folder)).filter_map(|path| self.current_content(path));
        ready(Ok(contents.map(|content| content.entry).collect())).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        ready(Ok(self.current_content(path))).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        ready(self.append_version(path, Some(bytes), expected, key)).boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        ready(self.append_version(path, None, expected, key).map(|_| ())).boxed()
    }

    fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        let all = self.0.lock().unwrap();
        let at = all.get(path).and_then(|all| all.iter().position(|(_, other, _)| other == key));
        ready(Ok(at.map(|at| at as u64 + 1))).boxed()
    }
}

/// An agent's tools; each call has a turn of its own.
struct ToolUser {
    tools: Vec<Arc<dyn Tool>>,
    turn: u64,
    record: Vec<(String, Value, ToolResult, Call)>,
}

impl ToolUser {
    fn new(files: &Arc<InMemoryFiles>) -> Self {
        Self::with_permissions(files, CompiledPermissions::default())
    }

    fn with_permissions(files: &Arc<InMemoryFiles>, rules: CompiledPermissions) -> Self {
        Self { tools: create_file_tools(files.clone(), rules), turn: 0, record: Vec::new() }
    }

    fn tool(&self, name: &str) -> &Arc<dyn Tool> {
        self.tools.iter().find(|tool| tool.spec().name == name).expect(name)
    }

    /// Calls a tool in a turn of its own.
    async fn call(&mut self, name: &str, arguments: Value) -> Result<String, String> {
        self.turn += 1;
        let call = Call { key: format!("r/t/1/{}.0", self.turn), turn: self.turn, ..Call::default() };
        self.call_with_id(name, arguments, &call).await
    }

    async fn call_with_id(&mut self, name: &str, arguments: Value, call: &Call) -> Result<String, String> {
        let tool = self.tool(name).clone();
        check_value_against_schema(&tool.spec().schema, &arguments)?;
        let done = match tool.call(arguments.clone(), call).await {
            Ok(output) => Ok(output.text),
            Err(ToolError::Refused(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        };
        let text = done.clone().unwrap_or_else(|text| text);
        let result = ToolResult { call_id: "c".into(), text, is_error: done.is_err(), images: Vec::new() };
        self.record.push((name.to_owned(), arguments, result, call.clone()));
        done
    }

    /// The same agent resumed on another machine from the recorded calls.
    fn resume_with(&self, files: &Arc<InMemoryFiles>) -> Self {
        let agent = Self { turn: self.turn, ..Self::new(files) };
        for (name, arguments, result, call) in &self.record {
            agent.tool(name).on_replay(arguments, result, call);
        }
        agent
    }
}

fn in_memory_files(all: &[(&str, &str)]) -> Arc<InMemoryFiles> {
    let files = InMemoryFiles::default();
    all.iter().for_each(|(path, text)| files.add_version(path, "task other", Some(text.as_bytes())));
    Arc::new(files)
}

#[tokio::test]
async fn a_read_names_its_lines_and_version() {
    let files = in_memory_files(&[("/a.txt", "one\ntwo\nthree"), ("/empty", "")]);
    let mut agent = ToolUser::new(&files);
    for (arguments, expected) in [
        (json!({}), Ok("@@ lines 1-3 of 3 | version 1 @@\none\ntwo\nthree")),
        (json!({"limit": 1}), Ok("@@ lines 1-1 of 3 | next offset 1 | version 1 @@\none\n")),
        (json!({"offset": 1, "limit": 1}), Ok("@@ lines 2-2 of 3 | next offset 2 | version 1 @@\ntwo\n")),
        (json!({"offset": 2}), Ok("@@ lines 3-3 of 3 | version 1 @@\nthree")),
        (json!({"offset": 3}), Err("Error: Line offset 3 exceeds file length (3 lines)")),
        (
            json!({"offset": -5, "limit": 1}),
            Ok("@@ lines 1-1 of 3 | next offset 1 | version 1 @@\n(`offset` was -5; read from the \
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
            Err("\"../a\" is not a valid path: '.' and '..' are not allowed as parts"),
        ),
    ] {
        let mut whole = json!({"file_path": "/a.txt"});
        whole.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        let read = agent.call("read_file", whole).await;
        assert_eq!(read.as_deref().map_err(String::as_str), expected, "{arguments}");
    }
}

#[tokio::test]
async fn a_long_read_is_cut_after_a_line_and_binary_files_are_named() {
    let files = in_memory_files(&[]);
    let line = "x".repeat(9_999) + "\n";
    files.add_version("/lines", "other", Some(line.repeat(20).as_bytes()));
    files.add_version("/line", "other", Some("ä".repeat(200_000).as_bytes()));
    files.add_version("/image", "other", Some(b"\x89PNG\r\n\x1a\n\0\0"));
    let mut agent = ToolUser::new(&files);
    let read = agent.call("read_file", json!({"file_path": "/lines"})).await.unwrap();
    assert!(read.starts_with("@@ lines 1-7 of 20 | next offset 7 | version 1 @@\n"), "{}", &read[..60]);
    assert!(read.ends_with("[cut at 79000 characters, after a whole line; continue with offset 7]"));
    assert!(read.chars().count() < 80_000);
    let read = agent.call("read_file", json!({"file_path": "/line"})).await.unwrap();
    assert!(
        read.starts_with("@@ lines 1-1 of 1 | next offset 0, column 79001 | version 1 @@\nää"),
        "{}",
        &read[..90]
    );
    assert!(read.ends_with(
        "\n[line 1 has 200,000 characters, the first 79000 are shown; continue with offset 0 and column 79001, or find words \
         with grep]"
    ));
    let read = agent.call("read_file", json!({"file_path": "/line", "column": 79_001})).await.unwrap();
    assert!(
        read.starts_with(
            "@@ lines 1-1 of 1 from column 79001 | next offset 0, column 158001 | version 1 @@\n"
        )
    );
    assert!(read.contains("[line 1 has 200,000 characters, columns 79001 to 158000 are shown; continue with offset 0 and column 158001"));
    let read = agent.call("read_file", json!({"file_path": "/line", "column": 199_999})).await.unwrap();
    assert_eq!(read, "@@ lines 1-1 of 1 from column 199999 | version 1 @@\nää");
    let refusal =
        agent.call("read_file", json!({"file_path": "/line", "column": 200_001})).await.unwrap_err();
    assert_eq!(refusal, "Error: Column 200001 is past the end of line 1 (200,000 characters)");
    let refusal = agent.call("read_file", json!({"file_path": "/image"})).await.unwrap_err();
    assert_eq!(refusal, "Error: '/image' can't be shown as text: it is an image (PNG), 10 bytes");
    for (path, bytes, kind) in [
        ("/nul", &b"some text\0more text"[..], "binary, with a NUL byte at position 9"),
        ("/latin", b"caf\xe9", "not UTF-8 text: see the byte 0xe9 at position 3"),
        ("/wide", b"\xff\xfeh\0i\0", "text in UTF-16; a program can convert it to UTF-8"),
    ] {
        files.add_version(path, "other", Some(bytes));
        let refusal = agent.call("read_file", json!({"file_path": path})).await.unwrap_err();
        assert_eq!(
            refusal,
            format!("Error: '{path}' can't be shown as text: it is {kind}, {} bytes", bytes.len())
        );
        let edit = json!({"file_path": path, "old_string": "a", "new_string": "b"});
        agent.call("edit_file", edit.clone()).await.unwrap_err();
        let refusal = agent.call("edit_file", edit).await.unwrap_err();
        assert!(refusal.contains(kind), "{refusal}");
    }
}

/// `grep` returns the column of a match in a long line, and `read_file` begins there.
#[tokio::test]
async fn all_of_a_long_line_is_reached() {
    let line = format!("ä{}NEEDLE{}", "x".repeat(1_000_000), "y".repeat(1_000_000));
    let files = in_memory_files(&[
        ("/long", &format!("short NEEDLE\n{line}\nlast")),
        ("/k", &"\u{212a}".repeat(2_000)),
    ]);
    let mut agent = ToolUser::new(&files);
    let search = json!({"pattern": "needle", "path": "/long", "output_mode": "content", "ignore_case": true});
    let found = agent.call("grep", search).await.unwrap();
    let expected = format!(
        "/long:\n  1: short NEEDLE\n  2, column 1000002: …{}NEEDLE{}…\n",
        "x".repeat(100),
        "y".repeat(500 - 106)
    );
    assert_eq!(found, expected);
    let read = json!({"file_path": "/long", "offset": 1, "limit": 1, "column": 1_000_002});
    let read = agent.call("read_file", read).await.unwrap();
    let header = "@@ lines 2-2 of 3 from column 1000002 | next offset 1, column 1079002 | version 1 @@\n";
    assert!(read.starts_with(&format!("{header}NEEDLEyyy")), "{}", &read[..120]);
    let read = json!({"file_path": "/long", "offset": 1, "column": 1_990_000});
    let read = agent.call("read_file", read).await.unwrap();
    assert!(read.starts_with("@@ lines 2-3 of 3 from column 1990000 | version 1 @@\nyyy"), "{}", &read[..80]);
    assert!(read.ends_with("y\nlast"));
    // The Kelvin sign is three bytes, and its lower case one.
    let search =
        json!({"pattern": "k", "path": "/k", "output_mode": "content", "ignore_case": true, "max_count": 3});
    let found = agent.call("grep", search).await.unwrap();
    let columns: Vec<&str> = found.lines().filter_map(|line| line.trim().split(':').next()).collect();
    assert_eq!(
        columns,
        ["/k", "1, column 1", "1, column 501", "1, column 901", "[there may be more matches"]
    );
}

#[tokio::test]
async fn only_versions_that_were_read_can_be_changed() {
    let files = in_memory_files(&[("/a.txt", "one two")]);
    let mut agent = ToolUser::new(&files);
    let write = json!({"file_path": "/a.txt", "content": "mine"});
    let refusal = agent.call("write_file", write.clone()).await.unwrap_err();
    assert!(
        refusal.starts_with("Error: /a.txt exists, written by task other, and you have not read it"),
        "{refusal}"
    );
    assert!(refusal.ends_with("\none two"), "{refusal}");
    // The refusal showed the content, so it counts as read.
    assert_eq!(agent.call("write_file", write).await.unwrap(), "Updated file /a.txt (version 2)");
    files.add_version("/a.txt", "task other", Some(b"mine and theirs"));
    let edit = json!({"file_path": "/a.txt", "old_string": "mine", "new_string": "ours"});
    let refusal = agent.call("edit_file", edit.clone()).await.unwrap_err();
    assert!(
        refusal.starts_with(
            "Error: /a.txt was changed since you read it, by task other; nothing was changed. It has version 3\n"
        ),
        "{refusal}"
    );
    let done = agent.call("edit_file", edit).await.unwrap();
    assert_eq!(done, "Successfully replaced 1 instance(s) of the string in '/a.txt' (version 4)");
    assert_eq!(files.current_content(&FilePath::new("/a.txt").unwrap()).unwrap().bytes, b"ours and theirs");
    // Deleted by another author.
    files.add_version("/a.txt", "task other", None);
    let refusal = agent.call("write_file", json!({"file_path": "/a.txt", "content": "x"})).await.unwrap_err();
    assert!(refusal.starts_with("Error: /a.txt was deleted since you read it"), "{refusal}");
    let made = agent.call("write_file", json!({"file_path": "/a.txt", "content": "x"})).await;
    assert_eq!(made.unwrap(), "Created file /a.txt (version 6)");
    let deleted = agent.call("delete", json!({"file_path": "a.txt"})).await;
    assert_eq!(deleted.unwrap(), "Deleted /a.txt");
    let refusal = agent.call("delete", json!({"file_path": "a.txt"})).await.unwrap_err();
    assert!(refusal.starts_with("Error: File '/a.txt' not found"), "{refusal}");
}

#[tokio::test]
async fn invalid_edits_are_refused() {
    let files = in_memory_files(&[("/a.txt", "one")]);
    let mut agent = ToolUser::new(&files);
    agent.call("read_file", json!({"file_path": "/a.txt"})).await.unwrap();
    for (old, new, refusal) in [
        ("", "x", "Error: old_string is empty"),
        ("one", "one", "Error: old_string and new_string are the same"),
        ("zz", "x", "Error: String not found in file: 'zz'"),
    ] {
        let edit = json!({"file_path": "/a.txt", "old_string": old, "new_string": new});
        assert!(agent.call("edit_file", edit).await.unwrap_err().starts_with(refusal), "{refusal}");
    }
    let edit = json!({"file_path": "/b.txt", "old_string": "a", "new_string": "b"});
    let refusal = agent.call("edit_file", edit).await.unwrap_err();
    assert_eq!(refusal, "Error: File '/b.txt' not found; did you mean /a.txt?");
    files.add_version("/latin", "other", Some(b"gr\xf6\xdfe"));
    let edit = json!({"file_path": "/latin", "old_string": "gr", "new_string": "x"});
    let refusal = agent.call("edit_file", edit).await.unwrap_err();
    assert!(
        refusal.ends_with("see the byte 0xf6 at position 2, 5 bytes; it can't be edited as text"),
        "{refusal}"
    );
    files.add_version("/image", "other", Some(b"\x89PNG\r\n\0"));
    let write = json!({"file_path": "/image", "content": "x"});
    let refusal = agent.call("write_file", write).await.unwrap_err();
    assert!(
        refusal.ends_with("('/image' can't be shown as text: it is an image (PNG), 7 bytes)"),
        "{refusal}"
    );
    let edit = json!({"file_path": "/image", "old_string": "a", "new_string": "b"});
    assert!(agent.call("edit_file", edit).await.unwrap_err().contains("can't be edited as text"));
}

#[tokio::test]
async fn two_changes_of_one_path_in_a_message_are_refused() {
    let files = in_memory_files(&[]);
    let mut agent = ToolUser::new(&files);
    let call = |index: u32, turn: u64| Call { key: format!("r/t/1/{turn}.{index}"), turn, ..Call::default() };
    let write = json!({"file_path": "/d/a", "content": "x"});
    agent.call_with_id("write_file", write.clone(), &call(0, 1)).await.unwrap();
    let edit = json!({"file_path": "d/a", "old_string": "x", "new_string": "y"});
    let refusal = agent.call_with_id("edit_file", edit.clone(), &call(1, 1)).await.unwrap_err();
    assert!(
        refusal.starts_with("Error: parallel file mutations to the same path are not allowed"),
        "{refusal}"
    );
    let told_first = refusal;
    let refusal = agent.call_with_id("delete", json!({"file_path": "/d"}), &call(2, 1)).await.unwrap_err();
    assert!(refusal.starts_with("Error: parallel file mutations"), "{refusal}");
    // Also if a lost worker made the first.
    let mut lost = ToolUser::new(&files);
    lost.record.push(agent.record[0].clone());
    let mut again = lost.resume_with(&files);
    assert_eq!(again.call_with_id("edit_file", edit.clone(), &call(1, 1)).await.unwrap_err(), told_first);
    // If only the second was recorded, the first still comes first.
    let mut lost = ToolUser::new(&files);
    lost.record.push(agent.record[1].clone());
    let mut again = lost.resume_with(&files);
    again.call_with_id("write_file", write.clone(), &call(0, 1)).await.unwrap();
    // Repeating the same call is allowed, and so is another message.
    agent.call_with_id("write_file", write, &call(0, 1)).await.unwrap();
    agent.call_with_id("edit_file", edit, &call(0, 2)).await.unwrap();
    assert_eq!(files.current_content(&FilePath::new("/d/a").unwrap()).unwrap().bytes, b"y");
}

#[tokio::test]
async fn known_versions_survive_a_resume_and_nothing_runs_twice() {
    let files = in_memory_files(&[("/read", "1"), ("/refused", "2"), ("/d/x", "3"), ("/d/y", "4")]);
    let mut agent = ToolUser::new(&files);
    agent.call("read_file", json!({"file_path": "/read"})).await.unwrap();
    agent.call("write_file", json!({"file_path": "/refused", "content": "x"})).await.unwrap_err();
    agent.call("write_file", json!({"file_path": "/made", "content": "x"})).await.unwrap();
    let refusal = agent.call("delete", json!({"file_path": "/d"})).await.unwrap_err();
    assert!(refusal.contains("\n/d/x\t1 byte, by task other, version 1\n"), "{refusal}");
    for path in ["/read", "/refused", "/made"] {
        let mut again = agent.resume_with(&files);
        let write = json!({"file_path": path, "content": "by the other"});
        assert!(again.call("write_file", write).await.is_ok(), "{path} was seen");
    }
    let mut again = agent.resume_with(&files);
    assert_eq!(again.call("delete", json!({"file_path": "/d"})).await.unwrap(), "Deleted /d with 2 files");

    // A worker was lost between a change and its record: the next worker repeats the call with the same key.
    let edits = Arc::new(InMemoryFiles::default());
    edits.add_version("/a", "task other", Some(b"one"));
    let mut agent = ToolUser::new(&edits);
    agent.call("read_file", json!({"file_path": "/a"})).await.unwrap();
    let lost = agent.resume_with(&edits);
    let edit = json!({"file_path": "/a", "old_string": "one", "new_string": "one one"});
    agent.call("edit_file", edit.clone()).await.unwrap();
    edits.add_version("/a", "task other", Some(b"one one and more"));
    let mut again = ToolUser { record: Vec::new(), ..lost };
    let done = again.call("edit_file", edit).await.unwrap();
    assert_eq!(done, "Successfully replaced the string in '/a' (version 2)");
    assert_eq!(edits.current_content(&FilePath::new("/a").unwrap()).unwrap().bytes, b"one one and more");
    let refusal = again.call("write_file", json!({"file_path": "/a", "content": "x"})).await.unwrap_err();
    assert!(refusal.contains("was changed since you read it, by task other"), "{refusal}");
}

#[tokio::test]
async fn permissions_hide_files_and_prevent_changes() {
    let files = in_memory_files(&[
        ("/d/open", "word"),
        ("/d/secret/key", "word"),
        ("/fixed/a", "word"),
        ("/asked/a", "word"),
    ]);
    let rules: PermissionRules = serde_json::from_value(json!([
        {"paths": ["/**/secret"], "mode": "deny"},
        {"operations": ["write"], "paths": ["/fixed"], "mode": "deny"},
        {"operations": ["write"], "paths": ["/asked"], "mode": "ask"}
    ]))
    .unwrap();
    let mut agent = ToolUser::with_permissions(&files, CompiledPermissions::compile(&rules).unwrap());
    assert_eq!(
        agent.call("ls", json!({"path": "/d"})).await.unwrap(),
        "/d/open (4 bytes, version 1 by task other)"
    );
    assert_eq!(
        agent.call("glob", json!({"pattern": "**/k*"})).await.unwrap(),
        "No files found that match **/k* in /"
    );
    let output = agent.call("grep", json!({"pattern": "word"})).await.unwrap();
    assert_eq!(output, "/asked/a\n/d/open\n/fixed/a\n");
    let refusal = agent.call("read_file", json!({"file_path": "/d/secret/key"})).await.unwrap_err();
    assert!(refusal.contains("this capability's permissions deny it"), "{refusal}");
    assert!(agent.call("grep", json!({"pattern": "w", "path": "/d/secret/key"})).await.is_err());
    let refusal = agent.call("delete", json!({"file_path": "/d"})).await.unwrap_err();
    assert!(refusal.contains("this capability may not change something in it. Delete"), "{refusal}");
    for path in ["/fixed/a", "/asked/a"] {
        agent.call("read_file", json!({"file_path": path})).await.unwrap();
        for (tool, arguments) in [
            ("write_file", json!({"file_path": path, "content": "x"})),
            ("edit_file", json!({"file_path": path, "old_string": "word", "new_string": "x"})),
            ("delete", json!({"file_path": path})),
        ] {
            let refusal = agent.call(tool, arguments).await.unwrap_err();
            assert!(
                refusal.contains("deny it") || refusal.contains("only with a person's approval"),
                "{refusal}"
            );
        }
    }
    assert_eq!(files.0.lock().unwrap().values().map(Vec::len).sum::<usize>(), 4, "nothing was written");
}

#[tokio::test]
async fn approved_calls_may_do_what_a_person_must_approve() {
    let files = in_memory_files(&[("/asked/a", "word"), ("/denied/a", "word")]);
    let rules: PermissionRules = serde_json::from_value(json!([
        {"paths": ["/asked"], "mode": "ask"},
        {"paths": ["/denied"], "mode": "deny"}
    ]))
    .unwrap();
    let mut agent = ToolUser::with_permissions(&files, CompiledPermissions::compile(&rules).unwrap());
    let reason = |agent: &ToolUser, tool: &str, path: &str| {
        agent.tool(tool).approval_reason(&json!({"file_path": path}))
    };
    for tool in ["read_file", "write_file", "edit_file", "delete"] {
        assert!(
            reason(&agent, tool, "/asked/a").unwrap().contains("only with a person's approval"),
            "{tool}"
        );
        assert_eq!(reason(&agent, tool, "/denied/a"), None, "a denied call needs no person: {tool}");
        assert_eq!(reason(&agent, tool, "/free"), None, "{tool}");
    }
    let approved =
        |turn: u64| Call { key: format!("r/t/1/{turn}.0"), turn, is_approved: true, ..Call::default() };
    let read = json!({"file_path": "/asked/a"});
    assert!(agent.call("read_file", read.clone()).await.is_err());
    assert!(agent.call_with_id("read_file", read, &approved(7)).await.unwrap().contains("word"));
    let write = json!({"file_path": "/asked/a", "content": "new"});
    assert!(agent.call_with_id("write_file", write, &approved(8)).await.unwrap().contains("Updated"));
    let denied = json!({"file_path": "/denied/a"});
    assert!(
        agent.call_with_id("read_file", denied, &approved(9)).await.is_err(),
        "no approval lifts a denial"
    );
}

#[tokio::test]
async fn files_are_listed_and_matched_by_pattern() {
    let files = in_memory_files(&[("/a.md", "x"), ("/d/b.md", "xy"), ("/d/e/c.txt", ""), ("/gone", "")]);
    files.add_version("/gone", "task other", None);
    let mut agent = ToolUser::new(&files);
    for (tool, arguments, expected) in [
        ("ls", json!({}), "/d/ (2 files)\n/a.md (1 byte, version 1 by task other)"),
        ("ls", json!({"path": "/d/"}), "/d/e/ (1 file)\n/d/b.md (2 bytes, version 1 by task other)"),
        ("ls", json!({"path": "a.md"}), "/a.md (1 byte, version 1 by task other)"),
        ("ls", json!({"path": "/none"}), "No files found in /none"),
        ("glob", json!({"pattern": "*.md"}), "/a.md"),
        ("glob", json!({"pattern": "**/*.md"}), "/a.md\n/d/b.md"),
        ("glob", json!({"pattern": "*.md", "path": "/d"}), "/d/b.md"),
        ("glob", json!({"pattern": "/d/**"}), "/d/b.md\n/d/e/c.txt"),
        ("glob", json!({"pattern": "*.{txt,pdf}"}), "No files found that match *.{txt,pdf} in /"),
    ] {
        assert_eq!(agent.call(tool, arguments.clone()).await.unwrap(), expected, "{tool} {arguments}");
    }
    let refusal = agent.call("glob", json!({"pattern": "["})).await.unwrap_err();
    assert!(refusal.contains("unclosed character class"), "{refusal}");
    assert!(agent.call("ls", json!({"path": "/.."})).await.is_err());
}

#[tokio::test]
async fn grep_shows_files_lines_or_counts_and_omissions() {
    let files = in_memory_files(&[("/a", "One\ntwo one\n"), ("/d/b", "one\n"), ("/c", "three")]);
    files.add_version("/image", "other", Some(b"\x89PNG\0one"));
    let mut agent = ToolUser::new(&files);
    let note = "[1 file without text skipped]\n";
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
            "/a\n[there may be more matches: the requested number was reached]\n".to_owned(),
        ),
        (json!({"pattern": "zz"}), format!("No matches found for 'zz' in 4 files\n{note}")),
    ] {
        assert_eq!(agent.call("grep", arguments.clone()).await.unwrap(), expected, "{arguments}");
    }
    let output = agent.call("grep", json!({"pattern": "one.*two"})).await.unwrap();
    assert!(output.contains("not a regular expression"), "{output}");
    assert!(agent.call("grep", json!({"pattern": ""})).await.is_err());
    assert!(agent.call("grep", json!({"pattern": "a\nb"})).await.is_err());
}
