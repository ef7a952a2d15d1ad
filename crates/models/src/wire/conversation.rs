//! The normal form of a conversation, from which each wire makes the messages of its API. A conversation has replies of several
//! models, and agents repair, shorten and fork it. Providers refuse some of the messages that others send: `docs/models.md` has the table of
//! their demands.
//!
//! In the normal form:
//! - It begins and ends with a message of the user or a result, and no reply follows another.
//! - No message is blank.
//! - Each call has an id that no other call of the conversation has, and that the provider accepts.
//! - Exactly the calls of a reply have results, which follow it at once and in their order.
//! - The arguments of a call are a JSON object, and its name is that of a tool or could be one.
//!
//! Each message depends only on those before it, so that a longer conversation begins with the same bytes and providers cache
//! them.
//!
//! Also has the conversions that several APIs share: merged turns, images after tool results, lists of tools, and the text that
//! takes the place of images and PDF files that a request can't have.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::reply::{GENERATED_ID_PREFIX, parse_arguments_object};

use crate::image::ImageRoom;
use crate::model::{Image, Message, ProviderState, Request, ToolCall, ToolResult, ToolSpec};
use crate::tool_names::accepted_tool_name;

/// The message of the user where a provider demands one and the conversation has none.
const CONTINUE: &str = "Continue.";
const NO_OUTPUT: &str = "(no output)";
const NO_RESULT: &str = "The result of this call is not known.";
/// The introduction of a result whose call the conversation lacks.
const NO_CALL: &str = "The result of an earlier call:";
/// Parts of the full names of models that accept only ids in the form that Mistral generates.
const MISTRAL_NAMES: [&str; 7] =
    ["mistral", "mixtral", "ministral", "magistral", "codestral", "devstral", "pixtral"];

/// Returns `true` if a model, by its full name, is one of Mistral's, whichever server runs it.
pub(super) fn is_mistral(full_name: &str) -> bool {
    let name = full_name.to_ascii_lowercase();
    MISTRAL_NAMES.iter().any(|some| name.contains(some))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallIdForm {
    Text(usize),
    /// At most this many letters, digits, `_` and `-`.
    Word(usize),
    NineAlphanumeric,
}

impl CallIdForm {
    /// Returns the id itself if the provider accepts it, or one made from it.
    fn convert(self, id: &str) -> String {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match self {
            Self::Text(max) => shorten_id(id.to_owned(), max),
            Self::Word(max) => {
                shorten_id(id.chars().map(|c| if is_word(c) { c } else { '_' }).collect(), max)
            }
            Self::NineAlphanumeric if id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()) => {
                id.to_owned()
            }
            Self::NineAlphanumeric => digest_id(id, 9),
        }
    }
}

/// Replaces the end of an id that is too long by a digest of all of it.
fn shorten_id(id: String, max: usize) -> String {
    const DIGEST: usize = 12;
    if id.chars().count() <= max {
        return id;
    }
    let head: String = id.chars().take(max.saturating_sub(DIGEST + 1)).collect();
    format!("{head}_{}", digest_id(&id, DIGEST))
}

/// Returns letters and digits that are the same for the same id.
fn digest_id(id: &str, length: usize) -> String {
    const CHARACTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let character = |byte: &u8| char::from(CHARACTERS[usize::from(*byte) % CHARACTERS.len()]);
    Sha256::digest(id).iter().take(length).map(character).collect()
}

