//! Repetitions of requests. A client that did not get the reply to a request with an `Idempotency-Key` sends it again, and gets the
//! reply of the first one, with its status.
//!
//! A key belongs to its caller, the operation and what that acts on. It stands for a request in its normal form: the order of fields
//! and fields with their defaults do not matter. The key is claimed right before the request is carried out, under an id that is
//! stored with the claim, so that a repetition after a crash of this process carries it out once. A refused request owns no key.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millrace_protocol::ids::RunId;
use millrace_runtime::Fault;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_runtime::store::keys::{
    KeyRecord, KeyScope, KeyedReply, KeyedRequest, claim_key, read_keyed_request, release_key, store_reply,
};
use serde::Serialize;
use serde_json::Value;

use crate::access::Access;
use crate::extract::IdempotencyKey;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::text_response;

/// The largest whole number up to which a float of JSON is exact.
const MAX_EXACT_NUMBER: f64 = 9_007_199_254_740_991.0;

/// The reply to a request before it is carried out.
pub enum EarlyReply {
    /// The request is not possible.
    Problem(Problem),
    /// A request with this key was carried out before.
    Repeated(Response),
}

impl From<Problem> for EarlyReply {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Fault> for EarlyReply {
    fn from(fault: Fault) -> Self {
        Self::Problem(fault.into())
    }
}

impl EarlyReply {
    /// Returns the response of a repeated request.
    pub fn into_result(self) -> ApiResult {
        match self {
            Self::Problem(problem) => Err(problem),
            Self::Repeated(response) => Ok(response),
        }
    }
}

impl IntoResponse for EarlyReply {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::Repeated(response) => response,
        }
    }
}

/// A request that may be a repetition.
pub struct RepeatableRequest<'a> {
    gateway: &'a Access,
    /// The key with the name of its record; `None` if the client gives none.
    key: Option<(String, String)>,
    /// The digest of the normal form.
    request: String,
    record: Option<KeyRecord>,
}

impl<'a> RepeatableRequest<'a> {
    /// Looks a request up by its key. `resource` is what the operation acts on.
    ///
    /// # Errors
    /// A request with this key has a reply, which is returned; the key stands for another request; or the cluster does not respond.
    pub async fn look_up(
        gateway: &'a Access,
        IdempotencyKey(key): IdempotencyKey,
        (operation, resource): (&str, &str),
        request: &impl Serialize,
    ) -> Result<Self, EarlyReply> {
        let key = key.map(|key| {
            let scope = KeyScope { author: &gateway.caller.name, operation, resource, key: &key };
            (scope.record_name(), key)
        });
        let record = match &key {
            Some((name, _)) => read_keyed_request(&gateway.bus, name).await?,
            None => None,
        };
        let repeatable = Self { gateway, key, request: digest_of(request), record: None };
        let Some(record) = record else { return Ok(repeatable) };
        repeatable.check(&record)?;
        // The answer of a run that was deleted is that it was deleted.
        gateway.refuse_deleted(&record.keyed.run).await?;
        match &record.keyed.reply {
            Some(reply) => Err(EarlyReply::Repeated(response_of(reply))),
            None => Ok(Self { record: Some(record), ..repeatable }),
        }
    }

    /// The run and the id under which the request was carried out, or may have been, if it is a repetition.
    pub fn earlier(&self) -> Option<(&RunId, &str)> {
        self.record.as_ref().map(|record| (&record.keyed.run, record.keyed.id.as_str()))
    }

    /// Claims the key, and returns the run and the id under which the request is to be carried out: those given, or those of an earlier
    /// claim.
    pub async fn claim(&mut self, run: RunId, id: String) -> Result<(RunId, String), Problem> {
        let Some((name, _)) = &self.key else { return Ok((run, id)) };
        if self.record.is_none() {
            let keyed = KeyedRequest { run, id, request: self.request.clone(), reply: None };
            let record = claim_key(&self.gateway.bus, name, &keyed).await?;
            self.check(&record)?;
            self.record = Some(record);
        }
        let KeyRecord { keyed, .. } = self.record.as_ref().expect("the key was claimed above");
        Ok((keyed.run.clone(), keyed.id.clone()))
    }

