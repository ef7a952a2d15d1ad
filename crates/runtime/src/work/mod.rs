//! Work and its owners: the queues of orders, the registry of processes, and the supervisors that own lanes.

pub mod lane_lease;
pub mod queue;
pub mod queue_place;
pub mod registry;