pub(crate) fn normalize_conversation(request: &Request, ids: CallIdForm) -> Request {
    let mut builder = ConversationBuilder {
        messages: Vec::with_capacity(request.messages.len()),
        ids,
        taken_ids: BTreeSet::new(),
    };
    let mut messages = request.messages.iter().peekable();
    while let Some(message) = messages.next() {
        match message {
            Message::User { .. } | Message::Tool(_) => builder.push_input(message),
            Message::Assistant { text, calls, provider_state } => {
                let mut inputs = Vec::new();
                while let Some(input) = messages.next_if(|next| !matches!(next, Message::Assistant { .. })) {
                    inputs.push(input);
                }
                builder.push_reply(text, calls, provider_state.as_ref(), inputs);
            }
        }
    }
    builder.begin_input();
    let Request { system, answer, max_output_tokens, first_token_probabilities, is_least, .. } = request;
    let system = if system.trim().is_empty() { String::new() } else { system.clone() };
    let tools = request.tools.iter().map(accepted_tool).collect();
    let (answer, is_least) = (answer.clone(), *is_least);
    let (max_output_tokens, first_token_probabilities) = (*max_output_tokens, *first_token_probabilities);
    let (messages, embeddings) = (builder.messages, request.embeddings);
    Request {
        system,
        messages,
        tools,
        answer,
        max_output_tokens,
        first_token_probabilities,
        is_least,
        embeddings,
    }
}

/// Returns a tool under a name that the provider accepts. Replies name it by its own again.
fn accepted_tool(tool: &ToolSpec) -> ToolSpec {
    ToolSpec { name: accepted_tool_name(&tool.name).into_owned(), ..tool.clone() }
}

struct ConversationBuilder {
    messages: Vec<Message>,
    ids: CallIdForm,
    taken_ids: BTreeSet<String>,
}

impl ConversationBuilder {
    fn push_user(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.messages.push(Message::User { text: text.to_owned() });
        }
    }

    /// Appends a message of the user, or a result that belongs to no call of the last reply.
    fn push_input(&mut self, message: &Message) {
        match message {
            Message::User { text } => self.push_user(text),
            Message::Tool(result) => {
                let images = result.images.iter().map(|image| format!("\n[{}]", image.describe()));
                self.push_user(&format!("{NO_CALL}\n{}{}", result.text, images.collect::<String>()));
            }
            Message::Assistant { .. } => {}
        }
    }

    /// Appends a reply, the results of its calls, and the other messages that follow it.
    fn push_reply(
        &mut self,
        text: &str,
        calls: &[ToolCall],
        provider_state: Option<&ProviderState>,
        mut inputs: Vec<&Message>,
    ) {
        if !calls.is_empty() || !text.trim().is_empty() {
            self.begin_input();
            let renamed: Vec<ToolCall> =
                calls.iter().enumerate().map(|(index, call)| self.normalize_call(call, index)).collect();
            let result = |(call, renamed): (&ToolCall, &ToolCall)| {
                Message::Tool(take_result(&mut inputs, &call.id, &renamed.id))
            };
            let results: Vec<Message> = calls.iter().zip(&renamed).map(result).collect();
            let provider_state = provider_state.cloned();
            self.messages.push(Message::Assistant { text: text.to_owned(), calls: renamed, provider_state });
            self.messages.extend(results);
        }
        inputs.into_iter().for_each(|input| self.push_input(input));
    }

    fn normalize_call(&mut self, call: &ToolCall, index: usize) -> ToolCall {
        let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&call.arguments);
        let arguments = match is_object {
            Ok(_) => call.arguments.clone(),
            Err(_) if call.arguments.trim().is_empty() => "{}".to_owned(),
            Err(_) => parse_arguments_object(call).to_string(),
        };
        ToolCall {
            id: self.unique_id(&call.id, index),
            name: accepted_tool_name(&call.name).into_owned(),
            arguments,
        }
    }

    /// Returns an id for a call. The ids of one provider may repeat in another one's part of the conversation, or from turn to
    /// turn.
    fn unique_id(&mut self, id: &str, index: usize) -> String {
        let generated = || format!("{GENERATED_ID_PREFIX}{}_{index}", self.messages.len());
        let wanted = if id.trim().is_empty() { generated() } else { id.to_owned() };
        let mut unique = self.ids.convert(&wanted);
        let mut copies = 1_u32;
        while !self.taken_ids.insert(unique.clone()) {
            copies += 1;
            unique = self.ids.convert(&format!("{wanted}_{copies}"));
        }
        unique
    }

    /// Appends a message of the user where a provider demands one.
    fn begin_input(&mut self) {
        if matches!(self.messages.last(), None | Some(Message::Assistant { .. })) {
            self.push_user(CONTINUE);
        }
    }
}

