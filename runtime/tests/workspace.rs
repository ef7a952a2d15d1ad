//! The workspace and the limits against a real server: every version is kept, of two writers one is refused, nothing is
//! written twice, and the processes of a cluster together keep to a rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_protocol::file::{Expected, FilePath, MAX_FILE};
use millrace_protocol::ids::RunId;
use millrace_protocol::subject;
use millrace_runtime::limits::{self, Allowed, Limiter};
use millrace_runtime::topology::{FILES, LIMITS, Wanted};
use millrace_runtime::workspace::{File, Workspace, WriteError, Writer};
use millrace_runtime::{Bus, Connection};
use millrace_tests::{NatsServer, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

async fn bus(server: &NatsServer) -> Bus {
    let connection = Connection::open(server.url.clone());
    Bus::connect(&connection, "test", &Wanted::default()).await.expect("the cluster is made")
}

fn path(text: &str) -> FilePath {
    FilePath::new(text).expect(text)
}

fn workspace(bus: &Bus) -> Workspace {
    Workspace::new(bus, &RunId::new("r").expect("it is a name"))
}

fn by<'a>(author: &'a str, key: &'a str) -> Writer<'a> {
    Writer { author, key }
}

async fn write(
    files: &Workspace,
    at: &str,
    text: &str,
    expected: Expected,
    key: &str,
) -> Result<u64, WriteError> {
    files.write(&path(at), text.into(), expected, by("task t", key)).await
}

async fn read(files: &Workspace, at: &str) -> Option<File> {
    files.read(&path(at)).await.expect("it answers")
}

#[tokio::test]
async fn every_version_of_a_file_is_kept_and_the_last_one_counts() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = workspace(&bus);
    let at = path("/notes/a b.md");
    assert_eq!(files.read(&at).await.expect("it answers"), None);
    let large = "x".repeat(3_000_000);
    for (version, text) in [(1, "one"), (2, ""), (3, large.as_str())] {
        let expected = if version == 1 { Expected::Nothing } else { Expected::Version(version - 1) };
        let key = format!("k{version}");
        assert_eq!(write(&files, at.as_str(), text, expected, &key).await.expect("it is written"), version);
        assert_eq!(read(&files, at.as_str()).await.expect("it is there").bytes, text.as_bytes());
    }
    assert_eq!(files.delete(&at, Expected::Version(3), by("task d", "k4")).await.expect("it goes"), 4);
    assert_eq!(files.read(&at).await.expect("it answers"), None);
    assert!(files.list(None).await.expect("it answers").is_empty());
    assert_eq!(write(&files, at.as_str(), "anew", Expected::Nothing, "k5").await.expect("it is written"), 5);
    let old = |version| files.read_version(&at, version);
    assert_eq!(old(3).await.expect("it answers").expect("it is kept").bytes, large.as_bytes());
    assert_eq!(old(4).await.expect("it answers"), None, "a deletion has no content");
    assert_eq!(old(6).await.expect("it answers"), None);
    let versions = files.versions(&at).await.expect("it answers");
    let told: Vec<_> =
        versions.iter().map(|entry| (entry.version, entry.author.as_str(), entry.is_deletion)).collect();
    assert_eq!(
        told,
        [
            (1, "task t", false),
            (2, "task t", false),
            (3, "task t", false),
            (4, "task d", true),
            (5, "task t", false)
        ]
    );
    // Another run has files of its own.
    let other = Workspace::new(&bus, &RunId::new("r2").expect("it is a name"));
    assert!(other.list(None).await.expect("it answers").is_empty());
    let size = usize::try_from(MAX_FILE).expect("it fits") + 1;
    let refused = files.write(&path("/large"), vec![0; size], Expected::Nothing, by("t", "k")).await;
    assert!(matches!(refused, Err(WriteError::TooLarge { .. })));
}

