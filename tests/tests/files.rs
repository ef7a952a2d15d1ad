//! The commands for a run's files and for rate limits of models, against a real server: `millrace files` and `millrace
//! limits`.

use std::path::Path;
use std::process::{Command, Output};

use millrace_protocol::file::{FilePath, MAX_FILE, WriteCondition};
use millrace_protocol::ids::RunId;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::archive;
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_runtime::{Bus, ConnectionSettings, log};
use millrace_tests::NatsServer;
use millrace_tests::plans::{echo_task, fixed_submission, submit_run};
use millrace_tests::program::millrace_program;

async fn connect_bus(server: &NatsServer) -> Bus {
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default())
        .await
        .expect("the cluster is made")
}

/// A run with a few files, one of them deleted.
async fn create_run_with_files(bus: &Bus) -> RunId {
    let run = RunId::new("20261122-000000-aaaaaa").expect("it is a name");
    let submission = fixed_submission(vec![echo_task("draft", &serde_json::Value::Null)]);
    submit_run(bus, &run, &submission).await;
    let files = RunWorkspace::new(bus, &run);
    for (number, (path, text)) in
        [("/report.md", "old"), ("/report.md", "new\n"), ("/data/a.csv", "1,2"), ("/gone", "x")]
            .iter()
            .enumerate()
    {
        let path = FilePath::new(path).expect("it is a path");
        let writer = FileAuthor { author: "task draft", key: &number.to_string() };
        files
            .write_file(&path, text.as_bytes().into(), WriteCondition::Always, writer)
            .await
            .expect("it is written");
    }
    let gone = FilePath::new("/gone").expect("it is a path");
    let writer = FileAuthor { author: "task tidy", key: "d" };
    files.delete_file(&gone, WriteCondition::Version(1), writer).await.expect("it goes");
    run
}

fn run_millrace(server: &NatsServer, arguments: &[&str]) -> Output {
    let mut command = Command::new(millrace_program());
    command.args(arguments).args(["--nats", &server.url]).env_remove("MILLRACE_DATA");
    command.output().expect("the program starts")
}

