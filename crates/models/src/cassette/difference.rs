//! Finds where a request differs from the most similar recorded one, for error messages of the replay. Pure.

use serde_json::Value;

use crate::model::Request;

const EXCERPT_LENGTH: usize = 60;

/// Describes the recorded request most similar to `requested`, with its line in the cassette; `None` if nothing is recorded.
pub fn find_most_similar_request<'a>(
    recorded: impl Iterator<Item = &'a Request>,
    requested: &Request,
) -> Option<String> {
    let requested = list_request_parts(requested);
    let compared = recorded.enumerate().map(|(at, request)| {
        let mut comparison = RequestComparison::default();
        for ((path, recorded), (_, requested)) in list_request_parts(request).iter().zip(&requested) {
            comparison.compare_values(path, recorded, requested);
        }
        (comparison, at)
    });
    let similarity = |of: &RequestComparison| (of.same.cast_signed() - of.different.cast_signed(), of.common);
    let (comparison, at) =
        compared.max_by_key(|(comparison, at)| (similarity(comparison), usize::MAX - at))?;
    Some(format!("the most similar one is in line {} and differs first in {}", at + 1, comparison.first?))
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
    common: usize,
    first: Option<String>,
}

impl RequestComparison {
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
        let excerpt = |value: Option<&Value>| {
            value.map_or("nothing".into(), |value| excerpt_around(&value.to_string(), 0))
        };
        match (recorded, requested) {
            (Some(a), Some(b)) => self.compare_values(path, a, b),
            (a, b) => self.record_difference(path, &excerpt(a), &excerpt(b)),
        }
    }

    fn record_value_difference(&mut self, path: &str, recorded: &Value, requested: &Value) {
        let (Some(a), Some(b)) = (recorded.as_str(), requested.as_str()) else {
            let [a, b] = [recorded, requested].map(|value| excerpt_around(&value.to_string(), 0));
            return self.record_difference(path, &a, &b);
        };
        let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        self.common += common;
        let path = format!("{path} from character {}", common + 1);
        self.record_difference(&path, &excerpt_around(a, common), &excerpt_around(b, common));
    }

    fn record_difference(&mut self, path: &str, recorded: &str, requested: &str) {
        self.different += 1;
        self.first.get_or_insert_with(|| format!("{path}: recorded {recorded}, requested {requested}"));
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
        let expected = "the most similar one is in line 2 and differs first in messages[0].text from character 19: recorded \
                        \"the patents of 2024\", requested \"the patents of 2025\"";
        assert_eq!(near, expected);
    }
}
