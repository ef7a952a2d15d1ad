//! Tests of the repository's pages, manifests and rules, in one program.

mod architecture;
mod docs;
mod manifests;
mod observability;
mod packages;
mod parity;
