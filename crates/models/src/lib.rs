//! Language models behind one interface, in layers of which each uses only those below:
//!
//! ```text
//! factory        builds models from selections; a model and its fallbacks are tried in order
//! ├─ cassette, script   record and replay requests; a scripted model for tests and demonstrations
//! ├─ resilience  one call: structured output, retries, the circuit breaker, the cluster's rate limits, the cost
//! ├─ structured  structured output and tool calls, in whatever form the model supports
//! ├─ table, provider    prices and settings by model; the list of providers, one row each, and names of models
//! ├─ wire        the providers' HTTP APIs
//! ├─ negotiation, tool_names   parameters that a server refuses, and names that it or a model writes differently
//! ├─ families, limits, http_client, selection
//! └─ model       requests and replies, with images
//! ```
//! The crate knows nothing of agents, tools or NATS. API keys stay in [`provider`] and [`wire`] and leave the process only in a request
//! header.

pub mod cassette;
pub mod factory;
pub mod families;
pub mod http_client;
pub mod image;
pub mod limits;
pub mod model;
pub mod negotiation;
pub mod provider;
pub mod resilience;
pub mod script;
pub mod selection;
pub mod structured;
pub mod table;
pub mod tool_names;
pub mod wire;

pub use factory::{CreateModelError, ModelFactory};
pub use limits::{RateLimiter, RequestObserver};
pub use model::{Model, ModelAbility, ModelError, Reply, Request};
pub use selection::{ModelSelection, ModelSettings};
