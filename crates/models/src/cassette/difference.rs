//! Finds where a request differs from the most similar recorded one, for error messages of the replay. Pure.

use std::fmt;

use serde_json::Value;

use crate::model::Request;

/// How many characters of each value are shown.
const EXCERPT_LENGTH: usize = 60;

/// The recorded request that is most similar to a given one.
#[derive(Debug, PartialEq, Eq)]
pub struct MostSimilarRequest {
    /// Its line in the cassette, counted from 1.
    line: usize,
    first: RequestDifference,
}

/// A place where two values differ.
#[derive(Debug, PartialEq, Eq)]
struct RequestDifference {
    path: String,
    recorded: String,
    requested: String,
}

impl fmt::Display for MostSimilarRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestDifference { path, recorded, requested } = &self.first;
        write!(
            f,
            "the most similar one is in line {} and differs first in {path}: recorded {recorded}, requested {requested}",
            self.line
        )
    }
}

/// Returns the recorded request most similar to `requested`; `None` if nothing is recorded.
pub fn find_most_similar_request<'a>(
    recorded: impl Iterator<Item = &'a Request>,
    requested: &Request,
) -> Option<MostSimilarRequest> {
    let requested = list_request_parts(requested);
    let compared = recorded.enumerate().map(|(at, request)| {
        let mut comparison = RequestComparison::default();
        for ((path, recorded), (_, requested)) in list_request_parts(request).iter().zip(&requested) {
            comparison.compare_values(path, recorded, requested);
        }
        (comparison, at)
    });
    let (comparison, at) =
        compared.max_by_key(|(comparison, at)| (comparison.similarity_score(), usize::MAX - at))?;
    Some(MostSimilarRequest { line: at + 1, first: comparison.first? })
}

/// Splits a request into parts, in the order in which people read them.
fn list_request_parts(request: &Request) -> [(&'static str, Value); 5] {
    let value = |value: serde_json::Result<Value>| value.expect("a request is JSON");
    [
        ("answer", value(serde_json::to_value(&request.answer))),
        ("system", Value::from(request.system.as_str())),
        ("tools", value(serde_json::to_value(&request.tools))),
        ("messages", value(serde_json::to_value(&request.messages))),
        ("max_output_tokens", request.max_output_tokens.into()),
    ]
}

#[derive(Default)]
struct RequestComparison {
    same: usize,
    different: usize,
    /// Length of the common prefixes of texts that differ, in characters.
    common: usize,
    first: Option<RequestDifference>,
}

impl RequestComparison {
    /// Returns the similarity; higher is more similar.
    fn similarity_score(&self) -> (isize, usize) {
        (self.same.cast_signed() - self.different.cast_signed(), self.common)
    }

    fn compare_values(&mut self, path: &str, recorded: &Value, requested: &Value) {
        match (recorded, requested) {
            (Value::Object(a), Value::Object(b)) => {
                let added = b.keys().filter(|key| !a.contains_key(*key));
                for key in a.keys().chain(added) {
                    self.compare_optional_values(&format!("{path}.{key}"), a.get(key), b.get(key));
                }
            }
            (Value::Array(a), Value::Array(b)) => {
                for at in 0..a.len().max(b.len()) {
                    self.compare_optional_values(&format!("{path}[{at}]"), a.get(at), b.get(at));
                }
            }
            (a, b) if a == b => self.same += 1,
            (a, b) => self.record_value_difference(path, a, b),
        }
    }

    fn compare_optional_values(&mut self, path: &str, recorded: Option<&Value>, requested: Option<&Value>) {
        match (recorded, requested) {
            (Some(a), Some(b)) => self.compare_values(path, a, b),
            (Some(a), None) => {
                self.record_difference(path, excerpt_around(&a.to_string(), 0), "nothing".to_owned())
            }
            (None, Some(b)) => {
                self.record_difference(path, "nothing".to_owned(), excerpt_around(&b.to_string(), 0))
            }
            (None, None) => {}
        }
    }

    fn record_value_difference(&mut self, path: &str, recorded: &Value, requested: &Value) {
        let (Some(a), Some(b)) = (recorded.as_str(), requested.as_str()) else {
            return self.record_difference(
                path,
                excerpt_around(&recorded.to_string(), 0),
                excerpt_around(&requested.to_string(), 0),
            );
        };
        let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        self.common += common;
        self.record_difference(
            &format!("{path} from character {}", common + 1),
            excerpt_around(a, common),
            excerpt_around(b, common),
        );
    }

    fn record_difference(&mut self, path: &str, recorded: String, requested: String) {
        self.different += 1;
        if self.first.is_none() {
            self.first = Some(RequestDifference { path: path.to_owned(), recorded, requested });
        }
    }
}

/// Cuts an excerpt from a text that begins shortly before character `from`.
fn excerpt_around(text: &str, from: usize) -> String {
    let start = from.saturating_sub(EXCERPT_LENGTH / 3);
    let cut: String = text.chars().skip(start).take(EXCERPT_LENGTH).collect();
    format!("{}{cut:?}", if start > 0 { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;

    fn user_request(text: &str) -> Request {
        Request {
            system: String::new(),
            messages: vec![Message::User { text: text.into() }],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 1,
        }
    }

    #[test]
    fn a_later_difference_means_more_similar() {
        let recorded =
            [user_request("far away"), user_request("the patents of 2024"), user_request("the others")];
        let near = find_most_similar_request(recorded.iter(), &user_request("the patents of 2025")).unwrap();
        assert_eq!((near.line, near.first.path.as_str()), (2, "messages[0].text from character 19"));
        assert_eq!(near.first.recorded, "\"the patents of 2024\"");
        assert_eq!(near.first.requested, "\"the patents of 2025\"");
    }
}
