//! Reading key-value buckets.

use async_nats::Client;
use async_nats::jetstream::{self, kv};
use bytes::Bytes;

use super::direct_get::{self, ALL_SUBJECTS};
use super::error::fault_from_client_error;
use super::topology::names::bucket_stream;
use crate::Fault;

/// Opens an existing bucket.
pub(crate) async fn open_bucket(context: &jetstream::Context, name: &str) -> Result<kv::Store, Fault> {
    context
        .get_key_value(name)
        .await
        .map_err(|error| fault_from_client_error(&format!("bucket {name}"), error))
}

/// Returns the current entries of a bucket, as keys and values. Deleted keys are left out.
pub(crate) async fn read_bucket_entries(
    client: &Client,
    bucket: &str,
) -> Result<Vec<(String, Bytes)>, Fault> {
    let prefix = format!("$KV.{bucket}.");
    let records = direct_get::read_matching(client, &bucket_stream(bucket), ALL_SUBJECTS, 1).await?;
    let present = records.into_iter().filter(|record| !record.is_deletion);
    Ok(present
        .filter_map(|record| Some((record.subject.strip_prefix(&prefix)?.to_owned(), record.payload)))
        .collect())
}
