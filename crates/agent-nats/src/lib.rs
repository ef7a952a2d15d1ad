//! Adapters between agents and a cluster: the interfaces of `millrace-agent` and `millrace-models`, implemented on the
//! NATS runtime. Workers and critics share them.
//!
//! | interface | adapter | backed by |
//! |---|---|---|
//! | `agent::turn::Journal` | [`NatsJournal`] | the attempt's journal in the log |
//! | `agent::sources::OrderInputs` | [`NatsOrderInputs`] | the log, the blob store, the registry |
//! | `agent::files::Files` | [`NatsFiles`] | the run's workspace |
//! | `models::RateLimiter` | [`NatsRateLimiter`] | the cluster's rate limits |
//! | `models::RequestObserver` | [`ModelMetrics`] | the process's metrics page |
//! | `agent::model::DeltaListener` | [`LiveOutputStream`] | core NATS, for `millrace watch` |
//!
//! [`build_agent_environment`] puts them together for one attempt; [`run_agent_role`] runs a process that hosts agents.

mod environment;
mod files;
mod host;
mod journal;
mod live_stream;
mod model_metrics;
mod rate_limiter;
mod sources;

pub use environment::{build_agent_environment, convert_session_error};
pub use files::NatsFiles;
pub use host::{AgentHostConfig, run_agent_role};
pub use journal::NatsJournal;
pub use live_stream::LiveOutputStream;
pub use model_metrics::ModelMetrics;
pub use rate_limiter::NatsRateLimiter;
pub use sources::NatsOrderInputs;