/// Takes the result of a call out of the messages that follow its reply.
fn take_result(inputs: &mut Vec<&Message>, call_id: &str, new_id: &str) -> ToolResult {
    let of_call = |input: &&Message| matches!(input, Message::Tool(result) if result.call_id == call_id);
    let found = inputs.iter().position(of_call).map(|at| inputs.remove(at));
    let call_id = new_id.to_owned();
    match found {
        Some(Message::Tool(result)) => {
            let is_blank = result.text.trim().is_empty() && result.images.is_empty();
            let text = if is_blank { NO_OUTPUT.to_owned() } else { result.text.clone() };
            ToolResult { call_id, text, ..result.clone() }
        }
        Some(Message::User { .. } | Message::Assistant { .. }) | None => {
            ToolResult { call_id, text: NO_RESULT.to_owned(), is_error: true, images: Vec::new() }
        }
    }
}

/// Returns the tools, if there are any, sorted by name, so that the providers' prompt caches work independently of the original order.
pub(super) fn tools_to_json(request: &Request, tool: impl Fn(&ToolSpec) -> Value) -> Option<Value> {
    let mut tools: Vec<_> = request.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    (!tools.is_empty()).then(|| tools.into_iter().map(tool).collect())
}

/// Returns a tool as OpenAI's Chat Completions and Ollama take it.
pub(super) fn function_tool(tool: &ToolSpec) -> Value {
    let ToolSpec { name, description, schema } = tool;
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})
}

/// Returns the tools called earlier in a conversation. Anthropic's models reject calls to tools that are not declared, also when a
/// request offers no tools any more.
pub(super) fn previously_called_tools(request: &Request) -> BTreeSet<&str> {
    request.messages.iter().flat_map(Message::calls).map(|call| call.name.as_str()).collect()
}

/// Merges consecutive messages of the same role into turns, because roles must alternate. Messages without blocks are left out.
pub(super) fn merge_turns(
    messages: impl Iterator<Item = (&'static str, Vec<Value>)>,
) -> Vec<(&'static str, Vec<Value>)> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for (role, blocks) in messages.filter(|(_, blocks)| !blocks.is_empty()) {
        match turns.last_mut() {
            Some((last, existing)) if *last == role => existing.extend(blocks),
            Some(_) | None => turns.push((role, blocks)),
        }
    }
    turns
}

pub(super) fn turns_to_json(turns: Vec<(&str, Vec<Value>)>) -> Value {
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// Returns the system prompt and the messages of an API whose tool results are text. The images of results follow the last of them in
/// a message of the user, of which the second function makes the content.
pub(super) fn flat_messages(
    request: &Request,
    message: impl Fn(&Message) -> Value,
    with_images: impl Fn(String, &[&Image]) -> Value,
) -> Vec<Value> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    for (at, next) in request.messages.iter().enumerate() {
        messages.push(message(next));
        messages.extend(
            images_after_results(&request.messages, at).map(|(text, images)| with_images(text, &images)),
        );
    }
    messages
}

/// The images of consecutive tool results, oldest first, from the message at `at` back, with a text that introduces them: for APIs that
/// get them after the last of these results. `None` if there are none, or another result follows.
pub(super) fn images_after_results(messages: &[Message], at: usize) -> Option<(String, Vec<&Image>)> {
    if matches!(messages.get(at + 1), Some(Message::Tool(_))) {
        return None;
    }
    let results: Vec<&ToolResult> = messages[..=at].iter().rev().map_while(Message::result).collect();
    let images: Vec<&Image> = results.into_iter().rev().flat_map(|result| &result.images).collect();
    let names: Vec<String> = images.iter().map(|image| image.describe()).collect();
    let kind = if images.iter().any(|image| image.is_pdf()) { "images and files" } else { "images" };
    let text = format!("The {kind} of the tool results above, in this order: {}", names.join("; "));
    (!images.is_empty()).then_some((text, images))
}

