//! The end of a queue from which a process takes orders, and the lease on an order that it took. It asks for as many
//! orders as it is told to and knows nothing of slots, journals or handlers.
//!
//! Requests are made by hand over one subscription. The client library's batch returns `Pending` for an idle
//! heartbeat without asking to be woken again, so that an order that comes after one lies there for seconds; and its
//! standing streams fetch ahead, which starves other processes.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::{self, response::Response};
use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject;
use millrace_protocol::work::Order;
use serde::Deserialize;
use serde_json::json;
use tracing::{debug, info};

use crate::bus::Bus;
use crate::record::{Record, encoding, is_stray, timestamp};
use crate::topology::{WORK, has_queue};
use crate::{Fault, fault};

/// How long one request for orders stands.
const EXPIRES: Duration = Duration::from_secs(5);
/// How often the server says that a request still stands.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After this long without a word the request counts as lost.
const SILENCE: Duration = Duration::from_millis(2_500);
/// How often a queue is looked for that is not there yet.
const QUEUE_LOOK: Duration = Duration::from_millis(50);
/// How long such a look may take. While nobody leads a queue there is no answer; whoever leads it next answers requests
/// for orders too, so that these may as well be made meanwhile.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// After so many looks it is said that there is none.
const QUEUE_IS_LATE: u32 = 100;

/// The end of the queue of one capability.
pub(super) struct Puller {
    bus: Bus,
    capability: Capability,
    /// Where requests go.
    next: String,
    /// Answers come to subjects below this one, each request having its own.
    inbox: String,
    answers: Subscriber,
    requests: u64,
    /// Whether the queue was seen, and not only taken to be there.
    pub was_seen: bool,
}

impl Puller {
    /// Opens the queue of a capability, waiting for a supervisor to make it if need be. One that nobody leads at the
    /// moment is taken to be there.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn open(bus: &Bus, capability: &Capability) -> Result<Self, Fault> {
        let mut tries = 0;
        let was_seen = loop {
            match look(bus, capability).await? {
                Look::Seen => break true,
                Look::Unclear => break false,
                Look::Missing => tries += 1,
            }
            if tries == QUEUE_IS_LATE {
                info!(%capability, "waiting for a supervisor to make the queue");
            }
            tokio::time::sleep(QUEUE_LOOK).await;
        };
        let inbox = bus.client().new_inbox();
        let answers = bus
            .client()
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| Fault::unavailable(format!("opening the queue of {capability}"), error))?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{capability}");
        let (bus, capability) = (bus.clone(), capability.clone());
        Ok(Self { bus, capability, next, inbox, answers, requests: 0, was_seen })
    }

    /// Asks for at most `wanted` orders, and hands each to `take` as it comes. Returns when that many came, or after
    /// five seconds. Dropping the future leaves the request standing: go on with [`Puller::close`].
    ///
    /// # Errors
    /// The server does not answer or lost the queue: open it again.
    pub async fn pull(&mut self, wanted: usize, mut take: impl FnMut(Lease)) -> Result<(), Fault> {
        let reply = self.request(wanted).await?;
        let mut missing = wanted;
        while missing > 0 {
            let message = tokio::time::timeout(SILENCE, self.answers.next())
                .await
                .map_err(|_| self.fault("no sign of life"))?
                .ok_or_else(|| self.fault("the connection is closed"))?;
            match message.status.map(|status| status.as_u16()) {
                None => {
                    missing -= 1;
                    take(Lease { bus: self.bus.clone(), message });
                }
                // A word on an earlier request, which ended by itself.
                Some(_) if *message.subject != *reply => {}
                Some(100) => {}
                Some(404 | 408) => return Ok(()),
                Some(status) => {
                    return Err(self.fault(message.description.unwrap_or_else(|| status.to_string())));
                }
            }
        }
        Ok(())
    }

    async fn request(&mut self, wanted: usize) -> Result<String, Fault> {
        self.requests += 1;
        let reply = format!("{}.{}", self.inbox, self.requests);
        let request = format!(
            r#"{{"batch":{wanted},"expires":{},"idle_heartbeat":{}}}"#,
            EXPIRES.as_nanos(),
            HEARTBEAT.as_nanos()
        );
        self.bus
            .client()
            .publish_with_reply(self.next.clone(), reply.clone(), request.into())
            .await
            .map_err(|error| self.fault(error))?;
        Ok(reply)
    }

    /// Asks for nothing more, and hands to `take` what was on its way. Takes two seconds at most.
    pub async fn close(mut self, mut take: impl FnMut(Lease)) {
        if self.answers.drain().await.is_err() {
            return;
        }
        let mut rest = std::pin::pin!(tokio::time::sleep(SILENCE));
        loop {
            tokio::select! {
                () = &mut rest => return,
                message = self.answers.next() => match message {
                    Some(message) if message.status.is_none() => {
                        take(Lease { bus: self.bus.clone(), message });
                    }
                    Some(_) => {}
                    None => return,
                },
            }
        }
    }

    fn fault(&self, why: impl std::fmt::Display) -> Fault {
        Fault::unavailable(format!("waiting for orders for {}", self.capability), why)
    }
}

/// What a look for a queue shows.
enum Look {
    Seen,
    Missing,
    /// Nobody answered.
    Unclear,
}

