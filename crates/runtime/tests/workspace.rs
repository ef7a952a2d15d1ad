//! Workspaces and rate limits against a real server: every version is kept, one of two concurrent writers is rejected,
//! no write happens twice, and the processes of a cluster share a rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_protocol::file::{FilePath, MAX_FILE, WriteCondition};
use millrace_protocol::ids::RunId;
use millrace_protocol::subject::{self, FileSpace};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::rate_limits::{self, ClusterRateLimiter, RateLimit};
use millrace_runtime::store::workspace::{FileAuthor, FileWriteError, RunWorkspace, WorkspaceFile};
use millrace_runtime::{Bus, ConnectionSettings, Fault};
use millrace_tests::{NatsServer, wait_for_value};

const PATIENCE: Duration = Duration::from_secs(120);

async fn connect_bus(server: &NatsServer) -> Bus {
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default())
        .await
        .expect("the cluster is created")
}

fn file_path(text: &str) -> FilePath {
    FilePath::new(text).expect(text)
}

fn open_workspace(bus: &Bus) -> RunWorkspace {
    RunWorkspace::new(bus, &RunId::new("r").expect("the name is valid"))
}

fn file_author<'a>(author: &'a str, key: &'a str) -> FileAuthor<'a> {
    FileAuthor { author, key }
}

async fn write_text(
    files: &RunWorkspace,
    at: &str,
    text: &str,
    expected: WriteCondition,
    key: &str,
) -> Result<u64, FileWriteError> {
    files.write_file(&file_path(at), text.into(), expected, file_author("task t", key)).await
}

async fn read_text_file(files: &RunWorkspace, at: &str) -> Option<WorkspaceFile> {
    files.read_file(&file_path(at)).await.expect("the server responds")
}

#[tokio::test]
async fn every_version_is_kept_and_the_last_is_current() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = open_workspace(&bus);
    let at = file_path("/notes/a b.md");
    assert_eq!(files.read_file(&at).await.expect("the server responds"), None);
    let large = "x".repeat(3_000_000);
    for (version, text) in [(1, "one"), (2, ""), (3, large.as_str())] {
        let expected =
            if version == 1 { WriteCondition::Absent } else { WriteCondition::Version(version - 1) };
        let key = format!("k{version}");
        assert_eq!(
            write_text(&files, at.as_str(), text, expected, &key).await.expect("the write succeeds"),
            version
        );
        assert_eq!(read_text_file(&files, at.as_str()).await.expect("it exists").bytes, text.as_bytes());
    }
    assert_eq!(
        files
            .delete_file(&at, WriteCondition::Version(3), file_author("task d", "k4"))
            .await
            .expect("it is deleted"),
        4
    );
    assert_eq!(files.read_file(&at).await.expect("the server responds"), None);
    assert!(files.list_files(None).await.expect("the server responds").is_empty());
    assert_eq!(
        write_text(&files, at.as_str(), "anew", WriteCondition::Absent, "k5")
            .await
            .expect("the write succeeds"),
        5
    );
    let old = |version| files.read_file_version(&at, version);
    assert_eq!(old(3).await.expect("the server responds").expect("it is kept").bytes, large.as_bytes());
    assert_eq!(old(4).await.expect("the server responds"), None, "a deletion has no content");
    assert_eq!(old(6).await.expect("the server responds"), None);
    let versions = files.list_versions(&at).await.expect("the server responds");
    let summary: Vec<_> =
        versions.iter().map(|entry| (entry.version, entry.author.as_str(), entry.is_deletion)).collect();
    assert_eq!(
        summary,
        [
            (1, "task t", false),
            (2, "task t", false),
            (3, "task t", false),
            (4, "task d", true),
            (5, "task t", false)
        ]
    );
    // Another run has its own files.
    let other = RunWorkspace::new(&bus, &RunId::new("r2").expect("the name is valid"));
    assert!(other.list_files(None).await.expect("the server responds").is_empty());
    let size = usize::try_from(MAX_FILE).expect("it fits") + 1;
    let refused = files
        .write_file(&file_path("/large"), vec![0; size], WriteCondition::Absent, file_author("t", "k"))
        .await;
    assert!(matches!(refused, Err(FileWriteError::TooLarge { .. })));
}

