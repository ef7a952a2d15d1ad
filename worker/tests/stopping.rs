//! What ends an attempt from outside, what gives it back, and what it says while it waits: down to the request to the
//! provider and to the program that runs.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::plan::{Amounts, Limits};
use millrace_protocol::result::{ErrorKind, Limit, Usage};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{Entry, Order, Outcome};
use millrace_runtime::{log, queue};
use millrace_tests::eventually;
use millrace_worker::{
    Agent, CancellationToken, Capability, Config, TaskResult, ToolError, WorkerId, builtin, capability, file,
    run, tool,
};
use serde_json::json;
use support::{Cluster, Counter, PATIENCE, order};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A worker that offers one capability until the token is cancelled.
fn work(
    cluster: &Cluster,
    id: &str,
    offered: Arc<dyn Capability>,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let config = Config {
        id: Some(WorkerId::new(id).unwrap()),
        document_cache: None,
        grace: Duration::from_millis(50),
        ..Config::new(cluster.connection(), vec![offered])
    };
    let stop = CancellationToken::new();
    let running = run(config, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

/// What becomes of a request at the provider.
enum Happened {
    Asked,
    Closed(Instant),
}

/// A provider that gives one answer a request, and none once they are over: then it waits for the client to go.
async fn provider(answers: Vec<String>) -> (String, mpsc::UnboundedReceiver<Happened>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, answers.next(), tell.clone()));
        }
    });
    (format!("openai-compatible:m@http://{address}/v1"), told)
}

async fn serve(mut stream: TcpStream, answer: Option<String>, tell: mpsc::UnboundedSender<Happened>) {
    let mut buffer = vec![0; 64 << 10];
    let mut held = Vec::new();
    // A request is read to the end of its body, whose length it tells.
    loop {
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        held.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&held);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").and_then(|length| length.trim().parse::<usize>().ok())
        });
        if body.len() >= length.unwrap_or(0) {
            break;
        }
    }
    drop(tell.send(Happened::Asked));
    match answer {
        Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
        None => while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {},
    }
    drop(tell.send(Happened::Closed(Instant::now())));
}

