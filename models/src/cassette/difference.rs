//! Where two requests differ, for whoever wonders why a recording does not fit. Pure.

use std::fmt;

use serde_json::Value;

use crate::model::Request;

/// How many characters of either side are shown.
const SHOWN: usize = 60;

/// The recorded request that is most like another.
#[derive(Debug, PartialEq, Eq)]
pub struct Near {
    /// Its line, counted from 1.
    line: usize,
    first: Difference,
}

/// A place at which two values differ.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    path: String,
    recorded: String,
    asked: String,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { path, recorded, asked } = &self.first;
        write!(
            f,
            "the nearest is in line {} and differs first in {path}: recorded {recorded}, asked {asked}",
            self.line
        )
    }
}

/// The recorded request that has most in common with `asked`; `None` if none is recorded.
pub fn nearest<'a>(recorded: impl Iterator<Item = &'a Request>, asked: &Request) -> Option<Near> {
    let asked = in_order(asked);
    let compared = recorded.enumerate().map(|(at, request)| {
        let mut comparison = Comparison::default();
        for ((path, recorded), (_, asked)) in in_order(request).iter().zip(&asked) {
            comparison.compare(path, recorded, asked);
        }
        (comparison, at)
    });
    let (comparison, at) = compared.max_by_key(|(comparison, at)| (comparison.score(), usize::MAX - at))?;
    Some(Near { line: at + 1, first: comparison.first? })
}

/// The parts of a request in the order in which people read them.
fn in_order(request: &Request) -> [(&'static str, Value); 5] {
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
struct Comparison {
    same: usize,
    different: usize,
    /// How many characters the texts that differ begin with together.
    common: usize,
    first: Option<Difference>,
}

impl Comparison {
    /// The greater, the nearer.
    fn score(&self) -> (isize, usize) {
        (self.same.cast_signed() - self.different.cast_signed(), self.common)
    }

    fn compare(&mut self, path: &str, recorded: &Value, asked: &Value) {
        match (recorded, asked) {
            (Value::Object(a), Value::Object(b)) => {
                let added = b.keys().filter(|key| !a.contains_key(*key));
                for key in a.keys().chain(added) {
                    self.compare_parts(&format!("{path}.{key}"), a.get(key), b.get(key));
                }
            }
            (Value::Array(a), Value::Array(b)) => {
                for at in 0..a.len().max(b.len()) {
                    self.compare_parts(&format!("{path}[{at}]"), a.get(at), b.get(at));
                }
            }
            (a, b) if a == b => self.same += 1,
            (a, b) => self.differ(path, a, b),
        }
    }

    fn compare_parts(&mut self, path: &str, recorded: Option<&Value>, asked: Option<&Value>) {
        match (recorded, asked) {
            (Some(a), Some(b)) => self.compare(path, a, b),
            (Some(a), None) => self.note(path, shown(&a.to_string(), 0), "nothing".to_owned()),
            (None, Some(b)) => self.note(path, "nothing".to_owned(), shown(&b.to_string(), 0)),
            (None, None) => {}
        }
    }

    fn differ(&mut self, path: &str, recorded: &Value, asked: &Value) {
        let (Some(a), Some(b)) = (recorded.as_str(), asked.as_str()) else {
            return self.note(path, shown(&recorded.to_string(), 0), shown(&asked.to_string(), 0));
        };
        let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        self.common += common;
        self.note(&format!("{path} from character {}", common + 1), shown(a, common), shown(b, common));
    }

    fn note(&mut self, path: &str, recorded: String, asked: String) {
        self.different += 1;
        if self.first.is_none() {
            self.first = Some(Difference { path: path.to_owned(), recorded, asked });
        }
    }
}

/// A text from shortly before a character on.
fn shown(text: &str, from: usize) -> String {
    let start = from.saturating_sub(SHOWN / 3);
    let cut: String = text.chars().skip(start).take(SHOWN).collect();
    format!("{}{cut:?}", if start > 0 { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;

    fn request(text: &str) -> Request {
        Request {
            system: String::new(),
            messages: vec![Message::User { text: text.into() }],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 1,
        }
    }

    #[test]
    fn of_requests_that_differ_in_one_place_the_one_that_differs_later_is_nearer() {
        let recorded = [request("far away"), request("the patents of 2024"), request("the others")];
        let near = nearest(recorded.iter(), &request("the patents of 2025")).unwrap();
        assert_eq!((near.line, near.first.path.as_str()), (2, "messages[0].text from character 19"));
        assert_eq!(near.first.recorded, "\"the patents of 2024\"");
        assert_eq!(near.first.asked, "\"the patents of 2025\"");
    }
}