#[tokio::test]
async fn large_file_is_only_streamed() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = open_workspace(&bus);
    let large = file_path("/large");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(MAX_FILE + 1).expect("it is long");
    let blob = bus.blobs().put_blob_from_file(file.into()).await.expect("it is stored");
    let author = file_author("task draft", "1");
    let stored = |expected| files.write_stored_file(&large, blob.clone(), expected, author);
    assert_eq!(stored(WriteCondition::Absent).await.expect("it is written"), 1);
    assert_eq!(stored(WriteCondition::Absent).await.expect("it is the same write"), 1);
    let refused = files.read_file(&large).await.expect_err("it is too large");
    assert!(matches!(refused, Fault::TooLarge { max: MAX_FILE, .. }), "{refused}");
    let mut opened = files.open_file(&large, Some(1)).await.expect("it is opened").expect("it exists");
    let mut size = 0;
    while let Some(part) = opened.next_part().await.expect("it is read") {
        assert!(part.len() <= 128 * 1024, "a part of {} bytes", part.len());
        size += part.len() as u64;
    }
    assert_eq!((size, opened.entry.size), (MAX_FILE + 1, MAX_FILE + 1));
    // A writer who has not seen it learns its version without its content.
    let other =
        files.write_file(&large, vec![1], WriteCondition::Absent, file_author("task other", "2")).await;
    let Err(FileWriteError::Stale { current: Some(current) }) = other else { panic!("{other:?}") };
    assert_eq!((current.entry.version, current.bytes), (1, Vec::new()));
    assert!(files.open_file(&large, Some(2)).await.expect("the server responds").is_none());
}