fn http(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn agent(model: &str) -> Arc<dyn Capability> {
    Agent::new("own", "Answers.").instructions("Answer.").model(model).build().unwrap()
}

async fn next(told: &mut mpsc::UnboundedReceiver<Happened>) -> Happened {
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("the provider hears of it in time").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_the_request_to_the_provider_within_a_second() {
    let cluster = Cluster::start().await;
    let (model, mut told) = provider(Vec::new()).await;
    let (stop, done) = work(&cluster, "w", agent(&model));
    let order = order("own", "hangs", json!({}));
    cluster.offer(&order).await;
    assert!(matches!(next(&mut told).await, Happened::Asked));
    let begun = Instant::now();
    queue::stop(&cluster.bus, &order.run, Some(&order.work)).await.unwrap();
    let Happened::Closed(at) = next(&mut told).await else { panic!("it was asked twice") };
    println!("the provider saw the request closed {:?} behind the stop", at - begun);
    assert!(at - begun < Duration::from_secs(1), "{:?}", at - begun);
    cluster.waiting("own", 0).await;
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_program_that_runs_and_what_it_started_within_a_second() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.yaml");
    let text = "{kind: command, name: slow, description: x, \
                command: [sh, -c, 'sleep 300 & echo $! > begun; mv begun pid; wait']}";
    std::fs::write(&path, text).unwrap();
    let offered = file::open(path.to_str().unwrap()).await.unwrap_or_else(|error| panic!("{error}"));
    let (stop, done) = work(&cluster, "w", offered);
    let order = order("slow", "sleeps", json!({}));
    cluster.offer(&order).await;
    let pid =
        eventually(PATIENCE, "the program", async || std::fs::read_to_string(folder.path().join("pid")).ok())
            .await;
    let begun = Instant::now();
    queue::stop(&cluster.bus, &order.run, None).await.unwrap();
    eventually(PATIENCE, "the end of what the program started", async || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    println!("the program was gone {:?} behind the stop", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    stop.cancel();
    done.await.unwrap();
}

/// A capability that counts those that were dropped before their end, which never comes.
fn endless(dropped: &Counter, begun: &Counter) -> Arc<dyn Capability> {
    struct OnDrop(Counter);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.add();
        }
    }
    let (dropped, begun) = (dropped.clone(), begun.clone());
    capability("endless", "Waits.", move |_| {
        let (guard, begun) = (OnDrop(dropped.clone()), begun.clone());
        Box::pin(async move {
            let _guard = guard;
            begun.add();
            std::future::pending::<()>().await;
            Ok(TaskResult::default())
        })
    })
}

async fn counted(counter: &Counter, count: usize, what: &str) {
    eventually(PATIENCE, what, async || (counter.get() == count).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_withdrawn_is_found_out_at_a_renewal_where_the_stop_was_missed() {
    let lease = Duration::from_millis(1_200);
    let cluster = Cluster::with_lease(lease).await;
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = work(&cluster, "w", endless(&dropped, &begun));
    let (one, other) = (order("endless", "one", json!({})), order("endless", "other", json!({})));
    for order in [&one, &other] {
        cluster.offer(order).await;
    }
    counted(&begun, 2, "both in hand").await;
    let at = Instant::now();
    queue::withdraw(&cluster.bus, &one.run, &one.capability, &one.work).await.unwrap();
    counted(&dropped, 1, "the end of what was withdrawn").await;
    println!("withdrawn work ended {:?} behind its withdrawal, with a lease of {lease:?}", at.elapsed());
    assert!(at.elapsed() < lease * 2, "{:?}", at.elapsed());

    // The other goes on for as long as it is renewed, in the hands of the same worker.
    let renewed = Instant::now();
    eventually(PATIENCE, "several renewals", async || (renewed.elapsed() > lease * 2).then_some(())).await;
    assert_eq!((dropped.get(), begun.get()), (1, 2));
    assert_eq!(cluster.journal(&other).await.len(), 1);
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_lost_and_made_anew_stops_nothing() {
    let lease = Duration::from_millis(900);
    let cluster = Cluster::with_lease(lease).await;
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = work(&cluster, "w", endless(&dropped, &begun));
    cluster.offer(&order("endless", "one", json!({}))).await;
    counted(&begun, 1, "it in hand").await;
    let context = async_nats::jetstream::new(cluster.bus.client().clone());
    let config = context.get_stream("WORK").await.unwrap().cached_info().config.clone();
    context.delete_stream("WORK").await.unwrap();
    context.create_stream(config).await.unwrap();
    let anew = Instant::now();
    eventually(PATIENCE, "several renewals", async || (anew.elapsed() > lease * 2).then_some(())).await;
    assert_eq!(dropped.get(), 0, "the supervisor asks for it again, and the journal knows it");
    stop.cancel();
    done.await.unwrap();
}

fn releases(journal: &[(u64, Entry)]) -> Vec<(String, String)> {
    let released = journal.iter().filter_map(|(_, entry)| match entry {
        Entry::Released { worker, why } => Some((worker.to_string(), why.clone())),
        Entry::Claimed { .. } | Entry::Step { .. } | Entry::Note { .. } | Entry::Outcome { .. } => None,
    });
    released.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_given_back_in_good_order_do_not_count_towards_the_five() {
    let cluster = Cluster::start().await;
    let lost = |claim| Entry::Claimed { worker: WorkerId::new("lost").unwrap(), claim };
    let released = || Entry::Released { worker: WorkerId::new("lost").unwrap(), why: "no answer".into() };
    let all_but_one = (1..=9).flat_map(|claim| [Some(lost(claim)), (claim % 3 != 0).then(released)]);
    let five = (1..=5).map(|claim| Some(lost(claim)));
    for (task, entries, done) in
        [("given-back", all_but_one.collect::<Vec<_>>(), true), ("lost", five.collect::<Vec<_>>(), false)]
    {
        let order = order("echo", task, json!({}));
        let topic = Topic::journal(&order.work);
        let mut last = 0;
        for entry in entries.into_iter().flatten() {
            last = log::append(&cluster.bus, order.lane, &order.run, &topic, &entry, last).await.unwrap();
        }
        cluster.offer(&order).await;
        let (stop, ended) = work(&cluster, task, builtin::open("echo").unwrap());
        match cluster.outcome(&order).await.1 {
            Outcome::Finished { .. } => assert!(done, "{task}"),
            Outcome::Errored(error) => {
                assert_eq!((error.kind, done), (ErrorKind::Abandoned, false), "{task}")
            }
            other @ (Outcome::Judged(_) | Outcome::Proposed { .. }) => panic!("{other:?}"),
        }
        stop.cancel();
        ended.await.unwrap();
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_work_back_says_so_and_why() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    std::fs::write(&script, "{rules: [{turns: [{calls: [find]}, {text: done}]}]}").unwrap();
    let calls = Counter::default();
    let counter = calls.clone();
    let find = tool("find", "Finds.", move |Nothing {}: Nothing, _| {
        let out_of_reach = counter.get() < 2;
        counter.add();
        async move {
            if out_of_reach {
                Err(ToolError::Unavailable("the mill is away".into()))
            } else {
                Ok("found".to_owned())
            }
        }
    });
    let agent = Agent::new("own", "Finds.").instructions("Find it.").tool(find);
    let agent = agent.model(&format!("script:{}", script.display())).build().unwrap();
    let (stop, done) = work(&cluster, "finder", agent);
    let found = order("own", "find", json!({}));
    let begun = Instant::now();
    cluster.offer(&found).await;
    cluster.result(&found).await;
    let told = releases(&cluster.journal(&found).await);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().all(|(worker, why)| worker == "finder" && why.contains("the mill is away")),
        "{told:?}"
    );
    assert!(
        begun.elapsed() >= Duration::from_millis(2_900),
        "it rests 1 s and then 2 s: {:?}",
        begun.elapsed()
    );
    stop.cancel();
    done.await.unwrap();

    // One that is told to end, too.
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = work(&cluster, "ending", endless(&dropped, &begun));
    let open = order("endless", "open", json!({}));
    cluster.offer(&open).await;
    counted(&begun, 1, "it in hand").await;
    stop.cancel();
    done.await.unwrap();
    assert_eq!(
        releases(&cluster.journal(&open).await),
        [("ending".to_owned(), "its worker ends".to_owned())]
    );
    cluster.waiting("endless", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_provider_says_so_and_what_was_used_is_told_by_its_name() {
    let cluster = Cluster::start().await;
    let message = json!({"role": "assistant", "content": "It is done."});
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15});
    let reply =
        json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage});
    let busy = http("429 Too Many Requests", "retry-after: 2\r\n", r#"{"error": {"message": "slow down"}}"#);
    let (model, mut told) = provider(vec![busy, http("200 OK", "", &reply.to_string())]).await;
    let (stop, done) = work(&cluster, "w", agent(&model));
    let limits = Limits { silence: Duration::from_millis(900), ..Limits::default() };
    let order = Order { limits, ..order("own", "waits", json!({})) };
    cluster.offer(&order).await;
    let (_, result) = cluster.result(&order).await;
    assert!(matches!(next(&mut told).await, Happened::Asked));
    let used = Usage { model_calls: 1, input_tokens: 12, output_tokens: 3, ..Usage::default() };
    assert_eq!((result.output.as_str(), result.usage), ("It is done.", used));
    assert_eq!(result.models, [(model, used)].into());
    let journal = cluster.journal(&order).await;
    let notes = journal.iter().filter_map(|(_, entry)| match entry {
        Entry::Note { text } => Some(text.as_str()),
        Entry::Claimed { .. } | Entry::Step { .. } | Entry::Released { .. } | Entry::Outcome { .. } => None,
    });
    let notes: Vec<&str> = notes.collect();
    // Two seconds and a little, one sign in 300 ms.
    assert!((4..=9).contains(&notes.len()), "{notes:?}");
    assert!(notes.iter().all(|note| note.contains("waited for") && note.contains("slow down")), "{notes:?}");
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_holds_its_worker_to_what_is_reserved_for_it() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    std::fs::write(
        &script,
        "{rules: [{turns: [{calls: [find]}, {calls: [find]}, {calls: [find]}, {text: done}]}]}",
    )
    .unwrap();
    let runs = Counter::default();
    let counter = runs.clone();
    let find = tool("find", "Finds.", move |Nothing {}: Nothing, _| {
        counter.add();
        async { Ok("found".to_owned()) }
    });
    let agent = Agent::new("own", "Finds.").instructions("Find it.").tool(find);
    let agent = agent.model(&format!("script:{}", script.display())).build().unwrap();
    let (stop, done) = work(&cluster, "w", agent);
    let allowance = Some(Amounts { model_calls: Some(2), ..Amounts::default() });
    let order = Order { allowance, ..order("own", "find", json!({})) };
    cluster.offer(&order).await;
    let Outcome::Errored(error) = cluster.outcome(&order).await.1 else { panic!("it asks a third time") };
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(Limit::Allowance)));
    assert!(error.message.contains("reserved 2 model calls"), "{error}");
    assert_eq!((error.usage.model_calls, runs.get()), (2, 1), "calls that nobody would hear of do not run");
    assert_eq!(error.models.values().map(|used| used.model_calls).sum::<u64>(), 2);
    stop.cancel();
    done.await.unwrap();
}
