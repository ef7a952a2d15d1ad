//! Language models behind one interface: what is asked and answered ([`model`]), which model is meant and how it is set
//! ([`choice`]), and from outside to inside what an opened model is made of:
//!
//! ```text
//! chain      the models of a choice, one after the other
//! └─ guard   retries, the circuit breaker, the cluster's limits, the price of what was used
//!    └─ shape    structured answers and tool calls, in whatever form the model can give them
//!       └─ wire  one provider's HTTP interface
//! ```
//! Beside the wires stand [`script`], which answers by hand, and [`cassette`], which records and plays back. What a name
//! means is told by [`provider`], what a model costs by [`price`]; [`open`] puts all of it together. The crate knows
//! nothing of agents, tools or NATS, and no key ever leaves [`provider`] and [`wire`] but in a request's header.

pub mod cassette;
pub mod chain;
pub mod choice;
pub mod gate;
pub mod guard;
pub mod http;
pub mod model;
pub mod observer;
pub mod open;
pub mod price;
pub mod provider;
pub mod script;
pub mod shape;
pub mod wire;

pub use choice::{Choice, Settings};
pub use gate::Gate;
pub use model::{Model, ModelError, Reply, Request};
pub use observer::Observer;
pub use open::{OpenError, Opener};
