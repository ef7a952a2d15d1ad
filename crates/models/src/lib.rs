//! Language models behind one interface: requests and replies ([`model`]), model names and settings ([`selection`]),
//! and these layers, from the outermost to the innermost:
//!
//! ```text
//! fallback     a model and its fallbacks, tried in order
//! └─ resilience   retries, the circuit breaker, the cluster's rate limits, the cost of each request
//!    └─ structured   structured output and tool calls, in whatever form the model supports
//!       └─ wire         one provider's HTTP API
//! ```
//! [`script`] is a scripted model for tests and demonstrations; [`cassette`] records and replays requests. [`provider`]
//! parses model names, [`table`] lists their prices, [`ability`] knows which prompts they need, [`window`] how long
//! their conversations can be, [`vision`] which of them see [`image`]s, and [`factory`] builds models from all of this. The crate knows
//! nothing of agents, tools or NATS. API keys stay in [`provider`] and [`wire`] and leave the process only in a request
//! header.

pub mod ability;
pub mod cassette;
pub mod factory;
pub mod fallback;
pub mod http_client;
pub mod image;
pub mod model;
pub mod observer;
pub mod provider;
pub mod rate_limit;
pub mod resilience;
pub mod script;
pub mod selection;
pub mod structured;
pub mod table;
pub mod vision;
pub mod window;
pub mod wire;

pub use ability::ModelAbility;
pub use factory::{CreateModelError, ModelFactory};
pub use model::{Model, ModelError, Reply, Request};
pub use observer::RequestObserver;
pub use rate_limit::RateLimiter;
pub use selection::{ModelSelection, ModelSettings};
