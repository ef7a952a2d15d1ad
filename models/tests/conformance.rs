//! One suite against every wire: what is asked of a provider, to the byte, and everything that a provider, a gateway or
//! a network can answer with. The providers are stubs on loopback, but for the last part, which asks a real model.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

#[path = "conformance/stub.rs"]
mod stub;
#[path = "conformance/wires.rs"]
mod wires;

#[path = "conformance/breaks.rs"]
mod breaks;
#[path = "conformance/faults.rs"]
mod faults;
#[path = "conformance/framing.rs"]
mod framing;
#[cfg(feature = "genai")]
#[path = "conformance/long_tail.rs"]
mod long_tail;
#[path = "conformance/oddities.rs"]
mod oddities;
#[path = "conformance/real.rs"]
mod real;
#[path = "conformance/requests.rs"]
mod requests;
#[path = "conformance/turns.rs"]
mod turns;