#[tokio::test]
async fn of_writers_who_know_the_same_version_one_gets_through() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = Arc::new(workspace(&bus));
    for round in 0..20 {
        let expected = if round == 0 { Expected::Nothing } else { Expected::Version(round) };
        let writers = (0..8).map(|writer| {
            let files = files.clone();
            tokio::spawn(async move {
                write(&files, "/a", &writer.to_string(), expected, &format!("{round}.{writer}")).await
            })
        });
        let mut winners = Vec::new();
        for (number, writer) in futures::future::join_all(writers).await.into_iter().enumerate() {
            match writer.expect("it does not panic") {
                Ok(version) => winners.push((number, version)),
                Err(WriteError::Stale { current: Some(current) }) => {
                    assert_eq!(current.entry.version, round + 1);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        let [(winner, version)] = winners.as_slice() else { panic!("{winners:?}") };
        assert_eq!(*version, round + 1);
        assert_eq!(read(&files, "/a").await.expect("it is there").bytes, winner.to_string().as_bytes());
    }
}

#[tokio::test]
async fn the_same_key_again_is_the_same_write_whatever_came_after_it() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = workspace(&bus);
    assert_eq!(write(&files, "/a", "mine", Expected::Nothing, "k").await.expect("it is written"), 1);
    assert_eq!(write(&files, "/a", "mine", Expected::Nothing, "k").await.expect("it is there"), 1);
    assert_eq!(write(&files, "/a", "theirs", Expected::Version(1), "other").await.expect("it is written"), 2);
    for expected in [Expected::Nothing, Expected::Anything, Expected::Version(7)] {
        assert_eq!(write(&files, "/a", "mine", expected, "k").await.expect("it was there"), 1);
    }
    assert_eq!(read(&files, "/a").await.expect("it is there").bytes, b"theirs");
    assert_eq!(files.made(&path("/a"), "k").await.expect("it answers"), Some(1));
    assert_eq!(files.made(&path("/a"), "none").await.expect("it answers"), None);
    // Two that run the same call at once, as a worker that was given up and its successor, write once.
    let files = Arc::new(files);
    let twins = (0..8).map(|_| {
        let files = files.clone();
        tokio::spawn(async move { write(&files, "/b", "twin", Expected::Nothing, "twin").await })
    });
    for twin in futures::future::join_all(twins).await {
        assert_eq!(twin.expect("it does not panic").expect("it is written"), 1);
    }
    assert_eq!(files.versions(&path("/b")).await.expect("it answers").len(), 1);
    for _ in 0..2 {
        let deleted = files.delete(&path("/b"), Expected::Version(1), by("t", "d")).await;
        assert_eq!(deleted.expect("it goes, once"), 2);
    }
}

/// Puts something on a subject that nobody wrote there, as an answer of the server that was sent to it.
async fn stray(bus: &Bus, at: &str) {
    let subject = subject::file(&RunId::new("r").expect("it is a name"), &path(at));
    let context = async_nats::jetstream::new(bus.client().clone());
    context.publish(subject, "stray".into()).await.expect("it is sent").await.expect("it is kept");
}

#[tokio::test]
async fn what_nobody_wrote_on_a_file_hides_no_version_of_it_and_stands_in_no_writers_way() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = workspace(&bus);
    write(&files, "/a", "one", Expected::Nothing, "k1").await.expect("it is written");
    stray(&bus, "/a").await;
    stray(&bus, "/new").await;
    assert_eq!(read(&files, "/a").await.expect("it is there").bytes, b"one");
    assert_eq!(read(&files, "/new").await, None);
    let listed = files.list(None).await.expect("it answers");
    assert_eq!(
        listed.iter().map(|entry| (entry.path.as_str(), entry.version)).collect::<Vec<_>>(),
        [("/a", 1)]
    );
    assert_eq!(files.made(&path("/a"), "k1").await.expect("it answers"), Some(1));
    assert_eq!(files.versions(&path("/a")).await.expect("it answers").len(), 1);
    match write(&files, "/a/b", "x", Expected::Nothing, "k2").await {
        Err(WriteError::Clash { with }) => assert_eq!(with.as_str(), "/a"),
        other => panic!("{other:?}"),
    }
    let stale = write(&files, "/a", "x", Expected::Nothing, "k3").await;
    assert!(matches!(stale, Err(WriteError::Stale { current: Some(_) })), "{stale:?}");
    assert_eq!(write(&files, "/a", "two", Expected::Version(1), "k4").await.expect("it is written"), 2);
    assert_eq!(write(&files, "/new", "first", Expected::Nothing, "k5").await.expect("it is written"), 1);
    stray(&bus, "/a").await;
    assert_eq!(write(&files, "/a", "two", Expected::Version(1), "k4").await.expect("it is there"), 2);
    assert_eq!(files.delete(&path("/a"), Expected::Version(2), by("t", "k6")).await.expect("it goes"), 3);
    stray(&bus, "/a").await;
    assert_eq!(read(&files, "/a").await, None, "it is gone, and stays so");
}