#[tokio::test]
async fn of_concurrent_writers_one_succeeds() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = Arc::new(open_workspace(&bus));
    for round in 0..20 {
        let expected = if round == 0 { WriteCondition::Absent } else { WriteCondition::Version(round) };
        let writers = (0..8).map(|writer| {
            let files = files.clone();
            tokio::spawn(async move {
                write_text(&files, "/a", &writer.to_string(), expected, &format!("{round}.{writer}")).await
            })
        });
        let mut winners = Vec::new();
        for (number, writer) in futures::future::join_all(writers).await.into_iter().enumerate() {
            match writer.expect("the task does not panic") {
                Ok(version) => winners.push((number, version)),
                Err(FileWriteError::Stale { current: Some(current) }) => {
                    assert_eq!(current.entry.version, round + 1);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        let [(winner, version)] = winners.as_slice() else { panic!("{winners:?}") };
        assert_eq!(*version, round + 1);
        assert_eq!(
            read_text_file(&files, "/a").await.expect("it exists").bytes,
            winner.to_string().as_bytes()
        );
    }
}

#[tokio::test]
async fn write_with_the_same_key_is_idempotent() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = open_workspace(&bus);
    assert_eq!(
        write_text(&files, "/a", "mine", WriteCondition::Absent, "k").await.expect("the write succeeds"),
        1
    );
    assert_eq!(write_text(&files, "/a", "mine", WriteCondition::Absent, "k").await.expect("it exists"), 1);
    assert_eq!(
        write_text(&files, "/a", "theirs", WriteCondition::Version(1), "other")
            .await
            .expect("the write succeeds"),
        2
    );
    for expected in [WriteCondition::Absent, WriteCondition::Always, WriteCondition::Version(7)] {
        assert_eq!(write_text(&files, "/a", "mine", expected, "k").await.expect("it was there"), 1);
    }
    assert_eq!(read_text_file(&files, "/a").await.expect("it exists").bytes, b"theirs");
    assert_eq!(files.find_version_by_key(&file_path("/a"), "k").await.expect("the server responds"), Some(1));
    assert_eq!(files.find_version_by_key(&file_path("/a"), "none").await.expect("the server responds"), None);
    // Two concurrent writes of the same call, as by a lost worker and its successor, write once.
    let files = Arc::new(files);
    let twins = (0..8).map(|_| {
        let files = files.clone();
        tokio::spawn(async move { write_text(&files, "/b", "twin", WriteCondition::Absent, "twin").await })
    });
    for twin in futures::future::join_all(twins).await {
        assert_eq!(twin.expect("the task does not panic").expect("the write succeeds"), 1);
    }
    assert_eq!(files.list_versions(&file_path("/b")).await.expect("the server responds").len(), 1);
    for _ in 0..2 {
        let deleted =
            files.delete_file(&file_path("/b"), WriteCondition::Version(1), file_author("t", "d")).await;
        assert_eq!(deleted.expect("it goes, once"), 2);
    }
}

/// Publishes a message without an id to the subject of a file, like a redirected server reply.
async fn publish_forged_version(bus: &Bus, at: &str) {
    let subject =
        subject::file_subject(&FileSpace::Run(RunId::new("r").expect("the name is valid")), &file_path(at));
    let context = async_nats::jetstream::new(bus.client().clone());
    context.publish(subject, "forged".into()).await.expect("the message is sent").await.expect("it is kept");
}

#[tokio::test]
async fn forged_message_hides_no_version_and_blocks_no_write() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = open_workspace(&bus);
    write_text(&files, "/a", "one", WriteCondition::Absent, "k1").await.expect("the write succeeds");
    publish_forged_version(&bus, "/a").await;
    publish_forged_version(&bus, "/new").await;
    assert_eq!(read_text_file(&files, "/a").await.expect("it exists").bytes, b"one");
    assert_eq!(read_text_file(&files, "/new").await, None);
    let listed = files.list_files(None).await.expect("the server responds");
    assert_eq!(
        listed.iter().map(|entry| (entry.path.as_str(), entry.version)).collect::<Vec<_>>(),
        [("/a", 1)]
    );
    assert_eq!(
        files.find_version_by_key(&file_path("/a"), "k1").await.expect("the server responds"),
        Some(1)
    );
    assert_eq!(files.list_versions(&file_path("/a")).await.expect("the server responds").len(), 1);
    match write_text(&files, "/a/b", "x", WriteCondition::Absent, "k2").await {
        Err(FileWriteError::Clash { with }) => assert_eq!(with.as_str(), "/a"),
        other => panic!("{other:?}"),
    }
    let stale = write_text(&files, "/a", "x", WriteCondition::Absent, "k3").await;
    assert!(matches!(stale, Err(FileWriteError::Stale { current: Some(_) })), "{stale:?}");
    assert_eq!(
        write_text(&files, "/a", "two", WriteCondition::Version(1), "k4").await.expect("the write succeeds"),
        2
    );
    assert_eq!(
        write_text(&files, "/new", "first", WriteCondition::Absent, "k5").await.expect("the write succeeds"),
        1
    );
    publish_forged_version(&bus, "/a").await;
    assert_eq!(
        write_text(&files, "/a", "two", WriteCondition::Version(1), "k4").await.expect("it exists"),
        2
    );
    assert_eq!(
        files
            .delete_file(&file_path("/a"), WriteCondition::Version(2), file_author("t", "k6"))
            .await
            .expect("it is deleted"),
        3
    );
    publish_forged_version(&bus, "/a").await;
    assert_eq!(read_text_file(&files, "/a").await, None, "it stays deleted");
}

#[tokio::test]
async fn writes_survive_server_crashes_exactly_once() {
    let mut server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let writer = tokio::spawn({
        let files = open_workspace(&bus);
        async move {
            for number in 0..300_u64 {
                let expected =
                    if number == 0 { WriteCondition::Absent } else { WriteCondition::Version(number) };
                let key = format!("k{number}");
                let written = write_text(&files, "/a", &number.to_string(), expected, &key).await;
                assert_eq!(written.expect("the append succeeds"), number + 1);
            }
        }
    });
    let files = open_workspace(&bus);
    for part in [50, 150] {
        wait_for_value(PATIENCE, "more writes", async || {
            let current = files.read_file(&file_path("/a")).await.ok().flatten();
            (writer.is_finished() || current.is_some_and(|file| file.entry.version >= part)).then_some(())
        })
        .await;
        server.restart();
    }
    writer.await.expect("no write was lost or refused");
    let versions = files.list_versions(&file_path("/a")).await.expect("the server responds");
    assert_eq!(
        versions.iter().map(|entry| entry.version).collect::<Vec<_>>(),
        (1..=300).collect::<Vec<u64>>()
    );
}

