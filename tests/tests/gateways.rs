//! Tests of the gateway, its clients and its dashboard, and of access to the cluster, in one program.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod access;
mod dashboard;
mod gateway;
mod gateway_access;
mod gateway_fuzz;
mod gateway_identity;
mod gateway_tenants;
mod gateway_verification;
mod gateway_webhooks;
mod python_client;
mod standards;
mod typescript_client;