#[tokio::test]
async fn writes_across_a_server_that_dies_are_each_there_once() {
    let mut server = NatsServer::start();
    let bus = bus(&server).await;
    let writer = tokio::spawn({
        let files = workspace(&bus);
        async move {
            for number in 0..300_u64 {
                let expected = if number == 0 { Expected::Nothing } else { Expected::Version(number) };
                let key = format!("k{number}");
                let written = write(&files, "/a", &number.to_string(), expected, &key).await;
                assert_eq!(written.expect("it gets through"), number + 1);
            }
        }
    });
    let files = workspace(&bus);
    for part in [50, 150] {
        eventually(PATIENCE, "more writes", async || {
            let found = files.read(&path("/a")).await.ok().flatten();
            (writer.is_finished() || found.is_some_and(|file| file.entry.version >= part)).then_some(())
        })
        .await;
        server.restart();
    }
    writer.await.expect("no write was lost or refused");
    let versions = files.versions(&path("/a")).await.expect("it answers");
    assert_eq!(
        versions.iter().map(|entry| entry.version).collect::<Vec<_>>(),
        (1..=300).collect::<Vec<u64>>()
    );
}

#[tokio::test]
async fn files_are_listed_by_folder_however_many_there_are() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = Arc::new(workspace(&bus));
    // More than one answer of the server holds, in bytes and then in number.
    let text = "y".repeat(60_000);
    for (count, folder, text) in [(900, "large", text.as_str()), (1_500, "many", "x")] {
        let names: Vec<String> = (0..count).map(|number| format!("/{folder}/{number:04}.txt")).collect();
        for names in names.chunks(100) {
            let writes = names.iter().map(|name| write(&files, name, text, Expected::Nothing, name));
            for written in futures::future::join_all(writes).await {
                written.expect("it is written");
            }
        }
        let listed = files.list(Some(&path(folder))).await.expect("it answers");
        assert_eq!(listed.iter().map(|entry| entry.path.to_string()).collect::<Vec<_>>(), names);
    }
    assert_eq!(files.list(None).await.expect("it answers").len(), 2_400);
    assert!(files.list(Some(&path("/man"))).await.expect("it answers").is_empty());
}

#[tokio::test]
async fn any_path_is_a_subject_and_no_name_is_both_file_and_folder() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let files = workspace(&bus);
    let deep = "/".to_owned() + &vec!["d"; 255].join("/");
    let wide = "/".to_owned() + &"ä".repeat(255);
    let all =
        ["/a.b", "/a..b", "/..a", "/*", "/>", "/a b", "/$JS", "/ä.md", "/e\u{301}", "/%", "/=", &deep, &wide];
    for name in all {
        write(&files, name, name, Expected::Nothing, name).await.expect(name);
        assert_eq!(read(&files, name).await.expect("it is there").bytes, name.as_bytes());
    }
    assert_eq!(files.list(None).await.expect("it answers").len(), all.len());
    for (name, with) in [("/a.b/x", "/a.b"), ("/d", deep.as_str()), ("/d/d", deep.as_str())] {
        match write(&files, name, "x", Expected::Nothing, name).await {
            Err(WriteError::Clash { with: found }) => assert_eq!(found.as_str(), with),
            other => panic!("{other:?}"),
        }
    }
    files.delete(&path("/a.b"), Expected::Version(1), by("t", "d")).await.expect("it goes");
    write(&files, "/a.b/x", "x", Expected::Nothing, "now").await.expect("nothing is in the way any more");
}

