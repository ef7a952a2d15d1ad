//! One suite for all wires: the exact requests, and all responses and failures of providers, gateways and networks. The
//! providers are stubs on loopback, except in the last part, which uses a real model.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

#[path = "conformance/stub.rs"]
mod stub;
#[path = "conformance/wires.rs"]
mod wires;

#[path = "conformance/bedrock.rs"]
mod bedrock;
#[path = "conformance/breaks.rs"]
mod breaks;
#[path = "conformance/faults.rs"]
mod faults;
#[path = "conformance/framing.rs"]
mod framing;
#[path = "conformance/images.rs"]
mod images;
#[path = "conformance/oddities.rs"]
mod oddities;
#[path = "conformance/providers.rs"]
mod providers;
#[path = "conformance/real.rs"]
mod real;
#[path = "conformance/requests.rs"]
mod requests;
#[path = "conformance/turns.rs"]
mod turns;
