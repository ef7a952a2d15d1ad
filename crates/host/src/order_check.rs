//! Detects stale orders, whose decision is not in the log. After a power loss, a server may have an order and not the decision
//! behind it. The inputs, objective or limits of such an order may be wrong, and its sequences may refer to other messages.
//!
//! Only orders that were in the queues when this process connected to its server are checked: a supervisor that publishes
//! later has read the log that this server has.
//!
//! # Invariants
//!
//! - I75: After a power loss a run continues from the remaining messages of each stream, or reports what is missing: an order
//!   whose decision was lost is discarded, no task reads another message in place of an input, and queues that lost their newest
//!   orders deliver all orders of the plans.
//!   (`tests/tests/queues/power_loss.rs::run_continues_after_a_power_loss_or_says_why_not`,
//!   `tests/tests/queues/power_loss.rs::orders_are_delivered_after_the_queues_have_lost_their_end`,
//!   `tests/tests/queues/power_loss.rs::order_of_a_lost_decision_is_discarded`,
//!   `worker/tests/worker.rs::an_input_that_another_message_has_replaced_is_not_read`)

use std::collections::HashSet;

use async_nats::jetstream::response::Response;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::{DecisionId, Order};
use millrace_runtime::fault::response_fault;
use millrace_runtime::log::read_message;
use millrace_runtime::nats::topology::WORK;
use millrace_runtime::{Bus, Fault};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

/// The maximum number of decisions that are remembered; beyond it they are read again.
const MAX_REMEMBERED: usize = 10_000;

/// Checks whether orders are stale.
#[derive(Default)]
pub(crate) struct OrderCheck(Mutex<ServerOrders>);

/// The orders of the server to which this process is connected.
#[derive(Default)]
struct ServerOrders {
    /// The id of the server; a restarted server has another one.
    server: String,
    /// The last sequence in the queues when the first order after the connection arrived.
    last_old_sequence: u64,
    /// Decisions that were found in the log.
    found: HashSet<(Lane, RunId, DecisionId)>,
}

impl OrderCheck {
    /// Returns `true` if the log does not contain the decision that this order names. `sequence` is the sequence of the order
    /// in its stream.
    pub async fn is_stale(&self, bus: &Bus, order: &Order, sequence: u64) -> Result<bool, Fault> {
        let Some(decided) = order.decided else { return Ok(false) };
        let mut orders = self.0.lock().await;
        let server = bus.client().server_info().server_id;
        if orders.server != server {
            let last_old_sequence = read_last_sequence(bus).await?;
            *orders = ServerOrders { server, last_old_sequence, found: HashSet::new() };
        }
        let key = (order.lane, order.run.clone(), decided);
        if sequence > orders.last_old_sequence || orders.found.contains(&key) {
            return Ok(false);
        }
        let is_in_log = has_decision(bus, order.lane, &order.run, decided).await?;
        if is_in_log && orders.found.len() < MAX_REMEMBERED {
            orders.found.insert(key);
        }
        Ok(!is_in_log)
    }
}

/// The state of the stream of all queues, as far as it is needed.
#[derive(Deserialize)]
struct StreamInfo {
    state: StreamPosition,
}

#[derive(Deserialize)]
struct StreamPosition {
    last_seq: u64,
}

async fn read_last_sequence(bus: &Bus) -> Result<u64, Fault> {
    const WHAT: &str = "reading the state of the queues";
    let response: Response<StreamInfo> = bus
        .request_context()
        .request(format!("STREAM.INFO.{WORK}"), &json!({}))
        .await
        .map_err(|error| Fault::unavailable(WHAT, error))?;
    match response {
        Response::Ok(info) => Ok(info.state.last_seq),
        Response::Err { error } => Err(response_fault(WHAT, error)),
    }
}

/// `true` if the log contains this decision of the run. A decision that this program can't decode counts as contained.
async fn has_decision(bus: &Bus, lane: Lane, run: &RunId, id: DecisionId) -> Result<bool, Fault> {
    let Some(record) = read_message(bus, lane, id.sequence).await? else { return Ok(false) };
    if record.is_forged() || *record.subject != subject::topic_subject(lane, run, &Topic::Plan) {
        return Ok(false);
    }
    match bus.decode_record::<Decision>(&record).await {
        Ok(decision) => Ok(decision.at == id.at),
        Err(fault) if fault.is_transient() => Err(fault),
        Err(_) => Ok(true),
    }
}
