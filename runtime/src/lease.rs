//! Who owns a lane: a key in a bucket whose entries expire. The lease is for liveness only, so that there is an owner;
//! that there is only one writer is seen to by the server at each append.
//!
//! Live supervisors share the lanes by rendezvous with a bound: each lane belongs to the member whose hash with it is
//! highest among those that have not their even share yet. All of them come to the same answer without talking, no
//! member has more than one lane more than another, and a member's coming or going moves few lanes beside its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::kv;
use millrace_protocol::ids::{Lane, WorkerId};
use tokio::time::Instant;

use crate::bus::Bus;
use crate::topology::{LEASES, MEMBERS, bucket_stream, fault, open_bucket};
use crate::{Fault, direct};

/// The share of the lanes that falls to one supervisor.
pub struct Share {
    bus: Bus,
    me: WorkerId,
    leases: kv::Store,
    members: kv::Store,
}

/// A lane that we hold.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The lane.
    pub lane: Lane,
    revision: u64,
    renewed: Instant,
}

impl Lease {
    /// Whether so much of the lease has passed since it was last renewed that somebody else may hold it. By a clock
    /// that goes on while this process is stopped.
    #[must_use]
    pub fn is_stale(&self, bus: &Bus) -> bool {
        self.renewed.elapsed() >= Duration::from_millis(bus.settings().lane_lease_ms)
    }
}