/// Returns the request with a text in place of each image that can't be sent: for the reason that `refusal` returns, because it has no
/// bytes, or because there are too many newer ones.
pub(crate) fn replace_unsent_images<'a>(
    request: &'a Request,
    refusal: impl Fn(&Image) -> Option<&'static str>,
) -> Cow<'a, Request> {
    let has_images =
        |message: &Message| matches!(message, Message::Tool(result) if !result.images.is_empty());
    if !request.messages.iter().any(has_images) {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    let mut room = ImageRoom::default();
    for message in request.messages.iter_mut().rev() {
        let Message::Tool(ToolResult { text, images, .. }) = message else { continue };
        let mut stand_ins = Vec::new();
        images.retain(|image| {
            let reason = match refusal(image) {
                Some(reason) => reason,
                None if !room.take(image) => "it is not shown any more, since there are newer ones",
                None if image.bytes().is_none() => "it can't be shown",
                None => return true,
            };
            stand_ins.push(format!("[{}: {reason}]", image.describe()));
            false
        });
        for stand_in in stand_ins {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&stand_in);
        }
    }
    Cow::Owned(request)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::image::{MAX_IMAGES, MAX_REQUEST_BYTES};

    const WORD: CallIdForm = CallIdForm::Word(64);

    fn user(text: &str) -> Message {
        Message::User { text: text.into() }
    }

    fn reply(text: &str, calls: &[(&str, &str, &str)]) -> Message {
        let call = |(id, name, arguments): &(&str, &str, &str)| ToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        };
        Message::Assistant {
            text: text.into(),
            calls: calls.iter().map(call).collect(),
            provider_state: None,
        }
    }

    fn result(id: &str, text: &str) -> Message {
        Message::Tool(ToolResult { call_id: id.into(), text: text.into(), ..ToolResult::default() })
    }

    fn request(messages: Vec<Message>) -> Request {
        Request { system: " ".into(), messages, max_output_tokens: 1, ..Request::default() }
    }

    fn normalize(messages: Vec<Message>, ids: CallIdForm) -> Vec<Message> {
        normalize_conversation(&request(messages), ids).messages
    }

    #[test]
    fn a_conversation_in_the_normal_form_stays_as_it_is() {
        let messages = vec![
            user("Look."),
            reply(" ", &[("a", "look", "{\"at\": \"sky\"}"), ("b", "look", "{}")]),
            result("a", "blue"),
            result("b", "grey"),
            user("Go on."),
        ];
        assert_eq!(normalize(messages.clone(), CallIdForm::Text(40)), messages);
        assert_eq!(normalize_conversation(&request(messages), WORD).system, "");
    }

    #[test]
    fn ids_are_unique_in_the_whole_conversation() {
        let turn = |id: &str, text: &str| [reply("", &[(id, "look", "{}")]), result(id, text)];
        let messages: Vec<Message> = [user("Look.")]
            .into_iter()
            .chain(turn("c", "1"))
            .chain(turn("c", "2"))
            .chain(turn("c_2", "3"))
            .collect();
        let expected: Vec<Message> = [user("Look.")]
            .into_iter()
            .chain(turn("c", "1"))
            .chain(turn("c_2", "2"))
            .chain(turn("c_2_2", "3"))
            .collect();
        assert_eq!(normalize(messages, CallIdForm::Text(40)), expected);
        let both = vec![
            user("Look."),
            reply("", &[("c", "look", "{}"), ("c", "look", "{}"), ("", "look", "{}")]),
            result("c", "first"),
            result("c", "second"),
            result("", "third"),
        ];
        let expected = [
            user("Look."),
            reply("", &[("c", "look", "{}"), ("c_2", "look", "{}"), ("call_1_2", "look", "{}")]),
            result("c", "first"),
            result("c_2", "second"),
            result("call_1_2", "third"),
        ];
        assert_eq!(normalize(both, CallIdForm::Text(40)), expected);
    }

    #[test]
    fn ids_have_the_form_that_the_provider_accepts() {
        let long = "toolu_".to_owned() + &"x".repeat(60);
        let id = |form: CallIdForm, id: &str| {
            let converted = form.convert(id);
            assert_eq!(converted, form.convert(id), "the same id each time");
            converted
        };
        assert_eq!(id(CallIdForm::Text(40), "functions.ls:0"), "functions.ls:0");
        assert_eq!(id(WORD, "functions.ls:0"), "functions_ls_0");
        assert_eq!(id(CallIdForm::Text(40), &long).len(), 40);
        assert_ne!(id(CallIdForm::Text(40), &long), id(CallIdForm::Text(40), &(long.clone() + "y")));
        assert_eq!(id(CallIdForm::NineAlphanumeric, "D681PevKs"), "D681PevKs");
        for foreign in ["call_1", &long, "call_ä_1", "123456789_"] {
            let id = id(CallIdForm::NineAlphanumeric, foreign);
            assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
        }
    }

    #[test]
    fn results_follow_their_calls_in_order_and_all_have_one() {
        let messages = vec![
            result("x", "of a call that is gone"),
            reply("", &[("a", "look", ""), ("b", "no such tool!", "[1]"), ("c", "look", "{}")]),
            user("Hurry up."),
            result("c", " "),
            result("a", "blue"),
            result("a", "blue again"),
        ];
        let missing = Message::Tool(ToolResult {
            call_id: "b".into(),
            text: NO_RESULT.into(),
            is_error: true,
            images: Vec::new(),
        });
        let wrapped = json!({"not_an_object": "[1]"}).to_string();
        let expected = [
            user("The result of an earlier call:\nof a call that is gone"),
            reply("", &[("a", "look", "{}"), ("b", "no_such_tool__957a42d4", &wrapped), ("c", "look", "{}")]),
            result("a", "blue"),
            missing,
            result("c", "(no output)"),
            user("Hurry up."),
            user("The result of an earlier call:\nblue again"),
        ];
        assert_eq!(normalize(messages, WORD), expected);
    }

    #[test]
    fn no_message_is_blank_and_no_reply_follows_another() {
        let messages = vec![user(" "), reply("one", &[]), user("\n"), reply("two", &[]), reply("", &[])];
        let expected = [user(CONTINUE), reply("one", &[]), user(CONTINUE), reply("two", &[]), user(CONTINUE)];
        assert_eq!(normalize(messages, WORD), expected);
        assert_eq!(normalize(vec![], WORD), [user(CONTINUE)]);
    }

    fn message() -> impl Strategy<Value = Message> {
        let text = || prop_oneof![Just(String::new()), Just(" ".to_owned()), "[a-c]{1,3}"];
        let id = || prop_oneof![Just(String::new()), "[ab.]{1,2}", "[a-z]{70}"];
        let call = (id(), "[a-z ]{0,3}", prop_oneof![Just("{}".to_owned()), "[{}\"a]{0,3}"])
            .prop_map(|(id, name, arguments)| ToolCall { id, name, arguments });
        prop_oneof![
            text().prop_map(|text| Message::User { text }),
            (text(), prop::collection::vec(call, 0..3)).prop_map(|(text, calls)| Message::Assistant {
                text,
                calls,
                provider_state: None
            }),
            (id(), text()).prop_map(|(call_id, text)| Message::Tool(ToolResult {
                call_id,
                text,
                ..ToolResult::default()
            })),
        ]
    }

    /// Asserts what the module says of the normal form.
    fn assert_normal(messages: &[Message]) {
        assert!(!matches!(messages.first(), None | Some(Message::Assistant { .. } | Message::Tool(_))));
        assert!(!matches!(messages.last(), Some(Message::Assistant { .. })));
        let (mut ids, mut open) = (BTreeSet::new(), Vec::new());
        let mut is_after_reply = false;
        for message in messages {
            match message {
                Message::Tool(result) => {
                    assert!(!result.text.trim().is_empty());
                    assert_eq!(open.first(), Some(&result.call_id));
                    open.remove(0);
                }
                Message::User { text } => assert!(open.is_empty() && !text.trim().is_empty()),
                Message::Assistant { text, calls, .. } => {
                    assert!(open.is_empty() && !is_after_reply);
                    assert!(!calls.is_empty() || !text.trim().is_empty());
                    for call in calls {
                        assert!((1..=64).contains(&call.id.len()) && ids.insert(call.id.clone()));
                        assert!(
                            serde_json::from_str::<serde_json::Value>(&call.arguments).unwrap().is_object()
                        );
                        open.push(call.id.clone());
                    }
                }
            }
            is_after_reply = matches!(message, Message::Assistant { .. });
        }
        assert!(open.is_empty());
    }

    proptest! {
        #[test]
        fn any_conversation_gets_the_normal_form_once(messages in prop::collection::vec(message(), 0..12)) {
            let normal = normalize(messages.clone(), WORD);
            assert_normal(&normal);
            prop_assert_eq!(normalize(normal.clone(), WORD), normal.clone(), "it is normal already");
            let longer = messages.into_iter().chain([reply("done", &[]), user("next")]).collect();
            let longer = normalize(longer, WORD);
            prop_assert_eq!(&longer[..normal.len().min(longer.len())], &normal[..], "a longer one begins with it");
        }
    }

    /// The header of a PNG image of this size.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0]);
        bytes
    }

    #[test]
    fn pages_of_pdf_files_are_sent_to_models_that_take_them() {
        let pdf = Image::from_pdf("/report.pdf", b"%PDF-1.7", 3).unwrap();
        let result = ToolResult { text: "text".into(), images: vec![pdf], ..ToolResult::default() };
        let request = Request {
            system: String::new(),
            messages: vec![Message::Tool(result)],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 10,
            ..Request::default()
        };
        for takes_pdf in [true, false] {
            let sent = replace_unsent_images(&request, |_| (!takes_pdf).then_some("no"));
            let Message::Tool(result) = &sent.messages[0] else { panic!() };
            assert_eq!(!result.images.is_empty(), takes_pdf);
            assert_eq!(result.text.contains("[PDF /report.pdf, 3 pages"), !takes_pdf, "{}", result.text);
        }
    }

    #[test]
    fn images_that_can_not_be_sent_have_a_text_in_their_place() {
        let image = Image::from_bytes("/plot.png", &png(640, 480)).unwrap();
        let result = |images: Vec<Image>| {
            Message::Tool(ToolResult {
                call_id: "c".into(),
                text: "read".into(),
                images,
                ..ToolResult::default()
            })
        };
        let request = |messages: Vec<Message>| Request {
            system: String::new(),
            messages,
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 10,
            ..Request::default()
        };
        let text_of = |request: &Request, at: usize| match &request.messages[at] {
            Message::Tool(result) => (result.text.clone(), result.images.len()),
            Message::User { .. } | Message::Assistant { .. } => panic!(),
        };
        let one = request(vec![result(vec![image.clone()])]);
        let blind = replace_unsent_images(&one, |_| Some("this model cannot see images"));
        let expected = "read\n[image /plot.png, PNG 640×480, 29 bytes: this model cannot see images]";
        assert_eq!(text_of(&blind, 0), (expected.into(), 0));
        assert_eq!(replace_unsent_images(&one, |_| None).as_ref(), &one);
        let missing = request(vec![result(vec![image.clone().without_content()])]);
        assert!(text_of(&replace_unsent_images(&missing, |_| None), 0).0.contains("it can't be shown"));
        let many = request((0..MAX_IMAGES + 2).map(|_| result(vec![image.clone()])).collect());
        let sent = replace_unsent_images(&many, |_| None);
        let counts: Vec<usize> = (0..many.messages.len()).map(|at| text_of(&sent, at).1).collect();
        assert_eq!((counts[..2].to_vec(), counts[2..].iter().sum()), (vec![0, 0], MAX_IMAGES));
        let large = Image { size: MAX_REQUEST_BYTES / 3, ..image };
        let four = request((0..4).map(|_| result(vec![large.clone()])).collect());
        let sent = replace_unsent_images(&four, |_| None);
        assert_eq!((0..4).map(|at| text_of(&sent, at).1).collect::<Vec<_>>(), [0, 1, 1, 1]);
        let none = request(vec![Message::User { text: "x".into() }]);
        assert!(matches!(
            replace_unsent_images(&none, |_| Some("this model cannot see images")),
            Cow::Borrowed(_)
        ));
    }
}
