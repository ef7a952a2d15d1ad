//! Images of tool results: each API gets them in its own form, and a model that sees none gets a text. The expected parts of the bodies
//! are written as the providers' documents show them.

use std::sync::Arc;

use millrace_models::ModelSettings;
use millrace_models::image::Image;
use millrace_models::model::{Message, Request, ToolCall, ToolResult};
use millrace_models::wire::{ModelEndpoint, WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, chunked};
use super::wires::{ALL, content_type, endpoint, events, question, stream_bytes};

/// The smallest valid PNG header of 2 by 3 pixels.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0";
const BASE64: &str = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA=";

fn image(name: &str) -> Image {
    Image::from_bytes(name, PNG).unwrap()
}

/// Two parallel calls, each with an image in its result, and a message after them.
fn request() -> Request {
    let call =
        |id: &str| ToolCall { id: id.into(), name: "read".into(), arguments: "{\"path\":\"a\"}".into() };
    let result = |id: &str, name: &str| {
        Message::Tool(ToolResult {
            call_id: id.into(),
            text: format!("{name} was read"),
            images: vec![image(name)],
            ..ToolResult::default()
        })
    };
    let mut request = question();
    request.messages.extend([
        Message::Assistant { text: String::new(), calls: vec![call("c1"), call("c2")], provider_state: None },
        result("c1", "/a.png"),
        result("c2", "/b.png"),
        Message::User { text: "Compare them.".into() },
    ]);
    request
}

async fn sent(wire: WireProtocol, request: &Request, change: impl Fn(&mut ModelEndpoint)) -> Value {
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await;
    let mut endpoint = endpoint(wire, &stub.url());
    endpoint.settings.images = Some(true);
    change(&mut endpoint);
    create_http_model(endpoint, Arc::default()).reply(request, &()).await.unwrap();
    stub.only_request().json()
}

const INTRODUCTION: &str = "The images of the tool results above, in this order: image /a.png, PNG 2×3, 29 bytes; image /b.png, \
                            PNG 2×3, 29 bytes";

#[tokio::test]
async fn each_api_gets_images_in_its_own_form() {
    let url = format!("data:image/png;base64,{BASE64}");
    let chat = sent(WireProtocol::OpenAiChat, &request(), |_| ()).await;
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        chat["messages"].as_array().unwrap()[3..],
        [
            json!({"role": "tool", "tool_call_id": "c1", "content": "/a.png was read"}),
            json!({"role": "tool", "tool_call_id": "c2", "content": "/b.png was read"}),
            json!({"role": "user", "content": [{"type": "text", "text": INTRODUCTION}, part, part]}),
            json!({"role": "user", "content": "Compare them."}),
        ],
        "{chat:#}"
    );

    let responses = sent(WireProtocol::OpenAiResponses, &request(), |_| ()).await;
    let output = |id: &str, name: &str| {
        let text = json!({"type": "input_text", "text": format!("{name} was read")});
        json!({"type": "function_call_output", "call_id": id,
            "output": [text, {"type": "input_image", "image_url": url}]})
    };
    let input = responses["input"].as_array().unwrap();
    assert_eq!(input[3..5], [output("c1", "/a.png"), output("c2", "/b.png")], "{responses:#}");

    let anthropic = sent(WireProtocol::Anthropic, &request(), |_| ()).await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": BASE64});
    let blocks = anthropic["messages"][2]["content"].as_array().unwrap();
    assert_eq!(
        blocks[1],
        json!({"type": "tool_result", "tool_use_id": "c2",
            "content": [{"type": "text", "text": "/b.png was read"}, {"type": "image", "source": source}]}),
        "{anthropic:#}"
    );

    let ollama = sent(WireProtocol::Ollama, &request(), |_| ()).await;
    let messages = ollama["messages"].as_array().unwrap();
    assert_eq!(
        messages[4..],
        [
            json!({"role": "tool", "tool_name": "read", "content": "/b.png was read"}),
            json!({"role": "user", "content": INTRODUCTION, "images": [BASE64, BASE64]}),
            json!({"role": "user", "content": "Compare them."}),
        ],
        "{ollama:#}"
    );
}

#[tokio::test]
async fn gemini_and_bedrock_get_images_after_the_results() {
    let gemini = sent(WireProtocol::Gemini, &request(), |_| ()).await;
    let contents = gemini["contents"].as_array().unwrap();
    let image = json!({"inlineData": {"mimeType": "image/png", "data": BASE64}});
    let response = |id: &str, name: &str| {
        let output = json!({"output": format!("{name} was read")});
        json!({"functionResponse": {"name": "read", "response": output, "id": id}})
    };
    assert_eq!(
        contents[2..],
        [
            json!({"role": "user", "parts": [response("c1", "/a.png"), response("c2", "/b.png")]}),
            json!({"role": "user", "parts": [{"text": INTRODUCTION}, image, image]}),
            json!({"role": "user", "parts": [{"text": "Compare them."}]}),
        ],
        "{gemini:#}"
    );

    let bedrock = sent(WireProtocol::Bedrock, &request(), |_| ()).await;
    let image = json!({"image": {"format": "png", "source": {"bytes": BASE64}}});
    let result = |id: &str, name: &str| {
        let content = json!([{"text": format!("{name} was read")}]);
        json!({"toolResult": {"toolUseId": id, "content": content}})
    };
    let blocks = json!([
        result("c1", "/a.png"), result("c2", "/b.png"), {"text": INTRODUCTION}, image, image,
        {"text": "Compare them."},
    ]);
    assert_eq!(bedrock["messages"][2], json!({"role": "user", "content": blocks}), "{bedrock:#}");
}

