//! Stopping, releasing and waiting: a stop closes the request to the provider and kills the program that runs, a released
//! attempt can be resumed, and a waiting one writes notes.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Cluster, Counter, PATIENCE, build_order};
use millrace_protocol::plan::{ResourceAmounts, TaskLimits};
use millrace_protocol::result::{ErrorKind, ExceededLimit, Usage};
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{JournalEntry, Order, WorkOutcome};
use millrace_runtime::log;
use millrace_runtime::work::queue;
use millrace_tests::wait_for_value;
use millrace_worker::{
    Agent, AgentHostConfig, CancellationToken, Capability, TaskResult, ToolError, WorkerConfig, WorkerId,
    builtin, capability_from_function, file, run_worker, tool,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A worker that offers one capability until the token is cancelled.
fn start_worker(
    cluster: &Cluster,
    id: &str,
    offered: Arc<dyn Capability>,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let host = AgentHostConfig {
        id: Some(WorkerId::new(id).unwrap()),
        document_cache: None,
        grace: Duration::from_millis(50),
        ..AgentHostConfig::new(cluster.connection())
    };
    let config = WorkerConfig { capabilities: vec![offered], host };
    let stop = CancellationToken::new();
    let running = run_worker(config, stop.clone());
    (stop, tokio::spawn(async move { running.await.unwrap() }))
}

/// An event at the provider.
enum ProviderEvent {
    Requested,
    Closed(Instant),
}

/// A provider that answers one request with each response. After the last one it holds requests until the client closes
/// them.
async fn start_provider(answers: Vec<String>) -> (String, mpsc::UnboundedReceiver<ProviderEvent>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, events) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, answers.next(), sender.clone()));
        }
    });
    (format!("openai-compatible:m@http://{address}/v1"), events)
}

async fn serve_connection(
    mut stream: TcpStream,
    answer: Option<String>,
    sender: mpsc::UnboundedSender<ProviderEvent>,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut request = Vec::new();
    // Read to the end of the body, by its content-length.
    loop {
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").and_then(|length| length.trim().parse::<usize>().ok())
        });
        if body.len() >= length.unwrap_or(0) {
            break;
        }
    }
    drop(sender.send(ProviderEvent::Requested));
    match answer {
        Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
        None => while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {},
    }
    drop(sender.send(ProviderEvent::Closed(Instant::now())));
}

fn http_response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn agent_capability(model: &str) -> Arc<dyn Capability> {
    Agent::new("own", "Answers.").instructions("Answer.").model(model).build().unwrap()
}