#[tokio::test]
async fn any_number_of_files_is_listed_by_folder() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = Arc::new(open_workspace(&bus));
    // More than fit into one response of the server, in bytes and then in number.
    let text = "y".repeat(60_000);
    for (count, folder, text) in [(900, "large", text.as_str()), (1_500, "many", "x")] {
        let names: Vec<String> = (0..count).map(|number| format!("/{folder}/{number:04}.txt")).collect();
        for names in names.chunks(100) {
            let writes =
                names.iter().map(|name| write_text(&files, name, text, WriteCondition::Absent, name));
            for written in futures::future::join_all(writes).await {
                written.expect("the write succeeds");
            }
        }
        let listed = files.list_files(Some(&file_path(folder))).await.expect("the server responds");
        assert_eq!(listed.iter().map(|entry| entry.path.to_string()).collect::<Vec<_>>(), names);
    }
    assert_eq!(files.list_files(None).await.expect("the server responds").len(), 2_400);
    assert!(files.list_files(Some(&file_path("/man"))).await.expect("the server responds").is_empty());
}

#[tokio::test]
async fn any_path_is_valid_and_no_name_is_both_file_and_folder() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let files = open_workspace(&bus);
    let deep = "/".to_owned() + &vec!["d"; 255].join("/");
    let wide = "/".to_owned() + &"ä".repeat(255);
    let all =
        ["/a.b", "/a..b", "/..a", "/*", "/>", "/a b", "/$JS", "/ä.md", "/e\u{301}", "/%", "/=", &deep, &wide];
    for name in all {
        write_text(&files, name, name, WriteCondition::Absent, name).await.expect(name);
        assert_eq!(read_text_file(&files, name).await.expect("it exists").bytes, name.as_bytes());
    }
    assert_eq!(files.list_files(None).await.expect("the server responds").len(), all.len());
    for (name, with) in [("/a.b/x", "/a.b"), ("/d", deep.as_str()), ("/d/d", deep.as_str())] {
        match write_text(&files, name, "x", WriteCondition::Absent, name).await {
            Err(FileWriteError::Clash { with: found }) => assert_eq!(found.as_str(), with),
            other => panic!("{other:?}"),
        }
    }
    files
        .delete_file(&file_path("/a.b"), WriteCondition::Version(1), file_author("t", "d"))
        .await
        .expect("it is deleted");
    write_text(&files, "/a.b/x", "x", WriteCondition::Absent, "now")
        .await
        .expect("nothing is in the way any more");
}

