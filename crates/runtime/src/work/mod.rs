//! Work and its owners: the queues of orders, the processes that take them, and the supervisors that own lanes.

pub mod host;
pub mod lane_lease;
pub mod queue;
pub mod queue_state;
pub mod registry;
pub mod summary_changes;
