//! The commands that show what runs have written and how fast models may be asked, against a real server: `millrace
//! files` and `millrace limits`.

use std::path::Path;
use std::process::{Command, Output};

use millrace_protocol::file::{Expected, FilePath};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Control;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::append;
use millrace_runtime::topology::Wanted;
use millrace_runtime::workspace::{Workspace, Writer};
use millrace_runtime::{Bus, Connection, archive, log};
use millrace_tests::NatsServer;
use millrace_tests::program::millrace;

async fn bus(server: &NatsServer) -> Bus {
    let connection = Connection::open(server.url.clone());
    Bus::connect(&connection, "test", &Wanted::default()).await.expect("the cluster is made")
}

/// A run with a few files, one of them deleted.
async fn run(bus: &Bus) -> RunId {
    let run = RunId::new("20261122-000000-aaaaaa").expect("it is a name");
    let wish = Control::CancelRun { reason: "x".into() };
    append(bus, bus.lane(&run), &run, &Topic::Control, &wish, 0).await.expect("it is written");
    let files = Workspace::new(bus, &run);
    for (number, (path, text)) in
        [("/report.md", "old"), ("/report.md", "new\n"), ("/data/a.csv", "1,2"), ("/gone", "x")]
            .iter()
            .enumerate()
    {
        let path = FilePath::new(path).expect("it is a path");
        let writer = Writer { author: "task draft", key: &number.to_string() };
        files.write(&path, text.as_bytes().into(), Expected::Anything, writer).await.expect("it is written");
    }
    let gone = FilePath::new("/gone").expect("it is a path");
    let writer = Writer { author: "task tidy", key: "d" };
    files.delete(&gone, Expected::Version(1), writer).await.expect("it goes");
    run
}

fn command(server: &NatsServer, arguments: &[&str]) -> Output {
    let mut command = Command::new(millrace());
    command.args(arguments).args(["--nats", &server.url]).env_remove("MILLRACE_DATA");
    command.output().expect("the program starts")
}

/// What a command prints, if it ends well.
fn printed(server: &NatsServer, arguments: &[&str]) -> String {
    let done = command(server, arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it is text")
}

/// What a command says that refuses its input.
fn refused(server: &NatsServer, arguments: &[&str]) -> String {
    let done = command(server, arguments);
    assert_eq!(done.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(done.stderr).expect("it is text")
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[tokio::test]
async fn the_files_of_a_run_are_listed_shown_and_fetched_while_it_lives_and_when_it_is_over() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let id = run(&bus).await;
    let run = id.as_str();
    for is_over in [false, true] {
        if is_over {
            let lane = bus.lane(&id);
            let last = archive::write(&bus, lane, &id, 1).await.expect("it is archived");
            log::purge_run(&bus, lane, &id, last).await.expect("it is removed");
        }
        let listed = printed(&server, &["files", run]);
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 2, "{listed}");
        assert_eq!(lines[0][..5], ["/data/a.csv", "3", "v1", "task", "draft"]);
        assert_eq!(lines[1][..5], ["/report.md", "4", "v2", "task", "draft"]);
        assert!(printed(&server, &["files", run, "/data"]).starts_with("/data/a.csv"));
        assert_eq!(printed(&server, &["files", run, "report.md"]), "new\n");
        assert_eq!(printed(&server, &["files", run, "/report.md", "--version", "1"]), "old");
        assert_eq!(printed(&server, &["files", run, "/report.md", "--list"]).lines().count(), 2);
        let described: serde_json::Value =
            serde_json::from_str(&printed(&server, &["files", run, "/report.md", "--json"]))
                .expect("it is JSON");
        assert_eq!((&described["version"], &described["text"]), (&2.into(), &"new\n".into()));
        let folder = tempfile::tempdir().expect("a folder");
        let (all, one) = (folder.path().join("all"), folder.path().join("one.md"));
        printed(&server, &["files", run, "--output", all.to_str().expect("it is text")]);
        assert_eq!((read(&all, "report.md"), read(&all, "data/a.csv")), ("new\n".into(), "1,2".into()));
        printed(&server, &["files", run, "/report.md", "--output", one.to_str().expect("it is text")]);
        assert_eq!(read(folder.path(), "one.md"), "new\n");
    }
    for (arguments, told) in [
        (vec!["files", run, "/reprot.md"], "has no file /reprot.md; did you mean /report.md?"),
        (
            vec!["files", run, "/gone"],
            "/gone of run 20261122-000000-aaaaaa was deleted by task tidy with version 2",
        ),
        (vec!["files", run, "/gone", "--version", "2"], "version 2 of /gone is its deletion"),
        (vec!["files", run, "/report.md", "--version", "9"], "/report.md has no version 9; it has 1 to 2"),
        (vec!["files", run, "../x"], "'.' and '..' are not allowed as parts"),
        (vec!["files", "none"], "there is no run \"none\""),
    ] {
        let said = refused(&server, &arguments);
        assert!(said.contains(told), "{said}");
    }
}

#[tokio::test]
async fn limits_are_set_shown_and_lifted() {
    let server = NatsServer::start();
    let _bus = bus(&server).await;
    assert_eq!(printed(&server, &["limits"]), "");
    printed(&server, &["limits", "set", "openai:gpt-x", "--requests", "60"]);
    printed(&server, &["limits", "set", "openai:*", "--tokens", "100000"]);
    let shown = printed(&server, &["limits"]);
    assert!(
        shown.contains("openai:gpt-x") && shown.contains("requests 0 of 60 a minute, 60 left"),
        "{shown}"
    );
    assert!(shown.contains("tokens 0 of 100000 a minute, 100000 left"), "{shown}");
    let first = printed(&server, &["limits", "--json"]);
    let described: serde_json::Value =
        serde_json::from_str(first.lines().next().expect("a line")).expect("it is JSON");
    assert_eq!(described["tokens"]["headroom"], 100_000);
    printed(&server, &["limits", "clear", "openai:gpt-x"]);
    assert!(!printed(&server, &["limits"]).contains("gpt-x"));
    assert!(refused(&server, &["limits", "clear", "openai:gpt-x"]).contains("has no limit"));
    for bad in [
        vec!["set", "gpt-x", "--requests", "1"],
        vec!["set", "openai:x"],
        vec!["set", "a:b", "--tokens", "0"],
    ] {
        refused(&server, &[vec!["limits"], bad].concat());
    }
}