fn rate_limit(requests: Option<u64>, tokens: Option<u64>) -> RateLimit {
    RateLimit { requests, tokens }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_a_cluster_share_a_rate() {
    let server = NatsServer::start();
    let first = connect_bus(&server).await;
    let rate = 1_200;
    rate_limits::set_limit(
        &first,
        &"test:m".parse().expect("the name is valid"),
        rate_limit(Some(rate), None),
    )
    .await
    .expect("the limit is set");
    let (count, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let run_time = Duration::from_secs(3);
    let mut requests = Vec::new();
    for _ in 0..3 {
        // A connection of its own, as another process has.
        let limiter = ClusterRateLimiter::new(&connect_bus(&server).await);
        for _ in 0..100 {
            let (limiter, count) = (limiter.clone(), count.clone());
            requests.push(tokio::spawn(async move {
                loop {
                    let left = run_time.saturating_sub(started.elapsed());
                    match limiter.admit_request("test:m", 10, left).await {
                        Ok(()) if started.elapsed() < run_time => count.fetch_add(1, Ordering::Relaxed),
                        Ok(()) | Err(_) => return,
                    };
                }
            }));
        }
    }
    for request in requests {
        request.await.expect("the task does not panic");
    }
    let (count, most) = (count.load(Ordering::Relaxed), rate / 10 + rate * 3 / 60 + 1);
    assert!(count <= most, "{count} admitted, at most {most} allowed");
    assert!(count * 10 >= most * 8, "{count} admitted, although {most} are allowed");
    let status = rate_limits::read_rate_limit_statuses(&first).await.expect("the server responds");
    assert_eq!(status.len(), 1);
    assert!(status[0].requests >= count && status[0].tokens >= count * 10, "{status:?}");
}

#[tokio::test]
async fn pause_holds_for_all_processes() {
    let server = NatsServer::start();
    let (one, two) = (
        ClusterRateLimiter::new(&connect_bus(&server).await),
        ClusterRateLimiter::new(&connect_bus(&server).await),
    );
    let bus = connect_bus(&server).await;
    let now = Duration::ZERO;
    for (model, limit) in [("test:free", None), ("test:limited", Some(rate_limit(Some(6_000), None)))] {
        if let Some(limit) = limit {
            rate_limits::set_limit(&bus, &model.parse().expect("the name is valid"), limit)
                .await
                .expect("the limit is set");
        }
        wait_for_value(PATIENCE, "both let go", async || {
            (one.admit_request(model, 1, now).await.is_ok() && two.admit_request(model, 1, now).await.is_ok())
                .then_some(())
        })
        .await;
        one.pause_model(model, Duration::from_secs(3)).await;
        let wait = one.admit_request(model, 1, now).await.expect_err("it knows at once");
        assert!(wait > Duration::from_secs(2) && wait <= Duration::from_secs(3), "{wait:?}");
        wait_for_value(Duration::from_millis(1_500), "the other knows it within a second", async || {
            two.admit_request(model, 1, now).await.err()
        })
        .await;
        let statuses = rate_limits::read_rate_limit_statuses(&bus).await.expect("the server responds");
        assert!(statuses.iter().any(|status| status.name == model && status.paused_until.is_some()));
        two.admit_request(model, 1, Duration::from_secs(10)).await.expect("it goes when the pause is over");
    }
}

#[tokio::test]
async fn shorter_pause_within_a_longer_one_returns_at_once() {
    let server = NatsServer::start();
    let limiter = ClusterRateLimiter::new(&connect_bus(&server).await);
    limiter.pause_model("test:m", Duration::from_secs(60)).await;
    let shorter = limiter.pause_model("test:m", Duration::from_secs(30));
    tokio::time::timeout(Duration::from_secs(5), shorter).await.expect("there is nothing to wait for");
    let wait = limiter.admit_request("test:m", 1, Duration::ZERO).await.expect_err("the longer one holds");
    assert!(wait > Duration::from_secs(30), "{wait:?}");
    // A pause ends for all processes, and only once.
    let other = ClusterRateLimiter::new(&connect_bus(&server).await);
    other.admit_request("test:m", 1, Duration::ZERO).await.expect_err("it holds for all");
    limiter.end_pause("test:m").await;
    limiter.admit_request("test:m", 1, Duration::ZERO).await.expect("it knows at once");
    wait_for_value(PATIENCE, "the other knows it soon", async || {
        other.admit_request("test:m", 1, Duration::ZERO).await.ok()
    })
    .await;
    limiter.pause_model("test:m", Duration::from_secs(60)).await;
    limiter.admit_request("test:m", 1, Duration::ZERO).await.expect_err("a later pause holds again");
}

#[tokio::test]
async fn tokens_are_booked_corrected_and_returned() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let name = |text: &str| text.parse().expect("the name is valid");
    rate_limits::set_limit(&bus, &name("test:*"), rate_limit(None, Some(60_000)))
        .await
        .expect("the limit is set");
    rate_limits::set_limit(&bus, &name("test:m"), rate_limit(Some(10), None))
        .await
        .expect("the limit is set");
    let limiter = ClusterRateLimiter::new(&bus);
    limiter.admit_request("test:m", 6_000, Duration::ZERO).await.expect("a burst");
    let wait = limiter
        .admit_request("test:other", 5_000, Duration::ZERO)
        .await
        .expect_err("the provider's rate is used");
    assert!(wait > Duration::from_secs(3) && wait <= Duration::from_secs(5), "{wait:?}");
    // It used hardly any tokens: others are admitted.
    limiter.correct_booked_tokens("test:m", 6_000, 10).await;
    wait_for_value(PATIENCE, "the tokens are returned", async || {
        limiter.admit_request("test:other", 5_000, Duration::ZERO).await.ok()
    })
    .await;
    // The limit of the model rejects the request; the booking on the limit of the provider is cancelled.
    let before = read_used_tokens(&bus).await;
    limiter.admit_request("test:m", 50, Duration::ZERO).await.expect_err("one request in six seconds");
    wait_for_value(PATIENCE, "the tokens are returned", async || {
        (read_used_tokens(&bus).await <= before).then_some(())
    })
    .await;
    // Later requests wait for usage beyond the booking.
    limiter.correct_booked_tokens("test:m", 0, 30_000).await;
    wait_for_value(PATIENCE, "the debt is recorded", async || {
        let wait = limiter.admit_request("test:other", 1, Duration::ZERO).await.err()?;
        (wait > Duration::from_secs(20)).then_some(())
    })
    .await;
    assert!(rate_limits::has_limit(&bus, &name("test:*")).await.expect("the server responds"));
    rate_limits::remove_limit(&bus, &name("test:*")).await.expect("the server responds");
    wait_for_value(PATIENCE, "the limit is removed", async || {
        limiter.admit_request("test:other", 99_999, Duration::ZERO).await.ok()
    })
    .await;
    assert!(!rate_limits::has_limit(&bus, &name("test:*")).await.expect("the server responds"));
}

async fn read_used_tokens(bus: &Bus) -> u64 {
    let statuses = rate_limits::read_rate_limit_statuses(bus).await.expect("the server responds");
    statuses.iter().find(|status| status.name == "test:*").map_or(0, |status| status.tokens)
}

#[tokio::test]
async fn rollups_are_rejected_in_buckets() {
    let server = NatsServer::start();
    let first = connect_bus(&server).await;
    let context = async_nats::jetstream::new(first.client().clone());
    rate_limits::set_limit(&first, &"test:m".parse().expect("the name is valid"), rate_limit(Some(1), None))
        .await
        .expect("the limit is set");
    let all = async || {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Rollup", "all");
        let sent = context.publish_with_headers("$KV.limits.state.x", headers, "{}".into()).await;
        sent.expect("the message is sent").await
    };
    assert!(all().await.is_err_and(|error| error.to_string().contains("rollup not permitted")));
    assert_eq!(rate_limits::read_rate_limit_statuses(&first).await.expect("the server responds").len(), 1);
    let blobs = context.get_stream("OBJ_blobs").await.expect("it exists");
    assert!(!blobs.cached_info().config.allow_rollup, "nor do blobs");
}

#[tokio::test]
async fn streams_have_a_maximum_message_size() {
    let server = NatsServer::start();
    let first = connect_bus(&server).await;
    let context = async_nats::jetstream::new(first.client().clone());
    let config =
        async |name: &str| context.get_stream(name).await.expect("it exists").cached_info().config.clone();
    for name in ["LANE_0", "WORK", "FILES", "OBJ_blobs"] {
        let max = config(name).await.max_message_size;
        assert!(max > 256 * 1024 || (name == "OBJ_blobs" && max > 128 * 1024), "{name}: {max}");
    }
    let too_large =
        context.publish("files.r.a", vec![0; 400_000].into()).await.expect("the message is sent").await;
    assert!(too_large.is_err_and(|error| error.to_string().contains("maximum")));
}