    /// Stores the final reply, and returns it.
    ///
    /// # Errors
    /// The cluster does not respond; a repetition returns the reply then.
    pub async fn reply(
        self,
        (status, location): (StatusCode, Option<String>),
        value: &impl Serialize,
    ) -> ApiResult {
        let body = serde_json::to_string(value).expect("the types of the API serialise to JSON");
        let reply = KeyedReply { status: status.as_u16(), location, body };
        let response = response_of(&reply);
        if let (Some((name, _)), Some(record)) = (&self.key, self.record) {
            store_reply(&self.gateway.bus, name, record, reply).await?;
        }
        Ok(response)
    }

    /// Gives the key of a refused request free, and returns the refusal.
    pub async fn refuse(self, problem: Problem) -> Problem {
        if let (Some((name, _)), Some(record)) = (&self.key, &self.record)
            && let Err(fault) = release_key(&self.gateway.bus, name, record).await
        {
            return fault.into();
        }
        problem
    }

    fn check(&self, record: &KeyRecord) -> Result<(), Problem> {
        if record.keyed.request == self.request {
            return Ok(());
        }
        let (_, key) = self.key.as_ref().expect("only keys have records");
        let detail = format!(
            "the key {key:?} was used for this operation with another body, on run {}; use a new key",
            record.keyed.run
        );
        Err(Problem::new(ProblemKind::KeyReused, detail))
    }
}

fn response_of(reply: &KeyedReply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    let mut response = text_response(status, reply.body.clone());
    let location = reply.location.as_deref().and_then(|path| HeaderValue::from_str(path).ok());
    if let Some(path) = location {
        response.headers_mut().insert(header::LOCATION, path);
    }
    response
}

/// Returns the digest of the normal form of a request.
fn digest_of(request: &impl Serialize) -> String {
    let mut value = millrace_views::to_value(request);
    value.sort_all_objects();
    write_whole_numbers_as_integers(&mut value);
    sha256_hex(value.to_string().as_bytes())
}

/// Writes `1.0` and `1e0` as `1`: JSON knows no difference, and clients repeat a request with either.
fn write_whole_numbers_as_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole =
                number.as_f64().filter(|whole| whole.fract() == 0.0 && whole.abs() <= MAX_EXACT_NUMBER);
            if let Some(Ok(whole)) = whole.map(|whole| format!("{whole:.0}").parse::<i64>()) {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers_as_integers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers_as_integers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_of_fields_does_not_matter_and_everything_else_does() {
        let digest = |text: &str| digest_of(&serde_json::from_str::<Value>(text).unwrap());
        let one = digest(
            r#"{"plan": {"tasks": [{"id": "a", "parameters": {"x": 1, "y": [1, 2]}}]}, "budget": {"tokens": 1, "time": "1m"}}"#,
        );
        assert_eq!(
            one,
            digest(
                r#"{"budget": {"time": "1m", "tokens": 1}, "plan": {"tasks": [{"parameters": {"y": [1, 2], "x": 1}, "id": "a"}]}}"#
            )
        );
        assert_ne!(
            one,
            digest(
                r#"{"budget": {"time": "1m", "tokens": 1}, "plan": {"tasks": [{"parameters": {"y": [2, 1], "x": 1}, "id": "a"}]}}"#
            )
        );
        assert_ne!(digest_of(&json!({"a": 1})), digest_of(&json!({"a": "1"})));
        assert_eq!(digest("[0, 1, {\"a\": 100}]"), digest("[-0.0, 1.0, {\"a\": 1e2}]"));
        assert_ne!(digest("[1]"), digest("[1.5]"));
        assert_ne!(digest("9007199254740993"), digest("9007199254740992.0"));
    }
}