async fn next_event(events: &mut mpsc::UnboundedReceiver<ProviderEvent>) -> ProviderEvent {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_closes_the_provider_request_within_a_second() {
    let cluster = Cluster::start().await;
    let (model, mut events) = start_provider(Vec::new()).await;
    let (stop, done) = start_worker(&cluster, "w", agent_capability(&model));
    let order = build_order("own", "hangs", json!({}));
    cluster.publish_order(&order).await;
    assert!(matches!(next_event(&mut events).await, ProviderEvent::Requested));
    let begun = Instant::now();
    queue::publish_stop(&cluster.bus, &order.run, Some(&order.work())).await.unwrap();
    let ProviderEvent::Closed(at) = next_event(&mut events).await else { panic!("a second request") };
    println!("the request was closed {:?} after the stop", at - begun);
    assert!(at - begun < Duration::from_secs(1), "{:?}", at - begun);
    cluster.await_waiting_orders("own", 0).await;
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_kills_a_program_and_its_children_within_a_second() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.yaml");
    let text = "{kind: command, name: slow, description: x, \
                command: [sh, -c, 'sleep 300 & echo $! > begun; mv begun pid; wait']}";
    std::fs::write(&path, text).unwrap();
    let offered =
        file::open_capability_by_name(path.to_str().unwrap()).await.unwrap_or_else(|error| panic!("{error}"));
    let (stop, done) = start_worker(&cluster, "w", offered);
    let order = build_order("slow", "sleeps", json!({}));
    cluster.publish_order(&order).await;
    let pid = wait_for_value(PATIENCE, "the program", async || {
        std::fs::read_to_string(folder.path().join("pid")).ok()
    })
    .await;
    let begun = Instant::now();
    queue::publish_stop(&cluster.bus, &order.run, None).await.unwrap();
    wait_for_value(PATIENCE, "the end of the program's children", async || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    })
    .await;
    println!("the program ended {:?} after the stop", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    stop.cancel();
    done.await.unwrap();
}

/// A capability that never ends and counts the attempts that were dropped.
fn endless_capability(dropped: &Counter, begun: &Counter) -> Arc<dyn Capability> {
    struct CountOnDrop(Counter);
    impl Drop for CountOnDrop {
        fn drop(&mut self) {
            self.0.increment();
        }
    }
    let (dropped, begun) = (dropped.clone(), begun.clone());
    capability_from_function("endless", "Waits.", move |_| {
        let (guard, begun) = (CountOnDrop(dropped.clone()), begun.clone());
        Box::pin(async move {
            let _guard = guard;
            begun.increment();
            std::future::pending::<()>().await;
            Ok(TaskResult::default())
        })
    })
}

async fn wait_for_count(counter: &Counter, count: usize, what: &str) {
    wait_for_value(PATIENCE, what, async || (counter.get() == count).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_order_is_noticed_at_renewal_if_the_stop_was_lost() {
    let lease = Duration::from_millis(1_200);
    let cluster = Cluster::start_with_lease(lease).await;
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = start_worker(&cluster, "w", endless_capability(&dropped, &begun));
    let (one, other) = (build_order("endless", "one", json!({})), build_order("endless", "other", json!({})));
    for order in [&one, &other] {
        cluster.publish_order(order).await;
    }
    wait_for_count(&begun, 2, "both in flight").await;
    let at = Instant::now();
    queue::withdraw_order(&cluster.bus, &one.run, &one.capability, &one.work()).await.unwrap();
    wait_for_count(&dropped, 1, "the end of the withdrawn order").await;
    println!("the attempt ended {:?} after its order was withdrawn, with a lease of {lease:?}", at.elapsed());
    assert!(at.elapsed() < lease * 2, "{:?}", at.elapsed());

    // The other attempt continues in the same worker, because its lease is renewed.
    let renewed = Instant::now();
    wait_for_value(PATIENCE, "several renewals", async || (renewed.elapsed() > lease * 2).then_some(()))
        .await;
    assert_eq!((dropped.get(), begun.get()), (1, 2));
    assert_eq!(cluster.read_journal(&other).await.len(), 1);
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_recreated_does_not_stop_attempts() {
    let lease = Duration::from_millis(900);
    let cluster = Cluster::start_with_lease(lease).await;
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = start_worker(&cluster, "w", endless_capability(&dropped, &begun));
    cluster.publish_order(&build_order("endless", "one", json!({}))).await;
    wait_for_count(&begun, 1, "it in flight").await;
    let context = async_nats::jetstream::new(cluster.bus.client().clone());
    let config = context.get_stream("WORK").await.unwrap().cached_info().config.clone();
    context.delete_stream("WORK").await.unwrap();
    context.create_stream(config).await.unwrap();
    let anew = Instant::now();
    wait_for_value(PATIENCE, "several renewals", async || (anew.elapsed() > lease * 2).then_some(())).await;
    assert_eq!(dropped.get(), 0, "the supervisor offers it again, and the journal has its claim");
    stop.cancel();
    done.await.unwrap();
}

fn list_releases(journal: &[(u64, JournalEntry)]) -> Vec<(String, String)> {
    let released = journal.iter().filter_map(|(_, entry)| match entry {
        JournalEntry::Released { worker, why, .. } => Some((worker.to_string(), why.clone())),
        JournalEntry::Claimed { .. }
        | JournalEntry::Step { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Outcome { .. } => None,
    });
    released.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn released_claims_do_not_count_towards_the_limit_of_five() {
    let cluster = Cluster::start().await;
    let lost = |claim| JournalEntry::Claimed { worker: WorkerId::new("lost").unwrap(), claim, build: None };
    let released = || JournalEntry::Released {
        worker: WorkerId::new("lost").unwrap(),
        why: "no answer".into(),
        needs: ResourceAmounts::default(),
        provider: None,
    };
    let all_but_one = (1..=9).flat_map(|claim| [Some(lost(claim)), (claim % 3 != 0).then(released)]);
    let five = (1..=5).map(|claim| Some(lost(claim)));
    for (task, entries, done) in
        [("given-back", all_but_one.collect::<Vec<_>>(), true), ("lost", five.collect::<Vec<_>>(), false)]
    {
        let order = build_order("echo", task, json!({}));
        let topic = Topic::journal_of_work(&order.work());
        let mut last = 0;
        for entry in entries.into_iter().flatten() {
            last = log::append_message(&cluster.bus, order.lane, &order.run, &topic, &entry, last)
                .await
                .unwrap();
        }
        cluster.publish_order(&order).await;
        let (stop, ended) = start_worker(&cluster, task, builtin::open_built_in("echo").unwrap());
        match cluster.await_outcome(&order).await.1 {
            WorkOutcome::Finished { .. } => assert!(done, "{task}"),
            WorkOutcome::Errored(error) => {
                assert_eq!((error.kind, done), (ErrorKind::Abandoned, false), "{task}")
            }
            other @ (WorkOutcome::Judged(_) | WorkOutcome::Proposed { .. }) => panic!("{other:?}"),
        }
        stop.cancel();
        ended.await.unwrap();
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoParameters {}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_recorded_with_its_reason() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    std::fs::write(&script, "{rules: [{turns: [{calls: [find]}, {text: done}]}]}").unwrap();
    let calls = Counter::default();
    let counter = calls.clone();
    let find = tool("find", "Finds.", move |NoParameters {}: NoParameters, _| {
        let out_of_reach = counter.get() < 2;
        counter.increment();
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
    let (stop, done) = start_worker(&cluster, "finder", agent);
    let find_order = build_order("own", "find", json!({}));
    let begun = Instant::now();
    cluster.publish_order(&find_order).await;
    cluster.await_result(&find_order).await;
    let released = list_releases(&cluster.read_journal(&find_order).await);
    assert_eq!(released.len(), 2, "{released:?}");
    assert!(
        released.iter().all(|(worker, why)| worker == "finder" && why.contains("the mill is away")),
        "{released:?}"
    );
    assert!(
        begun.elapsed() >= Duration::from_millis(2_900),
        "backoff of 1 s and then 2 s: {:?}",
        begun.elapsed()
    );
    stop.cancel();
    done.await.unwrap();

    // A worker that is stopped releases its attempts too.
    let (dropped, begun) = (Counter::default(), Counter::default());
    let (stop, done) = start_worker(&cluster, "ending", endless_capability(&dropped, &begun));
    let open = build_order("endless", "open", json!({}));
    cluster.publish_order(&open).await;
    wait_for_count(&begun, 1, "it in flight").await;
    stop.cancel();
    done.await.unwrap();
    assert_eq!(
        list_releases(&cluster.read_journal(&open).await),
        [("ending".to_owned(), "its worker stopped".to_owned())]
    );
    cluster.await_waiting_orders("endless", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_provider_is_noted_and_usage_names_the_model() {
    let cluster = Cluster::start().await;
    let message = json!({"role": "assistant", "content": "It is done."});
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15});
    let reply =
        json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage});
    let busy = http_response(
        "429 Too Many Requests",
        "retry-after: 2\r\n",
        r#"{"error": {"message": "slow down"}}"#,
    );
    let (model, mut events) =
        start_provider(vec![busy, http_response("200 OK", "", &reply.to_string())]).await;
    let (stop, done) = start_worker(&cluster, "w", agent_capability(&model));
    let limits = TaskLimits { silence: Duration::from_millis(900), ..TaskLimits::default() };
    let order = Order { limits, ..build_order("own", "waits", json!({})) };
    cluster.publish_order(&order).await;
    let (_, result) = cluster.await_result(&order).await;
    assert!(matches!(next_event(&mut events).await, ProviderEvent::Requested));
    let used = Usage { model_calls: 1, input_tokens: 12, output_tokens: 3, ..Usage::default() };
    assert_eq!((result.output.as_str(), result.usage), ("It is done.", used));
    assert_eq!(result.models, [(model, used)].into());
    let journal = cluster.read_journal(&order).await;
    let notes = journal.iter().filter_map(|(_, entry)| match entry {
        JournalEntry::Note { text, .. } => Some(text.as_str()),
        JournalEntry::Claimed { .. }
        | JournalEntry::Step { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. }
        | JournalEntry::Outcome { .. } => None,
    });
    let notes: Vec<&str> = notes.collect();
    // A note every 300 ms, for a little over two seconds.
    assert!((4..=9).contains(&notes.len()), "{notes:?}");
    assert!(
        notes.iter().all(|note| note.contains("waiting for the model") && note.contains("slow down")),
        "{notes:?}"
    );
    stop.cancel();
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_limits_its_attempt_to_the_reserved_amounts() {
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
    let find = tool("find", "Finds.", move |NoParameters {}: NoParameters, _| {
        counter.increment();
        async { Ok("found".to_owned()) }
    });
    let agent = Agent::new("own", "Finds.").instructions("Find it.").tool(find);
    let agent = agent.model(&format!("script:{}", script.display())).build().unwrap();
    let (stop, done) = start_worker(&cluster, "w", agent);
    let allowance = Some(ResourceAmounts { model_calls: Some(2), ..ResourceAmounts::default() });
    let order = Order { allowance, ..build_order("own", "find", json!({})) };
    cluster.publish_order(&order).await;
    let WorkOutcome::Errored(error) = cluster.await_outcome(&order).await.1 else {
        panic!("a third model call")
    };
    assert_eq!((error.kind, error.limit), (ErrorKind::Limit, Some(ExceededLimit::Allowance)));
    assert!(error.message.contains("reserved 2 model calls"), "{error}");
    assert_eq!(
        (error.usage.model_calls, runs.get()),
        (2, 1),
        "tool calls whose results no model call could use do not run"
    );
    assert_eq!(error.models.values().map(|used| used.model_calls).sum::<u64>(), 2);
    stop.cancel();
    done.await.unwrap();
}
