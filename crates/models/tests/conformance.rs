//! One suite for all wires: the exact requests, and all responses and failures of providers, gateways and networks. The
//! providers are stubs on loopback, except in the last part, which uses a real model.

mod bedrock;
mod breaks;
mod demands;
mod faults;
mod framing;
mod images;
mod oddities;
mod probabilities;
mod providers;
mod real;
mod refusals;
mod replies;
mod requests;
mod stub;
mod turns;
mod wires;
