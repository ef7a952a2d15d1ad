//! Lane ownership: a lease is a key in a bucket whose entries expire. Leases only provide liveness, that every lane
//! gets an owner. Safety does not depend on them: each append is fenced, so that the server rejects a second writer.
//!
//! Live supervisors assign the lanes by rendezvous hashing with bounded load: a lane belongs to the member with the
//! highest hash among those that have less than their even share. All members compute the same assignment without
//! communicating, their shares differ by at most one lane, and few other lanes move when a member joins or leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv;
use millrace_protocol::ids::{Lane, WorkerId};
use tokio::time::Instant;

use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error};
use crate::nats::bus::Bus;
use crate::nats::topology::streams::read_bucket_entries;
use crate::nats::topology::{LEASES, MEMBERS};

/// The lane leases of one supervisor, and its membership among the supervisors. Cheap to clone.
#[derive(Clone)]
pub struct LaneLeaseManager {
    bus: Bus,
    id: WorkerId,
    leases: Arc<kv::Store>,
    members: Arc<kv::Store>,
}

/// The lease of a lane that this supervisor owns.
#[derive(Debug, Clone)]
pub struct LaneLease {
    pub lane: Lane,
    revision: u64,
    renewed: Instant,
}

impl LaneLease {
    /// `true` if the lease has not been renewed in time, so that another supervisor may own the lane. Measured by a
    /// clock that advances while this process is suspended.
    pub fn is_stale(&self, bus: &Bus) -> bool {
        self.renewed.elapsed() >= Duration::from_millis(bus.settings().lane_lease_ms)
    }
}

impl LaneLeaseManager {
    /// Opens the buckets.
    pub async fn open(bus: &Bus, id: WorkerId) -> Result<Self, Fault> {
        let (leases, members) = (bus.bucket(LEASES).await?, bus.bucket(MEMBERS).await?);
        Ok(Self { bus: bus.clone(), id, leases, members })
    }

    /// Renews the membership of this supervisor, and returns all members.
    pub async fn join_members(&self) -> Result<BTreeSet<WorkerId>, Fault> {
        self.members
            .put(self.id.as_str(), "".into())
            .await
            .or_fault("renewing the membership of this supervisor")?;
        let mut members = BTreeSet::from([self.id.clone()]);
        for (key, _) in read_bucket_entries(self.bus.client(), MEMBERS).await? {
            members.extend(WorkerId::new(key).ok());
        }
        Ok(members)
    }

    /// Returns the lanes that are assigned to this supervisor among these members.
    pub fn assigned_lanes(&self, members: &BTreeSet<WorkerId>) -> BTreeSet<Lane> {
        let assignment = assign_lanes(self.bus.settings().lanes, members);
        assignment.into_iter().filter(|(_, member)| **member == self.id).map(|(lane, _)| lane).collect()
    }

    /// Acquires a lane without an owner; `None` if it has one.
    pub async fn acquire_lease(&self, lane: Lane) -> Result<Option<LaneLease>, Fault> {
        let renewed = Instant::now();
        match self.leases.create(lease_key(lane), self.id.to_string().into()).await {
            Ok(revision) => Ok(Some(LaneLease { lane, revision, renewed })),
            Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(fault_from_client_error(&format!("acquiring lane {lane}"), error)),
        }
    }

