//! What the messages of several APIs have in common: merged turns, images after tool results, and lists of tools.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::model::{Image, Message, Request, ToolResult, ToolSpec};

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
