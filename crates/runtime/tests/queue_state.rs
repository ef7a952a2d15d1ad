//! Removing an order does not strand other orders in flight.

use std::time::Duration;

use async_nats::jetstream;
use futures::StreamExt;
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;
use millrace_runtime::nats::topology::{ClusterOptions, WORK};
use millrace_runtime::work::queue;
use millrace_runtime::work::queue::QueueSnapshot;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::plans::SeededRandom;
use millrace_tests::{NatsServer, wait_for_value};

const SEEDS: u64 = 10;
const STEPS: u32 = 400;
/// Long enough that no order is redelivered before its process is "lost" at the end of a seed.
const LEASE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(120);

fn order(number: u64) -> Order {
    let task = TaskId::new(format!("t{number}")).expect("the name is valid");
    let work = Work::Task { task, attempt: 1 };
    let (run, echo) = (RunId::new("r").expect("valid"), Capability::new("echo").expect("valid"));
    Order::new(run, Lane(0), work, "o", echo)
}

fn choose<T>(random: &mut SeededRandom, from: &mut Vec<T>) -> Option<T> {
    let count = u64::try_from(from.len()).ok().filter(|count| *count > 0)?;
    Some(from.swap_remove(usize::try_from(random.next_below(count)).ok()?))
}

/// Publishes, pulls, acknowledges and withdraws orders at random.
async fn use_queue_at_random(bus: &Bus, seed: u64) {
    let mut random = SeededRandom::new(seed);
    let context = jetstream::new(bus.client().clone());
    let stream = context.get_stream(WORK).await.expect("the stream exists");
    let consumer: jetstream::consumer::PullConsumer =
        stream.get_consumer("echo").await.expect("the queue exists");
    let (mut published, mut withdrawable, mut in_hand) = (1, vec![0], Vec::new());
    for _ in 0..STEPS {
        match random.next_below(4) {
            0 => {
                assert!(queue::publish_orders(bus, vec![order(published)]).await.is_ok());
                withdrawable.push(published);
                published += 1;
            }
            1 => {
                let batch = consumer.fetch().max_messages(2).expires(Duration::from_millis(20)).messages();
                let mut batch = batch.await.expect("the server responds");
                while let Some(Ok(message)) = batch.next().await {
                    in_hand.push(message);
                }
            }
            2 => {
                if let Some(message) = choose(&mut random, &mut in_hand) {
                    // It may have been withdrawn, or redelivered meanwhile.
                    drop(message.double_ack().await);
                }
            }
            _ => {
                if let Some(number) = choose(&mut random, &mut withdrawable) {
                    let (order, work) = (order(number), order(number).work());
                    let withdrawn = queue::withdraw_order(bus, &order.run, &order.capability, &work);
                    withdrawn.await.expect("the server responds");
                }
            }
        }
    }
}

/// Pulls and acknowledges orders until none is left.
async fn empty_queue(bus: &Bus, seed: u64) {
    let context = jetstream::new(bus.client().clone());
    let stream = context.get_stream(WORK).await.expect("the stream exists");
    let consumer: jetstream::consumer::PullConsumer =
        stream.get_consumer("echo").await.expect("the queue exists");
    wait_for_value(PATIENCE, &format!("an empty queue after seed {seed}"), async || {
        let mut batch = consumer.fetch().max_messages(500).messages().await.expect("the server responds");
        while let Some(Ok(message)) = batch.next().await {
            drop(message.double_ack().await);
        }
        QueueSnapshot::read(bus).await.expect("the server responds").orders.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn withdrawn_orders_strand_no_other_order() {
    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(&server.url);
    let options = ClusterOptions { work_lease: Some(LEASE), ..ClusterOptions::default() };
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &options).await.expect("it connects");
    for seed in 0..SEEDS {
        assert!(queue::publish_orders(&bus, vec![order(0)]).await.is_ok());
        use_queue_at_random(&bus, seed).await;
        empty_queue(&bus, seed).await;
    }
}