    /// Renews a lease; `false` if it was lost.
    /// Errors: the server does not respond: the lease may still be valid.
    pub async fn renew_lease(&self, lease: &mut LaneLease) -> Result<bool, Fault> {
        let renewed = Instant::now();
        let value = self.id.to_string().into();
        match self.leases.update(lease_key(lease.lane), value, lease.revision).await {
            Ok(revision) => {
                (lease.revision, lease.renewed) = (revision, renewed);
                Ok(true)
            }
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
                self.reread_after_conflict(lease, renewed).await
            }
            Err(error) => Err(fault_from_client_error(&format!("renewing lane {}", lease.lane), error)),
        }
    }

    /// Reads the lease after a rejected renewal: if the response to an earlier renewal was lost, the revision differs
    /// although this supervisor still holds the lease.
    async fn reread_after_conflict(&self, lease: &mut LaneLease, now: Instant) -> Result<bool, Fault> {
        let entry = self
            .leases
            .entry(lease_key(lease.lane))
            .await
            .or_fault_with(|| format!("reading the lease of lane {}", lease.lane))?;
        match entry {
            Some(entry) if entry.value == self.id.as_str() && entry.operation == kv::Operation::Put => {
                (lease.revision, lease.renewed) = (entry.revision, now);
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Releases a lane, so that the next owner need not wait until the lease expires.
    pub async fn release_lease(&self, lease: &LaneLease) -> Result<(), Fault> {
        self.leases
            .delete_expect_revision(lease_key(lease.lane), Some(lease.revision))
            .await
            .or_fault_with(|| format!("releasing lane {}", lease.lane))
    }

    /// Removes the membership of this supervisor.
    pub async fn leave_members(&self) -> Result<(), Fault> {
        self.members.delete(self.id.as_str()).await.or_fault("removing the membership of this supervisor")
    }
}

pub(crate) fn lease_key(lane: Lane) -> String {
    format!("lane-{lane}")
}

/// Assigns each lane to a member.
fn assign_lanes(lanes: u16, members: &BTreeSet<WorkerId>) -> BTreeMap<Lane, &WorkerId> {
    let count = members.len().max(1);
    let (even, mut remainder) = (usize::from(lanes) / count, usize::from(lanes) % count);
    let mut loads: BTreeMap<&WorkerId, usize> = members.iter().map(|member| (member, 0)).collect();
    let mut assignment = BTreeMap::new();
    for lane in (0..lanes).map(Lane) {
        let has_room = |load: usize| load < even || (load == even && remainder > 0);
        let open = loads.iter_mut().filter(|(_, load)| has_room(**load));
        let Some((member, load)) = open.max_by_key(|(member, _)| assignment_weight(lane, member)) else {
            break;
        };
        remainder -= usize::from(*load == even);
        *load += 1;
        assignment.insert(lane, *member);
    }
    assignment
}

/// Returns the weight of a member for a lane: a 64-bit hash of both (FNV-1a, finished as in SplitMix64, since the high
/// bits of FNV hardly depend on the last characters).
fn assignment_weight(lane: Lane, member: &WorkerId) -> u64 {
    let bytes = member.as_str().bytes().chain(lane.0.to_be_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered_members(count: u32) -> BTreeSet<WorkerId> {
        (1..=count).map(|n| WorkerId::new(format!("supervisor-{n}")).unwrap()).collect()
    }

    #[test]
    fn shares_differ_by_at_most_one_lane() {
        for (lanes, count) in [(1, 1), (1, 3), (2, 3), (4, 3), (8, 3), (16, 5), (64, 7), (1024, 9)] {
            let members = numbered_members(count);
            let assignment = assign_lanes(lanes, &members);
            assert_eq!(assignment.len(), usize::from(lanes), "each lane has an owner");
            let load = |member: &WorkerId| assignment.values().filter(|owner| **owner == member).count();
            let loads: Vec<usize> = members.iter().map(load).collect();
            let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
            assert!(most - least <= 1, "{lanes} lanes: {loads:?}");
        }
    }

    #[test]
    fn few_other_lanes_move_when_a_member_leaves() {
        let members = numbered_members(4);
        let leaver = members.first().unwrap();
        let rest: BTreeSet<WorkerId> = members.iter().skip(1).cloned().collect();
        let (before, after) = (assign_lanes(400, &members), assign_lanes(400, &rest));
        let moved = before.iter().filter(|&(lane, owner)| *owner != leaver && after[lane] != *owner).count();
        assert!(moved < 40, "{moved} of 300 lanes of the remaining members have moved");
    }
}
