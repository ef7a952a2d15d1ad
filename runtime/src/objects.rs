//! Reading objects of an object store. The client library makes a consumer for each object that it reads, and a stream
//! has a thousand of them at the most, which a thousand documents use up; here the parts of an object are read
//! directly.

use async_nats::Client;
use async_nats::jetstream::object_store::{InfoErrorKind, ObjectStore};

use crate::topology::fault;
use crate::{Fault, direct};

/// The content of an object of the bucket; `None` if there is no such object.
///
/// # Errors
/// The server does not answer, or has not all of it: on a replicated bucket, the copy that answers may lag.
pub(crate) async fn read(
    client: &Client,
    bucket: &str,
    store: &ObjectStore,
    name: &str,
) -> Result<Option<Vec<u8>>, Fault> {
    let what = || format!("reading object {name} of bucket {bucket}");
    let info = match store.info(name).await {
        Ok(info) if info.deleted => return Ok(None),
        Ok(info) => info,
        Err(error) if error.kind() == InfoErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(&what(), &error)),
    };
    let parts = format!("$O.{bucket}.C.{}", info.nuid);
    let mut content = Vec::with_capacity(info.size);
    for part in direct::read(client, &format!("OBJ_{bucket}"), &parts, 1).await? {
        content.extend_from_slice(&part.payload);
    }
    if content.len() == info.size {
        return Ok(Some(content));
    }
    Err(Fault::unavailable(what(), format!("{} of {} bytes are there", content.len(), info.size)))
}