#[tokio::test]
async fn an_older_cluster_gets_a_place_for_files_and_limits_when_a_supervisor_comes() {
    let server = NatsServer::start();
    let made = bus(&server).await;
    let context = async_nats::jetstream::new(made.client().clone());
    context.delete_stream(FILES).await.expect("it goes");
    context.delete_key_value(LIMITS).await.expect("it goes");
    bus(&server).await;
    let connection = Connection::open(server.url.clone());
    let bus = Bus::join(&connection, "test", Duration::ZERO).await.expect("the cluster is there");
    assert!(workspace(&bus).list(None).await.expect("it answers").is_empty());
    let limiter = Limiter::new(&bus);
    limiter.admit("openai:x", 1, Duration::ZERO).await.expect("there are no limits");
    assert_eq!(limits::standings(&bus).await.expect("it answers"), []);
}

fn allowed(requests: Option<u64>, tokens: Option<u64>) -> Allowed {
    Allowed { requests, tokens }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_of_a_cluster_together_keep_to_a_rate() {
    let server = NatsServer::start();
    let first = bus(&server).await;
    let rate = 1_200;
    limits::set(&first, &"test:m".parse().expect("it is a name"), allowed(Some(rate), None))
        .await
        .expect("it is set");
    let (count, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let run_time = Duration::from_secs(3);
    let mut asking = Vec::new();
    for _ in 0..3 {
        // A connection of its own, as another process has.
        let limiter = Limiter::new(&bus(&server).await);
        for _ in 0..100 {
            let (limiter, count) = (limiter.clone(), count.clone());
            asking.push(tokio::spawn(async move {
                loop {
                    let left = run_time.saturating_sub(started.elapsed());
                    match limiter.admit("test:m", 10, left).await {
                        Ok(()) if started.elapsed() < run_time => count.fetch_add(1, Ordering::Relaxed),
                        Ok(()) | Err(_) => return,
                    };
                }
            }));
        }
    }
    for asked in asking {
        asked.await.expect("it does not panic");
    }
    let (count, most) = (count.load(Ordering::Relaxed), rate / 10 + rate * 3 / 60 + 1);
    assert!(count <= most, "{count} went, at most {most} may");
    assert!(count * 10 >= most * 8, "{count} went, though {most} might");
    let standing = limits::standings(&first).await.expect("it answers");
    assert_eq!(standing.len(), 1);
    assert!(standing[0].requests >= count && standing[0].tokens >= count * 10, "{standing:?}");
}

#[tokio::test]
async fn a_pause_that_one_was_told_holds_for_all() {
    let server = NatsServer::start();
    let (one, two) = (Limiter::new(&bus(&server).await), Limiter::new(&bus(&server).await));
    let bus = bus(&server).await;
    let now = Duration::ZERO;
    for (model, limit) in [("test:free", None), ("test:limited", Some(allowed(Some(6_000), None)))] {
        if let Some(limit) = limit {
            limits::set(&bus, &model.parse().expect("it is a name"), limit).await.expect("it is set");
        }
        eventually(PATIENCE, "both let go", async || {
            (one.admit(model, 1, now).await.is_ok() && two.admit(model, 1, now).await.is_ok()).then_some(())
        })
        .await;
        one.pause(model, Duration::from_secs(3)).await;
        let wait = one.admit(model, 1, now).await.expect_err("it knows at once");
        assert!(wait > Duration::from_secs(2) && wait <= Duration::from_secs(3), "{wait:?}");
        eventually(Duration::from_millis(1_500), "the other knows it within a second", async || {
            two.admit(model, 1, now).await.err()
        })
        .await;
        let standings = limits::standings(&bus).await.expect("it answers");
        assert!(standings.iter().any(|standing| standing.name == model && standing.paused_until.is_some()));
        two.admit(model, 1, Duration::from_secs(10)).await.expect("it goes when the pause is over");
    }
}

#[tokio::test]
async fn a_shorter_pause_within_a_longer_one_is_told_at_once() {
    let server = NatsServer::start();
    let limiter = Limiter::new(&bus(&server).await);
    limiter.pause("test:m", Duration::from_secs(60)).await;
    let shorter = limiter.pause("test:m", Duration::from_secs(30));
    tokio::time::timeout(Duration::from_secs(5), shorter).await.expect("there is nothing to wait for");
    let wait = limiter.admit("test:m", 1, Duration::ZERO).await.expect_err("the longer one holds");
    assert!(wait > Duration::from_secs(30), "{wait:?}");
}

#[tokio::test]
async fn tokens_are_booked_corrected_and_given_back() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let name = |text: &str| text.parse().expect("it is a name");
    limits::set(&bus, &name("test:*"), allowed(None, Some(60_000))).await.expect("it is set");
    limits::set(&bus, &name("test:m"), allowed(Some(10), None)).await.expect("it is set");
    let limiter = Limiter::new(&bus);
    limiter.admit("test:m", 6_000, Duration::ZERO).await.expect("a burst");
    let wait =
        limiter.admit("test:other", 5_000, Duration::ZERO).await.expect_err("the provider's rate is used");
    assert!(wait > Duration::from_secs(3) && wait <= Duration::from_secs(5), "{wait:?}");
    // It took hardly any: others can go.
    limiter.settle("test:m", 6_000, 10).await;
    eventually(PATIENCE, "it is given back", async || {
        limiter.admit("test:other", 5_000, Duration::ZERO).await.ok()
    })
    .await;
    // The model's own rate refuses; what was booked on the provider's is given back.
    let before = used_tokens(&bus).await;
    limiter.admit("test:m", 50, Duration::ZERO).await.expect_err("one request in six seconds");
    eventually(PATIENCE, "it is given back", async || (used_tokens(&bus).await <= before).then_some(()))
        .await;
    // What is used beyond the booking is waited for.
    limiter.settle("test:m", 0, 30_000).await;
    eventually(PATIENCE, "the debt is known", async || {
        let wait = limiter.admit("test:other", 1, Duration::ZERO).await.err()?;
        (wait > Duration::from_secs(20)).then_some(())
    })
    .await;
    assert!(limits::clear(&bus, &name("test:*")).await.expect("it answers"));
    eventually(PATIENCE, "it is lifted", async || {
        limiter.admit("test:other", 99_999, Duration::ZERO).await.ok()
    })
    .await;
    assert!(!limits::clear(&bus, &name("test:*")).await.expect("it answers"));
}

async fn used_tokens(bus: &Bus) -> u64 {
    let standings = limits::standings(bus).await.expect("it answers");
    standings.iter().find(|standing| standing.name == "test:*").map_or(0, |standing| standing.tokens)
}

#[tokio::test]
async fn one_message_takes_no_others_away_also_where_an_older_program_made_the_place_for_them() {
    let server = NatsServer::start();
    let first = bus(&server).await;
    let context = async_nats::jetstream::new(first.client().clone());
    let limits = context.get_stream("KV_limits").await.expect("it is there").cached_info().config.clone();
    let older = async_nats::jetstream::stream::Config { allow_rollup: true, ..limits };
    context.update_stream(older).await.expect("it is as it was");
    limits::set(&first, &"test:m".parse().expect("it is a name"), allowed(Some(1), None))
        .await
        .expect("it is set");
    let all = async || {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Rollup", "all");
        let sent = context.publish_with_headers("$KV.limits.state.x", headers, "{}".into()).await;
        sent.expect("it is sent").await
    };
    bus(&server).await;
    assert!(all().await.is_err_and(|error| error.to_string().contains("rollup not permitted")));
    assert_eq!(limits::standings(&first).await.expect("it answers").len(), 1);
    let blobs = context.get_stream("OBJ_blobs").await.expect("it is there");
    assert!(!blobs.cached_info().config.allow_rollup, "nor do blobs");
}