impl Share {
    /// Opens the buckets.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn open(bus: &Bus, me: WorkerId) -> Result<Self, Fault> {
        let (leases, members) =
            (open_bucket(bus.control(), LEASES).await?, open_bucket(bus.control(), MEMBERS).await?);
        Ok(Self { bus: bus.clone(), me, leases, members })
    }

    /// Says that we are there, and learns who else is.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn join(&self) -> Result<BTreeSet<WorkerId>, Fault> {
        self.members
            .put(self.me.as_str(), "".into())
            .await
            .map_err(|error| fault("joining the supervisors", &error))?;
        let mut members = BTreeSet::from([self.me.clone()]);
        for (key, _) in entries(&self.bus, MEMBERS).await? {
            members.extend(WorkerId::new(key).ok());
        }
        Ok(members)
    }

    /// The lanes that fall to us among these members.
    #[must_use]
    pub fn wanted(&self, members: &BTreeSet<WorkerId>) -> BTreeSet<Lane> {
        let shared = share_out(self.bus.settings().lanes, members);
        shared.into_iter().filter(|(_, member)| **member == self.me).map(|(lane, _)| lane).collect()
    }

    /// Takes a lane that nobody holds; `None` if somebody does.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn take(&self, lane: Lane) -> Result<Option<Lease>, Fault> {
        let renewed = Instant::now();
        match self.leases.create(key(lane), self.me.to_string().into()).await {
            Ok(revision) => Ok(Some(Lease { lane, revision, renewed })),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(fault(&format!("taking lane {lane}"), &error)),
        }
    }

    /// Renews a lease; `false` if it is not ours any more.
    ///
    /// # Errors
    /// The server does not answer: the lease may still be ours.
    pub async fn renew(&self, lease: &mut Lease) -> Result<bool, Fault> {
        let renewed = Instant::now();
        let value = self.me.to_string().into();
        match self.leases.update(key(lease.lane), value, lease.revision).await {
            Ok(revision) => {
                (lease.revision, lease.renewed) = (revision, renewed);
                Ok(true)
            }
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
                self.is_still_ours(lease, renewed).await
            }
            Err(error) => Err(fault(&format!("renewing lane {}", lease.lane), &error)),
        }
    }

    /// An update whose answer was lost is refused when it is repeated, though the lease is ours: the bucket is asked.
    async fn is_still_ours(&self, lease: &mut Lease, now: Instant) -> Result<bool, Fault> {
        let found = self
            .leases
            .entry(key(lease.lane))
            .await
            .map_err(|error| fault(&format!("reading the lease of lane {}", lease.lane), &error))?;
        match found {
            Some(entry) if entry.value == self.me.as_str() && entry.operation == kv::Operation::Put => {
                (lease.revision, lease.renewed) = (entry.revision, now);
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Gives a lane back at once, so that the next owner need not wait for the lease to run out.
    ///
    /// # Errors
    /// The server does not answer: the lease runs out by itself.
    pub async fn give_back(&self, lease: &Lease) -> Result<(), Fault> {
        self.leases
            .delete_expect_revision(key(lease.lane), Some(lease.revision))
            .await
            .map_err(|error| fault(&format!("giving lane {} back", lease.lane), &error))
    }

    /// Says that we are gone.
    ///
    /// # Errors
    /// The server does not answer: the entry runs out by itself.
    pub async fn leave(&self) -> Result<(), Fault> {
        self.members.delete(self.me.as_str()).await.map_err(|error| fault("leaving the supervisors", &error))
    }
}

fn key(lane: Lane) -> String {
    format!("lane-{lane}")
}

/// Who each lane falls to.
fn share_out(lanes: u16, members: &BTreeSet<WorkerId>) -> BTreeMap<Lane, &WorkerId> {
    let count = members.len().max(1);
    let (even, mut left_over) = (usize::from(lanes) / count, usize::from(lanes) % count);
    let mut loads: BTreeMap<&WorkerId, usize> = members.iter().map(|member| (member, 0)).collect();
    let mut shared = BTreeMap::new();
    for lane in (0..lanes).map(Lane) {
        let has_room = |load: usize| load < even || (load == even && left_over > 0);
        let open = loads.iter_mut().filter(|(_, load)| has_room(**load));
        let Some((member, load)) = open.max_by_key(|(member, _)| weight(lane, member)) else { break };
        left_over -= usize::from(*load == even);
        *load += 1;
        shared.insert(lane, *member);
    }
    shared
}

/// How much a lane wants a member: a 64-bit hash of both (FNV-1a, finished as in SplitMix64, since FNV's high bits
/// hardly depend on the last characters).
fn weight(lane: Lane, member: &WorkerId) -> u64 {
    let bytes = member.as_str().bytes().chain(lane.0.to_be_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The live entries of a bucket: keys and values.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn entries(bus: &Bus, bucket: &str) -> Result<Vec<(String, bytes::Bytes)>, Fault> {
    let prefix = format!("$KV.{bucket}.");
    let records = direct::read(bus.client(), &bucket_stream(bucket), &format!("{prefix}>"), 1).await?;
    Ok(records
        .into_iter()
        .filter(|record| !record.is_deletion)
        .filter_map(|record| Some((record.subject.strip_prefix(&prefix)?.to_owned(), record.payload)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u32) -> BTreeSet<WorkerId> {
        (1..=count).map(|n| WorkerId::new(format!("supervisor-{n}")).unwrap()).collect()
    }

    #[test]
    fn nobody_has_more_than_one_lane_more_than_another() {
        for (lanes, count) in [(1, 1), (1, 3), (2, 3), (4, 3), (8, 3), (16, 5), (64, 7), (1024, 9)] {
            let members = members(count);
            let shared = share_out(lanes, &members);
            assert_eq!(shared.len(), usize::from(lanes), "each lane has an owner");
            let load = |member: &WorkerId| shared.values().filter(|owner| **owner == member).count();
            let loads: Vec<usize> = members.iter().map(load).collect();
            let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
            assert!(most - least <= 1, "{lanes} lanes: {loads:?}");
        }
    }

    #[test]
    fn a_leaver_moves_few_lanes_beside_its_own() {
        let members = members(4);
        let leaver = members.first().unwrap();
        let rest: BTreeSet<WorkerId> = members.iter().skip(1).cloned().collect();
        let (before, after) = (share_out(400, &members), share_out(400, &rest));
        let moved = before.iter().filter(|&(lane, owner)| *owner != leaver && after[lane] != *owner).count();
        assert!(moved < 40, "{moved} of 300 lanes of those who stay have moved");
    }
}