async fn look(bus: &Bus, capability: &Capability) -> Result<Look, Fault> {
    match tokio::time::timeout(LOOK_PATIENCE, has_queue(bus.control(), capability)).await {
        Ok(Ok(true)) => Ok(Look::Seen),
        Ok(Ok(false)) => Ok(Look::Missing),
        Ok(Err(fault)) if !fault.is_transient() => Err(fault),
        Ok(Err(_)) | Err(_) => Ok(Look::Unclear),
    }
}

/// An order that we hold: ours until its lease runs out, is renewed, or it is done.
pub(super) struct Lease {
    bus: Bus,
    message: Message,
}

impl Lease {
    /// Reads the order.
    ///
    /// # Errors
    /// It is no order, or its body can't be had.
    pub async fn order(&self) -> Result<Order, Fault> {
        let record = Record {
            sequence: 0,
            subject: self.message.subject.clone(),
            payload: self.message.payload.clone(),
            encoding: encoding(self.message.headers.as_ref()),
            time: jiff::Timestamp::UNIX_EPOCH,
            is_deletion: false,
            is_stray: is_stray(self.message.headers.as_ref(), 0) && !self.is_of_before_marks().await?,
        };
        let order = self.bus.open::<Order>(&record).await?;
        check(&self.bus, &order, self.subject())?;
        Ok(order)
    }

    /// The subject that the order came on.
    pub fn subject(&self) -> &str {
        &self.message.subject
    }

    /// Whether it has no headers and needs none.
    async fn is_of_before_marks(&self) -> Result<bool, Fault> {
        if self.message.headers.is_some() {
            return Ok(false);
        }
        let message = self.of_stream();
        let Ok(info) = message.info() else { return Ok(false) };
        self.bus.marks().may_lack(self.bus.control(), info.stream_sequence).await
    }

    fn of_stream(&self) -> jetstream::Message {
        jetstream::Message { message: self.message.clone(), context: self.bus.control().clone() }
    }

    /// Whether the queue has given it out before.
    pub fn is_repeated(&self) -> bool {
        self.of_stream().info().is_ok_and(|info| info.delivered > 1)
    }

    /// The work is done, or never will be: the order leaves the queue. Not waited for; a lost one comes again and
    /// meets the journal.
    pub async fn done(&self) {
        self.acknowledge(Bytes::from_static(b"+ACK")).await;
    }

    /// The work goes on: the lease begins anew.
    pub async fn renew(&self) {
        self.acknowledge(Bytes::from_static(b"+WPI")).await;
    }

    /// Whether the order was taken out of the queue: it was withdrawn, or somebody else has done it. A queue that was
    /// lost and made anew says nothing of the orders of the old one.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn is_gone(&self) -> Result<bool, Fault> {
        let looking = || format!("looking for {}", self.subject());
        let message = self.of_stream();
        let taken = message.info().map_err(|error| Fault::unavailable(looking(), error))?.published;
        let taken = timestamp(taken.unix_timestamp_nanos());
        let request = json!({ "subjects_filter": self.subject() });
        let answer: Response<Waiting> = self
            .bus
            .control()
            .request(format!("STREAM.INFO.{WORK}"), &request)
            .await
            .map_err(|error| Fault::unavailable(looking(), error))?;
        match answer {
            Response::Ok(waiting) => Ok(waiting.created <= taken && !waiting.holds(self.subject())),
            Response::Err { error } => Err(Fault::unavailable(looking(), error)),
        }
    }

    /// Somebody else may have it, after a while.
    pub async fn give_back(&self, after: Duration) {
        let kind = if after.is_zero() {
            Bytes::from_static(b"-NAK")
        } else {
            format!(r#"-NAK {{"delay":{}}}"#, after.as_nanos()).into()
        };
        self.acknowledge(kind).await;
    }

    async fn acknowledge(&self, kind: Bytes) {
        let Some(reply) = self.message.reply.clone() else { return };
        if let Err(error) = self.bus.client().publish(reply, kind).await {
            debug!(subject = self.subject(), %error, "an acknowledgement was lost");
        }
    }
}

/// What the server says of the stream of all queues, as far as we ask.
#[derive(Deserialize)]
struct Waiting {
    created: jiff::Timestamp,
    state: Subjects,
}

#[derive(Deserialize)]
struct Subjects {
    /// How many messages there are on each; missing where there are none.
    #[serde(default)]
    subjects: Option<HashMap<String, u64>>,
}

impl Waiting {
    fn holds(&self, subject: &str) -> bool {
        self.state.subjects.as_ref().is_some_and(|subjects| subjects.contains_key(subject))
    }
}

/// An order must be about the journal that its subject names: whoever wrote another one made a mistake.
fn check(bus: &Bus, order: &Order, subject: &str) -> Result<(), Fault> {
    let garbage = |what: String, why: String| Fault::Garbage {
        subject: subject.to_owned(),
        sequence: 0,
        garbage: millrace_protocol::wire::Garbage::Unreadable { what, why },
    };
    let expected = subject::order(&order.run, &order.capability, &order.work);
    if expected != subject {
        return Err(garbage("the order".into(), format!("it belongs on {expected}")));
    }
    if order.lane != bus.lane(&order.run) {
        let why = format!("run {} lives in lane {}, not {}", order.run, bus.lane(&order.run), order.lane);
        return Err(garbage("the order".into(), why));
    }
    Ok(())
}

/// The wait before try `number` (from 1) to reach the server again.
pub(super) fn pause(number: u32) -> Duration {
    fault::pause(number)
}