/// The output of a command that must succeed.
fn run_and_read_stdout(server: &NatsServer, arguments: &[&str]) -> String {
    let output = run_millrace(server, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

/// The error of a command that must reject its input.
fn run_and_read_refusal(server: &NatsServer, arguments: &[&str]) -> String {
    let output = run_millrace(server, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).expect("it is text")
}

fn read_text_file(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[tokio::test]
async fn files_can_be_listed_shown_and_fetched_during_and_after_a_run() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let id = create_run_with_files(&bus).await;
    let run = id.as_str();
    for is_over in [false, true] {
        if is_over {
            let lane = bus.lane_of_run(&id);
            let span = archive::archive_run(&bus, lane, &id, 1, 0).await.expect("it is archived");
            log::purge_run(&bus, lane, &id, span.last).await.expect("it is removed");
        }
        let listed = run_and_read_stdout(&server, &["files", run]);
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 2, "{listed}");
        assert_eq!(lines[0][..5], ["/data/a.csv", "3", "v1", "task", "draft"]);
        assert_eq!(lines[1][..5], ["/report.md", "4", "v2", "task", "draft"]);
        assert!(run_and_read_stdout(&server, &["files", run, "/data"]).starts_with("/data/a.csv"));
        assert_eq!(run_and_read_stdout(&server, &["files", run, "report.md"]), "new\n");
        assert_eq!(run_and_read_stdout(&server, &["files", run, "/report.md", "--version", "1"]), "old");
        assert_eq!(run_and_read_stdout(&server, &["files", run, "/report.md", "--list"]).lines().count(), 2);
        let described: serde_json::Value =
            serde_json::from_str(&run_and_read_stdout(&server, &["files", run, "/report.md", "--json"]))
                .expect("it is JSON");
        assert_eq!((&described["version"], &described["text"]), (&2.into(), &"new\n".into()));
        let folder = tempfile::tempdir().expect("a folder");
        let (all, one) = (folder.path().join("all"), folder.path().join("one.md"));
        run_and_read_stdout(&server, &["files", run, "--output", all.to_str().expect("it is text")]);
        assert_eq!(
            (read_text_file(&all, "report.md"), read_text_file(&all, "data/a.csv")),
            ("new\n".into(), "1,2".into())
        );
        run_and_read_stdout(
            &server,
            &["files", run, "/report.md", "--output", one.to_str().expect("it is text")],
        );
        assert_eq!(read_text_file(folder.path(), "one.md"), "new\n");
    }
    for (arguments, told) in [
        (vec!["files", run, "/reprot.md"], "has no file /reprot.md; did you mean /report.md?"),
        (
            vec!["files", run, "/gone"],
            "/gone of run 20261122-000000-aaaaaa was deleted by task tidy with version 2",
        ),
        (vec!["files", run, "/gone", "--version", "2"], "version 2 of /gone is a deletion"),
        (
            vec!["files", run, "/report.md", "--version", "9"],
            "/report.md has no version 9; it has versions 1 to 2",
        ),
        (vec!["files", run, "../x"], "'.' and '..' are not allowed as parts"),
        (vec!["files", "none"], "no run \"none\""),
    ] {
        let error = run_and_read_refusal(&server, &arguments);
        assert!(error.contains(told), "{error}");
    }
}

#[tokio::test]
async fn large_file_is_downloaded_and_never_shown() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let id = create_run_with_files(&bus).await;
    let size = MAX_FILE + 70_000;
    let file = tempfile::tempfile().expect("a file");
    file.set_len(size).expect("it is long");
    let blob = bus.blobs().put_blob_from_file(file.into()).await.expect("it is stored");
    let (path, writer) =
        (FilePath::new("/large").expect("a path"), FileAuthor { author: "task x", key: "l" });
    let workspace = RunWorkspace::new(&bus, &id);
    let written = workspace.write_stored_file(&path, blob, WriteCondition::Absent, writer).await;
    assert_eq!(written.expect("it is written"), 1);
    let folder = tempfile::tempdir().expect("a folder");
    let (all, one) = (folder.path().join("all"), folder.path().join("one"));
    let download = |arguments: &[&str], to: &Path| {
        let to = to.to_str().expect("it is text");
        run_and_read_stdout(&server, &[&["files", id.as_str()], arguments, &["--output", to]].concat())
    };
    download(&[], &all);
    download(&["/large"], &one);
    for place in [all.join("large"), one] {
        assert_eq!(place.metadata().expect("it was written").len(), size);
    }
    let piped = run_millrace(&server, &["files", id.as_str(), "/large"]).stdout;
    assert_eq!(piped.len() as u64, size);
    let described = run_and_read_stdout(&server, &["files", id.as_str(), "/large", "--json"]);
    let described: serde_json::Value = serde_json::from_str(&described).expect("it is JSON");
    assert_eq!((&described["bytes"], &described["text"]), (&size.into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn limits_can_be_set_shown_and_cleared() {
    let server = NatsServer::start();
    let _bus = connect_bus(&server).await;
    assert_eq!(run_and_read_stdout(&server, &["limits"]), "");
    run_and_read_stdout(&server, &["limits", "set", "openai:gpt-x", "--requests", "60"]);
    run_and_read_stdout(&server, &["limits", "set", "openai:*", "--tokens", "100000"]);
    let shown = run_and_read_stdout(&server, &["limits"]);
    assert!(
        shown.contains("openai:gpt-x") && shown.contains("requests 0 of 60 per minute, 60 left"),
        "{shown}"
    );
    assert!(shown.contains("tokens 0 of 100000 per minute, 100000 left"), "{shown}");
    let first = run_and_read_stdout(&server, &["limits", "--json"]);
    let described: serde_json::Value =
        serde_json::from_str(first.lines().next().expect("a line")).expect("it is JSON");
    assert_eq!(described["tokens"]["left"], 100_000);
    run_and_read_stdout(&server, &["limits", "clear", "openai:gpt-x"]);
    assert!(!run_and_read_stdout(&server, &["limits"]).contains("gpt-x"));
    assert!(run_and_read_refusal(&server, &["limits", "clear", "openai:gpt-x"]).contains("has no limit"));
    for bad in [
        vec!["set", "gpt-x", "--requests", "1"],
        vec!["set", "openai:x"],
        vec!["set", "a:b", "--tokens", "0"],
    ] {
        run_and_read_refusal(&server, &[vec!["limits"], bad].concat());
    }
}
