//! `execute` on the files of an agent: scripts that the agent wrote run, and what they make becomes a file of the agent.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use millrace_agent::files::{AgentFiles, FolderFiles, ProgramFiles};
use millrace_agent::tool::{Call, Tool};
use millrace_agent::turn::{MemoryHost, RecordedChanges};
use millrace_tools::execute::{ExecuteError, ExecuteSettings, ExecuteTool, Launcher, WorkspaceExecuteTool};
use serde_json::json;
use tempfile::TempDir;

const GOOD: &str = "[Command succeeded with exit code 0]";

async fn open(settings: ExecuteSettings) -> Result<WorkspaceExecuteTool, ExecuteError> {
    let launcher = Launcher::at(env!("CARGO_BIN_EXE_millrace-launcher"));
    let settings = ExecuteSettings { require: Vec::new(), ..settings };
    ExecuteTool::open(settings, launcher).await.map(WorkspaceExecuteTool::new)
}

/// An attempt with files in a folder, in place of a workspace.
struct TestAttempt {
    stored: TempDir,
    files: AgentFiles,
    tool: Arc<dyn Tool>,
}

impl TestAttempt {
    fn new(tool: &WorkspaceExecuteTool) -> Self {
        let stored = tempfile::tempdir().unwrap();
        let files = AgentFiles::unrestricted(Arc::new(FolderFiles::open(stored.path()).unwrap()));
        let tool = tool.for_attempt(&files).unwrap();
        Self { stored, files, tool }
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.stored.path().join(path), text).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.stored.path().join(path)).ok()
    }

    /// Runs a command and writes its changes back. Returns the text for the model.
    async fn run(&self, command: &str) -> String {
        let output = self.tool.call(json!({"command": command}), &Call::default()).await.unwrap();
        let Some(changes) = output.changes else { return output.text };
        let mut journal = MemoryHost::default();
        let recorded = RecordedChanges::store_contents(&changes, &mut journal).await.unwrap();
        let written = recorded.write_back(&self.files, "key", &mut journal).await.unwrap();
        format!("{}\n{}", output.text, written.text)
    }
}

const SCRIPT: &str = "import csv, os
numbers = [float(row['x']) for row in csv.DictReader(open('data.csv'))]
os.makedirs('out', exist_ok=True)
open('out/mean.txt', 'w').write(f'{sum(numbers) / len(numbers)}\\n')
";

#[tokio::test]
async fn script_that_the_agent_wrote_runs_and_its_output_is_a_file() {
    let tool = open(ExecuteSettings::default()).await.unwrap();
    let attempt = TestAttempt::new(&tool);
    attempt.write("script.py", SCRIPT);
    attempt.write("data.csv", "x\n1\n2\n6\n");
    let text = attempt.run("python3 script.py").await;
    assert!(text.starts_with(&format!("{GOOD}\n[Files: created /out/mean.txt (version ")), "{text}");
    assert_eq!(attempt.read("out/mean.txt").as_deref(), Some("3.0\n"));
    // The next command sees it, and what the agent changes in between.
    attempt.write("data.csv", "x\n5\n");
    let text = attempt.run("cat out/mean.txt; python3 script.py; rm script.py").await;
    assert!(
        text.starts_with("3.0\n")
            && text.contains("changed /out/mean.txt")
            && text.contains("deleted /script.py"),
        "{text}"
    );
    assert_eq!((attempt.read("out/mean.txt").as_deref(), attempt.read("script.py")), (Some("5.0\n"), None));
    let text = attempt.run("cat /data.csv").await;
    assert!(
        text.ends_with("[In commands the file /data.csv is data.csv, below the working folder]"),
        "{text}"
    );
    assert_eq!(attempt.run("ls").await, format!("data.csv\nout\n{GOOD}"));
}

#[tokio::test]
async fn attempts_share_no_folder_and_leave_none_behind() {
    let tool = open(ExecuteSettings::default()).await.unwrap();
    let (one, two) = (TestAttempt::new(&tool), TestAttempt::new(&tool));
    let folder = one.run("echo secret > .hidden; pwd").await;
    let folder = folder.lines().next().unwrap().to_owned();
    assert_eq!(one.run("cat .hidden").await, format!("secret\n{GOOD}"), "it is kept within the attempt");
    assert_eq!(two.run("ls -A").await, GOOD);
    assert!(!two.run(&format!("cat {folder}/.hidden")).await.contains("secret"));
    assert!(Path::new(&folder).exists());
    drop(one);
    assert!(!Path::new(&folder).exists());
}

#[tokio::test]
async fn settings_choose_between_a_folder_and_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = ExecuteSettings { folder: Some(folder.path().to_owned()), ..ExecuteSettings::default() };
    let files = AgentFiles::unrestricted(Arc::new(FolderFiles::open(folder.path()).unwrap()));
    assert!(open(in_folder.clone()).await.unwrap().for_attempt(&files).is_none());
    let both = ExecuteSettings { files: Some(ProgramFiles::default()), ..in_folder };
    let error = open(both).await.err().unwrap().to_string();
    assert!(error.contains("`folder` and `files` can't be used together"), "{error}");
    let out = ExecuteSettings {
        files: Some(serde_json::from_value(json!({"in": ["/data.csv"], "out": []})).unwrap()),
        ..ExecuteSettings::default()
    };
    let attempt = TestAttempt::new(&open(out).await.unwrap());
    attempt.write("data.csv", "x");
    attempt.write("other", "x");
    let text = attempt.run("ls; echo y > data.csv").await;
    assert_eq!(
        text,
        format!(
            "data.csv\n{GOOD}\n[Not saved: /data.csv matches no pattern of the files whose changes are saved]"
        )
    );
    assert_eq!(attempt.read("data.csv").as_deref(), Some("x"));
}