#[tokio::test]
async fn models_that_see_no_images_get_a_text() {
    let stand_in = "/a.png was read\\n[image /a.png, PNG 2×3, 29 bytes: this model cannot see images]";
    let request = request();
    for wire in ALL {
        let body = sent(wire, &request, |endpoint| {
            endpoint.settings.images = None;
            endpoint.model = "qwen3:4b".into();
        })
        .await;
        let text = body.to_string();
        assert!(text.contains(stand_in) && !text.contains(BASE64), "{wire:?}: {body:#}");
        let known = sent(wire, &request, |endpoint| {
            endpoint.settings.images = None;
            endpoint.model = "claude-sonnet-4-6".into();
        });
        assert!(known.await.to_string().contains(BASE64), "{wire:?}: the table knows the model");
        let blinded = sent(wire, &request, |endpoint| {
            endpoint.settings = ModelSettings { images: Some(false), ..ModelSettings::default() };
            endpoint.model = "claude-sonnet-4-6".into();
        });
        assert!(!blinded.await.to_string().contains(BASE64), "{wire:?}: the setting takes precedence");
    }
}

/// A call whose result has a PDF file of three pages.
fn pdf_request() -> Request {
    let mut request = request();
    let pdf = Image::from_pdf("/reports/mill.pdf", b"%PDF-1.7", 3).unwrap();
    request.messages.truncate(1);
    let call = ToolCall { id: "c1".into(), name: "read".into(), arguments: "{\"path\":\"a\"}".into() };
    let result = ToolResult {
        call_id: "c1".into(),
        text: "[page 1]".into(),
        images: vec![pdf],
        ..ToolResult::default()
    };
    request.messages.extend([
        Message::Assistant { text: String::new(), calls: vec![call], provider_state: None },
        Message::Tool(result),
    ]);
    request
}

#[tokio::test]
async fn each_api_that_takes_pdf_files_gets_them_in_its_own_form() {
    let data = "JVBERi0xLjc=";
    let url = format!("data:application/pdf;base64,{data}");
    let takes = |endpoint: &mut ModelEndpoint| endpoint.settings.pdf = Some(true);
    let anthropic = sent(WireProtocol::Anthropic, &pdf_request(), takes).await;
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": data});
    let mut document = anthropic["messages"][2]["content"][0]["content"][1].clone();
    document.as_object_mut().unwrap().remove("cache_control");
    assert_eq!(document, json!({"type": "document", "source": source, "title": "/reports/mill.pdf"}));

    let responses = sent(WireProtocol::OpenAiResponses, &pdf_request(), takes).await;
    let file = json!({"type": "input_file", "filename": "mill.pdf", "file_data": url});
    assert_eq!(responses["input"][2]["output"][1], file, "{responses:#}");

    let chat = sent(WireProtocol::OpenAiChat, &pdf_request(), takes).await;
    let file = json!({"type": "file", "file": {"filename": "mill.pdf", "file_data": url}});
    assert_eq!(chat["messages"][4]["content"][1], file, "{chat:#}");

    let gemini = sent(WireProtocol::Gemini, &pdf_request(), |_| ()).await;
    let file = json!({"inlineData": {"mimeType": "application/pdf", "data": data}});
    assert_eq!(gemini["contents"][3]["parts"][1], file, "{gemini:#}");

    let bedrock = sent(WireProtocol::Bedrock, &pdf_request(), takes).await;
    let file = json!({"document": {"format": "pdf", "name": "mill-1", "source": {"bytes": data}}});
    assert_eq!(bedrock["messages"][2]["content"][2], file, "{bedrock:#}");
}

#[tokio::test]
async fn models_that_take_no_pdf_files_get_a_text() {
    let stand_in = "[page 1]\\n[PDF /reports/mill.pdf, 3 pages, 8 bytes: this model cannot see its pages]";
    let request = pdf_request();
    for wire in ALL {
        let body = sent(wire, &request, |endpoint| {
            endpoint.settings.pdf =
                matches!(wire, WireProtocol::Anthropic | WireProtocol::Gemini).then_some(false);
            endpoint.model = "claude-sonnet-4-6".into();
        });
        let text = body.await.to_string();
        assert!(text.contains(stand_in) && !text.contains("JVBERi0xLjc="), "{wire:?}: {text}");
    }
    let known = sent(WireProtocol::Anthropic, &request, |endpoint| {
        endpoint.model = "claude-sonnet-4-6".into();
    });
    assert!(known.await.to_string().contains("JVBERi0xLjc="), "the table knows the model");
}
