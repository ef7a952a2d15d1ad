//! Capabilities of the kind `command` that work on the files of the run, against a real NATS server.
use crate::support::{Cluster, build_order};
use millrace_protocol::file::{FilePath, WriteCondition};
use millrace_protocol::ids::WorkerId;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::Order;
use millrace_runtime::log::journal::{ClaimResult, Journal};
use millrace_runtime::store::workspace::{FileAuthor, RunWorkspace};
use millrace_tests::program::run_in_own_process;
use millrace_worker::{AgentHostConfig, CancellationToken, WorkerConfig, file, run_worker};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A worker that offers the capability of a file until the token is cancelled.
async fn start_worker(
    cluster: &Cluster,
    folder: &TempDir,
    text: &str,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let path = folder.path().join("own.yaml");
    std::fs::write(&path, text).unwrap();
    let offered = file::open_capability_by_name(path.to_str().unwrap()).await.unwrap();
    let host = AgentHostConfig {
        id: Some(WorkerId::new("next").unwrap()),
        document_cache: None,
        ..AgentHostConfig::new(cluster.connection())
    };
    let stop = CancellationToken::new();
    let running = run_worker(WorkerConfig { capabilities: vec![offered], host }, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

async fn store(workspace: &RunWorkspace, at: &str, text: &str) {
    let author = FileAuthor { author: "someone", key: at };
    workspace.write_file(&path(at), text.into(), WriteCondition::Absent, author).await.unwrap();
}

async fn read(workspace: &RunWorkspace, at: &str) -> Option<(u64, String)> {
    let file = workspace.read_file(&path(at)).await.unwrap()?;
    Some((file.entry.version, String::from_utf8(file.bytes).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn program_works_on_the_files_of_the_run() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sum.sh"), "cat > /dev/null; cat data/* > out/sum.txt; ls; rm data/b")
        .unwrap();
    let text = "{kind: command, name: own, description: x, effect: pure, command: [sh, ./sum.sh], \
                files: {in: [/data, /out], out: [/out]}}";
    let order = build_order("own", "files", json!({}));
    let workspace = RunWorkspace::new(&cluster.bus, &order.run);
    for (at, text) in [("/data/a", "1\n"), ("/data/b", "2\n"), ("/out/old", "x"), ("/secret", "no")] {
        store(&workspace, at, text).await;
    }
    let (stop, done) = start_worker(&cluster, &folder, text).await;
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.output, "data\nout", "{result:?}");
    let made: Vec<(&str, u64, u64)> = result
        .artifacts
        .iter()
        .map(|artifact| (artifact.path.as_str(), artifact.version, artifact.bytes))
        .collect();
    assert_eq!(made, [("/out/sum.txt", 1, 4)]);
    assert_eq!(result.artifacts[0].sha256.len(), 64);
    assert_eq!(read(&workspace, "/out/sum.txt").await, Some((1, "1\n2\n".into())));
    assert_eq!(read(&workspace, "/data/b").await, Some((1, "2\n".into())), "its changes are not kept");
    let notes = result.notes.unwrap();
    assert_eq!(notes, "[Not saved: /data/b matches no pattern of the files whose changes are saved]");
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_in_files_of_a_program_are_not_kept() {
    const SECRET: &str = "planted-4f9a81c07b";

    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = "cat > /dev/null; printf 'a %s b' \"${1#--token=}\" > plain.txt; echo none > other.txt; echo x > \"in-${1#--token=}.txt\"
        { head -c 40000000 /dev/zero; printf %s \"${1#--token=}\"; echo; } > large.bin; echo done";
    std::fs::write(folder.path().join("tell.sh"), script).unwrap();
    let text = format!(
        "{{kind: command, name: own, description: x, effect: pure, command: [sh, ./tell.sh, --token={SECRET}], files: {{}}}}"
    );
    let order = build_order("own", "secrets", json!({}));
    let workspace = RunWorkspace::new(&cluster.bus, &order.run);
    let (stop, done) = start_worker(&cluster, &folder, &text).await;
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(read(&workspace, "/plain.txt").await, Some((1, "a [hidden] b".into())), "{result:?}");
    assert_eq!(read(&workspace, "/other.txt").await, Some((1, "none\n".into())));
    assert_eq!(read(&workspace, "/large.bin").await, None);
    let [_, plain] = result.artifacts.as_slice() else { panic!("{result:?}") };
    assert_eq!((plain.path.as_str(), plain.bytes), ("/plain.txt", 12));
    let notes = result.notes.unwrap();
    assert!(
        notes.contains("a secret of the worker in /plain.txt")
            && notes.contains("/large.bin contains a secret")
            && notes.contains("/in-[hidden].txt has a secret of the worker in its name"),
        "{notes}"
    );
    stop.cancel();
    done.await.unwrap();
}

/// The peak of this process's memory in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_exchange_files_that_are_larger_than_the_memory_for_them() {
    let name = "::programs_exchange_files_that_are_larger_than_the_memory_for_them";
    if run_in_own_process(&format!("{}{name}", module_path!())) {
        return;
    }
    const SIZE: u64 = 160 * 1024 * 1024;

    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    // The first attempt makes the file, the second one gets it.
    let script = format!(
        "cat > /dev/null; if [ -e big ]; then wc -c < big; else head -c {SIZE} /dev/zero > big; echo made; fi"
    );
    std::fs::write(folder.path().join("big.sh"), script).unwrap();
    let text = "{kind: command, name: own, description: x, effect: pure, command: [sh, ./big.sh], files: {}}";
    let make = build_order("own", "large", json!({}));
    let (stop, done) = start_worker(&cluster, &folder, text).await;
    let before = peak_memory();
    cluster.publish_order(&make).await;
    let (_, result) = cluster.await_result(&make).await;
    assert_eq!(result.output, "made", "{result:?}");
    let [made] = result.artifacts.as_slice() else { panic!("{result:?}") };
    assert_eq!((made.path.as_str(), made.bytes), ("/big", SIZE));
    let use_it = build_order("own", "use", json!({}));
    cluster.publish_order(&use_it).await;
    let (_, result) = cluster.await_result(&use_it).await;
    assert_eq!(result.output, SIZE.to_string(), "{result:?}");
    let grown = peak_memory() - before;
    assert!(grown < SIZE / 2, "{grown} bytes of memory for a file of {SIZE}");
    stop.cancel();
    done.await.unwrap();
}

/// Records that a worker has run the program and was lost before it wrote the files.
async fn lose_worker_after_program(cluster: &Cluster, order: &Order) {
    let claimed =
        Journal::claim_work(&cluster.bus, order, &WorkerId::new("lost").unwrap(), None).await.unwrap();
    let ClaimResult::Acquired(mut journal) = claimed else { panic!("another worker has the work") };
    let large = "x".repeat(300_000);
    let stored = cluster.bus.blobs().store_if_large(large.into_bytes()).await.unwrap();
    let content = |size: u64, bytes: Value| json!({"size": size, "sha256": "of the test", "bytes": bytes});
    let changes = json!([
        {"path": "/large", "content": content(300_000, json!({"bytes": stored}))},
        {"path": "/old", "base": 1},
        {"path": "/seen", "base": 1, "content": content(3, json!({"text": "new"}))},
    ]);
    let step = json!({"output": "it ran", "changes": {"changes": changes}});
    for (name, value) in [("begin", Value::Null), ("files.0", step)] {
        let bytes = serde_json::to_vec(&value).unwrap();
        journal.append_step(name.to_owned(), InlineOrStoredBytes::Inline(bytes.into())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_lost_program_are_written_once() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{kind: command, name: own, description: x, command: [sh, -c, 'echo ran again'], files: {}}";
    let order = build_order("own", "lost", json!({}));
    let workspace = RunWorkspace::new(&cluster.bus, &order.run);
    store(&workspace, "/old", "old").await;
    store(&workspace, "/seen", "seen").await;
    cluster.publish_order(&order).await;
    lose_worker_after_program(&cluster, &order).await;
    // The lost worker had written one of the files.
    let author = FileAuthor { author: "task lost", key: "r/lost/1" };
    workspace.write_file(&path("/seen"), "new".into(), WriteCondition::Version(1), author).await.unwrap();
    let (stop, done) = start_worker(&cluster, &folder, text).await;
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.output, "it ran", "the program did not run again");
    let made: Vec<(&str, u64)> =
        result.artifacts.iter().map(|artifact| (artifact.path.as_str(), artifact.version)).collect();
    assert_eq!(made, [("/large", 1), ("/seen", 2)]);
    assert_eq!(read(&workspace, "/seen").await, Some((2, "new".into())));
    assert_eq!(read(&workspace, "/large").await.unwrap().1.len(), 300_000);
    assert_eq!(read(&workspace, "/old").await, None);
    assert_eq!(workspace.list_versions(&path("/seen")).await.unwrap().len(), 2);
    stop.cancel();
    done.await.unwrap();
}
